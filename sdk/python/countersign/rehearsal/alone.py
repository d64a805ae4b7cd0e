"""A place to run a step where nobody can be reached: no service, no key that anybody knows, no journal that lasts.

A replay runs here, so that nothing is asked and nothing fires, because there is no way to, not because nobody tries.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from countersign.clock import SystemClock
from countersign.contract.keys import PrivateKey
from countersign.engine import Engine
from countersign.errors import MisuseError, SettingsError
from countersign.journal import Journal
from countersign.llm.ledger import Ledger
from countersign.rehearsal.stage import UnkeptManifests
from countersign.runtime import Runtime, default_runtime
from countersign.service.client import Service
from countersign.service.enforcement import Enforcer, KeyCache
from countersign.service.transport import Nonces, Transport
from countersign.settings import AGENT_VARIABLE, Settings
from countersign.tools.registry import ToolRegistry
from countersign.waiting import AsyncWaits, SyncWaits, Waits

_NOWHERE = "http://127.0.0.1:1"  # no request is ever made: `_nobody` is in its way


class Alone:
    """What a transaction needs of a runtime, for an agent of that name. `replaying`: the runtime that replays, if there
    is one. What it has looked up of live tools is secret here as well, and it counts the calls to models: those are
    made and paid for.
    """

    def __init__(
        self, agent: str, registry: ToolRegistry, journal: Journal, replaying: Runtime | None = None
    ) -> None:
        self.settings = Settings(
            url=_NOWHERE, agent=agent, key_path=Path(os.devnull), journal_path=Path(os.devnull)
        )
        self.registry = registry
        self._journal = journal
        self._replaying = replaying

    @property
    def ledger(self) -> Ledger:
        """That of the runtime that replays, or else of the process's own. Where the environment describes none nothing
        is budgeted, so nothing need be kept.
        """
        try:
            return (self._replaying or default_runtime()).ledger
        except SettingsError:
            if AGENT_VARIABLE in os.environ:
                raise
            return Ledger(self.settings, self._journal, SystemClock())

    def engine(self, waits: Waits) -> Engine:
        """The parts, none of which reaches anybody."""
        settings, clock, key = self.settings, SystemClock(), PrivateKey.generate()
        known = None if self._replaying is None else self._replaying.manifests
        return Engine(
            settings=settings,
            registry=self.registry,
            journal=self._journal,
            manifests=UnkeptManifests(self._journal, known),
            enforcer=Enforcer(settings, key, self._journal, clock, KeyCache(settings, clock)),
            service=Service(
                Transport(settings, waits, key, Nonces(), clock), max_jwks_bytes=settings.max_jwks_bytes
            ),
            waits=waits,
            clock=clock,
            ledger=Ledger(settings, self._journal, clock),  # nothing fires, so nothing asks it
        )

    def sync_waits(self) -> SyncWaits:
        """Waiting on the calling thread."""
        return SyncWaits(_nobody)

    def async_waits(self) -> AsyncWaits:
        """Waiting on the running event loop."""
        return AsyncWaits(_nobody)


def _nobody() -> NoReturn:
    raise MisuseError("a replay asks nobody anything")
