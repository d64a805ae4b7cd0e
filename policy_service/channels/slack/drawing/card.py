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
from policy_service.channels.slack.drawing.blocks import (
    MAX_CHARACTERS,
    VALUE,
    Drawn,
    Line,
    Pen,
    Pointer,
    block_id,
    bold,
    drawn,
    escaped,
    link,
    own,
    quote,
    rich,
    section,
    stamp,
    when,
)
from policy_service.channels.slack.drawing.body import Body, body_of
from policy_service.channels.slack.drawing.buttons import (
    Row,
    deciding,
    listed,
    numbered,
    only_opening,
    page_url,
)
from policy_service.channels.slack.drawing.people import state_words
from policy_service.queries.effect_text import Piece
from policy_service.queries.queue import CappedCount
from policy_service.queries.review_models import EventLine, ReviewPage

FOOT_CHARACTERS: Final = 2_600  # the buttons: two values, four addresses, what is signed, once more
MAX_BODY_CHARACTERS: Final = MAX_CHARACTERS - FOOT_CHARACTERS


def buttons_withheld(page: ReviewPage) -> str | None:
    """A sentence why there are no buttons; None where there are."""
    return withheld_from(page, body_of(page))


def withheld_from(page: ReviewPage, body: Body) -> str | None:
    """The same, where its body is at hand."""
    if page.superseded_by is not None or page.state != "open":
        return f"{state_words(page)}: nobody is asked here any more."
    if not matches_canonical(page):
        return "Its arguments do not add up to the canonical bytes. Nobody can vote on it: tell the operator."
    return _cannot_be_read_here(page, body) or _asks_for_more(page)


def _cannot_be_read_here(page: ReviewPage, body: Body) -> str | None:
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
        f"{numbered(CappedCount(waiting + more))} here, listed together"
        if waiting + more
        else "Nobody is asked about these any more"
    )
    blocks: list[Block] = [rich(section(bold(head), own(".")), block_id=block_id(digest_id, 0, outbox_id))]
    rows = (_row(line, public_url, now) for line in lines)
    return drawn(
        escaped(head), [*blocks, *listed(rows, CappedCount(len(lines) + more), f"{public_url.rstrip('/')}/")]
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
