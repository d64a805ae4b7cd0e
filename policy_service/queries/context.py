"""The dependencies of every query and verb: database, active bundle, signer, settings, feed and epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from policy_service.audit.feed import Feed
from policy_service.pap.active_bundle import ActiveBundle, Candidate
from policy_service.settings import Settings
from policy_service.storage.database import Database
from policy_service.storage.unit_of_work import Clock, utc_now
from policy_service.tokens.signer import Signer


class RefreshSignal:
    """Requests the bundle refresher to run. Requests never block; several requests cause one refresh."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Request a refresh."""
        self._asked.set()

    @property
    def asked(self) -> bool:
        """Whether a requested refresh has not started yet."""
        return self._asked.is_set()

    async def wait(self) -> None:
        """Wait for a request and clear it."""
        await self._asked.wait()
        self._asked.clear()


@dataclass(frozen=True)
class Context:
    """Dependencies of one running service."""

    db: Database
    active: ActiveBundle
    signer: Signer
    settings: Settings
    feed: Feed
    epoch: Callable[[], int]
    candidate: Candidate | None = None  # a bundle in shadow; it takes part in no decision
    clock: Clock = utc_now  # outside database transactions; inside one use `tx.now`
    looks: RefreshSignal = field(default_factory=RefreshSignal)
