"""Run a step of which nothing is kept: in a dry run, and in a replay, which has no service.

The body uses the same `Transaction` and `Step` as a real run, on an in-memory journal that ends with the simulation, so
it has the same call keys and the same refusals. Only leaving the block differs: a simulated step undoes its live work
and never commits. A replay has no service and no key, so that nothing can be requested or fired.
"""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NoReturn, TypeVar

from countersign.async_executor import AsyncExecutor
from countersign.clock import SystemClock
from countersign.concurrency import Executor, SyncExecutor
from countersign.contract.keys import PrivateKey
from countersign.contract.manifest import ToolManifest
from countersign.errors import MisuseError, SettingsError
from countersign.journal import Journal, LocalTxn
from countersign.llm.ledger import Ledger
from countersign.manifests.reviewed import Manifests, require_fits
from countersign.process_runtime import default_runtime
from countersign.runtime import Engine, Runtime
from countersign.service.client import Service
from countersign.service.enforcement import Enforcer, KeyCache
from countersign.service.transport import Nonces, Transport
from countersign.settings import AGENT_VARIABLE, Settings
from countersign.tools.context import open_transaction
from countersign.tools.definition import Tool
from countersign.tools.registry import ToolRegistry
from countersign.transactions.live_step import LiveStep

if TYPE_CHECKING:
    from countersign.simulation.dry_run_report import DryRun

_IN_MEMORY: Final = ":memory:"
_MAX_KEY: Final = 150  # characters of a key in the name of a run


def require_no_transaction() -> None:
    """Refuse a simulation inside a transaction: its calls would become part of that, and fire with it.

    Raises:
        MisuseError: a transaction is open.
    """
    outer = open_transaction()
    if outer is not None:
        raise MisuseError(
            f"a dry run or replay was begun inside transaction {outer.key!r}; begin it before or after that block"
        )


class SimulatedStep(LiveStep):
    """A step that is undone in any case."""

    ended = False
    when_ended: Callable[[], None]  # set by the simulation that opened it

    def state(self) -> LocalTxn:
        return LocalTxn.ENDED if self.ended else super().state()

    async def learn_secrets(self, engine: Engine) -> None:
        """Nothing is kept of a simulation."""

    def abort(self, note: str) -> None:
        """Undo the live work and drop the calls."""
        try:
            super().abort(note)
        finally:
            self.ended = True
            self.when_ended()


S = TypeVar("S", bound=SimulatedStep)


class Simulation(ABC, Generic[S]):
    """Opens the steps of one simulation on one in-memory journal, which is closed when the last of them has ended.

    Raises:
        MisuseError: a transaction is open.
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
        """The result of a dry run.

        Raises:
            MisuseError: this is no dry run, or its block has not ended.
        """

    def run_key_for_budgets(self, key: str) -> str:
        """The run that calls to models count for. They are made and paid for, but must not use up the budget of the
        key.
        """
        return f"{key[:_MAX_KEY]} ({self._number})"

    @property
    def steps(self) -> Sequence[S]:
        """The opened steps, in order."""
        return tuple(self._steps)

    def on_stage(self, engine: Engine) -> Engine:
        """The engine with the in-memory journal."""
        return replace(
            engine, journal=self.journal, manifests=UncachedManifests(self.journal, engine.manifests)
        )

    async def open(
        self, engine: Engine, *, txn: str, run_key: str, independent: bool, patient: bool = True
    ) -> S:
        """Open one step; no other process can own it."""
        step = await self._kind.open(
            engine, txn=txn, run_key=run_key, independent=independent, patient=patient
        )
        step.when_ended = self._one_ended
        self._steps.append(step)
        return step

    def _one_ended(self) -> None:
        if all(step.ended for step in self._steps):
            self.journal.close()


class UncachedManifests(Manifests):
    """The current manifests, not written to the journal."""

    def _settle(self, tool: Tool, manifest: ToolManifest) -> None:
        require_fits(tool, manifest)
        self._settled[tool.name] = manifest


_NOWHERE = "http://127.0.0.1:1"  # no request is ever made: `_no_service` raises first


class OfflineHost:
    """The runtime of a replay, for an agent of that name. `replaying`: the real runtime, if there is one. Its known
    secrets are secret here too, and it counts the calls to models, which are made and paid for.
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
        """The ledger of the real runtime, or of the process's own. Without any nothing is budgeted, so nothing is
        kept.
        """
        try:
            return (self._replaying or default_runtime()).ledger
        except SettingsError:
            if AGENT_VARIABLE in os.environ:
                raise
            return Ledger(self.settings, self._journal, SystemClock())

    def engine(self, executor: Executor) -> Engine:
        """Parts that reach no service."""
        settings, clock, key = self.settings, SystemClock(), PrivateKey.generate()
        known = None if self._replaying is None else self._replaying.manifests
        return Engine(
            settings=settings,
            registry=self.registry,
            journal=self._journal,
            manifests=UncachedManifests(self._journal, known),
            enforcer=Enforcer(settings, key, self._journal, clock, KeyCache(settings, clock)),
            service=Service(
                Transport(settings, executor, key, Nonces(), clock), max_jwks_bytes=settings.max_jwks_bytes
            ),
            executor=executor,
            clock=clock,
            ledger=Ledger(settings, self._journal, clock),  # nothing fires, so it is never used
            host=self,
        )

    def sync_executor(self) -> SyncExecutor:
        return SyncExecutor(_no_service)

    def async_executor(self) -> AsyncExecutor:
        return AsyncExecutor(_no_service)


def _no_service() -> NoReturn:
    raise MisuseError("a replay sends no requests")
