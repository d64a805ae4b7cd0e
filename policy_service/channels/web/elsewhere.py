"""Errors outside the queue's own routes, told to a browser as a page and to everybody else as before.

The API's handlers stay in charge: they log, they choose the status. Only where somebody sits before the answer (the
request asks for HTML and its path is no program's) the words are put on a page.
"""

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeAlias

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from policy_service.channels.web.pages import Pages
from policy_service.errors import InvalidRequestError, NotFoundError, ServiceError

Handler: TypeAlias = Callable[[Request, Exception], Response | Awaitable[Response]]

_PROGRAMS = ("/v1/", "/.well-known/", "/healthz", "/readyz", "/metrics", "/static/", "/events")


def tell_people(app: FastAPI, pages: Pages) -> None:
    """Put a page in front of the handler that is installed already."""
    app.add_exception_handler(HTTPException, _as_page(app.exception_handlers[HTTPException], pages))


def _as_page(handler: Handler, pages: Pages) -> Handler:
    async def as_page(request: Request, error: Exception) -> Response:
        told = handler(request, error)
        answer = await told if isawaitable(told) else told
        if not _is_read_by_a_person(request):
            return answer
        return await pages.refuse(request, _in_words(request, answer.status_code))

    return as_page


def _is_read_by_a_person(request: Request) -> bool:
    asks = any("text/html" in one for one in request.headers.getlist("accept"))
    return asks and not request.url.path.startswith(_PROGRAMS)


def _in_words(request: Request, status: int) -> ServiceError:
    if status == 404:
        return NotFoundError(f"there is no page {request.url.path!r}")
    if status == 405:
        return InvalidRequestError(f"{request.method} does nothing here", code="method_not_allowed")
    return InvalidRequestError("this request is not one we understand")
