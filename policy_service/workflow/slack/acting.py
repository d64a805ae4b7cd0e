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
from policy_service.slack import SlackApp
from policy_service.storage.core import find_one
from policy_service.storage.database import Tx
from policy_service.storage.slack_tables import SlackCardRow, SlackPlaceRow
from policy_service.workflow.context import Context
from policy_service.workflow.pages.reviews import read_page, read_view
from policy_service.workflow.reading.reviews import ReviewPage
from policy_service.workflow.reviews.comment import Remark, comment
from policy_service.workflow.reviews.shown import SLACK, view_of
from policy_service.workflow.reviews.vote import Ballot, Voter, vote
from policy_service.workflow.slack.accounts import Account, require_member
from policy_service.workflow.slack.deliveries import note_in
from policy_service.workflow.slack.owing import owe_answer, owe_card
from policy_service.workflow.slack.voters import Linked, still_linked, voter_of

CHANNEL: Final = "slack"

Does = Literal["approve", "deny", "ask"]

Withheld = Callable[[ReviewPage], str | None]
"""Why a message of this review carries no buttons, as the channel draws it; None where it does."""


@dataclass(frozen=True, slots=True)
class Press:
    """What somebody pressed, and on what. ``ts`` is None where it comes from a form and not from a message."""

    delivery: str  # the same for the same press, however it arrives
    account: Account
    does: Does
    card_id: str
    view_digest: str
    channel: str | None = None
    ts: str | None = None
    words: str | None = None


async def remember(ctx: Context, press: Press, refusal: ServiceError | None = None) -> None:
    """Write down that a press was acted on, with what its person is to be told."""
    await ctx.db.write(lambda tx: _remember(tx, ctx, press, refusal))


def _remember(tx: Tx, ctx: Context, press: Press, refusal: ServiceError | None) -> None:
    fresh = note_in(tx, press.delivery)
    if refusal is None or not fresh or not press.channel:
        return
    card = find_one(tx.conn, SlackCardRow, card_id=press.card_id)
    if card is not None and refusal.code is ErrorCode.STALE_REVIEW:
        owe_card(tx, card, press.delivery)
    page = None
    if card is not None and card.review_id is not None:
        page = f"{ctx.settings.public_url}/reviews/{card.review_id}"
    owe_answer(
        tx,
        f"slk_answer_{press.delivery}",
        user_id=press.account.user_id,
        channel=press.channel,
        sentence=sentence_of(refusal),
        url=str(refusal.extras.get("url") or "") or page,
    )


def sentence_of(error: ServiceError) -> str:
    """What did not happen, and why."""
    return f"Nothing was decided: {error.detail}"


async def look(ctx: Context, app: SlackApp, press: Press) -> ReviewPage:
    """The review that was pressed on, as this person sees it.

    Raises:
        ForbiddenError: the account may do nothing here.
        NotFoundError: there is no such message.
    """
    page, _, _ = await ctx.db.read(lambda conn: _pressed(conn, ctx, app, press, ctx.clock()))
    return page


def may_open(page: ReviewPage) -> None:
    """Refuse a form to somebody whose answer would not count.

    Raises:
        ForbiddenError: not_eligible.
        ConflictError: review_closed.
    """
    if page.state != "open":
        raise _closed(page.state, "nothing is asked any more")
    if page.why_not is not None:
        raise ForbiddenError(page.why_not, code=ErrorCode.NOT_ELIGIBLE)


async def act(ctx: Context, app: SlackApp, press: Press, *, withheld: Withheld) -> None:
    """Cast the vote, or ask the question. ``withheld``: why an approval is not taken on such a message.

    Raises:
        ForbiddenError: not_eligible, step_up_required; ``extras["url"]`` where a page mends it.
        ConflictError: stale_review, review_closed.
        InvalidRequestError: reason_required, and what is wrong with the words.
        NotFoundError: there is no such message.
    """
    page, linked, current = await ctx.db.read(lambda conn: _pressed(conn, ctx, app, press, ctx.clock()))
    try:
        if press.does == "ask":
            words = press.words or ""
            await comment(ctx, linked.voter, Remark(page.review_id, words, question=True, channel=CHANNEL))
        else:
            if press.does == "approve" and page.state == "open":
                why = await asyncio.to_thread(withheld, page)
                if why is not None:
                    raise ForbiddenError(why, code=ErrorCode.NOT_ELIGIBLE)
            await _vote(ctx, app, linked.voter, page, press, current)
    except ForbiddenError as error:
        raise _with_remedy(ctx, error, linked) from error


async def _vote(
    ctx: Context, app: SlackApp, voter: Voter, page: ReviewPage, press: Press, current: str
) -> None:
    if press.does == "approve" and press.view_digest != current:
        raise ConflictError(
            "what is asked has changed since this message was drawn; it is drawn anew in a moment, so read it again",
            code=ErrorCode.STALE_REVIEW,
        )
    ballot = Ballot(
        page.review_id,
        "approve" if press.does == "approve" else "deny",
        page.rev,
        page.effect_digest,
        page.txn_digest,
        press.words or None,
        CHANNEL,
        view_digest=press.view_digest,
    )
    shows = still_linked(app, press.account.team_id, press.account.user_id, read_view)
    result = await vote(ctx, voter, ballot, shows)
    if not result.counted and not result.said_before:
        raise _closed(result.state, "what you pressed is on record and changed nothing")


def _closed(state: str, what: str) -> ConflictError:
    said = {"met": "approved"}.get(state, state)
    return ConflictError(f"this was {said} already; {what}", code=ErrorCode.REVIEW_CLOSED)


def _pressed(
    conn: Connection, ctx: Context, app: SlackApp, press: Press, now: datetime
) -> tuple[ReviewPage, Linked, str]:
    """The review, the person, and the name of what the message shows now."""
    card = find_one(conn, SlackCardRow, card_id=press.card_id)
    if card is None or card.review_id is None or not _stands_there(conn, card, press):
        raise NotFoundError("this is no message of ours, or a copy of one; open the review on the web")
    require_member(app, press.account)
    linked = voter_of(conn, ctx, app, press.account.team_id, press.account.user_id, now)
    page = read_page(conn, ctx, linked.voter, card.review_id, now)
    if page is None:
        raise NotFoundError("the review this message asks about is not there any more")
    return page, linked, view_of(page, SLACK).digest


def _stands_there(conn: Connection, card: SlackCardRow, press: Press) -> bool:
    """Whether the press came from the message itself. One that was just posted may be pressed before we know its name,
    but nowhere else than where it was posted; one that a digest lists has no message of its own, and no button."""
    if card.digest_id is not None:
        return False
    if press.channel is None:
        return True
    if card.ts is None:
        place = find_one(conn, SlackPlaceRow, place=card.place)
        return place is not None and place.channel == press.channel
    return (card.channel, card.ts) == (press.channel, press.ts)


def _with_remedy(ctx: Context, error: ForbiddenError, linked: Linked) -> ForbiddenError:
    """Somebody whose groups we know too long ago to count them learns that, and not only that they are in none."""
    if error.code is ErrorCode.NOT_ELIGIBLE and linked.stale_groups:
        return ForbiddenError(
            "your groups were read too long ago to count; open it on the web and sign in, then decide there or here",
            code=ErrorCode.NOT_ELIGIBLE,
        )
    return error


def require_words(words: str | None) -> str:
    """The words of a form, which Slack is told to require and which may come empty all the same.

    Raises:
        InvalidRequestError: reason_required.
    """
    if not (words or "").strip():
        raise InvalidRequestError("write why: whoever staged it reads it", code=ErrorCode.REASON_REQUIRED)
    return str(words).strip()
