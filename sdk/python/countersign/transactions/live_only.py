"""A step that staged nothing: nobody is asked and nothing is redeemed, its live work commits, once under its key."""

from __future__ import annotations

from collections.abc import Sequence

from countersign.commit.plan import Plan
from countersign.errors import AlreadyRedeemed, LiveCommitFailed
from countersign.journal import Journal, Lease, LocalState, LocalTxn, TransactionRecord
from countersign.journal.reading import LIVE_LANE
from countersign.live.work import CommitFailed, LiveWork


def require_same_live_work(
    journal: Journal, earlier: TransactionRecord, plan: Plan, live_keys: Sequence[str]
) -> None:
    """Live work alone was committed under this key, so this step has been done, as with a redemption.

    Raises:
        AlreadyRedeemed: what was committed is other work than this run's, or nobody knows what stands of it.
    """
    rows = journal.transactions.effects(earlier, LIVE_LANE)
    same = not plan.calls and sorted(row.call_key for row in rows) == sorted(live_keys)
    if not (earlier.landed and same):
        why = "another list of calls was committed" if earlier.landed else earlier.note or ""
        raise AlreadyRedeemed(plan.run_key, plan.txn, earlier.state.value, why)


def commit_live_only(journal: Journal, lease: Lease, live: LiveWork, plan: Plan, attempt_id: str) -> None:
    """Commit the live adapters, and note that their work stands.

    Raises:
        Moved: what they saw was changed by somebody else.
        LiveCommitFailed: one of them could not, with those that had.
    """
    live.verify_unmoved()
    live.prepare(attempt_id)
    try:
        live.commit(attempt_id)
    except CommitFailed as failed:
        state = LocalTxn.UNSETTLED if failed.committed else LocalTxn.ENDED
        journal.transactions.end(lease, state, str(failed))
        raise LiveCommitFailed(
            plan.run_key, plan.txn, failed.adapter, str(failed), {}, committed=failed.committed
        ) from failed.__cause__
    journal.transactions.end_live(lease, plan.staging, LocalState.KEPT)
    journal.transactions.end(lease, LocalTxn.SETTLED)
