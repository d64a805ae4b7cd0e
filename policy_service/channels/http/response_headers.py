"""Headers that every answer carries, whichever route or layer makes it."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from policy_service.identity.proofs import Authenticator


class ResponseHeaders:
    """Adds ``nosniff`` to every answer and the next nonce to those of the API, as plain ASGI (a ``BaseHTTPMiddleware``
    costs more than the rest).
    """

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                if scope["path"].startswith("/v1/"):
                    headers["Agent-Nonce"] = self._authenticator.current_nonce()
            await send(message)

        await self._app(scope, receive, with_headers)
