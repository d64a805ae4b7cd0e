"""Reviews as the wire's read models."""

from __future__ import annotations

from typing import Literal, cast

from sqlalchemy import Connection

from countersign.contract.wire import ReviewPageView, ReviewView, VoteView
from policy_service.workflow.asking import count, manifest_for
from policy_service.workflow.ballots import person_key
from policy_service.workflow.cases import Case, read_case
from policy_service.workflow.context import Context
from policy_service.workflow.reviews import open_cases, read_page
from policy_service.workflow.shown import API, view_of
from policy_service.workflow.view import effect_view, needs, review_url
from policy_service.workflow.vote import Voter


async def page(ctx: Context, cursor: str | None, limit: int) -> ReviewPageView:
    """Open reviews, those that expire first in front.

    Raises:
        InvalidRequestError: the cursor is not one of ours.
    """
    cases, following = await open_cases(ctx, cursor, limit)
    return ReviewPageView(reviews=tuple(_review(ctx, case) for case in cases), next=following)


async def review(ctx: Context, voter: Voter, review_id: str) -> ReviewView | None:
    """One review as a program of this person's reads it, or None."""

    def find(conn: Connection) -> tuple[Case, str] | None:
        page = read_page(conn, ctx, voter, review_id, ctx.clock())
        return None if page is None else (read_case(conn, review_id), view_of(page, API).digest)

    found = await ctx.db.read(find)
    return None if found is None else _review(ctx, *found)


def _review(ctx: Context, case: Case, view_digest: str | None = None) -> ReviewView:
    bundle, now = ctx.active.current, ctx.clock()
    row, effect, snapshot = case.review, case.effect, case.snapshot
    counted = count(ctx, bundle, snapshot, effect, case.agent, case.gates, now)
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
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
        title=effect.tool if manifest is None else manifest.title,
        effect=effect_view(ctx, bundle, case.agent, snapshot, effect, now, counted=counted, for_people=True),
        needs=needs(effect, counted),
        owner=case.agent.owner,
        votes=tuple(
            VoteView(
                vote_id=vote.vote_id,
                person=person_key(vote.iss, vote.sub),
                verdict=cast(Literal["approve", "deny"], vote.verdict),
                at=vote.cast_at,
                counted=counted.counts(vote.vote_id),
                assurance=cast(Literal["oidc", "dev"], vote.assurance),
                reason=vote.reason,
                step_up=vote.step_up,
                view_digest=vote.view_digest,
            )
            for vote in snapshot.votes_on(effect)
        ),
        claimed=dict(snapshot.transaction.claimed),
        view_digest=view_digest,
    )
