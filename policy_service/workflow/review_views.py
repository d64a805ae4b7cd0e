"""Reviews as the wire's read models."""

from __future__ import annotations

from typing import Literal, cast

from sqlalchemy import Connection

from countersign.contract import EffectState
from countersign.contract.wire import CommentView, ReviewPageView, ReviewView, SiblingView, VoteView
from policy_service.storage.tables import CommentRow, EffectRow
from policy_service.workflow import records
from policy_service.workflow.asking import count, manifest_for
from policy_service.workflow.ballots import person_key
from policy_service.workflow.cases import Case, read_case
from policy_service.workflow.context import Context
from policy_service.workflow.effect_rows import args_of
from policy_service.workflow.hiding import without_secrets
from policy_service.workflow.records import Snapshot
from policy_service.workflow.reviews import open_cases
from policy_service.workflow.view import effect_view, needs, review_url


async def page(ctx: Context, cursor: str | None, limit: int) -> ReviewPageView:
    """Open reviews, those that expire first in front.

    Raises:
        InvalidRequestError: the cursor is not one of ours.
    """
    cases, following = await open_cases(ctx, cursor, limit)
    return ReviewPageView(reviews=tuple(_review(ctx, case) for case in cases), next=following)


async def review(ctx: Context, review_id: str) -> ReviewView | None:
    """One review, or None."""

    def find(conn: Connection) -> Case | None:
        return None if records.review_by_id(conn, review_id) is None else read_case(conn, review_id)

    case = await ctx.db.read(find)
    return None if case is None else _review(ctx, case)


def _review(ctx: Context, case: Case) -> ReviewView:
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
        needs=needs(counted),
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
            )
            for vote in snapshot.votes_on(effect)
        ),
        comments=tuple(_comment(one) for one in snapshot.comments_on(effect)),
        siblings=tuple(_sibling(snapshot, other) for other in snapshot.effects if other is not effect),
        claimed=dict(snapshot.transaction.claimed),
    )


def _comment(one: CommentRow) -> CommentView:
    return CommentView(
        comment_id=one.comment_id,
        kind=cast(Literal["comment", "question"], one.kind),
        person=person_key(one.iss, one.sub),
        name=one.name,
        for_requester=one.for_requester,
        text=one.text,
        at=one.written_at,
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
