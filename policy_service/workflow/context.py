"""What the verbs reach: one value the composition root builds, handed to each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from policy_service.audit.feed import Feed
from policy_service.pap.active import ActiveBundle
from policy_service.pap.shadow import Candidate
from policy_service.settings import Settings
from policy_service.storage.database import Database
from policy_service.storage.unit import Clock, utc_now
from policy_service.tokens.keys import Signer
from policy_service.workflow.looks import Looks


@dataclass(frozen=True)
class Context:
    """The rooms of one running service."""

    db: Database
    active: ActiveBundle
    signer: Signer
    settings: Settings
    feed: Feed
    epoch: Callable[[], int]
    candidate: Candidate | None = None  # a bundle in shadow; nothing that decides asks it
    clock: Clock = utc_now  # between units; inside one, its own `now` counts
    looks: Looks = field(default_factory=Looks)
