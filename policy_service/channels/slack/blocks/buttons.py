"""Buttons of a card, and rows of a list of reviews.

Approving takes two steps: a confirmation dialog repeats what is signed, or a form requests the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final
from urllib.parse import quote

from slack_sdk.models.blocks import (
    ActionsBlock,
    Block,
    ButtonElement,
    ConfirmObject,
    DividerBlock,
    RichTextSectionElement,
)

from policy_service.channels.presentation.review_status import (
    quorum_status,
    short_outcome_text,
    signed_sentence,
    single_amount,
    waiting_siblings,
)
from policy_service.channels.slack.blocks.block_kit import (
    MAX_NAME,
    MAX_VALUE,
    Pointer,
    TextWriter,
    characters,
    date_text,
    link,
    our_text,
    plain,
    rich_text,
    section,
    utf16_units,
)
from policy_service.queries.queue import CappedCount, QueuePage, QueueRow
from policy_service.queries.review_models import ReviewPage

MAX_CONFIRM: Final = 300  # Slack's limit for a confirmation's text
MAX_LABEL: Final = 75  # of a button's text


def review_url(public_url: str, review_id: str) -> str:
    """The URL of a review's page."""
    return f"{public_url.rstrip('/')}/reviews/{quote(review_id, safe='')}"


def decision_buttons(page: ReviewPage, pointer: Pointer, public_url: str) -> ActionsBlock:
    """Approve, deny, ask, and links to the page."""
    url = review_url(public_url, page.review_id)
    return ActionsBlock(
        elements=[
            _approve_button(page, pointer),
            ButtonElement(text=plain("Deny…"), action_id="deny", value=pointer.value),
            ButtonElement(text=plain("Ask…"), action_id="ask", value=pointer.value),
            ButtonElement(text=plain("Edit on the web"), action_id="edit", url=f"{url}/propose"),
            open_button(url, "Open"),
        ]
    )


def open_buttons(page: ReviewPage, public_url: str, *, late: bool) -> ActionsBlock:
    """Only links to the page; ``late``: the deadline has passed, so the page cannot decide either."""
    waits = page.state == "open" and page.superseded_by is None and not late
    here = review_url(public_url, page.review_id)
    elements = [open_button(here, "Open to review" if waits else "Open")]
    if page.replaced_by:
        label = f"Read revision {page.superseded_by}" if page.superseded_by else "Read what replaced it"
        url = review_url(public_url, page.replaced_by)
        elements.append(ButtonElement(text=plain(label), action_id="open_newer", url=url))
    return ActionsBlock(elements=elements)


def open_button(url: str, label: str) -> ButtonElement:
    """A button that opens a link."""
    return ButtonElement(text=plain(label), action_id="open", url=url)


def completes_quorum(page: ReviewPage) -> bool:
    """Whether one more approval releases the transaction."""
    return quorum_status(page).wanted <= 1 and not waiting_siblings(page)


def signing_text(page: ReviewPage, most: int) -> str:
    """`You sign: refund $1,240.00 USD to card_visa_4242, once.`; a long sentence is replaced by its digest."""
    pen = TextWriter()
    words = f"You sign: {pen.spoken(signed_sentence(page))}, once."
    if pen.cut or utf16_units(words) > most:
        digest = f"{page.effect_digest[:4]} {page.effect_digest[4:8]}"
        return f"You sign the effect as shown in the message, digest {digest}, once."
    return words


def approval_text(page: ReviewPage) -> str:
    """What is signed, and whether it can be reversed."""
    final = TextWriter().shown(page.finality, MAX_CONFIRM // 2)
    return f"{signing_text(page, MAX_CONFIRM - 1 - utf16_units(final))} {final}"


def _approve_button(page: ReviewPage, pointer: Pointer) -> ButtonElement:
    amount = single_amount(page)
    label = f"Approve {amount.text}" if amount else "Approve"
    if utf16_units(label) >= MAX_LABEL:
        label = "Approve"
    if page.reason_required:
        return ButtonElement(text=plain(f"{label}…"), action_id="approve", value=pointer.value)
    confirm = ConfirmObject(
        title=plain("Countersign"),
        text=plain(approval_text(page)),
        confirm=plain("Countersign and release" if completes_quorum(page) else "Countersign"),
        deny=plain("Go back"),
    )
    return ButtonElement(text=plain(label), action_id="approve", value=pointer.value, confirm=confirm)


MAX_LIST_CHARACTERS: Final = 7_500  # of all rows of one list; the rest is for the view around it
MAX_ROWS: Final = 20  # longer lists are on the web

Row = list[RichTextSectionElement]


def queue_row(row: QueueRow, public_url: str) -> Row:
    """A review of the queue, in two lines."""
    pen = TextWriter()
    way = link(review_url(public_url, row.review_id), "Open")
    if row.broken:
        return [section(our_text("This one cannot be read: "), way)]
    by = our_text(
        f"{row.risk.capitalize()} risk · {pen.shown(row.agent)} · {row.have:,} of {row.need:,} signed · "
    )
    until = [*our_text("by "), *date_text(row.answer_by, left=True)]
    outcome = short_outcome_text(row.state, row.effect_state, opened=row.opened)
    state = until if row.state == "open" else our_text(pen.shown(outcome.heading, MAX_NAME))
    return [section(pen.sentence(row.sentence, MAX_VALUE)), section(by, state, our_text(" · "), way)]


def list_blocks(rows: Iterable[Row], total: CappedCount, where: str, most: int = MAX_ROWS) -> list[Block]:
    """As many rows as fit, and how many of the ``total`` are left out."""
    blocks: list[Block] = []
    remaining, shown = MAX_LIST_CHARACTERS, 0
    for row in islice(rows, most):
        block = rich_text(*row)
        remaining -= characters(block.to_dict())
        if remaining < 0:
            break
        blocks += [block] if not blocks else [DividerBlock(), block]
        shown += 1
    more = CappedCount(total.number - shown, total.capped)
    return blocks + ([_more_block(more, where)] if more.number > 0 else [])


def count_waiting(page: QueuePage) -> CappedCount:
    """The number of reviews that wait for this person."""
    return CappedCount(max(page.counts.me.number, len(page.rows)), page.counts.me.capped)


def waiting_text(count: CappedCount) -> str:
    """`3 reviews wait`, `1 review waits`, `1,000+ reviews wait`."""
    one = count.number == 1 and not count.capped
    return f"{count.words} {'review waits' if one else 'reviews wait'}"


def _more_block(more: CappedCount, where: str) -> Block:
    one = more.number == 1 and not more.capped
    words = "1 more is" if one else f"{more.words} more are"
    return rich_text(section(our_text(f"{words} "), link(where, "on the web"), our_text(".")))
