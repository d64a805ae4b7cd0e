"""/v1/agent-keys: an agent enrols its own key with a token of a trusted issuer."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from countersign.contract import BadKeyError, Limits, PublicKey
from countersign.contract.wire import BringKeyRequest, BroughtKey
from policy_service.channels.http import openapi
from policy_service.channels.http.api import api_of
from policy_service.channels.http.responses import json_response
from policy_service.channels.requests import read_model
from policy_service.errors import InvalidRequestError
from policy_service.identity.agents import add_vouched_key

# a token of 16,384 characters and a key; the sender is not authenticated yet
_LIMITS = Limits(max_bytes=20_000, max_depth=2, max_nodes=8)


routes = APIRouter(prefix="/v1", tags=["agents"])


@routes.post(
    "/agent-keys",
    response_model=BroughtKey,
    status_code=201,
    summary="Enrol a key with a token of a trusted issuer",
    responses=openapi.problem_responses(400, 401, 403, 404, 409, 413, 415, 421, 503),
    openapi_extra=openapi.request_body(BringKeyRequest) | {"security": openapi.AGENT_SECURITY},
)
async def bring(request: Request) -> Response:
    api = api_of(request)
    api.authentication.require_host(request)
    api.issuers.require_any()
    presented, body = await api.authentication.newcomer(request, _LIMITS.max_bytes)
    payload = read_model(BringKeyRequest, body, _LIMITS)
    key = _public_key(payload.x)
    voucher = await api.issuers.vouch(payload.token, key.kid)
    api.authentication.require_key(presented, body, key, voucher.agent)
    await api.ctx.db.write(lambda tx: add_vouched_key(tx, key, voucher))
    return json_response(BroughtKey(agent=voucher.agent, kid=key.kid, expires_at=voucher.until), 201)


def _public_key(x: str) -> PublicKey:
    try:
        return PublicKey.from_jwk({"kty": "OKP", "crv": "Ed25519", "x": x})
    except BadKeyError as error:
        raise InvalidRequestError(f"x is not an Ed25519 public key: {error}") from error
