"""Finish what an earlier run under the same key left, and note the state of an interrupted commit."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from countersign.commit.plan import Plan, plan_from_journal
from countersign.commit.reconciliation import adopt_redemption, fetch_transaction
from countersign.errors import AlreadyRedeemed, JournalError
from countersign.journal import Journal, Lease, LocalTxn, TransactionRecord
from countersign.journal.states import OPEN_TXN
from countersign.live.work import LiveWork
from countersign.recovery.prior_run import settle_live_only
from countersign.recovery.roll_forward import RollForward
from countersign.runtime import Engine
from countersign.texts import add_note

_HOW_ON: Final = {
    LocalTxn.STOPPED: "nothing more of it is begun until the same block runs again under this key; "
    "`countersign resume --tools MODULE` takes back what fired",
    LocalTxn.UNSETTLED: "`countersign resume --tools MODULE`, or the same block under this key, looks again",
}
_GOES_ON: Final = "`countersign resume --tools MODULE`, or the same block under this key, goes on with it"


def add_state_notes(interrupt: BaseException, journal: Journal, txns: Sequence[str], key: str) -> None:
    """Add a note with the transaction's state to the exception that interrupted a commit. Without a readable journal
    no note is added.
    """
    for txn in txns:
        try:
            record = journal.transactions.require(txn)
            add_note(interrupt, f"transaction {key!r}: {_state_note(journal, record)}")
        except JournalError:
            continue


def _state_note(journal: Journal, record: TransactionRecord) -> str:
    rows = journal.transactions.effects(record)
    calls = ", ".join(f"{row.label} {row.state.value}" for row in rows)
    state = record.display_state
    text = f"{state}{f' ({calls})' if calls else ''}"
    return f"{text}; {_HOW_ON.get(record.state, _GOES_ON)}" if record.state in OPEN_TXN else text


log: Final = logging.getLogger("countersign")


@contextmanager
def log_cleanup_errors(txn: str) -> Iterator[None]:
    """Log a journal error during cleanup: it must not hide the transaction's own result."""
    try:
        yield
    except JournalError as error:
        log.warning("transaction %s could not be cleaned up in the journal: %s", txn[:12], error)


_MAYBE_REDEEMED: Final = frozenset({LocalTxn.FROZEN, LocalTxn.READY, LocalTxn.STOPPED, LocalTxn.UNSETTLED})


async def load_prior_record(engine: Engine, lease: Lease) -> TransactionRecord:
    """The record of earlier runs. A redemption whose answer was lost is detected now, before its list is replaced."""
    record = engine.journal.transactions.require(lease.txn)
    if record.staging is None or record.redeemed or record.state not in _MAYBE_REDEEMED:
        return record
    view = await fetch_transaction(engine, lease.txn)
    before = plan_from_journal(record, engine.journal, engine.registry)
    if view is not None:
        await adopt_redemption(engine, lease, before, view)
    elif before.live and not before.calls:
        settle_live_only(engine, lease, before)
    return engine.journal.transactions.require(lease.txn)


async def finish_prior_run(
    engine: Engine, lease: Lease, earlier: TransactionRecord, plan: Plan, live: LiveWork
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
