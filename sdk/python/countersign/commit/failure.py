"""The failure path of a commit: record what is known, compensate or wait, and raise.

A required call failed or could not start: fired effects are compensated newest first, live effects are undone. One
outcome is unknown: live effects are undone, and nothing is compensated until the outcome is settled. In every case the
error reports what is known, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

from countersign.commit.attempt import PermitRefused
from countersign.commit.compensation import CompensationResult, Compensator
from countersign.commit.executor import ExecutionResult
from countersign.commit.plan import Plan
from countersign.commit.reconciliation import flush_outbox
from countersign.commit.tool_errors import last_try_was_not_done
from countersign.errors import EffectFailed, JournalError, OutcomeUnknown, PartlyFired, ReleaseLapsed
from countersign.errors.execution import COMPENSATION_UNKNOWN, IN_EFFECT, without_reads
from countersign.journal import Lease, LocalState, LocalTxn
from countersign.journal.records import COMPENSATE_LANE
from countersign.journal.states import IN_DOUBT
from countersign.live.work import LiveWork
from countersign.runtime import Engine

_OPEN: Final = IN_DOUBT | {LocalState.FIRED, LocalState.COMPENSATING, LocalState.COMPENSATION_FAILED}


class FailurePath:
    """Ends one redeemed transaction of which not everything required was done."""

    def __init__(self, engine: Engine, lease: Lease, plan: Plan, live: LiveWork | None) -> None:
        self._engine = engine
        self._lease = lease
        self._plan = plan
        self._live = live

    async def unknown(self, why: str, cause: BaseException | None, probe_at: float | None = None) -> NoReturn:
        """An outcome is unknown: undo live effects, record it and raise.

        Raises:
            OutcomeUnknown: always. `probe_at` is when its probe's "no" would count.
        """
        self.undo_live()
        names = [name for name, state in self.states().items() if state in IN_DOUBT]
        self._engine.journal.transactions.end(self._lease, LocalTxn.UNSETTLED, why)
        await flush_outbox(self._engine, self._plan.txn)
        outcomes = self.outcomes()
        raise self._unknown(names, outcomes, why, probe_at) from cause

    async def failed(self, result: ExecutionResult) -> NoReturn:
        """An effect certainly did not happen: compensate fired effects and undo live effects.

        Raises:
            EffectFailed, PartlyFired, ReleaseLapsed: always.
        """
        undone = await self.compensate()
        call, outcomes = result.stopped, self.outcomes()
        key, txn, why = self._plan.run_key, self._plan.txn, undone.explain(result.why)
        reads = self.reads()
        if call is None or isinstance(result.cause, PermitRefused):
            if IN_EFFECT.intersection(without_reads(outcomes, reads).values()):
                raise PartlyFired(key, txn, why, outcomes, undone.reviews, reads=reads) from result.cause
            raise ReleaseLapsed(key, txn, why) from result.cause
        raise EffectFailed(
            key, txn, call.tool.name, call.effect.effect_id, why, outcomes, undone.reviews, reads=reads
        ) from result.cause

    async def compensate(self) -> CompensationResult:
        """Compensate newest first, undo live effects and record the resulting state."""
        try:
            undone = await Compensator(self._engine, self._lease, self._plan).run()
        finally:
            self.undo_live()
        await flush_outbox(self._engine, self._plan.txn)
        journal, state = self._engine.journal.transactions, self._end_state()
        # in an unchanged state recovery has written a note with more detail
        is_new = journal.require(self._plan.txn).state is not state
        journal.end(self._lease, state, undone.note if is_new else None)
        return undone

    def undo_live(self) -> None:
        """Undo the live effects and record that."""
        if self._live is not None and self._live:
            self._live.undo()
            self._engine.journal.transactions.end_live(self._lease, self._plan.staging, LocalState.UNDONE)

    def states(self) -> dict[str, LocalState]:
        """The journal's state of every staged effect, by label."""
        record = self._engine.journal.transactions.require(self._plan.txn)
        rows = self._engine.journal.transactions.effects(record)
        return {row.label: row.state for row in rows}

    def outcomes(self) -> dict[str, str]:
        """The same as text for errors. A compensation in doubt is described as such."""
        record = self._engine.journal.transactions.require(self._plan.txn)
        undoing = self._engine.journal.transactions.effects(record, COMPENSATE_LANE)
        doubtful = {row.compensates for row in undoing if row.state in IN_DOUBT}
        rows = self._engine.journal.transactions.effects(record)
        return {
            row.label: COMPENSATION_UNKNOWN if row.effect_id in doubtful else row.state.value for row in rows
        }

    def reads(self) -> frozenset[str]:
        """The labels of effects that change nothing when they fire."""
        return frozenset(call.label for call in self._plan.calls if call.only_reads)

    def require_none_firing(self, error: JournalError) -> None:
        """The journal failed. An effect that is FIRING on disk may have happened; without one, nothing was called.

        Raises:
            OutcomeUnknown: naming the effects that are FIRING.
        """
        try:
            states = self.states()
        except JournalError:
            states = {call.label: LocalState.FIRING for call in self._plan.calls}
        firing = [name for name, state in states.items() if state is LocalState.FIRING]
        if firing:
            outcomes = {name: state.value for name, state in states.items()}
            raise self._unknown(firing, outcomes, str(error)) from error

    def _unknown(
        self, effects: Sequence[str], outcomes: dict[str, str], why: str, probe_at: float | None = None
    ) -> OutcomeUnknown:
        return OutcomeUnknown(
            self._plan.run_key,
            self._plan.txn,
            effects,
            outcomes,
            why,
            probe_at=probe_at,
            reported_not_done=last_try_was_not_done(why),
            tasks_url=self._engine.settings.tasks_url,
        )

    def _end_state(self) -> LocalTxn:
        """The state of a transaction that did not commit. A fired effect that was not compensated, or partly kept
        live work, needs a person until it is settled.
        """
        record = self._engine.journal.transactions.require(self._plan.txn)
        rows = self._engine.journal.transactions.effects(record)
        live = self._engine.journal.transactions.live(record)
        reads = self.reads()
        open_rows = [row for row in rows if row.state in _OPEN and not row.kept_by_person]
        if any(row.state is not LocalState.FIRED or row.label not in reads for row in open_rows) or any(
            row.state is LocalState.LIVE for row in live
        ):
            return LocalTxn.UNSETTLED
        stood = any(row.state is LocalState.COMPENSATED or row.kept_by_person for row in rows)
        return LocalTxn.SETTLED if stood else LocalTxn.ENDED
