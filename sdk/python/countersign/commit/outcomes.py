"""What a run knows of its effects and when it is on the disk: each outcome together with the FIRING of the next, the
last at the end, and before anything that may take its time: a pause, a renewal, a probe, a sibling that still runs.

Rules: the first word on an effect stands. A write that was not confirmed is made again for what the journal lacks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from countersign.commit.plan import PlannedCall
from countersign.commit.renewing import Authority
from countersign.contract.states import Outcome
from countersign.engine import Engine
from countersign.errors import JournalError
from countersign.journal import Done, Lease, LocalState

log: Final = logging.getLogger("countersign")


class Outcomes:
    """The outcomes of one run, in the order in which they became known."""

    def __init__(self, engine: Engine, lease: Lease, authority: Authority) -> None:
        self._engine = engine
        self._lease = lease
        self._authority = authority
        self._unwritten: list[Done] = []
        self._unconfirmed = False  # nobody knows whether they were written
        self._known: set[str] = set()

    def begin(self, calls: Sequence[PlannedCall], *, lease_seconds: float) -> None:
        """Write FIRING for these, and what became of those before, in one commit.

        Raises:
            JournalError: it could not be written; none of them may be called.
        """
        self._engine.journal.firing.begin(
            self._lease,
            self._authority.staging,
            *(call.effect.effect_id for call in calls),
            before=self._to_write(),
            lease_seconds=lease_seconds,
        )
        self._written()

    def note(
        self, call: PlannedCall, outcome: Outcome, *, result: bytes | None = None, error: str | None = None
    ) -> None:
        """Keep one until it is written; what this run has said of it already stands."""
        if self.knows(call):
            return
        self._known.add(call.effect.effect_id)
        self._unwritten.append(
            Done(
                effect_id=call.effect.effect_id,
                outcome=outcome,
                attempt_id=self._authority.attempt_id,
                result=result,
                report_result=call.reports_result,
                error=error,
            )
        )

    def knows(self, call: PlannedCall) -> bool:
        """Whether this run has said what became of it."""
        return call.effect.effect_id in self._known

    def state_of(self, call: PlannedCall) -> LocalState | None:
        """As the journal has it."""
        return self._state_of(call.effect.effect_id)

    def write(self) -> None:
        """Write what is not written yet.

        Raises:
            JournalError: it could not be; what was FIRING on the disk still is.
        """
        if unwritten := self._to_write():
            self._engine.journal.firing.write(self._lease, self._authority.staging, unwritten)
        self._written()

    def write_meanwhile(self) -> None:
        """The same while others still run. A journal in trouble ends none of them: it is told when all have ended."""
        try:
            self.write()
        except JournalError as error:
            log.warning("what has ended of a group could not be written while others of it run: %s", error)

    def _to_write(self) -> list[Done]:
        if self._unconfirmed:
            self._unwritten = [
                done
                for done in self._unwritten
                if self._state_of(done.effect_id) is not LocalState(done.outcome.value)
            ]
        self._unconfirmed = True
        return self._unwritten

    def _written(self) -> None:
        self._unwritten, self._unconfirmed = [], False

    def _state_of(self, effect_id: str) -> LocalState | None:
        return self._engine.journal.transactions.state_of(
            self._authority.txn, self._authority.staging, effect_id
        )
