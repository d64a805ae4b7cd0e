"""/v1/reviews: the queue for people's own programs, by the session of a signed-in person; an agent comes here only to
answer what it is asked."""

from __future__ import annotations

from fastapi import APIRouter, Path, Query, Request, Response

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
from policy_service.channels.http import docs
from policy_service.channels.http.api import Api, api_of
from policy_service.channels.http.bodies import JSON_TYPE, answer, read_model
from policy_service.errors import NotFoundError
from policy_service.identity.people import Person
from policy_service.workflow.edits.propose import Proposed, propose
from policy_service.workflow.pages.reviews import read_view
from policy_service.workflow.proofs.exporting import export
from policy_service.workflow.reviews import answer as answers
from policy_service.workflow.reviews.comment import Remark, comment
from policy_service.workflow.reviews.vote import Ballot, vote
from policy_service.workflow.reviews.voter import voter_for
from policy_service.workflow.told import review_views

ReviewId = Path(min_length=1, max_length=64, description="The review's id.")
Cursor = Query(default=None, max_length=200, description="`next` of the page before.")
Limit = Query(default=None, ge=1, le=1000, description="Rows of this page; the service has its own maximum.")

CSRF = docs.header("X-CSRF-Token", "The session's form token.", required=True)
ORIGIN = docs.header("Origin", "The public URL.", required=True)


routes = APIRouter(prefix="/v1", tags=["reviews"])


@routes.get(
    "/reviews",
    response_model=ReviewPageView,
    summary="Open reviews, those that expire first in front",
    responses=docs.problems(400, 401, 421, 503),
    openapi_extra={"security": docs.PERSON},
)
async def list_reviews(request: Request, cursor: str | None = Cursor, limit: int | None = Limit) -> Response:
    api = api_of(request)
    await api.gate.person(request)
    return answer(await review_views.page(api.ctx, cursor, api.ctx.settings.rows(limit)))


@routes.get(
    "/reviews/{review_id}",
    response_model=ReviewView,
    summary="One review, open or settled",
    responses=docs.problems(400, 401, 404, 421, 503),
    openapi_extra={"security": docs.PERSON},
)
async def get_review(request: Request, review_id: str = ReviewId) -> Response:
    api = api_of(request)
    session = await api.gate.person(request)
    return answer(await _review(api, session.person, review_id))


@routes.get(
    "/reviews/{review_id}/export",
    summary="One review as a file that proves itself: `policy-service verify-review` checks it offline",
    responses=docs.problems(400, 401, 404, 421, 503),
    openapi_extra={"security": docs.PERSON},
)
async def export_review(request: Request, review_id: str = ReviewId) -> Response:
    api = api_of(request)
    await api.gate.person(request)
    file = await export(api.ctx, review_id)
    if file is None:
        raise NotFoundError(f"there is no review {review_id!r}")
    named = {"Content-Disposition": f'attachment; filename="review-{review_id}.json"'}
    return Response(canonicalize(file), headers={"Cache-Control": "no-store", **named}, media_type=JSON_TYPE)


@routes.post(
    "/reviews/{review_id}/votes",
    response_model=ReviewView,
    summary="Approve or deny exactly these bytes",
    responses=docs.problems(400, 401, 403, 404, 409, 413, 415, 421, 503),
    openapi_extra=docs.with_parameters(docs.body_of(VoteRequest), CSRF, ORIGIN) | {"security": docs.PERSON},
)
async def cast_vote(request: Request, review_id: str = ReviewId) -> Response:
    api = api_of(request)
    session, body = await api.gate.person_who_writes(request)
    wish = read_model(VoteRequest, body)
    ballot = Ballot(
        review_id=review_id,
        verdict="approve" if wish.verdict == "approve" else "deny",  # the wire takes no other
        rev=wish.rev,
        effect_digest=wish.effect_digest,
        txn_digest=wish.txn_digest,
        reason=wish.reason,
        channel="api",
        view_digest=wish.view_digest,
    )
    await vote(api.ctx, voter_for(session.person), ballot, read_view)
    return answer(await _review(api, session.person, review_id))


@routes.post(
    "/reviews/{review_id}/proposals",
    status_code=201,
    response_model=ReviewView,
    summary="Propose other arguments for exactly these bytes",
    responses=docs.problems(400, 401, 403, 404, 409, 413, 415, 421, 429, 503),
    openapi_extra=docs.with_parameters(docs.body_of(ProposeRequest), CSRF, ORIGIN)
    | {"security": docs.PERSON},
)
async def propose_args(request: Request, review_id: str = ReviewId) -> Response:
    api = api_of(request)
    session, body = await api.gate.person_who_writes(request)
    wish = read_model(ProposeRequest, body)
    proposed = Proposed(
        review_id=review_id,
        rev=wish.rev,
        effect_digest=wish.effect_digest,
        txn_digest=wish.txn_digest,
        args=wish.args,
        reason=wish.reason,
        channel="api",
    )
    await propose(api.ctx, voter_for(session.person), proposed)
    return answer(await _review(api, session.person, review_id), 201)


@routes.post(
    "/reviews/{review_id}/comments",
    response_model=ReviewView,
    summary="Write a comment, or ask the agent something",
    responses=docs.problems(400, 401, 403, 404, 409, 413, 415, 421, 429, 503),
    openapi_extra=docs.with_parameters(docs.body_of(CommentRequest), CSRF, ORIGIN)
    | {"security": docs.PERSON},
)
async def write_comment(request: Request, review_id: str = ReviewId) -> Response:
    api = api_of(request)
    session, body = await api.gate.person_who_writes(request)
    wish = read_model(CommentRequest, body)
    remark = Remark(review_id, wish.text, question=wish.question, channel="api")
    await comment(api.ctx, voter_for(session.person), remark)
    return answer(await _review(api, session.person, review_id))


@routes.post(
    "/reviews/{review_id}/answers",
    response_model=TransactionView,
    summary="Answer a question as the agent whose effect it is about",
    responses=docs.problems(400, 401, 403, 404, 409, 413, 415, 421, 503),
    openapi_extra=docs.body_of(AnswerRequest) | {"security": docs.AGENT},
)
async def answer_question(request: Request, review_id: str = ReviewId) -> Response:
    api = api_of(request)
    caller, body = await api.gate.agent(request)
    wish = read_model(AnswerRequest, body)
    snapshot = await answers.answer(api.ctx, caller, review_id, wish.question_id, wish.text)
    return answer(await api.telling.transaction(snapshot))


async def _review(api: Api, person: Person, review_id: str) -> ReviewView:
    view = await review_views.review(api.ctx, voter_for(person), review_id)
    if view is None:
        raise NotFoundError(f"there is no review {review_id!r}")
    return view
