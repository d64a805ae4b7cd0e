"""The context panel for templates: labels of outcomes, lengths of bars. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from policy_service.channels.presentation.arguments import FoldedText, fold
from policy_service.channels.presentation.formatting import clock_time
from policy_service.channels.presentation.marked_text import Marked, mark
from policy_service.channels.presentation.review_status import approval_effect, waiting_siblings
from policy_service.domain.values import money_text
from policy_service.queries.context_panel import (
    ContextPanel,
    LastApproved,
    MeterLine,
    Precedent,
    Precedents,
    RedemptionProof,
)
from policy_service.queries.effects import ArgRow, Money
from policy_service.queries.review_models import ReviewPage, Sibling

CELL_CHARS = 160
_CONTEXT_CHARS = 30  # characters shown before the first difference


@dataclass(frozen=True, slots=True)
class Cell:
    """One side of a row. ``size`` is 0 if the whole value is shown."""

    text: Marked
    money: Money | None = None
    cut_before: bool = False
    cut_after: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """An argument that differs; None if one side has no such argument."""

    name: Marked
    then: Cell | None
    now: Cell | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The arguments that differ, in page order, and the names of the others."""

    rows: tuple[ComparisonRow, ...]
    same: tuple[Marked, ...]
    hidden: tuple[Marked, ...]


def compare_args(then: Sequence[ArgRow], now: Sequence[ArgRow]) -> Comparison:
    """Put every argument of either side into exactly one of the three lists."""
    before, after = {row.name: row for row in then}, {row.name: row for row in now}
    rows, same, hidden = [], [], []
    for name in [*after, *(name for name in before if name not in after)]:
        old, new = before.get(name), after.get(name)
        if any(row is not None and row.secret for row in (old, new)):
            hidden.append(mark(name))
        elif old is not None and new is not None and old.value_json == new.value_json:
            same.append(mark(name))
        else:
            rows.append(ComparisonRow(mark(name), *_cells(old, new), _note(old, new)))
    return Comparison(tuple(rows), tuple(same), tuple(hidden))


def _cells(old: ArgRow | None, new: ArgRow | None) -> tuple[Cell | None, Cell | None]:
    shared = 0
    if old is not None and new is not None:
        one, other = old.value_text, new.value_text
        ends = min(len(one), len(other))  # one may be a prefix of the other
        shared = next((at for at in range(ends) if one[at] != other[at]), ends)
    return _cell(old, shared), _cell(new, shared)


def _cell(row: ArgRow | None, shared: int) -> Cell | None:
    if row is None:
        return None
    text = row.value_text
    if len(text) <= CELL_CHARS:
        return Cell(mark(text, block=True, address=row.recipient), row.money)
    start = max(0, min(shared - _CONTEXT_CHARS, len(text) - CELL_CHARS))
    piece = text[start : start + CELL_CHARS]
    marked = mark(piece, block=True, address=row.recipient, edges=False)
    return Cell(marked, row.money, start > 0, start + CELL_CHARS < len(text), row.bytes)


def _note(old: ArgRow | None, new: ArgRow | None) -> str:
    """A remark about the difference, for example "3 times larger"."""
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


# By state: label, icon and CSS class.
_OUTCOMES: Final[dict[str, tuple[str, str, str]]] = {
    "fired": ("fired", "fire", "tag-good"),
    "compensating": ("fired, being undone", "refresh", "tag-warn"),
    "compensated": ("fired, then undone", "refresh", ""),
    "compensation_failed": ("fired, could not be undone", "alert", "tag-bad"),
    "failed": ("failed, nothing happened", "alert", "tag-bad"),
    "unknown": ("not known whether it fired", "unknown", "tag-warn"),
    "unused": ("released, not used", "info", ""),
    "released": ("released, not spent yet", "key", ""),
    "redeemed": ("spent, outcome not reported yet", "seal", ""),
    "review": ("waits for people", "clock", ""),
    "denied": ("denied", "deny", ""),
    "expired": ("expired", "clock", ""),
    "withdrawn": ("withdrawn", "close", ""),
    "revoked": ("revoked", "close", ""),
}
# How states are counted; the order is that of the sentence.
_COUNT_LABELS: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("fired", frozenset({"fired", "compensating", "compensated", "compensation_failed"})),
    ("denied", frozenset({"denied"})),
    ("failed", frozenset({"failed"})),
    ("unknown", frozenset({"unknown"})),
    ("waiting", frozenset({"review"})),
    ("released and not fired", frozenset({"released", "redeemed", "unused"})),
    ("expired or taken back", frozenset({"expired", "withdrawn", "revoked"})),
)


@dataclass(frozen=True, slots=True)
class PrecedentLine:
    """An earlier effect with its outcome in words."""

    effect: Precedent
    outcome: str
    icon: str
    tag: str
    clock: str
    reason: FoldedText | None


@dataclass(frozen=True, slots=True)
class LastApprovedView:
    """The last approved effect compared with this one."""

    last: LastApproved
    line: PrecedentLine
    compared: Comparison


@dataclass(frozen=True, slots=True)
class MeterBar:
    """A meter. Lengths are percentages of the limit; None if no policy has a plain limit, and then no bar is
    drawn.
    """

    line: MeterLine
    before: str
    this: str
    after: str
    limit: str
    left: str
    until: str
    used_width: float | None = None
    this_width: float = 0.0
    label: str = ""
    over: bool = False


@dataclass(frozen=True, slots=True)
class SiblingLine:
    """Another effect of the transaction, with its arguments."""

    sibling: Sibling
    outcome: str
    icon: str
    args: tuple[tuple[Marked, ArgRow, FoldedText], ...]


@dataclass(frozen=True, slots=True)
class ContextPanelView:
    """The variables of the panel's templates."""

    last: LastApprovedView | None
    past: Precedents | None
    past_lines: tuple[PrecedentLine, ...]
    past_counts: str
    bars: tuple[MeterBar, ...]
    parts: tuple[SiblingLine, ...]
    approving: str  # what an approval does to the transaction; may be empty
    releases: bool  # whether this approval is the last one needed
    proof: RedemptionProof | None


def context_panel_view(page: ReviewPage, wanted: int, now: datetime) -> ContextPanelView:
    """``wanted`` is the number of missing signatures."""
    panel = page.panel or ContextPanel()
    past = panel.past
    return ContextPanelView(
        last=None if panel.last is None else _last(panel.last, page, now),
        past=past,
        past_lines=() if past is None else tuple(_precedent_line(row, now) for row in past.rows),
        past_counts="" if past is None else _counts(past),
        bars=tuple(_bar(line, now) for line in panel.meters),
        parts=tuple(sibling_line(sibling) for sibling in page.siblings),
        approving=approval_effect(page, wanted),
        releases=wanted <= 1 and not waiting_siblings(page),
        proof=panel.proof,
    )


def drawn_bytes(page: ReviewPage) -> int:
    """The size of the data around the sheet; a large page is rendered in a thread."""
    last = page.panel.last if page.panel is not None else None
    return _bytes(row for sibling in page.siblings for row in sibling.args) + _bytes(
        last.args if last else ()
    )


def _bytes(rows: Iterable[ArgRow]) -> int:
    return sum(row.bytes for row in rows)


def _last(last: LastApproved, page: ReviewPage, now: datetime) -> LastApprovedView:
    return LastApprovedView(last, _precedent_line(last.effect, now), compare_args(last.args, page.args))


def _precedent_line(row: Precedent, now: datetime) -> PrecedentLine:
    word, icon, tag = _OUTCOMES.get(row.state, (row.state, "info", ""))
    if row.state == "denied" and row.by is None:
        word = "denied by policy"
    reason = fold(row.reason) if row.reason else None
    return PrecedentLine(row, word, icon, tag, clock_time(row.asked_at, now), reason)


def _counts(past: Precedents) -> str:
    parts = [
        f"{number:,} {word}"
        for word, states in _COUNT_LABELS
        if (number := sum(past.counts.get(state, 0) for state in states))
    ]
    total = sum(past.counts.values())
    whole = f"The newest {total:,}" if past.capped else f"{total:,}"
    return f"{whole} like it in {past.days} days: {', '.join(parts)}"


def _bar(line: MeterLine, now: datetime) -> MeterBar:
    after = line.before + (line.this or 0)
    limit = None if line.limit is None else line.limit.total
    bar = MeterBar(
        line=line,
        before=_amount_text(line, line.before),
        this="" if line.this is None else _amount_text(line, line.this),
        after=_amount_text(line, after),
        limit="" if limit is None else _amount_text(line, limit),
        left="" if limit is None else _amount_text(line, abs(limit - after)),
        until="" if line.until is None else clock_time(line.until, now),
        over=limit is not None and after > limit,
    )
    if limit is None or limit <= 0 or line.this is None:
        return bar
    used = min(100.0, round(100 * line.before / limit, 1))
    this = min(100.0 - used, round(100 * line.this / limit, 1))
    rest = f"{bar.left} over the limit" if bar.over else f"{bar.left} left"
    label = f"{bar.before} before, {bar.this} for this effect, {rest} of {bar.limit}"
    return replace(bar, used_width=used, this_width=this, label=label)


def _amount_text(line: MeterLine, number: int) -> str:
    return f"{number:,}" if line.currency is None else f"{money_text(number, line.currency)} {line.currency}"


def sibling_line(sibling: Sibling) -> SiblingLine:
    """Another effect of the transaction, with its outcome in words."""
    word, icon, _ = _OUTCOMES.get(sibling.state, (sibling.state, "info", ""))
    args = tuple(
        (mark(row.name), row, fold("" if row.secret else row.value_text, address=row.recipient))
        for row in sibling.args
    )
    return SiblingLine(sibling, word, icon, args)
