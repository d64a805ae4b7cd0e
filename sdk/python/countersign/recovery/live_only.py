"""A transaction without staged effects, whose process ended: its adapters know whether its live effects stand."""

from __future__ import annotations

from countersign.commit.plan import Plan
from countersign.engine import Engine
from countersign.journal import Lease, LocalState, LocalTxn
from countersign.live.committing import CommitFailed
from countersign.live.remains import Recovered, recover
from countersign.live.work import LiveWork


def settle_live_only(engine: Engine, lease: Lease, plan: Plan) -> str:
    """Finish what an adapter has begun to commit, undo the rest; in words how it ended."""
    found = recover(engine, engine.journal.transactions.require(plan.txn))
    if found.has_landed is None:
        note, state = found.to_settle, LocalTxn.UNSETTLED
    elif found.has_landed:
        note, state = _finish(engine, lease, plan, found)
    else:
        found.undo()
        note, state = "its live effects were undone", LocalTxn.ENDED
        engine.journal.transactions.end_live(lease, plan.staging, LocalState.UNDONE)
    engine.journal.transactions.end(lease, state, note)
    return note


def _finish(engine: Engine, lease: Lease, plan: Plan, found: Recovered) -> tuple[str, LocalTxn]:
    """One adapter has committed, so the others, which had all prepared, do as well."""
    live = LiveWork(plan.txn)
    live.adopt(found)

    def kept() -> None:
        engine.journal.transactions.end_live(lease, plan.staging, LocalState.KEPT)

    try:
        live.commit(plan.attempt_id, kept)
    except CommitFailed as failed:
        told = failed.unknown or f"live adapter {failed.adapter!r} could not commit: {failed}"
        return told, LocalTxn.UNSETTLED
    return "its live effects were kept", LocalTxn.SETTLED
