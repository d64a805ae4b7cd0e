"""/v1/epoch, /v1/evaluations, /v1/tools: what agents ask before they submit: epoch, dry runs and manifests."""

from __future__ import annotations

from fastapi import Path, Query, Request, Response

from countersign.contract import JSON, canonicalize
from countersign.contract.wire import EpochView, EvaluationRequest, EvaluationView
from policy_service.channels.http import openapi
from policy_service.channels.http.api import Api, ApiRoutes, api_of
from policy_service.channels.http.responses import json_response
from policy_service.channels.requests import JSON_TYPE, read_model
from policy_service.errors import NotFoundError
from policy_service.identity.agents import Caller
from policy_service.pap.bundle import Bundle
from policy_service.pap.parts import ToolVersion
from policy_service.queries.transaction_views import evaluation_view
from policy_service.workflow.effects.evaluation_requests import decide_live, evaluate_request
from policy_service.workflow.revocation.restore import epoch_view

routes = ApiRoutes(prefix="/v1", tags=["redemptions"])


@routes.agent("GET /epoch")
async def get_epoch(api: Api, _: Caller) -> EpochView:
    """Read the epoch of the service's database, and what each restore may have lost."""
    return await epoch_view(api.ctx)


@routes.post(
    "/evaluations",
    response_model=EvaluationView,
    summary="Evaluate without storing anything, except the audit row of a live effect",
    responses=openapi.problem_responses(400, 401, 403, 413, 415, 421, 422, 429, 503),
    openapi_extra=openapi.request_body(EvaluationRequest) | {"security": openapi.AGENT_SECURITY},
)
async def evaluate(request: Request) -> Response:
    api = api_of(request)
    caller, body = await api.authentication.agent(request)
    api.rate_limits.submit(caller.agent)
    payload = read_model(EvaluationRequest, body)
    decide = decide_live if payload.live else evaluate_request
    return json_response(evaluation_view(await decide(api.ctx, caller, payload)))


@routes.get(
    "/tools/{tool:path}",
    summary="The reviewed manifest of a tool",
    response_class=Response,
    responses={
        200: {
            "description": "The reviewed manifest.",
            "content": {JSON_TYPE: {"schema": {"type": "object"}}},
        },
        **openapi.problem_responses(400, 401, 403, 404, 413, 421, 503),
    },
    openapi_extra={"security": openapi.AGENT_SECURITY},
)
async def get_tool(
    request: Request,
    tool: str = Path(min_length=1, max_length=200, description="The tool's name."),
    digest: str | None = Query(
        None, max_length=64, description="`tool_digest` of an active version; the default is the current one."
    ),
    full: bool = Query(
        False,
        description="Return an object with the manifest (`manifest`), the fields policy cannot see (`unseen`) and "
        "every active version (`versions`).",
    ),
) -> Response:
    api = api_of(request)
    await api.authentication.agent(request)
    bundle = api.ctx.active.current
    known = bundle.manifests.get(tool)
    if known is None:
        raise NotFoundError(f"the active bundle has no tool {tool!r}")
    version = bundle.version(tool, digest or known.digest)
    if version is None:
        raise NotFoundError(f"the active bundle has the tool {tool!r}, but no version {digest!r} of it")
    view = _tool_view(bundle, version) if full else version.manifest.to_json()
    return Response(canonicalize(view), media_type=JSON_TYPE, headers={"Cache-Control": "no-store"})


def _tool_view(bundle: Bundle, version: ToolVersion) -> dict[str, JSON]:
    """One version of a tool with its unseen fields, and every active version of that tool."""
    return {
        "manifest": version.manifest.to_json(),
        "tool_digest": version.manifest.digest,
        "unseen": list(version.unseen),
        "versions": [
            {"tool_digest": each.manifest.digest, "current": each.label is None, "file": each.file}
            for each in bundle.tools
            if each.tool == version.tool
        ],
    }
