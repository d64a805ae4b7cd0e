"""/v1/policies: the active policies, why newer ones are not active, the request to refresh, and the shadow report."""

from __future__ import annotations

from fastapi import Request, Response

from countersign.contract.wire import LookView, PoliciesView, PolicyProblem, ShadowView
from policy_service.channels.http import openapi
from policy_service.channels.http.api import Api, ApiRoutes, Limit, api_of
from policy_service.channels.http.responses import json_response
from policy_service.channels.http.webhook_signatures import is_webhook, require_signed
from policy_service.channels.requests import read_unidentified_body
from policy_service.identity.sessions import Session
from policy_service.pap.active_bundle import ActiveBundle
from policy_service.queries import shadow as shadow_views

_HOOKS = [
    openapi.header_parameter("X-Hub-Signature-256", "GitHub, Gitea, Forgejo: HMAC of the body."),
    openapi.header_parameter("X-Gitlab-Token", "GitLab: the secret itself."),
    openapi.header_parameter(
        "Webhook-Signature", "Standard Webhooks: `v1,` and the HMAC of id, time and body."
    ),
    openapi.header_parameter("Webhook-Id", "Standard Webhooks: the message's id."),
    openapi.header_parameter("Webhook-Timestamp", "Standard Webhooks: when it was sent."),
]


routes = ApiRoutes(prefix="/v1", tags=["policies"])


@routes.get(
    "/policies",
    response_model=PoliciesView,
    summary="The active policies, the newest ones, and why they differ; error texts are for people only",
    responses=openapi.problem_responses(400, 401, 413, 421, 503),
    openapi_extra={"security": [*openapi.AGENT_SECURITY, *openapi.PERSON_SECURITY]},
)
async def get_policies(request: Request) -> Response:
    api = api_of(request)
    if request.headers.get("agent-proof") or request.headers.get("authorization"):
        await api.authentication.agent(request)
        return json_response(_view(api.ctx.active, in_words=False))
    await api.authentication.person(request)
    return json_response(_view(api.ctx.active, in_words=True))


@routes.post(
    "/policies/sync",
    response_model=LookView,
    status_code=202,
    summary="Request a refresh of the policies, by a signed webhook, an agent or a person",
    responses=openapi.problem_responses(400, 401, 403, 413, 415, 421, 503),
    openapi_extra=openapi.with_parameters(
        {"security": [*openapi.AGENT_SECURITY, *openapi.PERSON_SECURITY, {}]}, *_HOOKS
    ),
)
async def sync(request: Request) -> Response:
    api = api_of(request)
    # The body is ignored and the source is read. A replay, or a push to another branch, costs one refresh at most.
    if is_webhook(request.headers):
        api.authentication.require_host(request)
        body = b""
        if api.webhook_secret is not None:  # otherwise `require_signed` refuses every webhook
            body = await read_unidentified_body(request, api.ctx.settings.max_body_bytes)
        require_signed(api.webhook_secret, request.headers, body)
    elif request.headers.get("agent-proof") or request.headers.get("authorization"):
        await api.authentication.agent(request)
    else:
        await api.authentication.person_for_write(request)
    api.ctx.looks.ask()
    return json_response(LookView(looking=True), 202)


@routes.person("GET /policies/shadow")
async def get_shadow(api: Api, _: Session, limit: int | None = Limit) -> ShadowView:
    """Read the shadow candidate, and where its decisions differ from the active bundle's."""
    return await shadow_views.shadow_view(api.ctx, api.ctx.settings.rows(limit))


def _view(active: ActiveBundle, *, in_words: bool) -> PoliciesView:
    status, bundle = active.status(), active.current
    error = status.error
    return PoliciesView(
        source=active.origin if in_words else None,
        active_commit=bundle.commit,
        active_bundle=bundle.digest,
        active_since=status.loaded_at,
        head_commit=status.head_commit,
        head_bundle=status.head_digest,
        differs=None if error is None else error.why,
        differs_since=status.failed_at,
        problems=tuple(
            PolicyProblem(file=one.file, line=one.line, message=one.message if in_words else None)
            for one in (error.problems if error is not None else ())
        ),
    )
