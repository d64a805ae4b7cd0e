"""Refuse a request that sends a header twice of which the service reads one.

Which of the two counts differs between proxies, frameworks and versions: what a proxy has checked could be another
value than the one that is used (RFC 9110, 5.3).
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from policy_service.channels.http.problems import problem_response
from policy_service.errors import InvalidRequestError

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
"""Every header that the service reads, but for lists (Accept, Cookie, Prefer), which may be several fields, and Slack's
signature, of which a second one is no signature at all (`slack/payloads.py`).
"""


class RefuseDuplicateHeaders:
    """Answers 400 where a header of `SINGLE` is there twice, whatever the route."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (twice := _first_duplicate(scope)):
            refusal = problem_response(InvalidRequestError(f"send the header {twice} once"), Request(scope))
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _first_duplicate(scope: Scope) -> str | None:
    seen: set[str] = set()
    for name in Headers(scope=scope).keys():  # noqa: SIM118  a multidict: as often as it came
        if name in seen and name in SINGLE_VALUE_HEADERS:
            return name
        seen.add(name)
    return None
