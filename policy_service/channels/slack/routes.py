"""One address for all that Slack sends over HTTP: presses, forms, commands, events.

Whatever is not signed by Slack, or is of another workspace or app, is 401 and nothing more is said; the log has why.
Slack is told that it arrived when what it asks for is durable; what cannot be made durable is an error there, and is
pressed again.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from starlette.background import BackgroundTask

from policy_service import metrics
from policy_service.channels.requests import read_unidentified_body
from policy_service.channels.slack.desk import After, Answer, Desk
from policy_service.channels.slack.payloads import read_body
from policy_service.channels.slack.refusals import NotOursError, Refusals
from policy_service.channels.slack.signature import Signatures
from policy_service.errors import RequestError
from policy_service.slack import EVENTS_PATH

_MOST_BYTES = 512 * 1024  # a form with the longest message in it is a tenth of that


def router(desk: Desk, signatures: Signatures) -> APIRouter:
    """The route."""
    routes = APIRouter(include_in_schema=False)

    refusals = Refusals("http")

    @routes.post(EVENTS_PATH)
    async def events(request: Request) -> Response:
        try:
            body = await read_unidentified_body(request, _MOST_BYTES)
            check = signatures.failed(body, request.headers.items())
            if check is not None:
                raise NotOursError("this is not signed by Slack", check)
            answer = await desk.take(read_body(body, request.headers.get("content-type", "")))
        except RequestError as refusal:
            refusals.note(refusal)
            raise
        metrics.SLACK_DELIVERIES.labels("http", "taken").inc()
        return _as_response(answer)

    return routes


def _as_response(answer: Answer) -> Response:
    after = None if answer.after is None else BackgroundTask(_afterwards, answer.after)
    if answer.body is None:
        return Response(status_code=200, background=after)
    return JSONResponse(answer.body, background=after)


async def _afterwards(after: After) -> None:
    """Starlette runs a lambda in a thread, and then nobody awaits the coroutine it answers."""
    await after()
