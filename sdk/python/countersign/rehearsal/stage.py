"""The stage of a rehearsal: a step runs as ever, and nothing of it is kept.

The body meets the same `Transaction` and the same `Step` as in a real run, on a journal in memory that ends with the
rehearsal. So its calls have the names they would have, equal calls are one, and what cannot be staged is refused in the
same words. Only leaving the block differs: a rehearsed step undoes its live work and never commits.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from countersign.contract.manifest import ToolManifest
from countersign.engine import Engine
from countersign.errors import MisuseError
from countersign.journal import Journal, LocalTxn
from countersign.manifests.reviewed import Manifests, require_fits
from countersign.tools.current import open_transaction
from countersign.tools.tool import Tool
from countersign.transactions.step import Step

if TYPE_CHECKING:
    from countersign.rehearsal.foreseen import DryRun

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


class RehearsedStep(Step):
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


S = TypeVar("S", bound=RehearsedStep)


class Rehearsal(ABC, Generic[S]):
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

    def counted_as(self, key: str) -> str:
        """The run of its calls to models: they are made and paid for; what the key may take is for what is to come."""
        return f"{key[:_MAX_KEY]} ({self._number})"

    @property
    def steps(self) -> Sequence[S]:
        """What was opened, in order."""
        return tuple(self._steps)

    def on_stage(self, engine: Engine) -> Engine:
        """The engine, with a journal that nothing survives."""
        return replace(
            engine, journal=self.journal, manifests=UnkeptManifests(self.journal, engine.manifests)
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


class UnkeptManifests(Manifests):
    """Manifests as they are now, without a trace in the journal."""

    def _settle(self, tool: Tool, manifest: ToolManifest) -> None:
        require_fits(tool, manifest)
        self._settled[tool.name] = manifest
