"""What a person does in Slack: the same votes and questions as on the web, by the person their account is linked to.

Numbered as they run:

1. what was acted on already is not acted on again, whichever way and however often it is delivered;
2. what the button names is a pointer: there is such a message of ours, and the press comes from it, where it stands;
3. the account is a full member of the workspace and linked to a person who may act through it (`linking`);
4. an approve holds only for what the message shows now; a deny holds for the revision it was about;
5. the vote, or the question, is that of any channel: who may, and what it does, is decided there and nowhere here;
6. that it was acted on is written down, with the answer the person is owed, before Slack is told that it arrived.

What is refused is told to that person alone, and where a page of the web mends it, with its address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from sqlalchemy import Connection

from countersign.contract import ErrorCode
from policy_service.errors import (
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    ServiceError,
)
from policy_service.queries.context import Context
from policy_service.queries.messages import closed_review_text
from policy_service.queries.review_models import ReviewPage
from policy_service.queries.reviews import read_review_page
from policy_service.queries.view_digest import SLACK_RENDERER, view_of
from policy_service.queries.voter import Voter
from policy_service.slack import SlackApp
from policy_service.storage.core import find_one
from policy_service.storage.database import Tx
from policy_service.storage.slack_tables import SlackCardRow, SlackPlaceRow
from policy_service.workflow.reviews.comment import CommentDraft, comment
from policy_service.workflow.reviews.vote import FactsTimeoutError, VoteInput, vote
from policy_service.workflow.slack.account_links import Account, require_member
from policy_service.workflow.slack.enqueue import enqueue_card, enqueue_ephemeral, record_delivery
from policy_service.workflow.slack.voters import LinkedVoter, require_still_linked, voter_for_account

CHANNEL: Final = "slack"

ButtonAction = Literal["approve", "deny", "ask"]

_TOO_SLOW: Final = "the systems that the rules ask for facts take longer than Slack waits; decide on the page"

Withheld = Callable[[ReviewPage], str | None]
"""Why a message of this review carries no buttons, as the channel draws it; None where it does."""


@dataclass(frozen=True, slots=True)
class ButtonPress:
    """What somebody pressed, and on what. ``ts`` is None where it comes from a form and not from a message."""

    delivery: str  # the same for the same press, however it arrives
    account: Account
    does: ButtonAction
    card_id: str
    view_digest: str
    channel: str | None = None
    ts: str | None = None
    words: str | None = None


async def record_interaction(ctx: Context, press: ButtonPress, refusal: ServiceError | None = None) -> bool:
    """Write down that a press was acted on, with what its person is to be told; whether it was not before."""
    return await ctx.db.write(lambda tx: _remember(tx, ctx, press, refusal))


def _remember(tx: Tx, ctx: Context, press: ButtonPress, refusal: ServiceError | None) -> bool:
    fresh = record_delivery(tx, press.delivery)
    if fresh and refusal is not None and press.channel:
        _tell(tx, ctx, press, press.channel, refusal)
    return fresh


def _tell(tx: Tx, ctx: Context, press: ButtonPress, channel: str, refusal: ServiceError) -> None:
    card = find_one(tx.conn, SlackCardRow, card_id=press.card_id)
    if card is not None and refusal.code is ErrorCode.STALE_REVIEW:
        enqueue_card(tx, card, press.delivery)
    page = None
    if card is not None and card.review_id is not None:
        page = f"{ctx.settings.public_url}/reviews/{card.review_id}"
    enqueue_ephemeral(
        tx,
        f"slk_answer_{press.delivery}",
        user_id=press.account.user_id,
        channel=channel,
        sentence=refusal_text(refusal),
        url=str(refusal.extras.get("url") or "") or page,
    )


class AlreadyApprovedError(ConflictError):
    """The same person's approval again: the first one counts, and this one changed nothing."""

    def __init__(self, state: str) -> None:
        after = {"open": "it waits for others", "met": "it was approved"}.get(
            state, closed_review_text(state)
        )
        super().__init__(f"your approval is recorded already, and {after}", code=ErrorCode.ALREADY_ANSWERED)


def refusal_text(error: ServiceError) -> str:
    """What did not happen, and why."""
    return error.detail if isinstance(error, AlreadyApprovedError) else f"Nothing was decided: {error.detail}"


@dataclass(frozen=True, slots=True)
class ButtonContext:
    """What a press found: the review as its person sees it, the person, and the name of what the message shows now."""

    page: ReviewPage
    linked: LinkedVoter
    shows: str


async def load_interaction(ctx: Context, app: SlackApp, press: ButtonPress) -> ButtonContext:
    """What was pressed on, and by whom.

    Raises:
        ForbiddenError: the account may do nothing here.
        NotFoundError: there is no such message.
    """
    return await ctx.db.read(lambda conn: _pressed(conn, ctx, app, press, ctx.clock()))


async def require_openable(pressed: ButtonContext, press: ButtonPress, withheld: Withheld) -> None:
    """Refuse a form to somebody whose answer would not count.

    Raises:
        ForbiddenError: not_eligible.
        ConflictError: review_closed.
    """
    page = pressed.page
    if page.state != "open":
        raise _closed(page.state, "nothing is asked any more")
    _require_known_groups(pressed)
    if page.why_not is not None:
        raise ForbiddenError(page.why_not, code=ErrorCode.NOT_ELIGIBLE)
    await _require_buttons(page, press, withheld)


def _require_known_groups(pressed: ButtonContext) -> None:
    """Somebody whose groups we know too long ago to count them learns that, and not only that they are in none."""
    if pressed.page.why_not is not None and pressed.linked.stale_groups:
        raise ForbiddenError(
            "your groups were read too long ago to count; open it on the web and sign in, then decide there or here",
            code=ErrorCode.NOT_ELIGIBLE,
        )


async def _require_buttons(page: ReviewPage, press: ButtonPress, withheld: Withheld) -> None:
    """A message may be older than the rule that it has no button to approve: then there is none all the same."""
    if press.does == "approve" and page.state == "open":
        why = await asyncio.to_thread(withheld, page)
        if why is not None:
            raise ForbiddenError(why, code=ErrorCode.NOT_ELIGIBLE)


async def handle_interaction(
    ctx: Context,
    app: SlackApp,
    press: ButtonPress,
    pressed: ButtonContext,
    *,
    withheld: Withheld,
    within_s: float,
) -> None:
    """Cast the vote, or ask the question. ``withheld``: why an approval is not taken on such a message; ``within_s``:
    how long other systems may take for their facts, so that Slack hears in time that the press arrived.

    Raises:
        ForbiddenError: not_eligible, step_up_required; ``extras["url"]`` where a page mends it.
        ConflictError: stale_review, review_closed.
        ApprovedBeforeError: this person has approved it already.
        InvalidRequestError: reason_required, and what is wrong with the words.
    """
    if pressed.page.state == "open":
        _require_known_groups(pressed)
    if press.does == "ask":
        await _ask(ctx, app, press, pressed)
    else:
        await _require_buttons(pressed.page, press, withheld)
        await _vote(ctx, app, press, pressed, within_s)


async def _ask(ctx: Context, app: SlackApp, press: ButtonPress, pressed: ButtonContext) -> None:
    voter, words = pressed.linked.voter, press.words or ""
    remark = CommentDraft(pressed.page.review_id, words, question=True, channel=CHANNEL)

    def still(tx: Tx) -> None:
        _require_still(tx.conn, ctx, app, press, voter, tx.now)

    await comment(ctx, voter, remark, still=still)


async def _vote(
    ctx: Context, app: SlackApp, press: ButtonPress, pressed: ButtonContext, within_s: float
) -> None:
    page, voter = pressed.page, pressed.linked.voter
    if press.does == "approve" and press.view_digest != pressed.shows:
        raise ConflictError(
            "what is asked has changed since this message was drawn; it is drawn anew in a moment, so read it again",
            code=ErrorCode.STALE_REVIEW,
        )
    ballot = VoteInput(
        page.review_id,
        "approve" if press.does == "approve" else "deny",
        page.rev,
        page.effect_digest,
        page.txn_digest,
        press.words or None,
        CHANNEL,
        view_digest=press.view_digest,
    )

    def still(tx: Tx) -> None:
        _require_still(tx.conn, ctx, app, press, voter, tx.now)

    try:
        result = await vote(ctx, voter, ballot, still=still, facts_timeout_s=within_s)
    except FactsTimeoutError:
        raise ForbiddenError(_TOO_SLOW) from None
    if result.already_recorded and press.does == "approve":
        raise AlreadyApprovedError(result.state)
    if not result.counted and not result.already_recorded:
        raise _closed(result.state, "what you pressed is on record and changed nothing")


def _require_still(
    conn: Connection, ctx: Context, app: SlackApp, press: ButtonPress, voter: Voter, now: datetime
) -> None:
    require_still_linked(conn, ctx, app, press.account.team_id, press.account.user_id, voter, now)


def _closed(state: str, what: str) -> ConflictError:
    return ConflictError(f"{closed_review_text(state)}; {what}", code=ErrorCode.REVIEW_CLOSED)


def _pressed(
    conn: Connection, ctx: Context, app: SlackApp, press: ButtonPress, now: datetime
) -> ButtonContext:
    card = find_one(conn, SlackCardRow, card_id=press.card_id)
    if card is None or card.review_id is None or not _stands_there(conn, card, press):
        raise NotFoundError("this is no message of ours, or a copy of one; open the review on the web")
    require_member(app, press.account)
    linked = voter_for_account(conn, ctx, app, press.account.team_id, press.account.user_id, now)
    page = read_review_page(conn, ctx, linked.voter, card.review_id, now)
    if page is None:
        raise NotFoundError("the review this message asks about is not there any more")
    return ButtonContext(page, linked, view_of(page, SLACK_RENDERER).digest)


def _stands_there(conn: Connection, card: SlackCardRow, press: ButtonPress) -> bool:
    """Whether the press came from the message itself. One that was just posted may be pressed before we know its name,
    but nowhere else than where it was posted; one that a digest lists has no message of its own, and no button."""
    if card.digest_id is not None:
        return False
    if press.channel is None:
        return True
    if not press.ts:
        return False
    if card.ts is None:
        place = find_one(conn, SlackPlaceRow, place=card.place)
        return place is not None and place.channel == press.channel
    return (card.channel, card.ts) == (press.channel, press.ts)


def require_words(words: str | None) -> str:
    """The words of a form, which Slack is told to require and which may come empty all the same.

    Raises:
        InvalidRequestError: reason_required.
    """
    if not (words or "").strip():
        raise InvalidRequestError("write why: whoever staged it reads it", code=ErrorCode.REASON_REQUIRED)
    return str(words).strip()
