"""A run key whose list was committed before: what an earlier run left is found, and brought to its end."""

from __future__ import annotations

import logging
from typing import Final

from countersign.commit.lost_redemption import adopt, look
from countersign.commit.plan import Plan, plan_from_journal
from countersign.engine import Engine
from countersign.errors import AlreadyRedeemed
from countersign.journal import Lease, LocalTxn, TransactionRecord
from countersign.journal.moves import OPEN_TXN
from countersign.live.work import LiveWork
from countersign.recovery.forward import Forward
from countersign.recovery.live_only import settle_live_only

log: Final = logging.getLogger("countersign")

_MAYBE_REDEEMED: Final = frozenset({LocalTxn.FROZEN, LocalTxn.READY, LocalTxn.STOPPED, LocalTxn.UNSETTLED})


async def earlier_record(engine: Engine, lease: Lease) -> TransactionRecord:
    """The record of earlier runs; a redemption whose answer was lost is found now, before its list is replaced."""
    record = engine.journal.transactions.require(lease.txn)
    if record.staging is None or record.redeemed or record.state not in _MAYBE_REDEEMED:
        return record
    view = await look(engine, lease.txn)
    before = plan_from_journal(record, engine.journal, engine.registry)
    if view is not None:
        await adopt(engine, lease, before, view)
    elif before.live and not before.calls:
        settle_live_only(engine, lease, before)
    return engine.journal.transactions.require(lease.txn)


async def finish(
    engine: Engine, lease: Lease, earlier: TransactionRecord, plan: Plan, live: LiveWork
) -> Plan:
    """This key was redeemed before: bring that to its end if need be; the list that is in force. Manifests that have
    changed since make no other step of the same calls; what is not finished goes by those people agreed to, and the
    service decides by the ones of now whenever it gives more time to fire. `live` is this run's.

    Raises:
        AlreadyRedeemed: other calls were committed.
        CountersignError: it did not end well, as `Forward` says.
    """
    before = plan_from_journal(earlier, engine.journal, engine.registry)
    unfinished = earlier.state in OPEN_TXN
    if before.call_keys != plan.call_keys:
        why = "another list of calls was committed"
        if plan.live:
            why += "; live tools ran anew, on what that run has left, so what they answered is of now"
        raise AlreadyRedeemed(plan.run_key, lease.txn, earlier.state.value, why, finished=not unfinished)
    if not unfinished:
        live.undo()
        return before
    for name in before.changed_in(plan):
        log.warning(
            "the manifest of %s has changed since transaction %r was committed; that goes on with the one of then",
            *(name, plan.run_key),
        )
    live.rerun = plan.staging
    engine.journal.transactions.note_returned(lease, plan.staging, plan.returned)
    engine.journal.stops.go_on(lease)  # whoever runs it again under its key means it
    await Forward(engine, lease, before, live).run()
    return before
