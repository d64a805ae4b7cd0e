"""Wire models of reviews."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from sqlalchemy import Connection

from countersign.contract import EffectState
from countersign.contract.wire import CommentView, ReviewPageView, ReviewView, SiblingView, VoteView
from countersign.contract.wire import EarlierDenial as EarlierDenialView
from policy_service.domain.quorum import Tally
from policy_service.queries.context import Context
from policy_service.queries.effects import args_of, tool_title, without_secrets
from policy_service.queries.repository import Snapshot
from policy_service.queries.review_context import (
    Quarantine,
    RecentDenials,
    ReviewContext,
    lookback_period,
    read_review_context,
)
from policy_service.queries.review_models import CommentLine, RecentDenial, VoteLine
from policy_service.queries.reviews import comment_line, open_review_contexts, review_content, vote_line
from policy_service.queries.transaction_views import effect_view, need_views, review_url
from policy_service.queries.view_digest import API_RENDERER, view_of
from policy_service.queries.vote_eligibility import count_votes
from policy_service.storage.tables import EffectRow


async def open_review_page(ctx: Context, cursor: str | None, limit: int) -> ReviewPageView:
    """Open reviews by deadline.

    Raises:
        InvalidRequestError: the cursor is invalid.
    """
    cases, following = await open_review_contexts(ctx, cursor, limit)
    denials = await ctx.db.read(lambda conn: RecentDenials(conn, cases, lookback_period(ctx)))
    views = (_readable(ctx, case, denials) for case in cases)
    return ReviewPageView(reviews=tuple(view for view in views if view is not None), next=following)


def _readable(ctx: Context, case: ReviewContext, denials: RecentDenials) -> ReviewView | None:
    """A review of a list; None, with a log line, if it is unreadable."""
    with Quarantine(case.review):
        return _review(ctx, case, denials.before(case))
    return None


async def load_review_view(ctx: Context, review_id: str) -> ReviewView:
    """One review.

    Raises:
        NotFoundError: there is no such review.
    """

    def read(conn: Connection) -> tuple[ReviewContext, tuple[RecentDenial, ...]]:
        case = read_review_context(conn, review_id)
        return case, RecentDenials(conn, [case], lookback_period(ctx)).before(case)

    return _with_digest(ctx, *await ctx.db.read(read))


async def review_view_of(ctx: Context, case: ReviewContext, counted: Tally | None = None) -> ReviewView:
    """The same for a context and a vote count that are already loaded."""
    denials = await ctx.db.read(lambda conn: RecentDenials(conn, [case], lookback_period(ctx)).before(case))
    return _with_digest(ctx, case, denials, counted)


def _with_digest(
    ctx: Context, case: ReviewContext, denials: Sequence[RecentDenial], counted: Tally | None = None
) -> ReviewView:
    view = view_of(review_content(ctx.active.current, case), API_RENDERER)
    return _review(ctx, case, denials, view.digest, counted)


def _review(
    ctx: Context,
    case: ReviewContext,
    denials: Sequence[RecentDenial],
    view_digest: str | None = None,
    counted: Tally | None = None,
) -> ReviewView:
    bundle, now = ctx.active.current, ctx.clock()
    row, effect, snapshot = case.review, case.effect, case.snapshot
    if counted is None:
        counted = count_votes(ctx, bundle, snapshot, effect, case.agent, case.gates, now)
    return ReviewView(
        review_id=row.review_id,
        txn=row.txn,
        rev=row.rev,
        txn_digest=snapshot.transaction.txn_digest,
        state=row.state,
        agent=row.agent,
        opened_at=row.opened_at,
        answer_by=row.answer_by,
        url=review_url(ctx, row),
        title=tool_title(bundle, effect),
        effect=effect_view(ctx, case.agent, snapshot, effect, counted=counted, for_people=True),
        needs=need_views(counted),
        owner=case.agent.owner,
        votes=tuple(_vote(vote_line(vote, counted)) for vote in snapshot.votes_on(effect)),
        comments=tuple(_comment(comment_line(one)) for one in snapshot.comments_on(effect)),
        siblings=tuple(_sibling(snapshot, other) for other in snapshot.effects if other is not effect),
        claimed=dict(snapshot.transaction.claimed),
        earlier_denials=tuple(
            EarlierDenialView(
                review_id=denial.review_id,
                txn=denial.txn,
                at=denial.at,
                person=denial.person,
                reason=denial.reason or None,
                differs=denial.differs,
            )
            for denial in denials
        ),
        view_digest=view_digest,
    )


def _vote(vote: VoteLine) -> VoteView:
    return VoteView(
        vote_id=vote.vote_id,
        person=vote.person,
        verdict=vote.verdict,
        at=vote.at,
        counted=vote.counted,
        assurance=cast(Literal["oidc", "dev"], vote.assurance),
        reason=vote.reason or None,
        step_up=vote.step_up,
        view_digest=vote.view_digest,
    )


def _comment(one: CommentLine) -> CommentView:
    return CommentView(
        comment_id=one.comment_id,
        kind="question" if one.question else "comment",
        person=one.person,
        name=one.person_name,
        for_requester=one.for_requester,
        text=one.text,
        at=one.at,
        channel=one.channel,
        assurance=cast(Literal["oidc", "dev"], one.assurance),
        answer=one.answer,
        answered_at=one.answered_at,
    )


def _sibling(snapshot: Snapshot, other: EffectRow) -> SiblingView:
    review = snapshot.review_of(other)
    return SiblingView(
        effect_id=other.effect_id,
        seq=other.seq,
        tool=other.tool,
        effect_digest=other.effect_digest,
        state=EffectState(other.state),
        args=without_secrets(args_of(other), other.secret),
        review_id=None if review is None else review.review_id,
    )
