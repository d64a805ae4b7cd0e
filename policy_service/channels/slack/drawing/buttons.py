"""The buttons of a card: each names what it does, and carries a pointer and nothing else.

Pure. Approving takes two presses in two places: a dialog repeats what is signed, or a form asks for the reason.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from slack_sdk.models.blocks import ActionsBlock, ButtonElement, ConfirmObject

from policy_service.channels.showing.signing import siblings_waiting, signing, the_amount
from policy_service.channels.showing.standing import quorum
from policy_service.channels.slack.drawing.message import Pointer, units
from policy_service.channels.slack.drawing.writing import Pen, plain
from policy_service.queries.review_models import ReviewPage

MAX_CONFIRM: Final = 300  # of a confirmation's text: what Slack takes
MAX_LABEL: Final = 75  # of a button's text


def page_url(public_url: str, review_id: str) -> str:
    """Where a review stands on the web."""
    return f"{public_url.rstrip('/')}/reviews/{quote(review_id, safe='')}"


def deciding(page: ReviewPage, pointer: Pointer, public_url: str) -> ActionsBlock:
    """Approve, deny, ask, and the ways to the page."""
    url = page_url(public_url, page.review_id)
    return ActionsBlock(
        elements=[
            _approve(page, pointer),
            ButtonElement(text=plain("Deny…"), action_id="deny", value=pointer.value),
            ButtonElement(text=plain("Ask…"), action_id="ask", value=pointer.value),
            ButtonElement(text=plain("Edit on the web"), action_id="edit", url=f"{url}/propose"),
            opening(url, "Open"),
        ]
    )


def only_opening(page: ReviewPage, public_url: str, *, late: bool) -> ActionsBlock:
    """The ways to the page, and no other; ``late``: nobody can decide there either."""
    waits = page.state == "open" and page.superseded_by is None and not late
    here = page_url(public_url, page.review_id)
    elements = [opening(here, "Open to review" if waits else "Open")]
    if page.replaced_by:
        label = f"Read revision {page.superseded_by}" if page.superseded_by else "Read what replaced it"
        url = page_url(public_url, page.replaced_by)
        elements.append(ButtonElement(text=plain(label), action_id="open_newer", url=url))
    return ActionsBlock(elements=elements)


def opening(url: str, label: str) -> ButtonElement:
    """A link that looks like a button."""
    return ButtonElement(text=plain(label), action_id="open", url=url)


def releases(page: ReviewPage) -> bool:
    """Whether one more approval is the last thing that is missing."""
    return quorum(page).wanted <= 1 and not siblings_waiting(page)


def signing_words(page: ReviewPage, most: int) -> str:
    """`You sign: refund $1,240.00 USD to card_visa_4242, once.`; a long one is named by its digest."""
    pen = Pen()
    words = f"You sign: {pen.spoken(signing(page))}, once."
    if pen.cut or units(words) > most:
        digest = f"{page.effect_digest[:4]} {page.effect_digest[4:8]}"
        return f"You sign the effect as it stands in the message, digest {digest}, once."
    return words


def approving_words(page: ReviewPage) -> str:
    """What is signed, and whether it can be taken back."""
    final = Pen().shown(page.finality, MAX_CONFIRM // 2)
    return f"{signing_words(page, MAX_CONFIRM - 1 - units(final))} {final}"


def _approve(page: ReviewPage, pointer: Pointer) -> ButtonElement:
    amount = the_amount(page)
    label = f"Approve {amount.text}" if amount else "Approve"
    if units(label) >= MAX_LABEL:
        label = "Approve"
    if page.reason_required:
        return ButtonElement(text=plain(f"{label}…"), action_id="approve", value=pointer.value)
    confirm = ConfirmObject(
        title=plain("Countersign"),
        text=plain(approving_words(page)),
        confirm=plain("Countersign and release" if releases(page) else "Countersign"),
        deny=plain("Go back"),
    )
    return ButtonElement(text=plain(label), action_id="approve", value=pointer.value, confirm=confirm)
