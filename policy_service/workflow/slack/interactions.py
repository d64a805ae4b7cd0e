"""Slack interactions: votes and questions from Slack buttons and forms, as the person whose account is linked.

1. A delivery that was processed before is not processed again, however it arrives.
2. The id in the button must name one of our messages, and the press must come from that message.
3. The account must be a full member of the workspace, linked to a person who may act through it (`account_links`).
4. An approval is valid only for what the message shows now. A denial is valid for the revision it was about.
5. Votes and questions follow the rules of every channel; nothing here decides who may vote.
6. The delivery, with the response owed to the person, is stored before Slack gets its acknowledgement.

A refusal is shown to that person alone, with the address of a web page that helps, if there is one.

A link is not a session, so everything that would end a session is checked at each press, in this order: the account is
of the app's workspace and linked; the person is known and not revoked; their sign-in method at linking still counts;
their provider has not ended all their sessions since they last signed in; they have signed in on the web recently.
Whether the account is still a full member is checked in Slack (`account_links.require_member`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
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
from policy_service.identity.people import find_person, slack_link
from policy_service.queries.context import Context
from policy_service.queries.review_context import closed_review_text
from policy_service.queries.review_models import ReviewPage
from policy_service.queries.reviews import read_review_page
from policy_service.queries.view_digest import SLACK_RENDERER, view_of
from policy_service.queries.vote_eligibility import Voter, voter_from_person
from policy_service.slack import SlackApp
from policy_service.storage.core import find_one
from policy_service.storage.database import Tx
from policy_service.storage.slack_tables import SlackCardRow, SlackLinkRow, SlackPlaceRow
from policy_service.storage.tables import PersonRow
from policy_service.workflow.reviews.comment import CommentDraft, comment
from policy_service.workflow.reviews.vote import FactsTimeoutError, VoteInput, vote
from policy_service.workflow.slack.account_links import COMMAND, Account, require_member
from policy_service.workflow.slack.enqueue import enqueue_card, enqueue_ephemeral, record_delivery

CHANNEL: Final = "slack"

ButtonAction = Literal["approve", "deny", "ask"]

_TOO_SLOW: Final = "the fact sources take longer than Slack waits; decide on the page"

Withheld = Callable[[ReviewPage], str | None]
"""Returns why a message of this review has no buttons, or None if it has."""


@dataclass(frozen=True, slots=True)
class ButtonPress:
    """A pressed button or submitted form. ``ts`` is None for a form."""

    delivery: str  # the same for the same press, over both transports
    account: Account
    does: ButtonAction
    card_id: str
    view_digest: str
    channel: str | None = None
    ts: str | None = None
    words: str | None = None


async def record_interaction(ctx: Context, press: ButtonPress, refusal: ServiceError | None = None) -> bool:
    """Record a processed press, with the refusal to show; whether it was not recorded before."""
    return await ctx.db.write(lambda tx: _remember(tx, ctx, press, refusal))


def _remember(tx: Tx, ctx: Context, press: ButtonPress, refusal: ServiceError | None) -> bool:
    fresh = record_delivery(tx, press.delivery)
    if fresh and refusal is not None and press.channel:
        _enqueue_refusal(tx, ctx, press, press.channel, refusal)
    return fresh


def _enqueue_refusal(tx: Tx, ctx: Context, press: ButtonPress, channel: str, refusal: ServiceError) -> None:
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
    """The person has approved already; the first approval counts."""

    def __init__(self, state: str) -> None:
        after = {"open": "it waits for others", "met": "it was approved"}.get(
            state, closed_review_text(state)
        )
        super().__init__(f"your approval is recorded already, and {after}", code=ErrorCode.ALREADY_ANSWERED)


def refusal_text(error: ServiceError) -> str:
    """The refusal as a sentence for the person."""
    return error.detail if isinstance(error, AlreadyApprovedError) else f"Nothing was decided: {error.detail}"


@dataclass(frozen=True, slots=True)
class ButtonContext:
    """The review as the person sees it, the person, and the digest of the view that the message shows now."""

    page: ReviewPage
    linked: LinkedVoter
    shows: str


async def load_interaction(ctx: Context, app: SlackApp, press: ButtonPress) -> ButtonContext:
    """Load the review of a press, and the person who pressed.

    Raises:
        ForbiddenError: the account may not act here.
        NotFoundError: it is not one of our messages.
    """
    return await ctx.db.read(lambda conn: _load(conn, ctx, app, press, ctx.clock()))


async def require_openable(pressed: ButtonContext, press: ButtonPress, withheld: Withheld) -> None:
    """Require that an answer by this person would count, before a form is shown.

    Raises:
        ForbiddenError: not_eligible.
        ConflictError: review_closed.
    """
    page = pressed.page
    if page.state != "open":
        raise _closed_error(page.state, "no answer is needed any more")
    _require_known_groups(pressed)
    if page.why_not is not None:
        raise ForbiddenError(page.why_not, code=ErrorCode.NOT_ELIGIBLE)
    await _require_buttons(page, press, withheld)


def _require_known_groups(pressed: ButtonContext) -> None:
    """Report outdated groups as such, rather than as missing membership."""
    if pressed.page.why_not is not None and pressed.linked.stale_groups:
        raise ForbiddenError(
            "your groups were read too long ago to count; sign in on the web, then decide there or here",
            code=ErrorCode.NOT_ELIGIBLE,
        )


async def _require_buttons(page: ReviewPage, press: ButtonPress, withheld: Withheld) -> None:
    """Refuse an approval on an older message whose buttons are withheld now."""
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
    """Cast the vote or ask the question. ``within_s`` limits how long facts may take: Slack waits for a response.

    Raises:
        ForbiddenError: not_eligible, step_up_required; ``extras["url"]`` names a page that helps, if there is one.
        ConflictError: stale_review, review_closed.
        AlreadyApprovedError: this person has approved already.
        InvalidRequestError: reason_required, or an invalid text.
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

    def recheck(tx: Tx) -> None:
        _require_still(tx.conn, ctx, app, press, voter, tx.now)

    await comment(ctx, voter, remark, recheck=recheck)


async def _vote(
    ctx: Context, app: SlackApp, press: ButtonPress, pressed: ButtonContext, within_s: float
) -> None:
    page, voter = pressed.page, pressed.linked.voter
    if press.does == "approve" and press.view_digest != pressed.shows:
        raise ConflictError(
            "the review has changed since this message was posted; it is updated in a moment, so read it again",
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

    def recheck(tx: Tx) -> None:
        _require_still(tx.conn, ctx, app, press, voter, tx.now)

    try:
        result = await vote(ctx, voter, ballot, recheck=recheck, facts_timeout_s=within_s)
    except FactsTimeoutError:
        raise ForbiddenError(_TOO_SLOW) from None
    if result.already_recorded and press.does == "approve":
        raise AlreadyApprovedError(result.state)
    if not result.counted and not result.already_recorded:
        raise _closed_error(result.state, "your vote was recorded and changed nothing")


def _require_still(
    conn: Connection, ctx: Context, app: SlackApp, press: ButtonPress, voter: Voter, now: datetime
) -> None:
    require_still_linked(conn, ctx, app, press.account.team_id, press.account.user_id, voter, now)


def _closed_error(state: str, what: str) -> ConflictError:
    return ConflictError(f"{closed_review_text(state)}; {what}", code=ErrorCode.REVIEW_CLOSED)


def _load(conn: Connection, ctx: Context, app: SlackApp, press: ButtonPress, now: datetime) -> ButtonContext:
    card = find_one(conn, SlackCardRow, card_id=press.card_id)
    if card is None or card.review_id is None or not _is_from_message(conn, card, press):
        raise NotFoundError(
            "this is not a message of this service, or a copy of one; open the review on the web"
        )
    require_member(app, press.account)
    linked = voter_for_account(conn, ctx, app, press.account.team_id, press.account.user_id, now)
    page = read_review_page(conn, ctx, linked.voter, card.review_id, now)
    if page is None:
        raise NotFoundError("the review of this message no longer exists")
    return ButtonContext(page, linked, view_of(page, SLACK_RENDERER).digest)


def _is_from_message(conn: Connection, card: SlackCardRow, press: ButtonPress) -> bool:
    """Whether the press came from the message itself.

    A message can be pressed before its ``ts`` is stored; then it must come from the place it was posted to. A card that
    is part of a digest has no message and no button.
    """
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
    """The text of a form. Slack is configured to require it, but can still send it empty.

    Raises:
        InvalidRequestError: reason_required.
    """
    if not (words or "").strip():
        raise InvalidRequestError("give a reason: the agent reads it", code=ErrorCode.REASON_REQUIRED)
    return str(words).strip()


# -- the voter behind an account ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkedVoter:
    """The voter behind an account. ``stale_groups``: their token named groups, but too long ago to count."""

    voter: Voter
    link: SlackLinkRow
    stale_groups: bool
    groups_at: datetime | None  # when their token last named groups


def voter_for_account(
    conn: Connection, ctx: Context, app: SlackApp, team_id: str, user_id: str, now: datetime
) -> LinkedVoter:
    """The voter behind this account.

    Raises:
        ForbiddenError: not_eligible, with ``url`` if a page helps.
    """
    row = slack_link(conn, team_id, user_id) if team_id == app.team_id else None
    if row is None:
        raise _not_eligible_error(f"this Slack account is not linked yet; link it: {COMMAND}")
    person_row = find_one(conn, PersonRow, iss=row.iss, sub=row.sub)
    person = find_person(conn, row.iss, row.sub, row.assurance, now, ctx.settings.max_group_age_s)
    if person_row is None or person is None:
        raise _not_eligible_error("an operator of this deployment has taken you out of its decisions")
    _require_vouched_for(ctx, row)
    _require_signed_in(ctx, app, row, person_row.last_seen_at, now)
    return LinkedVoter(
        voter_from_person(person), row, bool(person_row.groups) and not person.groups, person_row.groups_at
    )


def require_still_linked(
    conn: Connection, ctx: Context, app: SlackApp, team_id: str, user_id: str, voter: Voter, now: datetime
) -> None:
    """Require, in the unit that stores the vote or question, that the account is still linked to this voter.

    Raises:
        ForbiddenError: not_eligible: the account is linked otherwise, or may no longer act.
    """
    now_is = voter_for_account(conn, ctx, app, team_id, user_id, now).voter
    if (now_is.key, now_is.assurance) != (voter.key, voter.assurance):
        raise _not_eligible_error(
            "this Slack account was linked again a moment ago; read the review again and decide again"
        )


def _require_vouched_for(ctx: Context, row: SlackLinkRow) -> None:
    if row.assurance == "dev":
        if not ctx.settings.dev_signin:
            raise _not_eligible_error(
                "this Slack account was linked with the development sign-in, which is off; sign in with your "
                f"provider and link it again: {COMMAND}"
            )
    elif row.trust not in {provider.trust for provider in ctx.settings.providers}:
        raise _not_eligible_error(
            "the provider you signed in with when you linked this Slack account is no longer trusted here, or its "
            f"settings have changed; sign in and link it again: {COMMAND}"
        )


def _require_signed_in(
    ctx: Context, app: SlackApp, row: SlackLinkRow, last_seen_at: datetime, now: datetime
) -> None:
    url = f"{ctx.settings.public_url}/sign-in"
    if row.signed_out_at is not None and last_seen_at <= row.signed_out_at:
        raise _not_eligible_error(
            "your provider has signed you out everywhere; sign in on the web, then decide here again",
            url=url,
        )
    if now - last_seen_at >= timedelta(days=app.signed_in_within_days):
        raise _not_eligible_error(
            f"you have not signed in for {app.signed_in_within_days} days; sign in on the web once, then decide here "
            "again",
            url=url,
        )


def _not_eligible_error(why: str, **extras: str) -> ForbiddenError:
    return ForbiddenError(why, code=ErrorCode.NOT_ELIGIBLE, **extras)
