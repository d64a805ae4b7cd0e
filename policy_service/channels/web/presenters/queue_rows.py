"""Rows of the queue for templates: grouped by time, similar ones combined, each with its link. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any, cast
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from policy_service.channels.presentation.formatting import Deadline, clock_time, deadline_of
from policy_service.channels.presentation.marked_text import mark
from policy_service.channels.presentation.review_status import OutcomeText, short_outcome_text
from policy_service.errors import InvalidRequestError
from policy_service.queries.effects import Money, Piece
from policy_service.queries.queue import Order, QueueFilter, QueuePage, QueueRow, Tab

_MAX_CHARS = 200
# parameters that are no filters
_OTHER_PARAMS = frozenset({"cursor", "review", "since"})
_NAMES = {"agent": "Agent", "tool": "Tool", "group": "Asks", "risk": "Risk", "text": "Says"}
_RISKS = ("low", "medium", "high")
_ORDERS = ("due", "newest")
_TITLES = {Tab.ME: "Needs me", Tab.OPEN: "All open", Tab.MINE: "Mine", Tab.DECIDED: "Decided"}
_KNOWN = frozenset(field.name for field in fields(QueueFilter))


@dataclass(frozen=True, slots=True)
class TabView:
    """A tab as a link with its count."""

    title: str
    href: str
    count: str
    zero: bool
    current: bool


@dataclass(frozen=True, slots=True)
class Chip:
    """An active filter, and the address without it."""

    name: str
    value: str
    href: str


def parse_filter(params: QueryParams) -> QueueFilter:
    """The filter of an address.

    Raises:
        InvalidRequestError: the queue cannot serve it.
    """
    given = params.multi_items()
    names = [name for name, _ in given]
    if odd := [name for name in names if name not in _KNOWN | _OTHER_PARAMS]:
        raise InvalidRequestError(
            f"the queue has no filter {odd[0]!r}: there are {', '.join(sorted(_KNOWN))}"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidRequestError(f"the address names {twice[0]!r} twice: name it once")
    values: dict[str, Any] = {
        name: value.strip() for name, value in given if name in _KNOWN and value.strip()
    }
    if long := [name for name, value in values.items() if len(value) > _MAX_CHARS]:
        raise InvalidRequestError(f"the filter {long[0]!r} holds {_MAX_CHARS} characters at most")
    _one_of("tab", values, tuple(Tab))
    _one_of("risk", values, _RISKS)
    _one_of("order", values, _ORDERS)
    return _check_supported(QueueFilter(**values | {"tab": Tab(values.get("tab", Tab.ME))}))


def _one_of(name: str, values: dict[str, Any], known: tuple[str, ...]) -> None:
    if name in values and values[name] not in known:
        raise InvalidRequestError(f"there is no {name} {values[name]!r}: there are {', '.join(known)}")


def _check_supported(wanted: QueueFilter) -> QueueFilter:
    """Settled reviews have no group index, and their sentences are too many to search."""
    if wanted.tab is Tab.DECIDED and (wanted.group or wanted.text):
        name = "group" if wanted.group else "text"
        raise InvalidRequestError(f"decided reviews cannot be filtered by {name}: use agent, tool or risk")
    return wanted


def address(wanted: QueueFilter, **params: str | None) -> str:
    """The queue's address for a filter."""
    said = {field.name: str(getattr(wanted, field.name)) for field in fields(QueueFilter)}
    usual = {field.name: field.default for field in fields(QueueFilter)}
    named = {name: value for name, value in said.items() if value != usual[name]}
    named |= {name: value for name, value in params.items() if value}
    return "/?" + urlencode(named) if named else "/"


def tabs(wanted: QueueFilter, page: QueuePage) -> tuple[TabView, ...]:
    """The four tabs; filters are kept where the other tab supports them."""
    counts = {Tab.ME: page.counts.me, Tab.OPEN: page.counts.open, Tab.MINE: page.counts.mine}
    counts[Tab.DECIDED] = page.counts.decided
    return tuple(
        TabView(title, _on_tab(wanted, tab), counts[tab].words, not counts[tab].number, tab is wanted.tab)
        for tab, title in _TITLES.items()
    )


def _on_tab(wanted: QueueFilter, tab: Tab) -> str:
    if tab is Tab.DECIDED:
        return address(replace(wanted, tab=tab, group="", text="", order="due"))
    return address(replace(wanted, tab=tab))


def chips(wanted: QueueFilter) -> tuple[Chip, ...]:
    """The active filters."""
    said = {name: str(getattr(wanted, name)) for name in _NAMES}
    return tuple(
        Chip(_NAMES[name], value, address(replace(wanted, **cast(Any, {name: ""}))))
        for name, value in said.items()
        if value
    )


def other_order(wanted: QueueFilter) -> tuple[str, str]:
    """The current order in words, and the address of the other."""
    if wanted.tab is Tab.DECIDED:
        return "Decided last", ""
    other: Order = "due" if wanted.order == "newest" else "newest"
    return "Newest first" if wanted.order == "newest" else "Expires first", address(
        replace(wanted, order=other)
    )


def unfiltered_address(wanted: QueueFilter) -> str:
    """The same tab and order without filters."""
    return address(QueueFilter(tab=wanted.tab, order=wanted.order))


BATCH_FROM_ROWS = 3  # two rows are as quick to read as a combined one


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """The size of a batch, and its smallest and largest amount."""

    size: int
    least: Money | None
    most: Money | None


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A row with its link, time left and number of warnings."""

    row: QueueRow
    href: str
    due: Deadline
    warnings: int
    outcome: OutcomeText | None = None
    settled: str = ""
    together: BatchSummary | None = None
    current: bool = False  # shown next to the list


@dataclass(frozen=True, slots=True)
class QueueGroup:
    """Rows of one period."""

    name: str
    size: int
    rows: tuple[QueueEntry, ...]


def queue_groups(
    rows: Sequence[QueueRow], now: datetime, wanted: QueueFilter, open_id: str = ""
) -> tuple[QueueGroup, ...]:
    """Rows in the given order, grouped by period; ``open_id`` is the review shown next to the list."""
    stretches: dict[str, list[QueueRow]] = {}
    for row in rows:
        stretches.setdefault(_period(row, now, wanted), []).append(row)
    return tuple(
        QueueGroup(name, len(some), tuple(_entries(some, now, wanted, open_id)))
        for name, some in stretches.items()
    )


def _entries(
    rows: Sequence[QueueRow], now: datetime, wanted: QueueFilter, open_id: str
) -> Iterable[QueueEntry]:
    kinds = Counter(row.alike for row in rows if row.alike)
    combined: set[str] = set()
    for row in rows:
        if kinds[row.alike] < BATCH_FROM_ROWS:
            yield _entry(row, now, wanted, open_id)
        elif row.alike not in combined:
            combined.add(row.alike)
            yield _together([one for one in rows if one.alike == row.alike], now, open_id)


def _entry(row: QueueRow, now: datetime, wanted: QueueFilter, open_id: str) -> QueueEntry:
    decided = row.state != "open"
    return QueueEntry(
        row,
        address(wanted, review=row.review_id) if open_id else f"/reviews/{row.review_id}",
        deadline_of(row.opened_at, row.answer_by, now),
        sentence_warnings(row.sentence),
        short_outcome_text(row.state, row.effect_state, opened=row.opened) if decided else None,
        clock_time(row.settled_at, now) if row.settled_at else "",
        current=row.review_id == open_id,
    )


def _together(rows: Sequence[QueueRow], now: datetime, open_id: str) -> QueueEntry:
    first = min(rows, key=lambda row: (row.answer_by, row.review_id))
    amounts = sorted((row.amount for row in rows if row.amount), key=lambda money: money.minor)
    same = len({money.currency for money in amounts}) == 1 and len(amounts) == len(rows)
    warnings = sum(sentence_warnings(row.sentence) for row in rows)
    return QueueEntry(
        first,
        f"/alike/{first.review_id}",
        deadline_of(first.opened_at, first.answer_by, now),
        warnings,
        together=BatchSummary(len(rows), amounts[0] if same else None, amounts[-1] if same else None),
        current=open_id in {row.review_id for row in rows},
    )


def _period(row: QueueRow, now: datetime, wanted: QueueFilter) -> str:
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
    """The number of findings in a sentence."""
    values = (mark(piece.text, address=piece.kind == "recipient") for piece in pieces if piece.value)
    return sum(len(marked.findings) for marked in values)
