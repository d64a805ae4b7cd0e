"""The context of every query and verb: database, active bundle, signer, settings, feed and epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from policy_service.audit.feed import Feed
from policy_service.pap.active_bundle import ActiveBundle
from policy_service.pap.candidate import Candidate
from policy_service.settings import Settings
from policy_service.storage.database import Database
from policy_service.storage.unit_of_work import Clock, utc_now
from policy_service.tokens.keys import Signer


class RefreshSignal:
    """Who asks never waits; who looks waits here until somebody has asked."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """There may be something new."""
        self._asked.set()

    @property
    def asked(self) -> bool:
        """Whether a look is still to come."""
        return self._asked.is_set()

    async def wait(self) -> None:
        """Until somebody has asked; what is asked from now on is another look."""
        await self._asked.wait()
        self._asked.clear()


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
    looks: RefreshSignal = field(default_factory=RefreshSignal)
