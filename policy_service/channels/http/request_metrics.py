"""How long requests take, by the template of their route, and the span each of them is.

As plain ASGI, outside everything else: whatever happens to a request happens inside. A template is what the service
wrote; the path, in which a caller may write anything, is neither a label nor an attribute.
"""

from __future__ import annotations

from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from policy_service import metrics, tracing
from policy_service.channels.http.problems import known_method, route_template

_CLIENT_CLOSED_REQUEST = 499  # the caller went away before there was an answer


class RequestMetrics:
    """Measures and traces every request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = perf_counter(), _CLIENT_CLOSED_REQUEST

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        method, error = known_method(scope), None
        with tracing.request_span(method, _traceparent(scope)) as span:
            try:
                await self._app(scope, receive, noting)
            except BaseException as fault:
                error = type(fault).__name__
                raise
            finally:
                route = route_template(scope)
                metrics.REQUESTS.labels(method, route, str(status)).observe(perf_counter() - began)
                tracing.finish_request_span(span, method, route, status, error)


def _traceparent(scope: Scope) -> str | None:
    """The one header of that name; two of them have two readings and so none."""
    if not tracing.enabled():
        return None
    found = [value for name, value in scope["headers"] if name == b"traceparent"]
    return found[0].decode("latin-1") if len(found) == 1 else None
