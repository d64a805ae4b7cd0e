"""/v1/policies: which policies are in force, why the newest are not, and the word that there may be new ones."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from countersign.contract.wire import LookView, PoliciesView, PolicyProblem
from policy_service.channels.http import openapi
from policy_service.channels.http.api import api_of
from policy_service.channels.http.bodies import json_response
from policy_service.channels.http.webhook_signatures import is_webhook, require_signed
from policy_service.channels.requests import read_unidentified_body
from policy_service.pap.active_bundle import ActiveBundle

_HOOKS = [
    openapi.header_parameter("X-Hub-Signature-256", "GitHub, Gitea, Forgejo: HMAC of the body."),
    openapi.header_parameter("X-Gitlab-Token", "GitLab: the secret itself."),
    openapi.header_parameter(
        "Webhook-Signature", "Standard Webhooks: `v1,` and the HMAC of id, time and body."
    ),
    openapi.header_parameter("Webhook-Id", "Standard Webhooks: the message's id."),
    openapi.header_parameter("Webhook-Timestamp", "Standard Webhooks: when it was sent."),
]


routes = APIRouter(prefix="/v1", tags=["policies"])


@routes.get(
    "/policies",
    response_model=PoliciesView,
    summary="The policies in force, the newest ones, and why they differ; what is wrong in words for people only",
    responses=openapi.problem_responses(400, 401, 413, 421, 503),
    openapi_extra={"security": [*openapi.AGENT_SECURITY, *openapi.PERSON_SECURITY]},
)
async def get_policies(request: Request) -> Response:
    api = api_of(request)
    if request.headers.get("agent-proof") or request.headers.get("authorization"):
        await api.gate.agent(request)
        return json_response(_view(api.ctx.active, in_words=False))
    await api.gate.person(request)
    return json_response(_view(api.ctx.active, in_words=True))


@routes.post(
    "/policies/sync",
    response_model=LookView,
    status_code=202,
    summary="There may be new policies: look soon. By a signed webhook, an agent or a person",
    responses=openapi.problem_responses(400, 401, 403, 413, 415, 421, 503),
    openapi_extra=openapi.with_parameters(
        {"security": [*openapi.AGENT_SECURITY, *openapi.PERSON_SECURITY, {}]}, *_HOOKS
    ),
)
async def sync(request: Request) -> Response:
    api = api_of(request)
    # Whatever the body says, the source is asked; so a replay or another's branch costs one look at most.
    if is_webhook(request.headers):
        api.gate.require_host(request)
        body = b""
        if api.webhook_secret is not None:  # else none is believed, whatever it says
            body = await read_unidentified_body(request, api.ctx.settings.max_body_bytes)
        require_signed(api.webhook_secret, request.headers, body)
    elif request.headers.get("agent-proof") or request.headers.get("authorization"):
        await api.gate.agent(request)
    else:
        await api.gate.person_for_write(request)
    api.ctx.looks.ask()
    return json_response(LookView(looking=True), 202)


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
