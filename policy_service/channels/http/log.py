"""/v1/audit and /v1/events: the audit log by page, and as a stream of server-sent events.

For people with a session and for agents. An agent sees only the rows of its own transactions; a person sees all.
Events carry ids and kinds, never content.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from countersign.contract.wire import AuditPage, dump
from policy_service import metrics
from policy_service.channels.http import openapi
from policy_service.channels.http.api import Api, Limit, api_of
from policy_service.channels.http.responses import json_response
from policy_service.channels.streams import EVENT_STREAM
from policy_service.errors import InvalidRequestError
from policy_service.queries import audit_log as history
from policy_service.queries.audit_log import AuditReader

After = Query(default=0, ge=0, le=2**53 - 1, description="Rows after this index.")

_KEEP_ALIVE_S = 15  # a comment this often keeps proxies from closing a silent stream


routes = APIRouter(prefix="/v1", tags=["log"])


@routes.get(
    "/audit",
    response_model=AuditPage,
    summary="The audit log, by index",
    responses=openapi.problem_responses(400, 401, 413, 421, 503),
    openapi_extra={"security": [*openapi.AGENT_SECURITY, *openapi.PERSON_SECURITY]},
)
async def audit(request: Request, after: int = After, limit: int | None = Limit) -> Response:
    api = api_of(request)
    who, _ = await _authenticate_reader(api, request)
    most = api.ctx.settings.rows(limit)
    return json_response(await history.audit_page(api.ctx, who, after, most))


@routes.get(
    "/events",
    response_class=StreamingResponse,
    summary="Server-sent events; Last-Event-ID is an index of the audit log",
    responses={
        200: {
            "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
            "description": "Ids and kinds, without end.",
        },
        **openapi.problem_responses(400, 401, 413, 421, 429, 503),
    },
    openapi_extra={
        "security": [*openapi.AGENT_SECURITY, *openapi.PERSON_SECURITY],
        "parameters": [
            openapi.header_parameter("Last-Event-ID", "Resume after this index.", schema={"type": "string"})
        ],
    },
)
async def events(request: Request) -> Response:
    api = api_of(request)
    who, name = await _authenticate_reader(
        api, request, touch=False
    )  # browsers reopen a stream without user activity
    start = _last_event_id(request)
    index = api.ctx.feed.index if start is None else start
    return api.streams.answer(name, _stream(api, request, who, index), {"Cache-Control": "no-store"})


async def _authenticate_reader(api: Api, request: Request, *, touch: bool = True) -> tuple[AuditReader, str]:
    """The reader, and its name for the limit of open streams."""
    if request.headers.get("agent-proof") or request.headers.get("authorization"):
        caller, _ = await api.authentication.agent(request)
        return AuditReader(caller), f"agent {caller.agent}"
    session = await api.authentication.person(request, touch=touch)
    return AuditReader(None), f"person {session.person.key}"


async def _stream(api: Api, request: Request, who: AuditReader, index: int) -> AsyncIterator[bytes]:
    with metrics.STREAMS.labels("api").track_inprogress():
        yield b": open\n\n"
        while not api.ctx.feed.closing:
            rows, index = await history.wait_for_events(api.ctx, who, index, _KEEP_ALIVE_S)
            # Check after waiting, before events are sent: the session or key may have ended meanwhile.
            if not await api.authentication.still_there(request, who.caller):
                return
            for event in rows:
                yield f"id: {event.index}\nevent: {event.kind}\ndata: ".encode() + dump(event) + b"\n\n"
            if not rows:
                yield f"id: {index}\n: still here\n\n".encode()


def _last_event_id(request: Request) -> int | None:
    given = request.headers.get("last-event-id")
    if given is None:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 16:
        raise InvalidRequestError(f"Last-Event-ID {given!r} is not an index of the log")
    return int(given)
