"""The forms a button opens: why not, what to ask, and the reason a gate wants for a yes.

Pure. A form repeats the sentence it is about and carries the same pointer as the button; who may send it is asked when
it comes back.
"""

from __future__ import annotations

from typing import Any, Final

from slack_sdk.models.blocks import Block, InputBlock, PlainTextInputElement
from slack_sdk.models.views import View

from policy_service.channels.slack.drawing.buttons import MAX_CONFIRM, releases, signing_words
from policy_service.channels.slack.drawing.message import Pointer, viewed
from policy_service.channels.slack.drawing.writing import WORDS, Pen, own, plain, rich, section
from policy_service.queries.review_models import ReviewPage

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
