"""The lines of a page where several reviews are decided, as a template needs them, each with its arguments. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from policy_service.channels.showing.arguments import ArgView, arg_views, same_bytes
from policy_service.channels.showing.wording import Due, due
from policy_service.channels.web.drawing.beside import Part, part_of
from policy_service.channels.web.drawing.queue_views import sentence_warnings
from policy_service.queries.batches import BatchLine, WholePage, WholePart
from policy_service.queries.review_models import Sibling


@dataclass(frozen=True, slots=True)
class LineView:
    """One review of a batch. One with anything in it that deceives or folds has no box: it is decided on its own."""

    line: BatchLine
    args: tuple[ArgView, ...]
    due: Due
    alone: bool


@dataclass(frozen=True, slots=True)
class PartView:
    """One effect of a transaction: what this person may decide of it here, or why they may not."""

    part: Part
    finality: str
    gates: tuple[str, ...]
    may: LineView | None
    why_not_here: str


def line_views(lines: Iterable[BatchLine], now: datetime) -> tuple[LineView, ...]:
    """The lines of a batch."""
    return tuple(_line(line, now) for line in lines)


def part_views(page: WholePage, now: datetime) -> tuple[PartView, ...]:
    """The effects of a transaction, in their order."""
    return tuple(_part(part, now) for part in page.parts)


def _part(part: WholePart, now: datetime) -> PartView:
    view = None if part.line is None else _line(part.line, now)
    odd = view is not None and view.alone
    return PartView(
        part_of(Sibling(part.seq, part.sentence, part.state, part.review_id, part.args)),
        part.finality,
        part.gates,
        None if odd else view,
        "something in it can mislead" if odd else part.why_not_here,
    )


def _line(line: BatchLine, now: datetime) -> LineView:
    args = arg_views(line)
    odd = any(arg.findings or arg.value.preview is not None for arg in args) or not same_bytes(line)
    return LineView(
        line, args, due(line.opened_at, line.answer_by, now), odd or bool(sentence_warnings(line.sentence))
    )
