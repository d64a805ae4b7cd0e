"""The rows of the queue as a template needs them: under their stretch of time, alike ones as one, each with its link.

Pure. Reviews of one kind that a person may decide together (the workflow says which) become one row from three on;
nothing is decided there: it leads to the page that lists every one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from policy_service.channels.showing.marking import mark
from policy_service.channels.showing.standing import Outcome, short_outcome
from policy_service.channels.showing.wording import Due, clock, due
from policy_service.channels.web.drawing.filters import address
from policy_service.queries.effect_text import Money, Piece
from policy_service.queries.queue import QueueRow, Tab, Wanted

ALIKE_FROM = 3  # two rows are read as quickly as one that stands for both


@dataclass(frozen=True, slots=True)
class Together:
    """Rows of one kind: how many, and between which amounts."""

    size: int
    least: Money | None
    most: Money | None


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A row with its link, its time left and the number of things in it that can mislead."""

    row: QueueRow
    href: str
    due: Due
    warnings: int
    outcome: Outcome | None = None
    settled: str = ""
    together: Together | None = None
    current: bool = False  # it stands beside the list


@dataclass(frozen=True, slots=True)
class QueueGroup:
    """Rows of one stretch of time."""

    name: str
    size: int
    rows: tuple[QueueEntry, ...]


def queue_groups(
    rows: Sequence[QueueRow], now: datetime, wanted: Wanted, beside: str = ""
) -> tuple[QueueGroup, ...]:
    """Rows in the order given, under their stretch of time; ``beside`` is the review shown next to the list."""
    stretches: dict[str, list[QueueRow]] = {}
    for row in rows:
        stretches.setdefault(_stretch(row, now, wanted), []).append(row)
    return tuple(
        QueueGroup(name, len(some), tuple(_entries(some, now, wanted, beside)))
        for name, some in stretches.items()
    )


def _entries(rows: Sequence[QueueRow], now: datetime, wanted: Wanted, beside: str) -> Iterable[QueueEntry]:
    kinds = Counter(row.alike for row in rows if row.alike)
    told: set[str] = set()
    for row in rows:
        if kinds[row.alike] < ALIKE_FROM:
            yield _entry(row, now, wanted, beside)
        elif row.alike not in told:
            told.add(row.alike)
            yield _together([one for one in rows if one.alike == row.alike], now, beside)


def _entry(row: QueueRow, now: datetime, wanted: Wanted, beside: str) -> QueueEntry:
    decided = row.state != "open"
    return QueueEntry(
        row,
        address(wanted, review=row.review_id) if beside else f"/reviews/{row.review_id}",
        due(row.opened_at, row.answer_by, now),
        sentence_warnings(row.sentence),
        short_outcome(row.state, row.effect_state, opened=row.opened) if decided else None,
        clock(row.settled_at, now) if row.settled_at else "",
        current=row.review_id == beside,
    )


def _together(rows: Sequence[QueueRow], now: datetime, beside: str) -> QueueEntry:
    first = min(rows, key=lambda row: (row.answer_by, row.review_id))
    amounts = sorted((row.amount for row in rows if row.amount), key=lambda money: money.minor)
    same = len({money.currency for money in amounts}) == 1 and len(amounts) == len(rows)
    warnings = sum(sentence_warnings(row.sentence) for row in rows)
    return QueueEntry(
        first,
        f"/alike/{first.review_id}",
        due(first.opened_at, first.answer_by, now),
        warnings,
        together=Together(len(rows), amounts[0] if same else None, amounts[-1] if same else None),
        current=beside in {row.review_id for row in rows},
    )


def _stretch(row: QueueRow, now: datetime, wanted: Wanted) -> str:
    if wanted.tab is Tab.DECIDED:
        return _day(row.settled_at or row.answer_by, now)
    if wanted.order == "newest":
        return _day(row.opened_at, now)
    if row.answer_by <= now:
        return "Time is up"
    if row.answer_by - now <= timedelta(hours=1):
        return "Within the hour"
    return "Within a day" if row.answer_by - now <= timedelta(days=1) else "Later"


def _day(at: datetime, now: datetime) -> str:
    if at.date() == now.date():
        return "Today"
    return f"{at.day} {at:%b}" if at.year == now.year else f"{at.day} {at:%b %Y}"


def sentence_warnings(pieces: Iterable[Piece]) -> int:
    """How many things in a sentence can mislead."""
    values = (mark(piece.text, address=piece.kind == "recipient") for piece in pieces if piece.value)
    return sum(len(marked.findings) for marked in values)
