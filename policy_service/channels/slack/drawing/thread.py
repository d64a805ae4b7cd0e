"""What is told in the thread of a card: one line of the story, and what a person wrote with it. Pure."""

from __future__ import annotations

from countersign.contract.wire import MAX_TEXT_CHARS
from policy_service.channels.slack.drawing.buttons import page_url
from policy_service.channels.slack.drawing.message import Drawn, block_id, drawn
from policy_service.channels.slack.drawing.writing import (
    Line,
    Pen,
    bold,
    escaped,
    link,
    own,
    quote,
    rich,
    section,
    when,
)
from policy_service.queries.review_models import EventLine

MAX_TOLD = 400  # characters of the line itself

_SETTLED = frozenset({"effect_released", "effect_denied"})
"""Lines that follow from one that says who: a vote, a rule."""

_WAYS = {"web": "on the web", "api": "by the API", "slack": "in Slack", "cli": "on the command line"}


def reply(
    line: EventLine, words: str | None, *, review_id: str, rev: int, outbox_id: str, public_url: str
) -> Drawn:
    """One event of a review; ``words`` is a reason or a comment that a person wrote, or None."""
    pen = Pen()
    told = section(pen.said(line.text, MAX_TOLD), _by(line, pen), own(" · "), when(line.at))
    said = [quote(pen.said(words, MAX_TEXT_CHARS, block=True))] if words else []
    where = [section(link(page_url(public_url, review_id), "Read all of it"))] if pen.cut else []
    block = rich(told, *said, *where, block_id=block_id(review_id, rev, outbox_id))
    return drawn(escaped(pen.shown(line.text, MAX_TOLD)), [block])


def _by(line: EventLine, pen: Pen) -> Line:
    """By whom, which way, under which rules."""
    actor = "" if line.kind in _SETTLED else line.actor
    way = _WAYS.get(line.channel, pen.shown(line.channel))
    way = "" if way in line.text else way  # "Commented in Slack" says it
    rest = "".join(
        f", {one}" for one in (way, f"rules at {pen.shown(line.commit[:12])}" if line.commit else "") if one
    )
    return [*own(": " if actor else ""), *(bold(pen.shown(actor)) if actor else []), *own(rest)]
