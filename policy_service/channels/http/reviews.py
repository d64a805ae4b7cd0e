"""/v1/reviews and /v1/proposals: the review queue for signed-in people's programs, and the answers of agents."""

from __future__ import annotations

from fastapi import Path, Request, Response

from countersign.contract import canonicalize
from countersign.contract.wire import (
    AcceptRequest,
    AnswerRequest,
    CommentRequest,
    DeclineRequest,
    ProposeRequest,
    ReviewPageView,
    ReviewView,
    TransactionView,
    VoteRequest,
)
from policy_service.channels.http import openapi
from policy_service.channels.http.api import Api, ApiRoutes, Cursor, Limit, api_of
from policy_service.channels.requests import JSON_TYPE
from policy_service.errors import NotFoundError
from policy_service.identity.agents import Caller
from policy_service.identity.sessions import Session
from policy_service.queries import review_views
from policy_service.queries.vote_eligibility import voter_from_person
from policy_service.workflow.edits.proposals import ProposalRequest, accept, decline, propose
from policy_service.workflow.review_export.export import export
from policy_service.workflow.reviews.comment import CommentDraft, answer, comment
from policy_service.workflow.reviews.vote import VoteInput, vote

ProposalId = Path(min_length=1, max_length=64, description="The proposal's id.")
ReviewId = Path(min_length=1, max_length=64, description="The review's id.")

routes = ApiRoutes(prefix="/v1", tags=["reviews"])
proposal_routes = ApiRoutes(prefix="/v1/proposals", tags=["proposals"])


@routes.person("GET /reviews")
async def list_reviews(
    api: Api, _: Session, cursor: str | None = Cursor, limit: int | None = Limit
) -> ReviewPageView:
    """List open reviews, the first to expire first."""
    return await review_views.open_review_page(api.ctx, cursor, api.ctx.settings.rows(limit))


@routes.person("GET /reviews/{review_id}", 404)
async def get_review(api: Api, _: Session, review_id: str = ReviewId) -> ReviewView:
    """Read a review, open or settled."""
    return await review_views.load_review_view(api.ctx, review_id)


@routes.get(
    "/reviews/{review_id}/export",
    summary="Export a review as a file that `policy-service verify-review` verifies offline",
    responses=openapi.problem_responses(400, 401, 404, 421, 503),
    openapi_extra={"security": openapi.PERSON_SECURITY},
)
async def export_review(request: Request, review_id: str = ReviewId) -> Response:
    api = api_of(request)
    await api.authentication.person(request)
    file = await export(api.ctx, review_id)
    if file is None:
        raise NotFoundError(
            f"there is no review {review_id!r}; an archived one is read by: "
            f"policy-service verify-review --review {review_id}"
        )
    named = {"Content-Disposition": f'attachment; filename="review-{review_id}.json"'}
    return Response(canonicalize(file), headers={"Cache-Control": "no-store", **named}, media_type=JSON_TYPE)


@routes.person("POST /reviews/{review_id}/votes")
async def cast_vote(
    api: Api, session: Session, payload: VoteRequest, review_id: str = ReviewId
) -> ReviewView:
    """Approve or deny exactly these arguments."""
    ballot = VoteInput(
        review_id=review_id,
        verdict="approve" if payload.verdict == "approve" else "deny",  # the wire model allows no other value
        rev=payload.rev,
        effect_digest=payload.effect_digest,
        txn_digest=payload.txn_digest,
        reason=payload.reason,
        channel="api",
        view_digest=payload.view_digest,
    )
    cast = await vote(api.ctx, voter_from_person(session.person), ballot)
    return await review_views.review_view_of(api.ctx, cast.case, cast.tally)


@routes.person("POST /reviews/{review_id}/proposals", 429, status=201)
async def propose_args(
    api: Api, session: Session, payload: ProposeRequest, review_id: str = ReviewId
) -> ReviewView:
    """Propose other arguments than exactly these."""
    proposed = ProposalRequest(
        review_id=review_id,
        rev=payload.rev,
        effect_digest=payload.effect_digest,
        txn_digest=payload.txn_digest,
        args=payload.args,
        reason=payload.reason,
        channel="api",
    )
    await propose(api.ctx, voter_from_person(session.person), proposed)
    return await review_views.load_review_view(api.ctx, review_id)


@routes.person("POST /reviews/{review_id}/comments", 429)
async def write_comment(
    api: Api, session: Session, payload: CommentRequest, review_id: str = ReviewId
) -> ReviewView:
    """Write a comment, or ask the agent a question."""
    remark = CommentDraft(review_id, payload.text, question=payload.question, channel="api")
    await comment(api.ctx, voter_from_person(session.person), remark)
    return await review_views.load_review_view(api.ctx, review_id)


@routes.agent("POST /reviews/{review_id}/answers", 404, 409)
async def answer_question(
    api: Api, caller: Caller, payload: AnswerRequest, review_id: str = ReviewId
) -> TransactionView:
    """Answer a question about an effect, as its agent."""
    snapshot = await answer(api.ctx, caller, review_id, payload.question_id, payload.text)
    return await api.presenter.transaction(snapshot)


@proposal_routes.agent("POST /{proposal_id}/accept", 404, 409)
async def accept_proposal(
    api: Api, caller: Caller, _: AcceptRequest, proposal_id: str = ProposalId
) -> TransactionView:
    """Accept the proposed arguments: the transaction becomes a new revision and is decided again."""
    return await api.presenter.transaction(await accept(api.ctx, caller, proposal_id))


@proposal_routes.agent("POST /{proposal_id}/decline", 404, 409)
async def decline_proposal(
    api: Api, caller: Caller, payload: DeclineRequest, proposal_id: str = ProposalId
) -> TransactionView:
    """Decline the proposed arguments; the review stays open."""
    return await api.presenter.transaction(await decline(api.ctx, caller, proposal_id, payload.reason))
