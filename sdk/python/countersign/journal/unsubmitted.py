"""What becomes of calls that are in no submitted list, or in none any more: they stay readable in the journal.

What is secret of them is sealed as `freeze` seals it; where nobody can say what is, or no key is here, a call keeps its
name alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from countersign.errors import JournalSealed
from countersign.journal.chain import Change
from countersign.journal.moves import LocalState
from countersign.journal.reading import LIVE_LANE, STAGED_LANE
from countersign.journal.sealing import About, Seals

if TYPE_CHECKING:
    from countersign.journal.transactions import Staged

_SUPERSEDED: Final = "another list was submitted under this key"


def leave(change: Change, staging: int) -> None:
    """What was never frozen of a list: its staged calls are withdrawn, its live effects were undone."""
    for lane, to in ((STAGED_LANE, LocalState.WITHDRAWN), (LIVE_LANE, LocalState.UNDONE)):
        change.run(
            "effects",
            "UPDATE effects SET state = ? WHERE txn = ? AND staging = ? AND lane = ? AND state IN (?, ?)",
            (to.value, change.txn, staging, lane, LocalState.STAGED.value, LocalState.LIVE.value),
            "state",
        )


def keep_readable(
    change: Change, seals: Seals, staging: int, calls: Sequence[Staged], why: str | None = None
) -> None:
    """Complete the rows of calls that are not submitted, with `why`."""
    for call in calls:
        raw = b""
        with suppress(JournalSealed):
            if call.secret is not None:
                about = About(change.txn, call.effect_id, "args")
                raw = seals.seal(change.unit, about, call.args, call.secret)
        change.run(
            "effects",
            "UPDATE effects SET args = CASE WHEN length(args) = 0 THEN ? ELSE args END, tool_digest = ?, "
            "error = coalesce(error, ?) WHERE txn = ? AND staging = ? AND lane = ? AND effect_id = ?",
            (raw, call.tool_digest, why, change.txn, staging, call.lane, call.effect_id),
            *("args", "tool_digest", "error"),
        )


def supersede(change: Change, staging: int) -> None:
    """Of an earlier list in force, what this one does not ask for any more is withdrawn, as the service does it."""
    change.run(
        "effects",
        "UPDATE effects SET state = ?, error = ? WHERE txn = ? AND staging <> ? AND lane = ? AND state IN (?, ?, ?) "
        "AND effect_id NOT IN (SELECT effect_id FROM effects WHERE txn = ? AND staging = ?)",
        (
            *(LocalState.WITHDRAWN.value, _SUPERSEDED, change.txn, staging, STAGED_LANE),
            *(LocalState.STAGED.value, LocalState.REVIEW.value, LocalState.RELEASED.value),
            *(change.txn, staging),
        ),
        *("state", "error"),
    )
