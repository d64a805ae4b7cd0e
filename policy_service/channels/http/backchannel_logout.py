"""POST /sign-in/{name}/backchannel-logout: a provider reports that a person signed out (OpenID Connect Back-Channel
Logout 1.0).

The request comes from the provider, not from a browser, so it has no session and no form token. Only the signed logout
token is trusted. Refusals give no reason; the service's log has it.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

import structlog
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from policy_service.channels.http.api import api_of
from policy_service.channels.requests import media_type, read_unidentified_body
from policy_service.errors import InvalidRequestError, NotFoundError
from policy_service.identity.external_jwt import MAX_CHARS, UntrustedTokenError
from policy_service.identity.logout import apply_logout

log = structlog.get_logger(__name__)

_FORM = "application/x-www-form-urlencoded"
_NO_STORE = {"Cache-Control": "no-store"}


routes = APIRouter()


@routes.post("/sign-in/{name}/backchannel-logout", include_in_schema=False)
async def backchannel_logout(request: Request, name: str) -> Response:
    api = api_of(request)
    api.authentication.require_host(request)
    try:
        logout = await api.sign_in.back_channel(name, await _token(request))
        ended = await api.ctx.db.write(lambda tx: apply_logout(tx, logout))
    except (UntrustedTokenError, InvalidRequestError, NotFoundError) as error:
        log.warning("logout_refused", provider=name[:100], why=str(error))
        return JSONResponse({"error": "invalid_request"}, 400, _NO_STORE)
    log.info("logged_out_by_provider", provider=name, sessions=ended)
    return Response(status_code=200, headers=_NO_STORE)


async def _token(request: Request) -> str:
    """The value of the form's only field."""
    if media_type(request.headers.get("content-type", "")) != _FORM:
        raise InvalidRequestError(f"send the logout token as {_FORM}")
    body = await read_unidentified_body(request, MAX_CHARS + 1_000)
    try:
        fields = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=8)
    except ValueError as error:
        raise InvalidRequestError("the form cannot be read") from error
    found = [value for name, value in fields if name == "logout_token"]
    if len(found) != 1:
        raise InvalidRequestError("send one logout_token")
    return found[0]
