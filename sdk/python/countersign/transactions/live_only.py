"""Live work under its key: that of a step that staged nothing commits once, and that of a rerun is what was kept.

Of a step that staged nothing nobody is asked, and nothing is redeemed. One that did no live work either has done
nothing, so it spends no key: whoever asks for something under it later is not told that it was done.
"""

from __future__ import annotations

from typing import Final

from countersign.commit.plan import Plan
from countersign.engine import Engine
from countersign.errors import AlreadyRedeemed, LiveCommitFailed, OutcomeUnknown, ServiceRefused
from countersign.journal import Journal, Lease, LocalState, LocalTxn, TransactionRecord
from countersign.live.committing import CommitFailed
from countersign.live.work import LiveWork
from countersign.transactions.listing import LiveKeys

_NOTHING: Final = "its block asked for nothing"
# on its way, and nobody heard of it again
_MAYBE_ASKED: Final = frozenset({LocalTxn.FROZEN, LocalTxn.STOPPED})
_ASKED: Final = frozenset({LocalTxn.REVIEW, LocalTxn.READY}) | _MAYBE_ASKED


def require_same_live_work(journal: Journal, earlier: TransactionRecord, plan: Plan, ran: LiveKeys) -> None:
    """Live work alone was committed under this key, so this step has been done, as with a redemption. What raises now
    may have been done then: a row that is there already is not put in twice.

    Raises:
        AlreadyRedeemed: what was committed is other work than this run's, or nobody knows what stands of it.
    """
    done = {row.call_key for row in journal.transactions.live(earlier)}
    same = not plan.calls and {*ran.stand} <= done <= {*ran.stand, *ran.raised}
    if not (earlier.landed and same):
        why = "another list of calls was committed" if earlier.landed else earlier.note or ""
        raise AlreadyRedeemed(plan.run_key, plan.txn, earlier.state.value, why, finished=earlier.landed)


def require_live_work_kept(journal: Journal, plan: Plan, ran: LiveKeys) -> None:
    """This key was redeemed and has come to a good end: the live work of this run is among what was kept, or has been
    undone. Less than that may be asked for: what is there already need not be put there again.

    Raises:
        AlreadyRedeemed: other live work was kept, and this run's was not.
    """
    record = journal.transactions.require(plan.txn)
    kept = {row.call_key for row in journal.transactions.live(record) if row.state is LocalState.KEPT}
    if not {*ran.stand} <= kept:
        why = "other live work was committed with it, and that of this run was undone"
        raise AlreadyRedeemed(plan.run_key, plan.txn, record.state.value, why)


async def withdraw_earlier(engine: Engine, earlier: TransactionRecord) -> None:
    """Nobody needs to answer what an earlier run asked, nor may fire what people agreed to.

    Raises:
        ServiceRefused, ServiceUnavailable: the service does not take it back.
    """
    if earlier.state not in _ASKED:
        return
    try:
        await engine.service.withdraw(earlier.txn, "its rerun staged nothing")
    except ServiceRefused as refused:
        never_arrived = earlier.state in _MAYBE_ASKED and refused.is_not_there
        if not never_arrived:
            raise


def commit_live_only(journal: Journal, lease: Lease, live: LiveWork, plan: Plan, attempt_id: str) -> None:
    """Commit the live adapters, and note that their work stands, if there is any.

    Raises:
        Moved: what they saw was changed by somebody else.
        LeaseLost: another process has taken it over, and may have undone it.
        LiveCommitFailed: one of them could not, with those that had.
        OutcomeUnknown: one of them does not know whether it could.
    """
    if not plan.live:
        journal.transactions.end(lease, LocalTxn.ENDED, _NOTHING)
        return
    live.verify_unmoved()
    live.prepare(attempt_id)
    journal.leases.renew(lease)  # until it was prepared, recovery could not see that it was to be committed

    def kept() -> None:
        journal.transactions.end_live(lease, plan.staging, LocalState.KEPT)
        journal.transactions.end(lease, LocalTxn.SETTLED)

    try:
        live.commit(attempt_id, kept)
    except CommitFailed as failed:
        if failed.unknown:
            journal.transactions.end(lease, LocalTxn.UNSETTLED, failed.unknown)
            raise OutcomeUnknown(plan.run_key, plan.txn, [], {}, failed.unknown) from failed.__cause__
        state = LocalTxn.UNSETTLED if failed.committed else LocalTxn.ENDED
        journal.transactions.end(lease, state, str(failed))
        raise LiveCommitFailed(
            plan.run_key, plan.txn, failed.adapter, str(failed), {}, committed=failed.committed
        ) from failed.__cause__
