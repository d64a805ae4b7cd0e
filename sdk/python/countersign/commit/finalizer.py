"""Steps 8 and 9, and the failure path: what happens once it is known how firing ended.

All fired, but for what may fail and did: the live adapters commit, then outcomes are reported. One failed
that had to fire, or could not be started: the rest is unused, what fired is taken back newest first, live
effects are undone. One unknown: live effects are undone and nothing is taken back until somebody has settled
it. Whatever happens, the caller is told what stands, never more than is known.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NoReturn

from countersign.commit.attempt import PermitRefused, last_try_was_not_done
from countersign.commit.compensation import CompensationResult, Compensator
from countersign.commit.executor import EffectExecutor, ExecutionResult
from countersign.commit.plan import Plan, PlannedCall
from countersign.commit.reconciliation import flush_outbox
from countersign.contract.states import Outcome
from countersign.errors import (
    EffectFailed,
    JournalError,
    LeaseLost,
    LiveCommitFailed,
    OutcomeUnknown,
    PartlyFired,
    ReleaseLapsed,
)
from countersign.errors.execution import COMPENSATION_UNKNOWN, IN_EFFECT, without_reads
from countersign.journal import Lease, LocalState, LocalTxn
from countersign.journal.queries import COMPENSATE_LANE
from countersign.journal.states import IN_DOUBT
from countersign.live.sessions import AdapterCommitError
from countersign.live.work import LiveWork
from countersign.runtime import Engine

log: Final = logging.getLogger("countersign")
_OPEN: Final = IN_DOUBT | {LocalState.FIRED, LocalState.COMPENSATING, LocalState.COMPENSATION_FAILED}


class Finalizer:
    """Ends one transaction after firing."""

    def __init__(self, engine: Engine, lease: Lease, plan: Plan, live: LiveWork) -> None:
        self._engine = engine
        self._lease = lease
        self._plan = plan
        self._live = live

    async def around(self, run: EffectExecutor, calls: Sequence[PlannedCall]) -> dict[str, object]:
        """Fire, and go the way the run ends.

        Raises:
            EffectFailed, PartlyFired, ReleaseLapsed, OutcomeUnknown, LiveCommitFailed: with what stands.
        """
        result = await self.fire(run, calls)
        if result.stopped is None:
            return await self.complete(result.results)
        if result.outcome is Outcome.UNKNOWN:
            await self.unknown(result.why, result.cause, result.probe_at)
        await self.failed(result)

    async def fire(self, run: EffectExecutor, calls: Sequence[PlannedCall]) -> ExecutionResult:
        """Fire and no more: what follows is for whoever asked.

        Raises:
            OutcomeUnknown: the journal could not be written while a call was under way.
        """
        try:
            return await run.run(calls)
        except LeaseLost:
            raise
        except JournalError as error:
            self._require_none_firing(error)
            raise

    async def complete(self, results: dict[str, object]) -> dict[str, object]:
        """Everything fired, but for what may fail and did: commit the live adapters, report. Where nothing of it stands
        it has ended, as the service says too.
        """
        stands = self._plan.live > 0 or bool(self._live)
        if self._live:
            await self._commit_live()
        stands = stands or LocalState.FIRED in self.states().values()
        self._engine.journal.transactions.end(self._lease, LocalTxn.SETTLED if stands else LocalTxn.ENDED)
        await flush_outbox(self._engine, self._plan.txn)
        return results

    async def unknown(self, why: str, cause: BaseException | None, probe_at: float | None = None) -> NoReturn:
        """Nobody knows whether an effect happened: undo the live lane and wait for somebody who does, or for the time
        from which what its probe says counts.
        """
        self.undo_live()
        names = [name for name, state in self.states().items() if state in IN_DOUBT]
        self._engine.journal.transactions.end(self._lease, LocalTxn.UNSETTLED, why)
        await flush_outbox(self._engine, self._plan.txn)
        outcomes = self.outcomes()
        raise self._unknown(names, outcomes, why, probe_at) from cause

    async def failed(self, result: ExecutionResult) -> NoReturn:
        """An effect is known not to have happened: take back what fired, undo the live lane."""
        undone = await self.take_back()
        call, outcomes = result.stopped, self.outcomes()
        key, txn, why = self._plan.run_key, self._plan.txn, undone.beside(result.why)
        reads = self.reads()
        if call is None or isinstance(result.cause, PermitRefused):
            if IN_EFFECT.intersection(without_reads(outcomes, reads).values()):
                raise PartlyFired(key, txn, why, outcomes, undone.reviews, reads=reads) from result.cause
            raise ReleaseLapsed(key, txn, why) from result.cause
        raise EffectFailed(
            key, txn, call.tool.name, call.effect.effect_id, why, outcomes, undone.reviews, reads=reads
        ) from result.cause

    async def take_back(self) -> CompensationResult:
        """Compensate newest first, undo the live lane, and write down where that leaves the transaction."""
        try:
            undone = await Compensator(self._engine, self._lease, self._plan).run()
        finally:
            self.undo_live()
        await flush_outbox(self._engine, self._plan.txn)
        journal, state = self._engine.journal.transactions, self._end_state()
        # where it stood so before, recovery has left word of more than this
        is_new = journal.require(self._plan.txn).state is not state
        journal.end(self._lease, state, undone.note if is_new else None)
        return undone

    def undo_live(self) -> None:
        """Undo the live lane and note it."""
        if self._live:
            self._live.undo()
            self._engine.journal.transactions.end_live(self._lease, self._plan.staging, LocalState.UNDONE)

    def keep_live(self) -> None:
        """Note that the live effects stand, all of them."""
        self._engine.journal.transactions.end_live(
            self._lease, self._plan.staging, LocalState.KEPT, durable=True
        )

    def states(self) -> dict[str, LocalState]:
        """Where every staged effect stands in the journal, by a name people can read."""
        record = self._engine.journal.transactions.require(self._plan.txn)
        rows = self._engine.journal.transactions.effects(record)
        return {row.label: row.state for row in rows}

    def outcomes(self) -> dict[str, str]:
        """The same, as text for errors; a compensation that may or may not have happened is told as just that."""
        record = self._engine.journal.transactions.require(self._plan.txn)
        undoing = self._engine.journal.transactions.effects(record, COMPENSATE_LANE)
        doubtful = {row.compensates for row in undoing if row.state in IN_DOUBT}
        rows = self._engine.journal.transactions.effects(record)
        return {
            row.label: COMPENSATION_UNKNOWN if row.effect_id in doubtful else row.state.value for row in rows
        }

    def reads(self) -> frozenset[str]:
        """Of which effects nothing stands once they fired, by the same names."""
        return frozenset(call.label for call in self._plan.calls if call.only_reads)

    def _require_none_firing(self, error: JournalError) -> None:
        """The journal failed: what is FIRING on disk may have happened; if nothing is, nothing was called."""
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

    def _require_lease(self) -> None:
        """Who took over may have undone what would be committed now. A journal that is away keeps nothing from being
        made whole beside what fired: recovery undoes nothing beside a session that is prepared.

        Raises:
            LeaseLost: somebody has.
        """
        try:
            self._engine.journal.leases.renew(self._lease)
        except LeaseLost:
            raise
        except JournalError as error:
            log.warning("the lease of transaction %s could not be renewed: %s", self._plan.txn[:12], error)

    async def _commit_live(self) -> None:
        self._require_lease()
        if self._live.rerun is not None:
            self._engine.journal.reruns.take_in(self._lease, self._plan.staging, self._live.rerun)
        try:
            self._live.commit(self._plan.attempt_id, self.keep_live)
        except AdapterCommitError as failed:
            if failed.unknown:
                await self.unknown(failed.unknown, failed.__cause__)
            if not failed.committed:  # else what stands stays `live` in the journal, beside what does not
                self._engine.journal.transactions.end_live(self._lease, self._plan.staging, LocalState.UNDONE)
            undone = await self.take_back()
            raise LiveCommitFailed(
                self._plan.run_key,
                self._plan.txn,
                failed.adapter,
                undone.beside(str(failed)),
                self.outcomes(),
                committed=failed.committed,
                reviews=undone.reviews,
                reads=self.reads(),
            ) from failed.__cause__

    def _end_state(self) -> LocalTxn:
        """Of a transaction that did not go through: what fired and was not taken back needs a person, until one has
        settled that it stays. So does live work of which a part stands.
        """
        record = self._engine.journal.transactions.require(self._plan.txn)
        rows = self._engine.journal.transactions.effects(record)
        live = self._engine.journal.transactions.live(record)
        reads = self.reads()
        open_rows = [row for row in rows if row.state in _OPEN and not row.left_standing]
        if any(row.state is not LocalState.FIRED or row.label not in reads for row in open_rows) or any(
            row.state is LocalState.LIVE for row in live
        ):
            return LocalTxn.UNSETTLED
        stood = any(row.state is LocalState.COMPENSATED or row.left_standing for row in rows)
        return LocalTxn.SETTLED if stood else LocalTxn.ENDED
