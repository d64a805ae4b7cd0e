"""What Ctrl-C leaves of a commit, in a line under the traceback: where the step stands, and how it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from countersign.errors import JournalError
from countersign.journal import Journal, LocalTxn, TransactionRecord
from countersign.journal.moves import OPEN_TXN
from countersign.texts import add_note

_HOW_ON: Final = {
    LocalTxn.STOPPED: "nothing more of it is begun until the same block runs again under this key; "
    "`countersign resume --tools MODULE` takes back what fired",
    LocalTxn.UNSETTLED: "`countersign resume --tools MODULE`, or the same block under this key, looks again",
}
_GOES_ON: Final = "`countersign resume --tools MODULE`, or the same block under this key, goes on with it"


def tell_where_it_stands(interrupt: BaseException, journal: Journal, txns: Sequence[str], key: str) -> None:
    """Add a note to what interrupted a commit. A journal that cannot be read adds none: the interrupt goes first."""
    for txn in txns:
        try:
            record = journal.transactions.require(txn)
            add_note(interrupt, f"transaction {key!r}: {_told(journal, record)}")
        except JournalError:
            continue


def _told(journal: Journal, record: TransactionRecord) -> str:
    rows = journal.transactions.effects(record)
    calls = ", ".join(f"{row.label} {row.state.value}" for row in rows)
    state = record.stands_as
    told = f"{state}{f' ({calls})' if calls else ''}"
    return f"{told}; {_HOW_ON.get(record.state, _GOES_ON)}" if record.state in OPEN_TXN else told
