"""/v1/proposals: the agent's answer to other arguments that a reviewer proposes."""

from __future__ import annotations

from fastapi import Path

from countersign.contract.wire import AcceptRequest, DeclineRequest, TransactionView
from policy_service.channels.http.api import Api
from policy_service.channels.http.api_routes import ApiRoutes
from policy_service.identity.agents import Caller
from policy_service.workflow.edits.proposals import accept, decline

ProposalId = Path(min_length=1, max_length=64, description="The proposal's id.")

routes = ApiRoutes(prefix="/v1/proposals", tags=["proposals"])


@routes.agent("POST /{proposal_id}/accept", 404, 409)
async def accept_proposal(
    api: Api, caller: Caller, _: AcceptRequest, proposal_id: str = ProposalId
) -> TransactionView:
    """Take the proposed arguments: the transaction as a new revision, decided from the start."""
    return await api.telling.transaction(await accept(api.ctx, caller, proposal_id))


@routes.agent("POST /{proposal_id}/decline", 404, 409)
async def decline_proposal(
    api: Api, caller: Caller, wish: DeclineRequest, proposal_id: str = ProposalId
) -> TransactionView:
    """Keep the arguments as they are; the question stays open."""
    return await api.telling.transaction(await decline(api.ctx, caller, proposal_id, wish.reason))
