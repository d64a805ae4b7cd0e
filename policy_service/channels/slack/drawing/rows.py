"""One review in a list of them: its sentence, how it stands, and the way to its page. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from slack_sdk.models.blocks import Block, DividerBlock, RichTextSectionElement

from policy_service.channels.showing.standing import short_outcome
from policy_service.channels.slack.drawing.buttons import page_url
from policy_service.channels.slack.drawing.message import characters
from policy_service.channels.slack.drawing.writing import NAME, VALUE, Pen, link, own, rich, section, when
from policy_service.queries.queue import Count, QueuePage, QueueRow

MAX_LIST_CHARACTERS: Final = 7_500  # of all rows of one list: the frame around it needs the rest
MOST_ROWS: Final = 20  # who has more waiting works on the web

Row = list[RichTextSectionElement]


def row_of(row: QueueRow, public_url: str) -> Row:
    """A review of the queue in two lines."""
    pen = Pen()
    way = link(page_url(public_url, row.review_id), "Open")
    if row.broken:
        return [section(own("This one cannot be read: "), way)]
    by = own(
        f"{row.risk.capitalize()} risk · {pen.shown(row.agent)} · {row.have:,} of {row.need:,} signed · "
    )
    until = [*own("by "), *when(row.answer_by, left=True)]
    told = short_outcome(row.state, row.effect_state, opened=row.opened)
    stands = until if row.state == "open" else own(pen.shown(told.heading, NAME))
    return [section(pen.sentence(row.sentence, VALUE)), section(by, stands, own(" · "), way)]


def listed(rows: Iterable[Row], total: Count, where: str, most: int = MOST_ROWS) -> list[Block]:
    """As many rows as there is room for, and how many of the ``total`` stand elsewhere."""
    blocks: list[Block] = []
    room, shown = MAX_LIST_CHARACTERS, 0
    for row in islice(rows, most):
        block = rich(*row)
        room -= characters(block.to_dict())
        if room < 0:
            break
        blocks += [block] if not blocks else [DividerBlock(), block]
        shown += 1
    more = Count(total.number - shown, total.capped)
    return blocks + ([_more(more, where)] if more.number > 0 else [])


def number_waiting(page: QueuePage) -> Count:
    """How many reviews wait for the person whose queue this is."""
    return Count(max(page.counts.me.number, len(page.rows)), page.counts.me.capped)


def numbered(count: Count) -> str:
    """`3 reviews wait`, `1 review waits`, `1,000+ reviews wait`."""
    one = count.number == 1 and not count.capped
    return f"{count.words} {'review waits' if one else 'reviews wait'}"


def _more(more: Count, where: str) -> Block:
    one = more.number == 1 and not more.capped
    words = "1 more stands" if one else f"{more.words} more stand"
    return rich(section(own(f"{words} "), link(where, "on the web"), own(".")))
