"""Messages of a channel: the card of a review, the digest of many reviews, and replies in threads.

`now` only decides whether the deadline has passed. A card that is too large for one message is rendered smaller,
without buttons; one that Slack still refuses is rendered minimally.

A card has no buttons unless it shows the complete, unchanged effect. `no_buttons_reason` alone decides that, when the
card is rendered and again for every press.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from slack_sdk.models.blocks import Block

from countersign.contract.wire import MAX_TEXT_CHARS
from policy_service.channels.presentation.arguments import matches_canonical
from policy_service.channels.presentation.formatting import pluralize
from policy_service.channels.slack.blocks.block_kit import (
    MAX_CHARACTERS,
    MAX_VALUE,
    Line,
    Pointer,
    RenderedMessage,
    TextWriter,
    block_id,
    bold,
    date_text,
    escape_markup,
    link,
    our_text,
    quote,
    render_message,
    rich_text,
    section,
    utc_text,
)
from policy_service.channels.slack.blocks.buttons import (
    Row,
    decision_buttons,
    list_blocks,
    open_buttons,
    review_url,
    waiting_text,
)
from policy_service.channels.slack.blocks.card_body import CardBody, card_body
from policy_service.channels.slack.blocks.people import state_text
from policy_service.queries.effects import Piece
from policy_service.queries.queue import CappedCount
from policy_service.queries.review_models import EventLine, ReviewPage

FOOTER_CHARACTERS: Final = 2_600  # of the buttons: two pointers, four URLs, and the signed sentence
MAX_BODY_CHARACTERS: Final = MAX_CHARACTERS - FOOTER_CHARACTERS


def no_buttons_reason(page: ReviewPage) -> str | None:
    """Why the card has no buttons; None if it has them."""
    return body_no_buttons_reason(page, card_body(page))


def body_no_buttons_reason(page: ReviewPage, body: CardBody) -> str | None:
    """The same for a rendered body."""
    if page.superseded_by is not None or page.state != "open":
        return f"{state_text(page)}: this review is no longer open."
    if not matches_canonical(page):
        return (
            "Its arguments do not match the canonical bytes, so it cannot be voted on. Notify the operator."
        )
    return _cannot_be_read_here(page, body) or _asks_for_more(page)


def _cannot_be_read_here(page: ReviewPage, body: CardBody) -> str | None:
    if body.misled:
        each = "it" if len(body.misled) == 1 else "each"
        return f"{pluralize(len(body.misled), 'thing')} in it can mislead: {each} is marked on the web."
    if page.warnings:
        return "It has a warning: read it on the web."
    if body.args.note:
        return "Its arguments are longer than a message shows: read them on the web."
    if not body.args.exact:
        return "Its arguments contain invisible characters: each is marked on the web."
    if not body.whole or body.size > MAX_BODY_CHARACTERS:
        return "It is larger than a message: read it on the web."
    return None


def _asks_for_more(page: ReviewPage) -> str | None:
    if any(gate.step_up for gate in page.gates) or page.step_up != "none":
        return "Its gate requires a passkey, which works on the web only."
    if page.proposals:
        return "Other arguments are proposed for it. Compare them on the web."
    return None


__all__ = ["card", "minimal_card", "no_buttons_reason"]

_HEADLINE = 200  # characters of a sentence in a notification


def card(
    page: ReviewPage, *, pointer: Pointer, outbox_id: str, public_url: str, now: datetime
) -> RenderedMessage:
    """A review as a message."""
    name = block_id(page.review_id, page.rev, outbox_id)
    body = card_body(page, name)
    late = _expired_text(page, now)
    why = late or body_no_buttons_reason(page, body)
    if why is None:
        return render_message(headline(page), [*body.blocks, decision_buttons(page, pointer, public_url)])
    if body.size > MAX_BODY_CHARACTERS:
        body = card_body(page, name, small=True)
    if body.size > MAX_BODY_CHARACTERS:
        return minimal_card(page, outbox_id=outbox_id, public_url=public_url, now=now)
    return render_message(
        headline(page),
        [
            *body.blocks,
            *_reason_blocks(page, why, late=late is not None),
            open_buttons(page, public_url, late=late is not None),
        ],
    )


def minimal_card(page: ReviewPage, *, outbox_id: str, public_url: str, now: datetime) -> RenderedMessage:
    """The minimal card: tool, agent, state and a link."""
    pen = TextWriter()
    late = _expired_text(page, now) is not None
    state = "Time is up" if late else state_text(page)
    line = section(
        bold(state),
        our_text(": "),
        bold(pen.shown(page.tool)),
        our_text(", asked by "),
        bold(pen.shown(page.agent)),
        our_text("."),
    )
    where = section(our_text("It cannot be shown here. Read it on the web."))
    name = block_id(page.review_id, page.rev, outbox_id)
    return render_message(
        escape_markup(f"{state}: {pen.shown(page.tool)}, asked by {pen.shown(page.agent)}"),
        [rich_text(line, where, block_id=name), open_buttons(page, public_url, late=late)],
    )


def headline(page: ReviewPage) -> str:
    """The text of the notification."""
    return escape_markup(f"{state_text(page)}: {TextWriter().spoken(page.sentence, _HEADLINE)}")


def _reason_blocks(page: ReviewPage, why: str, *, late: bool) -> list[Block]:
    if page.state != "open" or page.superseded_by is not None:
        return []  # the outcome is shown above
    return [rich_text(section(*([] if late else [bold("Decide on the web. ")]), our_text(why)))]


def _expired_text(page: ReviewPage, now: datetime) -> str | None:
    if page.state == "open" and page.superseded_by is None and now >= page.answer_by:
        return f"Time is up: it expired at {utc_text(page.answer_by)}. Nothing fired."
    return None


@dataclass(frozen=True, slots=True)
class DigestLine:
    """One review of a digest. ``state``: the review's state, such as `open`."""

    review_id: str
    sentence: tuple[Piece, ...]
    state: str
    answer_by: datetime


def digest(
    lines: Sequence[DigestLine], more: int, *, digest_id: str, outbox_id: str, public_url: str, now: datetime
) -> RenderedMessage:
    """A list of reviews with links; ``more`` are not listed. Its block id is `cs/<digest_id>/0/<outbox_id>`."""
    waiting = sum(_is_waiting(line, now) for line in lines)
    head = (
        f"{waiting_text(CappedCount(waiting + more))} here, listed together"
        if waiting + more
        else "None of these is open any more"
    )
    blocks: list[Block] = [
        rich_text(section(bold(head), our_text(".")), block_id=block_id(digest_id, 0, outbox_id))
    ]
    rows = (_digest_row(line, public_url, now) for line in lines)
    return render_message(
        escape_markup(head),
        [*blocks, *list_blocks(rows, CappedCount(len(lines) + more), f"{public_url.rstrip('/')}/")],
    )


def _digest_row(line: DigestLine, public_url: str, now: datetime) -> Row:
    pen = TextWriter()
    words = our_text(pen.shown(line.state.replace("_", " ").capitalize()))
    if line.state == "open":
        over = now >= line.answer_by
        words = [
            *our_text("Time was up " if over else "To be answered by "),
            *date_text(line.answer_by, left=not over),
        ]
    way = link(review_url(public_url, line.review_id), "Open")
    return [section(pen.sentence(line.sentence, MAX_VALUE)), section(words, our_text(" · "), way)]


def _is_waiting(line: DigestLine, now: datetime) -> bool:
    return line.state == "open" and now < line.answer_by


MAX_EVENT_TEXT = 400  # characters of the line itself

_ACTORLESS_KINDS = frozenset({"effect_released", "effect_denied"})
"""Rows that follow from one with an actor: a vote, a decision."""

_CHANNEL_NAMES = {"web": "on the web", "api": "by the API", "slack": "in Slack", "cli": "on the command line"}


def thread_reply(
    line: EventLine, words: str | None, *, review_id: str, rev: int, outbox_id: str, public_url: str
) -> RenderedMessage:
    """One event of a review in its thread; ``words``: a reason or comment that a person wrote, or None."""
    pen = TextWriter()
    event = section(
        pen.said(line.text, MAX_EVENT_TEXT), _actor_text(line, pen), our_text(" · "), date_text(line.at)
    )
    quoted = [quote(pen.said(words, MAX_TEXT_CHARS, block=True))] if words else []
    where = [section(link(review_url(public_url, review_id), "Read the full text"))] if pen.cut else []
    block = rich_text(event, *quoted, *where, block_id=block_id(review_id, rev, outbox_id))
    return render_message(escape_markup(pen.shown(line.text, MAX_EVENT_TEXT)), [block])


def _actor_text(line: EventLine, pen: TextWriter) -> Line:
    """The actor, the channel and the policies' commit."""
    actor = "" if line.kind in _ACTORLESS_KINDS else line.actor
    way = _CHANNEL_NAMES.get(line.channel, pen.shown(line.channel))
    way = "" if way in line.text else way  # "Commented in Slack" says it
    rest = "".join(
        f", {one}" for one in (way, f"rules at {pen.shown(line.commit[:12])}" if line.commit else "") if one
    )
    return [*our_text(": " if actor else ""), *(bold(pen.shown(actor)) if actor else []), *our_text(rest)]
