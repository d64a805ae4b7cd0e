"""Run a step of which nothing is kept: in a dry run, and in a replay, where no service can be reached.

The body meets the same `Transaction` and the same `Step` as in a real run, on a journal in memory that ends with the
rehearsal, so it has the same call keys and the same refusals. Only leaving the block differs: a rehearsed step undoes
its live work and never commits. A replay has no service and no key, so that nothing can be asked or fired.
"""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NoReturn, TypeVar, cast

from countersign.clock import SystemClock
from countersign.contract.keys import PrivateKey
from countersign.contract.manifest import ToolManifest
from countersign.errors import MisuseError, SettingsError
from countersign.journal import Journal, LocalTxn
from countersign.llm.ledger import Ledger
from countersign.manifests.reviewed import Manifests, require_fits
from countersign.runtime import Engine, Runtime, default_runtime
from countersign.service.client import Service
from countersign.service.enforcement import Enforcer, KeyCache
from countersign.service.transport import Nonces, Transport
from countersign.settings import AGENT_VARIABLE, Settings
from countersign.tools.context import open_transaction
from countersign.tools.definition import Tool
from countersign.tools.registry import ToolRegistry
from countersign.transactions.step import Step
from countersign.waiting import AsyncExecutor, Executor, SyncExecutor

if TYPE_CHECKING:
    from countersign.simulation.dry_run_report import DryRun

_IN_MEMORY: Final = ":memory:"
_MAX_KEY: Final = 150  # of a key, in the name of a run


def require_no_transaction() -> None:
    """A rehearsal inside a transaction would be taken for a part of it, and fire with it.

    Raises:
        MisuseError: it was to begin inside one.
    """
    outer = open_transaction()
    if outer is not None:
        raise MisuseError(
            f"a dry run or replay was begun inside transaction {outer.key!r}; begin it before or after that block"
        )


class SimulatedStep(Step):
    """A step that is undone however its block ends."""

    ended = False
    when_ended: Callable[[], None]  # set by the rehearsal that opened it

    def state(self) -> LocalTxn:
        """Nothing was fired or will be."""
        return LocalTxn.ENDED if self.ended else super().state()

    async def learn_secrets(self, engine: Engine) -> None:
        """Nothing is kept of a rehearsal."""

    def abort(self, note: str) -> None:
        """Undo the live work and forget the calls."""
        try:
            super().abort(note)
        finally:
            self.ended = True
            self.when_ended()


S = TypeVar("S", bound=SimulatedStep)


class Simulation(ABC, Generic[S]):
    """Opens the steps of one rehearsal on one journal in memory, which is gone when the last of them has ended.

    Raises:
        MisuseError: it is made inside a transaction.
    """

    def __init__(self, kind: type[S]) -> None:
        require_no_transaction()
        self._kind = kind
        self._number = f"rehearsal {secrets.token_hex(4)}"
        self.journal = Journal(_IN_MEMORY)
        self._steps: list[S] = []

    @property
    @abstractmethod
    def result(self) -> DryRun:
        """What a dry run has found.

        Raises:
            MisuseError: this is none, or its block has not ended.
        """

    def run_key_for_budgets(self, key: str) -> str:
        """The run of its calls to models: they are made and paid for; what the key may take is for what is to come."""
        return f"{key[:_MAX_KEY]} ({self._number})"

    @property
    def steps(self) -> Sequence[S]:
        """What was opened, in order."""
        return tuple(self._steps)

    def on_stage(self, engine: Engine) -> Engine:
        """The engine, with a journal that nothing survives."""
        return replace(
            engine, journal=self.journal, manifests=UncachedManifests(self.journal, engine.manifests)
        )

    async def open(
        self, engine: Engine, *, txn: str, run_key: str, independent: bool, patient: bool = True
    ) -> S:
        """Open one step; nobody else can own it."""
        opened = await self._kind.open(
            engine, txn=txn, run_key=run_key, independent=independent, patient=patient
        )
        step = cast("S", opened)
        step.when_ended = self._one_ended
        self._steps.append(step)
        return step

    def _one_ended(self) -> None:
        if all(step.ended for step in self._steps):
            self.journal.close()


class UncachedManifests(Manifests):
    """Manifests as they are now, without a trace in the journal."""

    def _settle(self, tool: Tool, manifest: ToolManifest) -> None:
        require_fits(tool, manifest)
        self._settled[tool.name] = manifest


_NOWHERE = "http://127.0.0.1:1"  # no request is ever made: `_nobody` is in its way


class OfflineHost:
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

    def engine(self, waits: Executor) -> Engine:
        """The parts, none of which reaches anybody."""
        settings, clock, key = self.settings, SystemClock(), PrivateKey.generate()
        known = None if self._replaying is None else self._replaying.manifests
        return Engine(
            settings=settings,
            registry=self.registry,
            journal=self._journal,
            manifests=UncachedManifests(self._journal, known),
            enforcer=Enforcer(settings, key, self._journal, clock, KeyCache(settings, clock)),
            service=Service(
                Transport(settings, waits, key, Nonces(), clock), max_jwks_bytes=settings.max_jwks_bytes
            ),
            waits=waits,
            clock=clock,
            ledger=Ledger(settings, self._journal, clock),  # nothing fires, so nothing asks it
        )

    def sync_waits(self) -> SyncExecutor:
        """Waiting on the calling thread."""
        return SyncExecutor(_no_service)

    def async_waits(self) -> AsyncExecutor:
        """Waiting on the running event loop."""
        return AsyncExecutor(_no_service)


def _no_service() -> NoReturn:
    raise MisuseError("a replay asks nobody anything")
