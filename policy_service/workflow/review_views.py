"""Reviews and tasks as the wire's read models."""

from __future__ import annotations

from typing import Literal, cast

from sqlalchemy import Connection

from countersign.contract.wire import ReviewPageView, ReviewView, TaskPage, TaskView, VoteView
from policy_service.workflow import records
from policy_service.workflow.asking import count, gates_of, manifest_for
from policy_service.workflow.ballots import person_key
from policy_service.workflow.context import Context
from policy_service.workflow.reviews import open_reviews
from policy_service.workflow.view import effect_view, needs, review_url
from policy_service.workflow.vote import Voter, read_case


async def page(ctx: Context, voter: Voter, cursor: str | None, limit: int) -> ReviewPageView:
    """Open reviews, those that expire first in front.

    Raises:
        InvalidRequestError: the cursor is not one of ours.
    """
    found = await open_reviews(ctx, voter, cursor, limit)
    views = await ctx.db.read(lambda conn: [_review(conn, ctx, row.review_id) for row in found.rows])
    return ReviewPageView(reviews=tuple(views), next=found.next_cursor)


async def review(ctx: Context, review_id: str) -> ReviewView | None:
    """One review, or None."""

    def find(conn: Connection) -> ReviewView | None:
        return None if records.review_by_id(conn, review_id) is None else _review(conn, ctx, review_id)

    return await ctx.db.read(find)


def _review(conn: Connection, ctx: Context, review_id: str) -> ReviewView:
    bundle, case, now = ctx.active.current, read_case(conn, review_id), ctx.clock()
    row, effect, snapshot = case.review, case.effect, case.snapshot
    counted = count(ctx, bundle, snapshot, effect, case.agent, gates_of(effect), now)
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
        effect=effect_view(ctx, bundle, case.agent, snapshot, effect, now, for_people=True),
        needs=needs(effect, counted),
        owner=case.agent.owner,
        votes=tuple(
            VoteView(
                vote_id=vote.vote_id,
                person=person_key(vote.iss, vote.sub),
                verdict=cast(Literal["approve", "deny"], vote.verdict),
                at=vote.cast_at,
                counted=vote.vote_id in counted.counted or vote.vote_id == counted.denied_by,
                assurance=cast(Literal["oidc", "dev"], vote.assurance),
                reason=vote.reason,
            )
            for vote in snapshot.votes_on(effect)
        ),
        claimed=dict(snapshot.transaction.claimed),
    )


async def tasks(ctx: Context, cursor: str | None, limit: int) -> TaskPage:
    """Open tasks, oldest first."""
    found = await ctx.db.read(lambda conn: records.tasks(conn, state="open", after=cursor, limit=limit + 1))
    shown = found[:limit]
    return TaskPage(
        tasks=tuple(
            TaskView(
                task_id=row.task_id,
                kind=row.kind,
                text=row.text,
                opened_at=row.opened_at,
                state=cast(Literal["open", "settled"], row.state),
                txn=row.txn,
                effect_id=row.effect_id,
            )
            for row in shown
        ),
        next=shown[-1].task_id if len(found) > limit else None,
    )
