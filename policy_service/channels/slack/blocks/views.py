"""What one person sees: responses to a press or a command, the app's home, and forms.

A form repeats the sentence of its effect and carries the same pointer as the button. Permissions are checked when it is
submitted.
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

from policy_service.channels.presentation.formatting import age_words, as_sentence, pluralize
from policy_service.channels.slack.blocks.block_kit import (
    MAX_NAME,
    MAX_WRITTEN,
    Pointer,
    RenderedMessage,
    TextWriter,
    bold,
    escape_markup,
    our_text,
    plain,
    render_message,
    rich_text,
    section,
    utc_text,
    view_json,
)
from policy_service.channels.slack.blocks.buttons import (
    MAX_CONFIRM,
    completes_quorum,
    count_waiting,
    list_blocks,
    open_button,
    queue_row,
    signing_text,
    waiting_text,
)
from policy_service.queries.policies import EvaluatedCall
from policy_service.queries.queue import QueuePage
from policy_service.queries.review_models import ReviewPage

MAX_ROWS: Final = 10  # of the response to /countersign
MAX_LINES: Final = 6  # of each kind in the response to simulate
MAX_FIELD_ERROR: Final = 150  # characters under a field of a form

_READ_ON: Final = " Open the review on the web."
_OUTCOMES: Final = {
    "release": "It would be released without a review.",
    "review": "It would require a review.",
    "deny": "It would be denied.",
}
_USAGE: Final = (
    ("/countersign", "what waits for you"),
    ("/countersign link", "link your Slack account to your Countersign account, once"),
    ("/countersign unlink", "remove that link"),
    (
        "/countersign direct on",
        "get reviews as direct messages too; `off` disables them, `direct` alone shows the setting",
    ),
    (
        "/countersign simulate <agent> <tool> <arguments as JSON>",
        "what would be decided; nothing is recorded",
    ),
)


def refusal_message(words: str, *, url: str | None) -> RenderedMessage:
    """A refusal with an optional link. Its text says what did not happen, because a late vote is recorded anyway."""
    text = TextWriter().shown(as_sentence(words), MAX_WRITTEN)
    ways: list[Block] = [ActionsBlock(elements=[open_button(url, "Open")])] if url else []
    return render_message(escape_markup(text), [rich_text(section(our_text(text))), *ways])


def field_error(words: str, *, elsewhere: bool) -> str:
    """A refusal below a field of a form, as a short line; ``elsewhere``: the web shows how to resolve it."""
    text = as_sentence(words)
    if not elsewhere and len(text) <= MAX_FIELD_ERROR:
        return text
    remaining = MAX_FIELD_ERROR - len(_READ_ON)
    return f"{text if len(text) <= remaining else _shortened(text, remaining)}{_READ_ON}"


def _shortened(text: str, remaining: int) -> str:
    """A prefix that ends at a word."""
    head = text[: remaining - 1]
    return f"{(head.rpartition(' ')[0] or head).rstrip(' ,;:')}…"


def text_message(words: str) -> RenderedMessage:
    """A message of one sentence."""
    text = TextWriter().shown(as_sentence(words), MAX_WRITTEN)
    return render_message(escape_markup(text), [rich_text(section(our_text(text)))])


def link_invitation(url: str, minutes: int) -> RenderedMessage:
    """An invitation to link an account."""
    once = f"The link is only for you and works once, for {pluralize(minutes, 'minute')}."
    words = f"Sign in once, so that Countersign knows who you are. {once}"
    button = ButtonElement(text=plain("Link my account"), action_id="link", url=url)
    return render_message(
        escape_markup(words), [rich_text(section(our_text(words))), ActionsBlock(elements=[button])]
    )


def my_reviews_message(page: QueuePage, *, public_url: str) -> RenderedMessage:
    """The reviews that wait for a person."""
    queue = f"{public_url.rstrip('/')}/"
    if not page.rows:
        return text_message("nothing waits for you")
    total = count_waiting(page)
    head = f"{waiting_text(total)} for you"
    rows = list_blocks((queue_row(row, public_url) for row in page.rows), total, queue, MAX_ROWS)
    return render_message(escape_markup(head), [rich_text(section(bold(head), our_text("."))), *rows])


def simulation_message(tried: EvaluatedCall) -> RenderedMessage:
    """The decision that a call would get."""
    pen, head = TextWriter(), _OUTCOMES[tried.outcome]
    lines: list[RichTextElement] = [section(bold(head), our_text(" Nothing was recorded and nothing fires."))]
    lines += _limited_lines(pen, [f"Asks {ask}." for ask in tried.asks], "more gate")
    lines += _limited_lines(pen, [*tried.reasons, *tried.advice], "more reason")
    lines += _limited_lines(
        pen, [f"By {row.title}." for row in tried.policies], "more policy", "more policies"
    )
    if tried.unseen:
        lines.append(section(our_text(f"No policy could evaluate {pen.names(tried.unseen, MAX_LINES)}.")))
    facts = [f"{fact.label}: {fact.value} ({fact.source}, {age_words(fact.age)})" for fact in tried.facts]
    return render_message(escape_markup(head), [rich_text(*lines, *_limited_lines(pen, facts, "more fact"))])


def usage_message() -> RenderedMessage:
    """The subcommands of /countersign."""
    pen = TextWriter()
    lines = [section(bold(pen.shown(command)), our_text(f": {what}.")) for command, what in _USAGE]
    return render_message("Commands of /countersign", [rich_text(*lines)])


def _limited_lines(pen: TextWriter, words: list[str], more: str, plural: str = "") -> list[RichTextElement]:
    lines: list[RichTextElement] = [section(pen.said(one, 2 * MAX_NAME)) for one in words[:MAX_LINES]]
    rest = len(words) - MAX_LINES
    return lines + ([section(our_text(f"{pluralize(rest, more, plural)}."))] if rest > 0 else [])


MAX_NOTE: Final = 400  # characters of a note about Slack itself


def home_view(
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
    """A person's home. ``waiting`` is None if they cannot decide here: ``why_not`` says why; without it the account is
    not ``linked``. ``direct``: direct messages are enabled; ``slack_note``: a message shown first."""
    note = [_noted(slack_note)] if slack_note and slack_note != why_not else []
    queue = f"{public_url.rstrip('/')}/"
    if waiting is None:
        blocks = _refused(why_not, queue, linked=linked) if why_not else _unknown()
        return view_json(View(type="home", blocks=[*note, *blocks]))
    total = count_waiting(waiting)
    rows = list_blocks((queue_row(row, public_url) for row in waiting.rows), total, queue)
    head = waiting_text(total) if waiting.rows else "Nothing waits"
    blocks = [
        HeaderBlock(text=plain(f"{head} for you")),
        *rows,
        _foot(name, now),
        _ways(queue, direct=direct),
    ]
    return view_json(View(type="home", blocks=[*note, *blocks]))


def _noted(words: str) -> Block:
    return rich_text(section(TextWriter().said(words, MAX_NOTE)))


def _unknown() -> list[Block]:
    words = "This Slack account is not linked to a person in Countersign. Link it once, by signing in."
    way = "Run /countersign link to get your link."
    return [
        HeaderBlock(text=plain("Link your account")),
        rich_text(section(our_text(words))),
        rich_text(section(our_text(way))),
    ]


def _refused(why_not: str, queue: str, *, linked: bool) -> list[Block]:
    ways = [_open(queue), _unlink()] if linked else [_open(queue)]
    return [
        HeaderBlock(text=plain("You cannot decide from here")),
        _noted(why_not),
        ActionsBlock(elements=ways),
    ]


def _foot(name: str | None, now: datetime) -> Block:
    who = [*our_text("You are "), *bold(TextWriter().shown(name)), *our_text(" here. ")] if name else []
    return rich_text(section(who, our_text(f"As of {utc_text(now)}.")))


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
        text=plain("You can no longer decide from Slack. You can link again at any time."),
        confirm=plain("Unlink"),
        deny=plain("Go back"),
    )
    return ButtonElement(text=plain("Unlink…"), action_id="unlink", value="unlink", confirm=sure)


REASON_BLOCK: Final = "reason"
REASON_ACTION: Final = "words"
MAX_INPUT: Final = 3_000  # characters of a field: Slack's limit, lower than that of the other channels


def deny_modal(page: ReviewPage, pointer: Pointer) -> dict[str, Any]:
    """A form for the reason of a denial, which the agent needs to learn from it."""
    hint = f"One denial settles it. The agent{_and_owner(page)} will read this."
    return _form(
        "deny", "Deny this effect", "Deny this effect", pointer, _about(page), _words("Why not?", hint)
    )


def ask_modal(page: ReviewPage, pointer: Pointer) -> dict[str, Any]:
    """A form for a question to the agent. The review stays open."""
    hint = "The agent reads this. Its answer is unverified, and appears in the thread and on the web."
    return _form(
        "ask", "Ask the agent", "Ask", pointer, _about(page), _words("What do you want to know?", hint)
    )


def approve_modal(page: ReviewPage, pointer: Pointer) -> dict[str, Any]:
    """A form for the reason that a gate requires for an approval. It repeats what is signed."""
    submit = "Countersign and release" if completes_quorum(page) else "Countersign"
    about = rich_text(
        section(our_text(signing_text(page, MAX_CONFIRM))),
        section(TextWriter().said(page.finality, MAX_CONFIRM)),
    )
    hint = "It is recorded in the audit log under your name."
    return _form(
        "approve", "Countersign", submit, pointer, about, _words("Note (required by this gate)", hint)
    )


def notice_modal(words: str) -> dict[str, Any]:
    """The result of a submitted form."""
    about = rich_text(section(our_text(TextWriter().shown(words, MAX_WRITTEN))))
    return view_json(View(type="modal", title=plain("Your answer"), close=plain("Close"), blocks=[about]))


def _form(kind: str, title: str, submit: str, pointer: Pointer, *blocks: Block) -> dict[str, Any]:
    return view_json(
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
    pen = TextWriter()
    return rich_text(section(pen.sentence(page.sentence)), section(pen.said(page.finality, MAX_CONFIRM)))


def _words(label: str, hint: str) -> Block:
    element = PlainTextInputElement(action_id=REASON_ACTION, multiline=True, max_length=MAX_INPUT)
    return InputBlock(
        label=plain(label), hint=plain(hint), block_id=REASON_BLOCK, element=element, optional=False
    )


def _and_owner(page: ReviewPage) -> str:
    return f" and {TextWriter().shown(page.agent_owner)}" if page.agent_owner else ""
