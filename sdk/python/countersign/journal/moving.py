"""The one way an effect changes its state: by the table of moves, and with a line of the chain."""

from __future__ import annotations

from functools import cache

from countersign.errors import JournalError
from countersign.journal.chain import Change
from countersign.journal.moves import SOURCES, LocalState


def move(
    change: Change,
    staging: int,
    effect_id: str,
    to: LocalState,
    *,
    missing_ok: bool = False,
    **also: bytes | str | int | None,
) -> None:
    """Change an effect's state: a conditional UPDATE that names where it may come from.

    `also` are columns that belong to the move: the lease of a FIRING, what an outcome brought.

    Raises:
        JournalError: the table does not lead there from where the effect stands (unless that is
        `missing_ok`).
    """
    values = (to.value, change.at, *also.values(), change.txn, staging, effect_id)
    moved = change.run("effects", _moving(to, tuple(also)), values, "state", "updated_at", *also)
    if moved != 1 and not missing_ok:
        raise JournalError(
            f"effect {effect_id[:12]} cannot become {to.value} from where it stands in the journal"
        )


@cache
def _moving(to: LocalState, columns: tuple[str, ...]) -> str:
    """The statement of a move, written once: states and columns are words of this package, never of a caller."""
    sources = ", ".join(f"'{state.value}'" for state in sorted(SOURCES[to]))
    columns_set = "".join(f", {column} = ?" for column in columns)
    return (
        f"UPDATE effects SET state = ?, updated_at = ?{columns_set} "  # noqa: S608
        f"WHERE txn = ? AND staging = ? AND effect_id = ? AND state IN ({sources})"
    )
