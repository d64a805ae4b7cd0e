"""/v1/reviews: the queue for people's own programs, by the session of a signed-in person; an agent comes here only to
answer what it is asked."""

from __future__ import annotations

from fastapi import Path, Query, Request, Response

from countersign.contract import canonicalize
from countersign.contract.wire import (
    AnswerRequest,
    CommentRequest,
    ProposeRequest,
    ReviewPageView,
    ReviewView,
    TransactionView,
    VoteRequest,
)
from policy_service.channels.http import openapi
from policy_service.channels.http.api import Api, api_of
from policy_service.channels.http.api_routes import ApiRoutes
from policy_service.channels.http.bodies import JSON_TYPE
from policy_service.errors import NotFoundError
from policy_service.identity.agents import Caller
from policy_service.identity.sessions import Session
from policy_service.queries import review_views
from policy_service.queries.voter import voter_from_person
from policy_service.workflow.edits.propose import ProposalRequest, propose
from policy_service.workflow.review_export.export import export
from policy_service.workflow.reviews import answer as answers
from policy_service.workflow.reviews.comment import CommentDraft, comment
from policy_service.workflow.reviews.vote import VoteInput, vote

ReviewId = Path(min_length=1, max_length=64, description="The review's id.")
Cursor = Query(default=None, max_length=200, description="`next` of the page before.")
Limit = Query(default=None, ge=1, le=1000, description="Rows of this page; the service has its own maximum.")

routes = ApiRoutes(prefix="/v1", tags=["reviews"])


@routes.person("GET /reviews")
async def list_reviews(
    api: Api, _: Session, cursor: str | None = Cursor, limit: int | None = Limit
) -> ReviewPageView:
    """Open reviews, those that expire first in front."""
    return await review_views.open_review_page(api.ctx, cursor, api.ctx.settings.rows(limit))


@routes.person("GET /reviews/{review_id}", 404)
async def get_review(api: Api, _: Session, review_id: str = ReviewId) -> ReviewView:
    """One review, open or settled."""
    return await review_views.load_review_view(api.ctx, review_id)


@routes.get(
    "/reviews/{review_id}/export",
    summary="One review as a file that proves itself: `policy-service verify-review` checks it offline",
    responses=openapi.problem_responses(400, 401, 404, 421, 503),
    openapi_extra={"security": openapi.PERSON_SECURITY},
)
async def export_review(request: Request, review_id: str = ReviewId) -> Response:
    api = api_of(request)
    await api.gate.person(request)
    file = await export(api.ctx, review_id)
    if file is None:
        raise NotFoundError(f"there is no review {review_id!r}")
    named = {"Content-Disposition": f'attachment; filename="review-{review_id}.json"'}
    return Response(canonicalize(file), headers={"Cache-Control": "no-store", **named}, media_type=JSON_TYPE)


@routes.person("POST /reviews/{review_id}/votes")
async def cast_vote(api: Api, session: Session, wish: VoteRequest, review_id: str = ReviewId) -> ReviewView:
    """Approve or deny exactly these bytes."""
    ballot = VoteInput(
        review_id=review_id,
        verdict="approve" if wish.verdict == "approve" else "deny",  # the wire takes no other
        rev=wish.rev,
        effect_digest=wish.effect_digest,
        txn_digest=wish.txn_digest,
        reason=wish.reason,
        channel="api",
        view_digest=wish.view_digest,
    )
    cast = await vote(api.ctx, voter_from_person(session.person), ballot)
    return await review_views.review_view_of(api.ctx, cast.case, cast.tally)


@routes.person("POST /reviews/{review_id}/proposals", 429, status=201)
async def propose_args(
    api: Api, session: Session, wish: ProposeRequest, review_id: str = ReviewId
) -> ReviewView:
    """Propose other arguments for exactly these bytes."""
    proposed = ProposalRequest(
        review_id=review_id,
        rev=wish.rev,
        effect_digest=wish.effect_digest,
        txn_digest=wish.txn_digest,
        args=wish.args,
        reason=wish.reason,
        channel="api",
    )
    await propose(api.ctx, voter_from_person(session.person), proposed)
    return await review_views.load_review_view(api.ctx, review_id)


@routes.person("POST /reviews/{review_id}/comments", 429)
async def write_comment(
    api: Api, session: Session, wish: CommentRequest, review_id: str = ReviewId
) -> ReviewView:
    """Write a comment, or ask the agent something."""
    remark = CommentDraft(review_id, wish.text, question=wish.question, channel="api")
    await comment(api.ctx, voter_from_person(session.person), remark)
    return await review_views.load_review_view(api.ctx, review_id)


@routes.agent("POST /reviews/{review_id}/answers", 404, 409)
async def answer_question(
    api: Api, caller: Caller, wish: AnswerRequest, review_id: str = ReviewId
) -> TransactionView:
    """Answer a question as the agent whose effect it is about."""
    snapshot = await answers.answer(api.ctx, caller, review_id, wish.question_id, wish.text)
    return await api.telling.transaction(snapshot)
