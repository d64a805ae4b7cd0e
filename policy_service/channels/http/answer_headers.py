"""Headers that every answer of the API carries."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from policy_service.identity.proofs import Authenticator


class AnswerHeaders:
    """Headers every answer of the API carries, as plain ASGI (a ``BaseHTTPMiddleware`` costs more than the rest)."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    (b"agent-nonce", self._authenticator.next_nonce().encode()),
                    (b"x-content-type-options", b"nosniff"),
                ]
            await send(message)

        await self._app(scope, receive, with_headers)
