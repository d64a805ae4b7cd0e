"""The arguments of two effects side by side: what was sent then, what would be sent now. Pure.

Rules kept here: the same marks as on the sheet, on both sides; a long value is cut to the stretch where the two begin
to differ, with the byte count of the whole; a value that is hidden on either side is hidden on both, and nobody is
told whether it changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from policy_service.channels.showing.marking import Marked, mark
from policy_service.queries.effect_text import ArgRow, Money

CELL_CHARS = 160
_BEFORE_IT = 30  # characters shown in front of the first difference


@dataclass(frozen=True, slots=True)
class Cell:
    """One side of a row. ``size`` is 0 where the whole value is shown."""

    text: Marked
    money: Money | None = None
    cut_before: bool = False
    cut_after: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """An argument that differs; None where one side has no such argument."""

    name: Marked
    then: Cell | None
    now: Cell | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs, in the order of the sheet, and the names of the rest."""

    rows: tuple[Row, ...]
    same: tuple[Marked, ...]
    hidden: tuple[Marked, ...]


def compare(then: Sequence[ArgRow], now: Sequence[ArgRow]) -> Comparison:
    """Every argument of either side is in exactly one of the three."""
    before, after = {row.name: row for row in then}, {row.name: row for row in now}
    rows, same, hidden = [], [], []
    for name in [*after, *(name for name in before if name not in after)]:
        old, new = before.get(name), after.get(name)
        if any(row is not None and row.secret for row in (old, new)):
            hidden.append(mark(name))
        elif old is not None and new is not None and old.value_json == new.value_json:
            same.append(mark(name))
        else:
            rows.append(Row(mark(name), *_cells(old, new), _note(old, new)))
    return Comparison(tuple(rows), tuple(same), tuple(hidden))


def _cells(old: ArgRow | None, new: ArgRow | None) -> tuple[Cell | None, Cell | None]:
    shared = 0
    if old is not None and new is not None:
        one, other = old.value_text, new.value_text
        ends = min(len(one), len(other))  # the one may be the beginning of the other
        shared = next((at for at in range(ends) if one[at] != other[at]), ends)
    return _cell(old, shared), _cell(new, shared)


def _cell(row: ArgRow | None, shared: int) -> Cell | None:
    if row is None:
        return None
    text = row.value_text
    if len(text) <= CELL_CHARS:
        return Cell(mark(text, block=True, address=row.recipient), row.money)
    start = max(0, min(shared - _BEFORE_IT, len(text) - CELL_CHARS))
    piece = text[start : start + CELL_CHARS]
    marked = mark(piece, block=True, address=row.recipient, edges=False)
    return Cell(marked, row.money, start > 0, start + CELL_CHARS < len(text), row.bytes)


def _note(old: ArgRow | None, new: ArgRow | None) -> str:
    """What a reader should not have to work out."""
    if old is None or new is None:
        return ""
    if new.recipient:
        return "another recipient"
    before, after = _number(old), _number(new)
    if (
        before is None
        or after is None
        or before <= 0
        or after < 2 * before
        or _currency(old) != _currency(new)
    ):
        return ""
    return f"{after // before:,} times larger"


def _number(row: ArgRow) -> int | None:
    text = row.value_json
    return int(text) if len(text) < 20 and text.isascii() and text.isdigit() else None


def _currency(row: ArgRow) -> str:
    return row.money.currency if row.money else ""
