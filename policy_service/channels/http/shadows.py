"""/v1/policies/shadow: what a candidate bundle would have decided otherwise, for signed-in people's programs."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from countersign.contract.wire import ShadowView
from policy_service.channels.http import docs
from policy_service.channels.http.api import api_of
from policy_service.channels.http.bodies import answer
from policy_service.channels.http.reviews import Limit
from policy_service.workflow.told import shadow_views

routes = APIRouter(prefix="/v1", tags=["policies"])


@routes.get(
    "/policies/shadow",
    response_model=ShadowView,
    summary="The bundle in shadow, and where it differs from the one in force",
    responses=docs.problems(400, 401, 421, 503),
    openapi_extra={"security": docs.PERSON},
)
async def get_shadow(request: Request, limit: int | None = Limit) -> Response:
    api = api_of(request)
    await api.gate.person(request)
    return answer(await shadow_views.view(api.ctx, api.ctx.settings.rows(limit)))
