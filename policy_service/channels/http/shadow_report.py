"""/v1/policies/shadow: what a candidate bundle would have decided otherwise, for signed-in people's programs."""

from __future__ import annotations

from countersign.contract.wire import ShadowView
from policy_service.channels.http.api import Api
from policy_service.channels.http.api_routes import ApiRoutes
from policy_service.channels.http.reviews import Limit
from policy_service.identity.sessions import Session
from policy_service.queries import shadow as shadow_views

routes = ApiRoutes(prefix="/v1", tags=["policies"])


@routes.person("GET /policies/shadow")
async def get_shadow(api: Api, _: Session, limit: int | None = Limit) -> ShadowView:
    """The bundle in shadow, and where it differs from the one in force."""
    return await shadow_views.shadow_view(api.ctx, api.ctx.settings.rows(limit))
