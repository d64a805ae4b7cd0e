"""What recovery tells of an error that keeps a transaction up: in its note, in the log and to whoever looks."""

from __future__ import annotations

import logging
from typing import Final

from countersign.commit.raised import MAX_ERROR
from countersign.engine import Engine
from countersign.errors import JournalError, OutcomeUnknown, ToolRaised
from countersign.errors.fired import raised_at
from countersign.journal import Lease
from countersign.live.telling import holds_no_argument
from countersign.texts import storable, text_of

log: Final = logging.getLogger("countersign")


def told_of(engine: Engine, error: Exception) -> str:
    """The text of an error of ours, without the advice to resume. Of any other, which may quote the values that it
    refuses (a database does), the kind and place, and its text where no unfinished transaction has secrets: what an
    adapter finishes may be another's.
    """
    if isinstance(error, ToolRaised) or holds_no_argument(error):
        return error.briefly if isinstance(error, OutcomeUnknown) else str(error)
    text = "" if engine.journal.transactions.unfinished_has_secrets() else _text_of(error)
    return f"{type(error).__name__}{text and f': {text}'} (at {raised_at(error)})"


def leave_word(engine: Engine, lease: Lease, note: str | None) -> None:
    """Write it to the transaction, where it is not there already. A journal that does not take it keeps nobody else
    up.
    """
    journal = engine.journal.transactions
    try:
        if journal.require(lease.txn).note != note:
            journal.note(lease, note)
    except JournalError as error:
        log.warning("%s: the journal takes no note of it: %s", lease.txn[:12], error)


def _text_of(error: Exception) -> str:
    """In one line. An OSError without the file's name, which may be of another transaction."""
    text = storable(error.strerror or "") if isinstance(error, OSError) else text_of(error)
    return " ".join(text.split())[:MAX_ERROR]
