"""What is said to one person alone: why a press did nothing, and what /countersign found. Pure."""

from __future__ import annotations

from typing import Final

from slack_sdk.models.blocks import ActionsBlock, Block, ButtonElement, RichTextElement

from policy_service.channels.showing.wording import age_words, counted, sentence
from policy_service.channels.slack.drawing.buttons import opening
from policy_service.channels.slack.drawing.message import Drawn, drawn
from policy_service.channels.slack.drawing.rows import listed, number_waiting, numbered, row_of
from policy_service.channels.slack.drawing.writing import (
    NAME,
    WORDS,
    Pen,
    bold,
    escaped,
    own,
    plain,
    rich,
    section,
)
from policy_service.queries.policies import TriedEffect
from policy_service.queries.queue import QueuePage

MOST_ROWS: Final = 10  # an answer is read in passing
MOST_LINES: Final = 6  # of each kind in the answer to a trial
MOST_UNDER_FIELD: Final = 150  # characters under a field of a form

_READ_ON: Final = " Open the review on the web."
_OUTCOMES: Final = {
    "release": "It would be released; nobody is asked.",
    "review": "People would be asked.",
    "deny": "It would be denied.",
}
_USAGE: Final = (
    ("/countersign", "what waits for you"),
    ("/countersign link", "say who you are to Countersign, once"),
    ("/countersign unlink", "take that back"),
    (
        "/countersign direct on",
        "be asked in direct messages too; off ends it, and direct alone says how it stands",
    ),
    (
        "/countersign simulate <agent> <tool> <arguments as JSON>",
        "what would be decided; nothing is recorded",
    ),
)


def refusal(words: str, *, url: str | None) -> Drawn:
    """Why not, and where to go. What did not happen stands in the words: a late vote is on record all the same."""
    told = Pen().shown(sentence(words), WORDS)
    ways: list[Block] = [ActionsBlock(elements=[opening(url, "Open")])] if url else []
    return drawn(escaped(told), [rich(section(own(told))), *ways])


def under_field(words: str, *, elsewhere: bool) -> str:
    """The same below a field of a form, which is a short line; ``elsewhere``: a page says how to mend it."""
    told = sentence(words)
    if not elsewhere and len(told) <= MOST_UNDER_FIELD:
        return told
    room = MOST_UNDER_FIELD - len(_READ_ON)
    return f"{told if len(told) <= room else _shortened(told, room)}{_READ_ON}"


def _shortened(text: str, room: int) -> str:
    """Its beginning, up to a word's end."""
    head = text[: room - 1]
    return f"{(head.rpartition(' ')[0] or head).rstrip(' ,;:')}…"


def said(words: str) -> Drawn:
    """One sentence."""
    told = Pen().shown(sentence(words), WORDS)
    return drawn(escaped(told), [rich(section(own(told)))])


def link_offer(url: str, minutes: int) -> Drawn:
    """The way to say who one is."""
    once = f"The link is yours alone, works once, and for {counted(minutes, 'minute')}."
    words = f"Sign in once, so that Countersign knows who you are. {once}"
    button = ButtonElement(text=plain("Link my account"), action_id="link", url=url)
    return drawn(escaped(words), [rich(section(own(words))), ActionsBlock(elements=[button])])


def my_reviews(page: QueuePage, *, public_url: str) -> Drawn:
    """What waits for the person who asked."""
    queue = f"{public_url.rstrip('/')}/"
    if not page.rows:
        return said("nothing waits for you")
    total = number_waiting(page)
    head = f"{numbered(total)} for you"
    rows = listed((row_of(row, public_url) for row in page.rows), total, queue, MOST_ROWS)
    return drawn(escaped(head), [rich(section(bold(head), own("."))), *rows])


def simulated(tried: TriedEffect) -> Drawn:
    """What would be decided about a call."""
    pen, head = Pen(), _OUTCOMES[tried.outcome]
    lines: list[RichTextElement] = [section(bold(head), own(" Nothing was recorded and nothing fires."))]
    lines += _told(pen, [f"Asks {ask}." for ask in tried.asks], "more gate")
    lines += _told(pen, [*tried.reasons, *tried.advice], "more reason")
    lines += _told(pen, [f"By {row.title}." for row in tried.policies], "more policy", "more policies")
    if tried.unseen:
        lines.append(section(own(f"No policy could weigh {pen.names(tried.unseen, MOST_LINES)}.")))
    facts = [f"{fact.label}: {fact.value} ({fact.source}, {age_words(fact.age)})" for fact in tried.facts]
    return drawn(escaped(head), [rich(*lines, *_told(pen, facts, "more fact"))])


def usage() -> Drawn:
    """What /countersign understands."""
    pen = Pen()
    lines = [section(bold(pen.shown(command)), own(f": {what}.")) for command, what in _USAGE]
    return drawn("What /countersign understands", [rich(*lines)])


def _told(pen: Pen, words: list[str], more: str, plural: str = "") -> list[RichTextElement]:
    lines: list[RichTextElement] = [section(pen.said(one, 2 * NAME)) for one in words[:MOST_LINES]]
    rest = len(words) - MOST_LINES
    return lines + ([section(own(f"{counted(rest, more, plural)}."))] if rest > 0 else [])
