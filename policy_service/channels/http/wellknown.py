"""What needs no caller: the public keys, and whether the service lives and is ready."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from countersign.contract.wire import Health, Jwks
from policy_service.channels.http import docs
from policy_service.channels.http.bodies import answer
from policy_service.channels.http.gate import Gate

Checks = Callable[[], Awaitable[Mapping[str, str]]]

_JWKS_MAX_AGE_S = 300  # a verifier that cached the keys learns of a new one before it is used


def router(gate: Gate, checks: Checks) -> APIRouter:
    """Keys, health and metrics. ``checks`` names what is wrong, and is empty when nothing is."""
    routes = APIRouter(tags=["service"])

    @routes.get(
        "/.well-known/jwks.json",
        response_model=Jwks,
        summary="The keys that sign releases and receipts: previous, current and next",
        responses=docs.problems(421),
    )
    async def jwks(request: Request) -> Response:
        gate.require_host(request)
        keys = Jwks.model_validate(gate.ctx.signer.keys.to_jwks())
        found = answer(keys)
        found.headers["Cache-Control"] = f"public, max-age={_JWKS_MAX_AGE_S}"
        return found

    @routes.get("/healthz", response_model=Health, summary="The process lives")
    async def healthz() -> Response:
        return answer(Health(status="ok"))

    @routes.get(
        "/readyz",
        response_model=Health,
        summary="The service can decide and record; otherwise what is wrong",
        responses={503: {"model": Health, "description": "Something is wrong; `checks` names it."}},
    )
    async def readyz() -> Response:
        wrong = await checks()
        health = Health(status="degraded" if wrong else "ok", checks=dict(wrong))
        return answer(health, 503 if wrong else 200)

    @routes.get(
        "/metrics",
        response_class=Response,
        summary="Prometheus metrics",
        responses={
            200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "The metrics."}
        },
    )
    async def metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return routes
