"""ASGI middleware of every request: metrics and a span, response headers, duplicate headers, unhandled errors.

Plain ASGI, because a ``BaseHTTPMiddleware`` costs more than all of these together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from time import perf_counter
from typing import Final

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from policy_service import metrics, tracing
from policy_service.channels.http.responses import problem_response, route_template
from policy_service.errors import UNHANDLED, InternalError, InvalidRequestError
from policy_service.identity.proofs import Authenticator

log = structlog.get_logger(__name__)

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_CLIENT_CLOSED_REQUEST: Final = 499

SINGLE_VALUE_HEADERS: Final = frozenset(
    {
        "agent-proof",
        "authorization",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "idempotency-key",
        "last-event-id",
        "origin",
        "sec-fetch-mode",
        "sec-fetch-site",
        "transfer-encoding",
        "webhook-id",
        "webhook-signature",
        "webhook-timestamp",
        "x-csrf-token",
        "x-gitlab-token",
        "x-hub-signature-256",
    }
)
"""Every header that the service reads, except lists (Accept, Cookie, Prefer), which may span several fields, and
Slack's signature, where a second field already fails verification (`slack/payloads.py`).
"""


class _Middleware(ABC):
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._handle(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    @abstractmethod
    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request."""


class RequestMetrics(_Middleware):
    """Measures and traces every request. Install it outermost, so that every other layer is included.

    The route template is a label and an attribute; the path, which the caller controls, is neither.
    """

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status = perf_counter(), _CLIENT_CLOSED_REQUEST

        async def record_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        method, error = _known_method(scope), None
        with tracing.request_span(method, _traceparent(scope)) as span:
            try:
                await self._app(scope, receive, record_status)
            except BaseException as fault:
                error = type(fault).__name__
                raise
            finally:
                route = route_template(scope)
                metrics.REQUESTS.labels(method, route, str(status)).observe(perf_counter() - began)
                tracing.finish_request_span(span, method, route, status, error)


class ResponseHeaders(_Middleware):
    """Adds ``nosniff`` to every response and the next nonce to those of the API."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        super().__init__(app)
        self._authenticator = authenticator

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def add_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                if scope["path"].startswith("/v1/"):
                    headers["Agent-Nonce"] = self._authenticator.current_nonce()
            await send(message)

        await self._app(scope, receive, add_headers)


class RefuseDuplicateHeaders(_Middleware):
    """Answers 400 when a header of `SINGLE_VALUE_HEADERS` occurs twice, for every route.

    Proxies and frameworks differ in which of the two they use. A proxy could check one value while the service reads
    the other (RFC 9110, 5.3).
    """

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (name := _first_duplicate(scope)) is not None:
            refusal = problem_response(InvalidRequestError(f"send the header {name} once"), Request(scope))
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


class UnhandledErrors(_Middleware):
    """Answers an unhandled exception with a generic 500. Only the log gets its location; nothing quotes its message."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def record_start(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, record_start)
        except ClientDisconnect:
            return  # the client disconnected while sending its body: not an error of the service
        except Exception:
            log.exception("fault", route=route_template(scope), method=_known_method(scope))
            # A partial response was sent. The connection must break, and the server above must not quote why.
            if started:
                raise ConnectionAbortedError("the service failed in the middle of a response") from None
            response = problem_response(InternalError(UNHANDLED), Request(scope))
            await response(scope, receive, send)


def _known_method(scope: Scope) -> str:
    """The method if it is a standard one: metrics labels and logs must not hold caller-chosen text."""
    return scope["method"] if scope["method"] in _METHODS else "(other)"


def _traceparent(scope: Scope) -> str | None:
    """The traceparent header; None for two of them, which are ambiguous."""
    if not tracing.enabled():
        return None
    found = [value for name, value in scope["headers"] if name == b"traceparent"]
    return found[0].decode("latin-1") if len(found) == 1 else None


def _first_duplicate(scope: Scope) -> str | None:
    seen: set[str] = set()
    for name in Headers(scope=scope).keys():  # noqa: SIM118  a multidict: repeated names occur repeatedly
        if name in seen and name in SINGLE_VALUE_HEADERS:
            return name
        seen.add(name)
    return None
