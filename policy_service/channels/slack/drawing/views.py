"""What one person sees: answers to a press or a command, the app's home, and forms.

Pure. A form repeats the sentence it is about and carries the same pointer as the button; who may send it is asked when
it comes back.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from slack_sdk.models.blocks import (
    ActionsBlock,
    Block,
    ButtonElement,
    ConfirmObject,
    HeaderBlock,
    InputBlock,
    PlainTextInputElement,
    RichTextElement,
)
from slack_sdk.models.views import View

from policy_service.channels.presentation.formatting import age_words, pluralize, as_sentence
from policy_service.channels.slack.drawing.blocks import (
    NAME,
    WORDS,
    Drawn,
    Pen,
    Pointer,
    bold,
    drawn,
    escaped,
    own,
    plain,
    rich,
    section,
    stamp,
    viewed,
)
from policy_service.channels.slack.drawing.buttons import (
    MAX_CONFIRM,
    listed,
    number_waiting,
    numbered,
    opening,
    releases,
    row_of,
    signing_words,
)
from policy_service.queries.policies import EvaluatedCall
from policy_service.queries.queue import QueuePage
from policy_service.queries.review_models import ReviewPage

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
    told = Pen().shown(as_sentence(words), WORDS)
    ways: list[Block] = [ActionsBlock(elements=[opening(url, "Open")])] if url else []
    return drawn(escaped(told), [rich(section(own(told))), *ways])


def under_field(words: str, *, elsewhere: bool) -> str:
    """The same below a field of a form, which is a short line; ``elsewhere``: a page says how to mend it."""
    told = as_sentence(words)
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
    told = Pen().shown(as_sentence(words), WORDS)
    return drawn(escaped(told), [rich(section(own(told)))])


def link_offer(url: str, minutes: int) -> Drawn:
    """The way to say who one is."""
    once = f"The link is yours alone, works once, and for {pluralize(minutes, 'minute')}."
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


def simulated(tried: EvaluatedCall) -> Drawn:
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
    return lines + ([section(own(f"{pluralize(rest, more, plural)}."))] if rest > 0 else [])


MOST_NOTE: Final = 400  # characters of a note about Slack itself


def home(
    waiting: QueuePage | None,
    *,
    name: str | None,
    direct: bool,
    public_url: str,
    now: datetime,
    slack_note: str | None = None,
    why_not: str | None = None,
    linked: bool = False,
) -> dict[str, Any]:
    """A person's home; ``waiting`` is None for somebody who is asked nothing here: ``why_not`` says why, and without
    it they are not ``linked`` yet. ``direct``: they want direct messages; ``slack_note``: what is said first."""
    note = [_noted(slack_note)] if slack_note and slack_note != why_not else []
    queue = f"{public_url.rstrip('/')}/"
    if waiting is None:
        blocks = _refused(why_not, queue, linked=linked) if why_not else _unknown()
        return viewed(View(type="home", blocks=[*note, *blocks]))
    total = number_waiting(waiting)
    rows = listed((row_of(row, public_url) for row in waiting.rows), total, queue)
    head = numbered(total) if waiting.rows else "Nothing waits"
    blocks = [
        HeaderBlock(text=plain(f"{head} for you")),
        *rows,
        _foot(name, now),
        _ways(queue, direct=direct),
    ]
    return viewed(View(type="home", blocks=[*note, *blocks]))


def _noted(words: str) -> Block:
    return rich(section(Pen().said(words, MOST_NOTE)))


def _unknown() -> list[Block]:
    words = "Countersign does not know yet who you are in Slack. Link your account once, by signing in."
    way = "Write /countersign link to get a link of your own."
    return [HeaderBlock(text=plain("Link your account")), rich(section(own(words))), rich(section(own(way)))]


def _refused(why_not: str, queue: str, *, linked: bool) -> list[Block]:
    ways = [_open(queue), _unlink()] if linked else [_open(queue)]
    return [
        HeaderBlock(text=plain("You decide nothing from here")),
        _noted(why_not),
        ActionsBlock(elements=ways),
    ]


def _foot(name: str | None, now: datetime) -> Block:
    who = [*own("You are "), *bold(Pen().shown(name)), *own(" here. ")] if name else []
    return rich(section(who, own(f"As of {stamp(now)}.")))


def _ways(queue: str, *, direct: bool) -> Block:
    messages = ButtonElement(
        text=plain("Stop direct messages" if direct else "Send me direct messages"),
        action_id="direct",
        value="off" if direct else "on",
    )
    return ActionsBlock(elements=[_open(queue), messages, _unlink()])


def _open(queue: str) -> ButtonElement:
    return ButtonElement(text=plain("Open the queue"), action_id="open", url=queue)


def _unlink() -> ButtonElement:
    sure = ConfirmObject(
        title=plain("Unlink"),
        text=plain("Nobody decides for you from Slack any more. You can link again at any time."),
        confirm=plain("Unlink"),
        deny=plain("Go back"),
    )
    return ButtonElement(text=plain("Unlink…"), action_id="unlink", value="unlink", confirm=sure)


REASON_BLOCK: Final = "reason"
REASON_ACTION: Final = "words"
MAX_INPUT: Final = 3_000  # characters of a field: what Slack takes, less than the other channels do


def deny_modal(page: ReviewPage, pointer: Pointer) -> dict[str, Any]:
    """Asks why not: a denial without a reason teaches nobody."""
    hint = f"One denial settles it. The agent{_and_owner(page)} will read this."
    return _form(
        "deny", "Deny this effect", "Deny this effect", pointer, _about(page), _words("Why not?", hint)
    )


def ask_modal(page: ReviewPage, pointer: Pointer) -> dict[str, Any]:
    """Asks the agent something, while the review stays open."""
    hint = "The agent reads this. What it answers is a claim, and stands in the thread and on the page."
    return _form(
        "ask", "Ask the agent", "Ask", pointer, _about(page), _words("What do you want to know?", hint)
    )


def approve_modal(page: ReviewPage, pointer: Pointer) -> dict[str, Any]:
    """Asks the reason that a gate wants for a yes, and says what is signed."""
    submit = "Countersign and release" if releases(page) else "Countersign"
    about = rich(
        section(own(signing_words(page, MAX_CONFIRM))), section(Pen().said(page.finality, MAX_CONFIRM))
    )
    hint = "It goes into the log under your name."
    return _form("approve", "Countersign", submit, pointer, about, _words("Note (this gate wants one)", hint))


def notice_modal(words: str) -> dict[str, Any]:
    """What becomes of a form that was sent."""
    about = rich(section(own(Pen().shown(words, WORDS))))
    return viewed(View(type="modal", title=plain("Your answer"), close=plain("Close"), blocks=[about]))


def _form(kind: str, title: str, submit: str, pointer: Pointer, *blocks: Block) -> dict[str, Any]:
    return viewed(
        View(
            type="modal",
            callback_id=kind,
            title=plain(title),
            submit=plain(submit),
            close=plain("Go back"),
            blocks=blocks,
            private_metadata=pointer.value,
        )
    )


def _about(page: ReviewPage) -> Block:
    pen = Pen()
    return rich(section(pen.sentence(page.sentence)), section(pen.said(page.finality, MAX_CONFIRM)))


def _words(label: str, hint: str) -> Block:
    element = PlainTextInputElement(action_id=REASON_ACTION, multiline=True, max_length=MAX_INPUT)
    return InputBlock(
        label=plain(label), hint=plain(hint), block_id=REASON_BLOCK, element=element, optional=False
    )


def _and_owner(page: ReviewPage) -> str:
    return f" and {Pen().shown(page.agent_owner)}" if page.agent_owner else ""
