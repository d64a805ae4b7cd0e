"""What a run knows of its effects and when it is on the disk: each outcome together with the FIRING of the next, the
last at the end, and before anything that may take its time.
"""

from __future__ import annotations

from collections.abc import Sequence

from countersign.commit.plan import PlannedCall
from countersign.commit.renewing import Authority
from countersign.contract.states import Outcome
from countersign.engine import Engine
from countersign.journal import Done, Lease, LocalState


class Outcomes:
    """The outcomes of one run, in the order in which they became known."""

    def __init__(self, engine: Engine, lease: Lease, authority: Authority) -> None:
        self._engine = engine
        self._lease = lease
        self._authority = authority
        self._unwritten: list[Done] = []
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
            before=self._unwritten,
            lease_seconds=lease_seconds,
        )
        self._unwritten = []

    def note(
        self, call: PlannedCall, outcome: Outcome, *, result: bytes | None = None, error: str | None = None
    ) -> None:
        """Keep one until it is written."""
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
        return self._engine.journal.transactions.state_of(
            self._authority.txn, self._authority.staging, call.effect.effect_id
        )

    def write(self) -> None:
        """Write what is not written yet.

        Raises:
            JournalError: it could not be; what was FIRING on the disk still is.
        """
        unwritten, self._unwritten = self._unwritten, []
        if unwritten:
            self._engine.journal.firing.write(self._lease, self._authority.staging, unwritten)
