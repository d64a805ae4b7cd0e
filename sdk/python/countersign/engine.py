"""What one commit works with: the parts of the runtime, the way of waiting of its caller, and whether it is to
end. Nothing decides here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from countersign.clock import Clock
from countersign.errors import WorkerStopping
from countersign.journal import Journal
from countersign.llm.ledger import Ledger
from countersign.manifests.reviewed import Manifests
from countersign.service.client import Service
from countersign.service.enforcement import Enforcer
from countersign.settings import Settings
from countersign.tools.registry import ToolRegistry
from countersign.waiting import AsyncWaits, SyncWaits, Waits


@dataclass(frozen=True, slots=True)
class Engine:
    """The parts, joined for one transaction or one recovery."""

    settings: Settings
    registry: ToolRegistry
    journal: Journal
    manifests: Manifests
    enforcer: Enforcer
    service: Service
    waits: Waits
    clock: Clock
    ledger: Ledger
    stopping: Callable[[], bool] = lambda: False

    def require_going_on(self) -> None:
        """Asked before a redemption and before every effect: a worker that is to end begins nothing more.

        Raises:
            WorkerStopping: somebody asked this process to stop; what is not begun is left to the next.
        """
        if self.stopping():
            raise WorkerStopping


class Host(Protocol):
    """What a transaction needs of the runtime it runs in."""

    @property
    def settings(self) -> Settings:
        """Whose transaction it is, and how long anything may take."""
        ...

    @property
    def registry(self) -> ToolRegistry:
        """The tools."""
        ...

    @property
    def ledger(self) -> Ledger:
        """What counts its calls to models."""
        ...

    def engine(self, waits: Waits) -> Engine:
        """The parts of one commit."""
        ...

    def sync_waits(self) -> SyncWaits:
        """Waiting on the calling thread."""
        ...

    def async_waits(self) -> AsyncWaits:
        """Waiting on the running event loop."""
        ...
