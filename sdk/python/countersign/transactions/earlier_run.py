"""What an earlier run under the same key left: submitted, redeemed, or done by live work alone."""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from countersign.commit.plan import Plan
from countersign.commit.reconciliation import adopt_redemption, fetch_transaction
from countersign.errors import AlreadyRedeemed, ServiceRefused
from countersign.journal import Journal, Lease, LocalState, LocalTxn, TransactionRecord
from countersign.journal.states import OPEN_TXN
from countersign.live.work import LiveWork
from countersign.recovery.prior_run import plan_from_journal, settle_live_only
from countersign.recovery.roll_forward import RollForward
from countersign.runtime import Engine

log: Final = logging.getLogger("countersign")


class LiveKeys(NamedTuple):
    """The call keys of the live effects of one run: those in effect so far, and those that raised."""

    stand: tuple[str, ...]
    raised: tuple[str, ...]


# maybe submitted, without a recorded response
_MAYBE_ASKED: Final = frozenset({LocalTxn.FROZEN, LocalTxn.STOPPED})
_ASKED: Final = frozenset({LocalTxn.REVIEW, LocalTxn.READY}) | _MAYBE_ASKED


def require_same_live_calls(journal: Journal, earlier: TransactionRecord, plan: Plan, ran: LiveKeys) -> None:
    """The key was used by live work alone, so this step has been done, like after a redemption. Calls that raise now
    may have succeeded then: a row that exists is not inserted twice.

    Raises:
        AlreadyRedeemed: other live work was committed, or its outcome is unknown.
    """
    done = {row.call_key for row in journal.transactions.live(earlier)}
    same = not plan.calls and {*ran.stand} <= done <= {*ran.stand, *ran.raised}
    if not (earlier.landed and same):
        why = "another list of calls was committed" if earlier.landed else earlier.note or ""
        raise AlreadyRedeemed(plan.run_key, plan.txn, earlier.state.value, why, finished=earlier.landed)


def require_live_work_kept(journal: Journal, plan: Plan, ran: LiveKeys) -> None:
    """The key was redeemed and succeeded: this run's live work must be part of what was kept. It may be less:
    existing work need not be done again.

    Raises:
        AlreadyRedeemed: this run did other live work, which was not kept.
    """
    record = journal.transactions.require(plan.txn)
    kept = {row.call_key for row in journal.transactions.live(record) if row.state is LocalState.KEPT}
    if not {*ran.stand} <= kept:
        why = "other live work was committed with it, and that of this run was undone"
        raise AlreadyRedeemed(plan.run_key, plan.txn, record.state.value, why)


async def withdraw_earlier(engine: Engine, earlier: TransactionRecord) -> None:
    """Withdraw the submission of an earlier run, so that it is neither reviewed nor fired.

    Raises:
        ServiceRefused, ServiceUnavailable: the service did not withdraw it.
    """
    if earlier.state not in _ASKED:
        return
    try:
        await engine.service.withdraw(earlier.txn, "its rerun staged nothing")
    except ServiceRefused as refused:
        never_arrived = earlier.state in _MAYBE_ASKED and refused.is_not_found
        if not never_arrived:
            raise


async def look_up_redemption(engine: Engine, lease: Lease, record: TransactionRecord) -> TransactionRecord:
    """Detect a redemption whose answer was lost, before its list is replaced. Returns the record as it is then."""
    view = await fetch_transaction(engine, lease.txn, record.run_key)
    before = plan_from_journal(record, engine.journal, engine.registry)
    if view is not None:
        await adopt_redemption(engine, lease, before, view)
    elif before.live and not before.calls:
        settle_live_only(engine, lease, before)
    return engine.journal.transactions.require(lease.txn)


async def finish_prior_run(
    engine: Engine, lease: Lease, earlier: TransactionRecord, plan: Plan, live: LiveWork | None
) -> Plan:
    """The key was redeemed before: finish that transaction and return its list. A changed manifest does not make it
    another step of the same calls; unfinished effects use the manifest people agreed to, and the service evaluates
    the current one whenever it extends the fire window. `live` is this run's.

    Raises:
        AlreadyRedeemed: other calls were committed.
        CountersignError: it did not succeed, as `RollForward` reports.
    """
    before = plan_from_journal(earlier, engine.journal, engine.registry)
    unfinished = earlier.state in OPEN_TXN
    if before.call_keys != plan.call_keys:
        why = "another list of calls was committed"
        if plan.live:
            why += "; live tools ran again on that run's results, so their answers are current"
        raise AlreadyRedeemed(plan.run_key, lease.txn, earlier.state.value, why, finished=not unfinished)
    live = LiveWork(lease.txn) if live is None else live
    if not unfinished:
        live.undo()
        return before
    for name in before.tools_changed_in(plan):
        log.warning(
            "the manifest of %s has changed since transaction %r was committed; it continues with the former one",
            *(name, plan.run_key),
        )
    live.rerun = plan.staging
    engine.journal.transactions.note_returned(lease, plan.staging, plan.returned)
    engine.journal.transactions.continue_stopped(lease)  # running it again under its key continues it
    await RollForward(engine, lease, before, live).run()
    return before
