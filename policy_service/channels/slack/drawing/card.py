"""The card of a review: the effect whole with buttons under it, or a link and the sentence why.

Pure: `now` is a parameter, and only tells whether the time is up. A card that would be too much for one message is
drawn smaller, without buttons; one that Slack refuses even so is drawn bare.
"""

from __future__ import annotations

from datetime import datetime

from slack_sdk.models.blocks import Block

from policy_service.channels.slack.drawing.body import body_of
from policy_service.channels.slack.drawing.buttons import deciding, only_opening
from policy_service.channels.slack.drawing.message import Drawn, Pointer, block_id, drawn
from policy_service.channels.slack.drawing.settled import state_words
from policy_service.channels.slack.drawing.withheld import (
    MAX_BODY_CHARACTERS,
    buttons_withheld,
    withheld_from,
)
from policy_service.channels.slack.drawing.writing import Pen, bold, escaped, own, rich, section, stamp
from policy_service.queries.review_models import ReviewPage

__all__ = ["bare_card", "buttons_withheld", "card"]

_HEADLINE = 200  # characters of a sentence in a notification


def card(page: ReviewPage, *, pointer: Pointer, outbox_id: str, public_url: str, now: datetime) -> Drawn:
    """A review as a message."""
    name = block_id(page.review_id, page.rev, outbox_id)
    body = body_of(page, name)
    late = _too_late(page, now)
    why = late or withheld_from(page, body)
    if why is None:
        return drawn(headline(page), [*body.blocks, deciding(page, pointer, public_url)])
    if body.size > MAX_BODY_CHARACTERS:
        body = body_of(page, name, small=True)
    if body.size > MAX_BODY_CHARACTERS:
        return bare_card(page, outbox_id=outbox_id, public_url=public_url, now=now)
    return drawn(
        headline(page),
        [
            *body.blocks,
            *_why(page, why, late=late is not None),
            only_opening(page, public_url, late=late is not None),
        ],
    )


def bare_card(page: ReviewPage, *, outbox_id: str, public_url: str, now: datetime) -> Drawn:
    """The least that a channel has to know: which tool, which agent, what state, where."""
    pen = Pen()
    late = _too_late(page, now) is not None
    state = "Time is up" if late else state_words(page)
    line = section(
        bold(state),
        own(": "),
        bold(pen.shown(page.tool)),
        own(", asked by "),
        bold(pen.shown(page.agent)),
        own("."),
    )
    where = section(own("It cannot be shown here. All of it stands on the page."))
    name = block_id(page.review_id, page.rev, outbox_id)
    return drawn(
        escaped(f"{state}: {pen.shown(page.tool)}, asked by {pen.shown(page.agent)}"),
        [rich(line, where, block_id=name), only_opening(page, public_url, late=late)],
    )


def headline(page: ReviewPage) -> str:
    """What a notification says."""
    return escaped(f"{state_words(page)}: {Pen().spoken(page.sentence, _HEADLINE)}")


def _why(page: ReviewPage, why: str, *, late: bool) -> list[Block]:
    if page.state != "open" or page.superseded_by is not None:
        return []  # what became of it stands above
    return [rich(section(*([] if late else [bold("Decide on the page. ")]), own(why)))]


def _too_late(page: ReviewPage, now: datetime) -> str | None:
    if page.state == "open" and page.superseded_by is None and now >= page.answer_by:
        return f"Time is up: it expired at {stamp(page.answer_by)}. Nothing fired."
    return None
