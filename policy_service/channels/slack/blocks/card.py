"""Messages of a channel: the card of a review, the digest of many, and the lines of a thread.

Pure: `now` is a parameter, and only tells whether the time is up. A card that would be too much for one message is
drawn smaller, without buttons; one that Slack refuses even so is drawn bare.

A card has no buttons when Slack does not show the effect whole and as it is. `buttons_withheld` alone decides that: the
card asks it before it draws a button, and the dispatcher asks it again for every press.
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
from policy_service.queries.effect_text import Piece
from policy_service.queries.queue import CappedCount
from policy_service.queries.review_models import EventLine, ReviewPage

FOOTER_CHARACTERS: Final = 2_600  # the buttons: two values, four addresses, what is signed, once more
MAX_BODY_CHARACTERS: Final = MAX_CHARACTERS - FOOTER_CHARACTERS


def no_buttons_reason(page: ReviewPage) -> str | None:
    """A sentence why there are no buttons; None where there are."""
    return body_no_buttons_reason(page, card_body(page))


def body_no_buttons_reason(page: ReviewPage, body: CardBody) -> str | None:
    """The same, where its body is at hand."""
    if page.superseded_by is not None or page.state != "open":
        return f"{state_text(page)}: nobody is asked here any more."
    if not matches_canonical(page):
        return "Its arguments do not add up to the canonical bytes. Nobody can vote on it: tell the operator."
    return _cannot_be_read_here(page, body) or _asks_for_more(page)


def _cannot_be_read_here(page: ReviewPage, body: CardBody) -> str | None:
    if body.misled:
        each = "it" if len(body.misled) == 1 else "each"
        return f"{pluralize(len(body.misled), 'thing')} in it can mislead: on the page {each} is marked."
    if page.warnings:
        return "It carries a warning: read it on the page."
    if body.args.note:
        return "Its arguments are longer than a message shows: on the page all of them stand."
    if not body.args.exact:
        return "Its arguments hold characters that cannot be seen: on the page each is marked."
    if not body.whole or body.size > MAX_BODY_CHARACTERS:
        return "It is more than a message shows: on the page all of it stands."
    return None


def _asks_for_more(page: ReviewPage) -> str | None:
    if any(gate.step_up for gate in page.gates) or page.step_up != "none":
        return "Its gate asks for a passkey, and that is used on the page."
    if page.proposals:
        return "Other arguments are proposed for it. Compare them on the page."
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
    """The least that a channel has to know: which tool, which agent, what state, where."""
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
    where = section(our_text("It cannot be shown here. All of it stands on the page."))
    name = block_id(page.review_id, page.rev, outbox_id)
    return render_message(
        escape_markup(f"{state}: {pen.shown(page.tool)}, asked by {pen.shown(page.agent)}"),
        [rich_text(line, where, block_id=name), open_buttons(page, public_url, late=late)],
    )


def headline(page: ReviewPage) -> str:
    """What a notification says."""
    return escape_markup(f"{state_text(page)}: {TextWriter().spoken(page.sentence, _HEADLINE)}")


def _reason_blocks(page: ReviewPage, why: str, *, late: bool) -> list[Block]:
    if page.state != "open" or page.superseded_by is not None:
        return []  # what became of it stands above
    return [rich_text(section(*([] if late else [bold("Decide on the page. ")]), our_text(why)))]


def _expired_text(page: ReviewPage, now: datetime) -> str | None:
    if page.state == "open" and page.superseded_by is None and now >= page.answer_by:
        return f"Time is up: it expired at {utc_text(page.answer_by)}. Nothing fired."
    return None


@dataclass(frozen=True, slots=True)
class DigestLine:
    """One review of a digest: its state is a word of the review's, `open` while people are asked."""

    review_id: str
    sentence: tuple[Piece, ...]
    state: str
    answer_by: datetime


def digest(
    lines: Sequence[DigestLine], more: int, *, digest_id: str, outbox_id: str, public_url: str, now: datetime
) -> RenderedMessage:
    """A list with a link for each; ``more`` stand besides. It is named like a card: `cs/<digest_id>/0/<outbox_id>`."""
    waiting = sum(_is_waiting(line, now) for line in lines)
    head = (
        f"{waiting_text(CappedCount(waiting + more))} here, listed together"
        if waiting + more
        else "Nobody is asked about these any more"
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
"""Lines that follow from one that says who: a vote, a rule."""

_CHANNEL_NAMES = {"web": "on the web", "api": "by the API", "slack": "in Slack", "cli": "on the command line"}


def thread_reply(
    line: EventLine, words: str | None, *, review_id: str, rev: int, outbox_id: str, public_url: str
) -> RenderedMessage:
    """One event of a review; ``words`` is a reason or a comment that a person wrote, or None."""
    pen = TextWriter()
    told = section(
        pen.said(line.text, MAX_EVENT_TEXT), _actor_text(line, pen), our_text(" · "), date_text(line.at)
    )
    said = [quote(pen.said(words, MAX_TEXT_CHARS, block=True))] if words else []
    where = [section(link(review_url(public_url, review_id), "Read all of it"))] if pen.cut else []
    block = rich_text(told, *said, *where, block_id=block_id(review_id, rev, outbox_id))
    return render_message(escape_markup(pen.shown(line.text, MAX_EVENT_TEXT)), [block])


def _actor_text(line: EventLine, pen: TextWriter) -> Line:
    """By whom, which way, under which rules."""
    actor = "" if line.kind in _ACTORLESS_KINDS else line.actor
    way = _CHANNEL_NAMES.get(line.channel, pen.shown(line.channel))
    way = "" if way in line.text else way  # "Commented in Slack" says it
    rest = "".join(
        f", {one}" for one in (way, f"rules at {pen.shown(line.commit[:12])}" if line.commit else "") if one
    )
    return [*our_text(": " if actor else ""), *(bold(pen.shown(actor)) if actor else []), *our_text(rest)]
