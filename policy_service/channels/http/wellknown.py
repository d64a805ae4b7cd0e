"""Routes without authentication: public keys, liveness, readiness and metrics."""

from __future__ import annotations

import hmac

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from countersign.contract.wire import Health, HealthFinding, Jwks
from policy_service import metrics
from policy_service.channels.http import openapi
from policy_service.channels.http.api import Api, api_of
from policy_service.channels.http.responses import json_response
from policy_service.errors import UnauthenticatedError

_JWKS_MAX_AGE_S = 300  # caches expire before a new key is used


routes = APIRouter(tags=["service"])


@routes.get(
    "/.well-known/jwks.json",
    response_model=Jwks,
    summary="Public keys of releases and receipts: previous, current and next",
    responses=openapi.problem_responses(421),
)
async def jwks(request: Request) -> Response:
    api = api_of(request)
    api.authentication.require_host(request)
    keys = Jwks.model_validate(api.ctx.signer.keys.to_jwks())
    found = json_response(keys)
    found.headers["Cache-Control"] = f"public, max-age={_JWKS_MAX_AGE_S}"
    return found


@routes.get("/healthz", response_model=Health, summary="Liveness", responses=openapi.problem_responses())
async def healthz() -> Response:
    return json_response(Health(status="ok"))


@routes.get(
    "/readyz",
    response_model=Health,
    summary="Readiness, and the failing health checks: since when, and what to do",
    responses={
        **openapi.problem_responses(),
        503: {"model": Health, "description": "The service must not receive traffic; the findings say why."},
    },
)
async def readyz(request: Request) -> Response:
    api = api_of(request)
    found = api.findings()
    down = any(one.stops for one in found)
    failing = tuple(
        HealthFinding(check=one.check, stops=one.stops, wrong=one.wrong, since=one.since, do=one.do)
        for one in found
    )
    active = api.ctx.active.status()
    health = Health(
        status="down" if down else "degraded" if failing else "ok",
        findings=failing,
        commit=active.active_commit,
        bundle=active.active_digest,
        head=active.head_commit if active.head_commit != active.active_commit else None,
    )
    return json_response(health, 503 if down else 200)


@routes.get(
    "/metrics",
    response_class=Response,
    summary="Prometheus metrics",
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "The metrics."},
        **openapi.problem_responses(401),
    },
)
async def read_metrics(request: Request) -> Response:
    api = api_of(request)
    _require_reader(api, request.headers.get("authorization", ""))
    api.findings()  # updates the check of the health monitor itself, which nothing else reports
    return Response(
        metrics.render_metrics(), media_type=CONTENT_TYPE_LATEST, headers={"Cache-Control": "no-store"}
    )


def _require_reader(api: Api, authorization: str) -> None:
    """Metrics reveal what a company does and how often, so beyond loopback they require the operator's token."""
    if api.metrics_token is None:
        if not api.ctx.settings.loopback:
            raise UnauthenticatedError("set metrics_token_file: beyond loopback, metrics require a token")
        return
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), api.metrics_token):
        raise UnauthenticatedError("send the token of metrics_token_file as Authorization: Bearer")
