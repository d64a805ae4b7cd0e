"""Why a card has no buttons: nobody decides in Slack on what Slack does not show them, whole and as it is.

Pure. The one place that says so: the card asks it before it draws a button, and whoever takes a press asks it again.
"""

from __future__ import annotations

from typing import Final

from policy_service.channels.showing.arguments import same_bytes
from policy_service.channels.showing.wording import counted
from policy_service.channels.slack.drawing.body import Body, body_of
from policy_service.channels.slack.drawing.message import MAX_CHARACTERS
from policy_service.channels.slack.drawing.settled import state_words
from policy_service.queries.review_models import ReviewPage

FOOT_CHARACTERS: Final = 2_600  # the buttons: two values, four addresses, what is signed, once more
MAX_BODY_CHARACTERS: Final = MAX_CHARACTERS - FOOT_CHARACTERS


def buttons_withheld(page: ReviewPage) -> str | None:
    """A sentence why there are no buttons; None where there are."""
    return withheld_from(page, body_of(page))


def withheld_from(page: ReviewPage, body: Body) -> str | None:
    """The same, where its body is at hand."""
    if page.superseded_by is not None or page.state != "open":
        return f"{state_words(page)}: nobody is asked here any more."
    if not same_bytes(page):
        return "Its arguments do not add up to the canonical bytes. Nobody can vote on it: tell the operator."
    return _cannot_be_read_here(page, body) or _asks_for_more(page)


def _cannot_be_read_here(page: ReviewPage, body: Body) -> str | None:
    if body.misled:
        each = "it" if len(body.misled) == 1 else "each"
        return f"{counted(len(body.misled), 'thing')} in it can mislead: on the page {each} is marked."
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
