"""Notes on the state of a transaction, for the exception that ended its block."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from countersign.errors import IsolationConflict, JournalError
from countersign.journal import Journal, LocalTxn, TransactionRecord
from countersign.journal.states import OPEN_TXN
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


def add_prior_run_note(error: BaseException, journal: Journal, txn: str, key: str) -> None:
    """Note that an earlier run of the key may have done what this run could not."""
    if not isinstance(error, Exception):
        return
    with suppress(JournalError):
        record = journal.transactions.get(txn)
        if record is None or not (record.redeemed or record.landed):
            return
        if isinstance(error, IsolationConflict):
            error.add_earlier_run(record.state.value)
        else:
            add_note(error, _EARLIER.format(key, record.state.value))


_EARLIER: Final = (
    "transaction {!r}: an earlier run of this key was redeemed or kept, and is {}. Live tools ran again on that "
    "run's results, and this run's work was undone. `countersign journal show` shows that run: do not request "
    "its calls under another key because of this error."
)
