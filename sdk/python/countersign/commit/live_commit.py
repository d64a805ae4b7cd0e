"""Commits live work: after the staged effects of its transaction have fired, or alone if it has none."""

from __future__ import annotations

import logging
from typing import Final

from countersign.commit.failure import FailurePath
from countersign.commit.plan import Plan
from countersign.errors import JournalError, LeaseLost, LiveCommitFailed, OutcomeUnknown
from countersign.journal import Journal, Lease, LocalState, LocalTxn
from countersign.live.sessions import AdapterCommitError
from countersign.live.work import LiveWork
from countersign.runtime import Engine

log: Final = logging.getLogger("countersign")


async def commit_live(engine: Engine, lease: Lease, plan: Plan, live: LiveWork) -> None:
    """Commit every live adapter and record that the live effects are kept.

    Raises:
        LeaseLost: another process has taken over.
        LiveCommitFailed: an adapter could not commit; fired effects were compensated.
        OutcomeUnknown: an adapter does not know whether it committed.
    """
    _require_lease(engine, lease, plan)
    transactions = engine.journal.transactions
    if live.rerun is not None:
        transactions.adopt_rerun(lease, plan.staging, live.rerun)
    try:
        live.commit(plan.attempt_id, lambda: keep_live(engine, lease, plan))
    except AdapterCommitError as failed:
        failure = FailurePath(engine, lease, plan, live)
        if failed.unknown:
            await failure.unknown(failed.unknown, failed.__cause__)
        if not failed.committed:  # otherwise the kept rows stay `live` in the journal, like the lost ones
            transactions.end_live(lease, plan.staging, LocalState.UNDONE)
        undone = await failure.compensate()
        raise LiveCommitFailed(
            plan.run_key,
            plan.txn,
            failed.adapter,
            undone.explain(str(failed)),
            failure.outcomes(),
            committed=failed.committed,
            reviews=undone.reviews,
            reads=failure.reads(),
        ) from failed.__cause__


def keep_live(engine: Engine, lease: Lease, plan: Plan) -> None:
    """Record that all live effects are kept."""
    engine.journal.transactions.end_live(lease, plan.staging, LocalState.KEPT, durable=True)


def _require_lease(engine: Engine, lease: Lease, plan: Plan) -> None:
    """Refuse to commit live work that another process may have undone. If the journal is unavailable, the commit
    goes on: recovery does not undo prepared sessions of a redeemed list.

    Raises:
        LeaseLost: another process has taken over.
    """
    try:
        engine.journal.leases.renew(lease)
    except LeaseLost:
        raise
    except JournalError as error:
        log.warning("the lease of transaction %s could not be renewed: %s", plan.txn[:12], error)


_NOTHING: Final = "its block asked for nothing"


def commit_live_only(
    journal: Journal, lease: Lease, live: LiveWork | None, plan: Plan, attempt_id: str
) -> None:
    """Commit the live adapters and record that their work is kept, if there is any.

    Raises:
        IsolationConflict: another writer changed what they read.
        LeaseLost: another process has taken over and may have undone it.
        LiveCommitFailed: an adapter could not commit; names those that had.
        OutcomeUnknown: an adapter does not know whether it committed.
    """
    if live is None or not plan.live:
        journal.transactions.end(lease, LocalTxn.ENDED, _NOTHING)
        return
    live.verify_isolation()
    live.prepare(attempt_id)
    journal.leases.renew(lease)  # before it was prepared, recovery could not know that it was to be committed

    def kept() -> None:
        journal.transactions.end_live(lease, plan.staging, LocalState.KEPT)
        journal.transactions.end(lease, LocalTxn.SETTLED)

    try:
        live.commit(attempt_id, kept)
    except AdapterCommitError as failed:
        if failed.unknown:
            journal.transactions.end(lease, LocalTxn.UNSETTLED, failed.unknown)
            raise OutcomeUnknown(plan.run_key, plan.txn, [], {}, failed.unknown) from failed.__cause__
        state = LocalTxn.UNSETTLED if failed.committed else LocalTxn.ENDED
        journal.transactions.end(lease, state, str(failed))
        raise LiveCommitFailed(
            plan.run_key, plan.txn, failed.adapter, str(failed), {}, committed=failed.committed
        ) from failed.__cause__
