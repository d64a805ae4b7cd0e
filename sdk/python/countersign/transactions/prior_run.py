"""Finish what an earlier run under the same key left, and note where an interrupted commit stands."""

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
    """Add a note to what interrupted a commit. A journal that cannot be read adds none: the interrupt goes first."""
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
    told = f"{state}{f' ({calls})' if calls else ''}"
    return f"{told}; {_HOW_ON.get(record.state, _GOES_ON)}" if record.state in OPEN_TXN else told


log: Final = logging.getLogger("countersign")


@contextmanager
def log_cleanup_errors(txn: str) -> Iterator[None]:
    """Tidying up must not hide how the transaction ended."""
    try:
        yield
    except JournalError as error:
        log.warning("transaction %s could not be tidied up in the journal: %s", txn[:12], error)


_MAYBE_REDEEMED: Final = frozenset({LocalTxn.FROZEN, LocalTxn.READY, LocalTxn.STOPPED, LocalTxn.UNSETTLED})


async def load_prior_record(engine: Engine, lease: Lease) -> TransactionRecord:
    """The record of earlier runs; a redemption whose answer was lost is found now, before its list is replaced."""
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
    for name in before.tools_changed_in(plan):
        log.warning(
            "the manifest of %s has changed since transaction %r was committed; that goes on with the one of then",
            *(name, plan.run_key),
        )
    live.rerun = plan.staging
    engine.journal.transactions.note_returned(lease, plan.staging, plan.returned)
    engine.journal.stops.go_on(lease)  # whoever runs it again under its key means it
    await RollForward(engine, lease, before, live).run()
    return before
