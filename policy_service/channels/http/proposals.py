"""/v1/proposals: the agent's answer to other arguments that a reviewer proposes."""

from __future__ import annotations

from fastapi import APIRouter, Path, Request, Response

from countersign.contract.wire import AcceptRequest, DeclineRequest, TransactionView
from policy_service.channels.http import docs
from policy_service.channels.http.api import api_of
from policy_service.channels.http.bodies import answer, read_model
from policy_service.workflow.edits.accept import accept
from policy_service.workflow.edits.decline import decline

ProposalId = Path(min_length=1, max_length=64, description="The proposal's id.")


routes = APIRouter(prefix="/v1/proposals", tags=["proposals"])


@routes.post(
    "/{proposal_id}/accept",
    response_model=TransactionView,
    summary="Take the proposed arguments: the transaction as a new revision, decided from the start",
    responses=docs.problems(400, 401, 403, 404, 409, 413, 415, 421, 503),
    openapi_extra=docs.body_of(AcceptRequest) | {"security": docs.AGENT},
)
async def accept_proposal(request: Request, proposal_id: str = ProposalId) -> Response:
    api = api_of(request)
    caller, body = await api.gate.agent(request)
    read_model(AcceptRequest, body)
    return answer(await api.telling.transaction(await accept(api.ctx, caller, proposal_id)))


@routes.post(
    "/{proposal_id}/decline",
    response_model=TransactionView,
    summary="Keep the arguments as they are; the question stays open",
    responses=docs.problems(400, 401, 403, 404, 409, 413, 415, 421, 503),
    openapi_extra=docs.body_of(DeclineRequest) | {"security": docs.AGENT},
)
async def decline_proposal(request: Request, proposal_id: str = ProposalId) -> Response:
    api = api_of(request)
    caller, body = await api.gate.agent(request)
    wish = read_model(DeclineRequest, body)
    return answer(await api.telling.transaction(await decline(api.ctx, caller, proposal_id, wish.reason)))
