"""Many reviews in one message, where a card for each would be a flood. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from slack_sdk.models.blocks import Block

from policy_service.channels.slack.drawing.buttons import page_url
from policy_service.channels.slack.drawing.message import Drawn, block_id, drawn
from policy_service.channels.slack.drawing.rows import Row, listed, numbered
from policy_service.channels.slack.drawing.writing import (
    VALUE,
    Pen,
    bold,
    escaped,
    link,
    own,
    rich,
    section,
    when,
)
from policy_service.queries.effect_text import Piece
from policy_service.queries.queue import Count


@dataclass(frozen=True, slots=True)
class DigestLine:
    """One review of a digest: its state is a word of the review's, `open` while people are asked."""

    review_id: str
    sentence: tuple[Piece, ...]
    state: str
    answer_by: datetime


def digest(
    lines: Sequence[DigestLine], more: int, *, digest_id: str, outbox_id: str, public_url: str, now: datetime
) -> Drawn:
    """A list with a link for each; ``more`` stand besides. It is named like a card: `cs/<digest_id>/0/<outbox_id>`."""
    waiting = sum(_waits(line, now) for line in lines)
    head = (
        f"{numbered(Count(waiting + more))} here, listed together"
        if waiting + more
        else "Nobody is asked about these any more"
    )
    blocks: list[Block] = [rich(section(bold(head), own(".")), block_id=block_id(digest_id, 0, outbox_id))]
    rows = (_row(line, public_url, now) for line in lines)
    return drawn(
        escaped(head), [*blocks, *listed(rows, Count(len(lines) + more), f"{public_url.rstrip('/')}/")]
    )


def _row(line: DigestLine, public_url: str, now: datetime) -> Row:
    pen = Pen()
    words = own(pen.shown(line.state.replace("_", " ").capitalize()))
    if line.state == "open":
        over = now >= line.answer_by
        words = [*own("Time was up " if over else "To be answered by "), *when(line.answer_by, left=not over)]
    way = link(page_url(public_url, line.review_id), "Open")
    return [section(pen.sentence(line.sentence, VALUE)), section(words, own(" · "), way)]


def _waits(line: DigestLine, now: datetime) -> bool:
    return line.state == "open" and now < line.answer_by
