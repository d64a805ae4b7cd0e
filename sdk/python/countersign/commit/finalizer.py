"""Steps 8 and 9: finish a transaction once the result of firing is known.

All fired, except calls that may fail and did: the live adapters commit (live_commit.py), then outcomes are reported.
Everything else is the failure path (failure.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from countersign.commit.executor import EffectExecutor, ExecutionResult
from countersign.commit.failure import FailurePath
from countersign.commit.live_commit import commit_live
from countersign.commit.plan import Plan, PlannedCall
from countersign.commit.reconciliation import flush_outbox
from countersign.contract.states import Outcome
from countersign.errors import (
    JournalError,
    LeaseLost,
)
from countersign.journal import Lease, LocalState, LocalTxn
from countersign.live.work import LiveWork
from countersign.runtime import Engine


class Finalizer:
    """Finishes one transaction after firing."""

    def __init__(self, engine: Engine, lease: Lease, plan: Plan, live: LiveWork | None) -> None:
        self._engine = engine
        self._lease = lease
        self._plan = plan
        self._live = live

    async def fire_and_finish(self, run: EffectExecutor, calls: Sequence[PlannedCall]) -> dict[str, object]:
        """Fire these calls and finish the transaction by the result.

        Raises:
            EffectFailed, PartlyFired, ReleaseLapsed, OutcomeUnknown, LiveCommitFailed: with the outcome of every
                effect.
        """
        result = await self.fire(run, calls)
        if result.stopped is None:
            return await self.complete(result.results)
        if result.outcome is Outcome.UNKNOWN:
            await self._failure().unknown(result.why, result.cause, result.probe_at)
        await self._failure().failed(result)

    async def fire(self, run: EffectExecutor, calls: Sequence[PlannedCall]) -> ExecutionResult:
        """Fire these calls only; the caller handles the result.

        Raises:
            OutcomeUnknown: the journal failed while a call was in flight.
        """
        try:
            return await run.run(calls)
        except LeaseLost:
            raise
        except JournalError as error:
            self._failure().require_none_firing(error)
            raise

    async def complete(self, results: dict[str, object]) -> dict[str, object]:
        """Everything required fired: commit the live adapters and report. The transaction is `ended` if no effect
        fired and no live work was done.
        """
        in_effect = self._plan.live > 0
        if self._live is not None and self._live:
            in_effect = True
            await commit_live(self._engine, self._lease, self._plan, self._live)
        plan, state_of = self._plan, self._engine.journal.transactions.state_of
        states = (state_of(plan.txn, plan.staging, effect.effect_id) for effect in plan.effects)
        in_effect = in_effect or LocalState.FIRED in states
        self._engine.journal.transactions.end(self._lease, LocalTxn.SETTLED if in_effect else LocalTxn.ENDED)
        await flush_outbox(self._engine, self._plan.txn)
        return results

    def _failure(self) -> FailurePath:
        return FailurePath(self._engine, self._lease, self._plan, self._live)
