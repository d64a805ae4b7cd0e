"""Which registered step runs under a key, and its arguments, so that another process can run it again."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field

from countersign.clock import Clock
from countersign.errors import JournalError
from countersign.journal.chain import record_changes
from countersign.journal.database import Database
from countersign.journal.meta import STEP, MetaRecords, set_meta
from countersign.journal.sealed_values import SealContext
from countersign.journal.sealing import Seals

_ARGS = "step"


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """The name of a step, and its arguments as canonical bytes, sealed as they are stored."""

    name: str
    args: bytes = field(repr=False)


class RecordedSteps(MetaRecords):
    """The registered steps of transactions."""

    def __init__(self, database: Database, clock: Clock, seals: Seals) -> None:
        super().__init__(database, clock)
        self._seals = seals

    def keep(self, txn: str, name: str, args: bytes, secret: Collection[str]) -> None:
        """Record the step of this key; the last run's counts.

        Raises:
            JournalSealed: an argument is secret and there is no sealing key.
        """
        known = self.of(txn)
        if known is not None and (known.name, self._opened(txn, known)) == (name, args):
            return
        now = self._clock.wall()
        with self._database.unit(durable=False) as unit, record_changes(unit, txn, "step", now) as change:
            stored = self._seals.seal(unit, SealContext(txn, _ARGS, "args"), args, secret)
            set_meta(change, f"{STEP}:{txn}", json.dumps([name, stored.decode()]))

    def of(self, txn: str) -> RecordedStep | None:
        """The step of this key, still sealed; None if it was not a registered one."""
        value = self._value(f"{STEP}:{txn}")
        if value is None:
            return None
        try:
            name, stored = json.loads(value)
            return RecordedStep(str(name), stored.encode())
        except (ValueError, AttributeError) as error:
            raise JournalError(
                f"the journal's step of {txn[:12]} is damaged; run it again yourself"
            ) from error

    def args(self, txn: str, recorded: RecordedStep) -> bytes:
        """Its arguments, unsealed.

        Raises:
            JournalSealed: a sealing key is not available.
            JournalError: they were changed.
        """
        try:
            return self._opened(txn, recorded)
        except ValueError as error:
            raise JournalError(
                f"the journal's arguments of step {recorded.name!r} are damaged: {error}"
            ) from error

    def _opened(self, txn: str, recorded: RecordedStep) -> bytes:
        return self._seals.open(SealContext(txn, _ARGS, "args"), recorded.args)
