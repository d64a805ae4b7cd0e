"""All page routes of an application, and routes that every page uses: browser settings, events, static files.

Rules for every route (`page_routes`): a Host other than the public URL's is answered 421; a GET changes
nothing, not even a single-use link (except a provider's callback, see `sign_in`); a POST comes from our own
page by navigation and carries the session's token; every refusal is a page that says what did not happen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from inspect import isawaitable
from typing import TypeAlias

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from policy_service.channels.web import (
    agents,
    audit,
    batches,
    passkeys,
    policies,
    proposals,
    queue,
    reviews,
    sign_in,
    slack_accounts,
    sse,
    stops,
    tasks,
)
from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages, PageSession
from policy_service.errors import InvalidRequestError, NotFoundError, ServiceError

Handler: TypeAlias = Callable[[Request, Exception], Response | Awaitable[Response]]

_API_PATHS = ("/v1/", "/.well-known/", "/healthz", "/readyz", "/metrics", "/static/", "/events")
_SETTING_FOR_S = int(timedelta(days=365).total_seconds())

routes = PageRoutes()


def install(app: FastAPI, pages: Pages) -> None:
    """Add the pages to an application. Call it last: it wraps the application's error handlers."""
    app.state.pages = pages
    for module in (
        queue,
        batches,
        reviews,
        passkeys,
        proposals,
        tasks,
        policies,
        agents,
        audit,
        stops,
        sign_in,
    ):
        app.routes.extend(module.routes.routes)
    if pages.ctx.settings.slack is not None:
        app.routes.extend(slack_accounts.routes.routes)
    app.routes.extend(routes.routes)
    _wrap_error_handler(app, pages)


@routes.form("/theme", {"theme", "back"}, undone="nothing was changed")
async def set_theme(pages: Pages, _: Request, __: PageSession, form: dict[str, str]) -> Response:
    if form["theme"] not in ("light", "dark"):
        raise InvalidRequestError(f"there is no theme {form['theme']!r}: there are 'light' and 'dark'")
    answer = pages.go(form["back"])
    pages.set_cookie(answer, pages.site.theme_cookie, form["theme"], _SETTING_FOR_S)
    return answer


@routes.form("/keys", {"keys", "back"}, undone="nothing was changed")
async def set_keys(pages: Pages, _: Request, __: PageSession, form: dict[str, str]) -> Response:
    """Turn single-key shortcuts on or off in this browser (WCAG 2.1.4)."""
    if form["keys"] not in ("on", "off"):
        raise InvalidRequestError(f"keys are 'on' or 'off', not {form['keys']!r}")
    answer = pages.go(form["back"])
    seconds = _SETTING_FOR_S if form["keys"] == "off" else 0
    pages.set_cookie(answer, pages.site.keys_cookie, form["keys"], seconds)
    return answer


@routes.get("/events")
async def events(pages: Pages, request: Request, session: PageSession) -> Response:
    cookie = pages.cookie(request, pages.site.session_cookie) or ""
    last_seen = request.headers.get("last-event-id")
    after = sse.parse_index(last_seen) if last_seen else sse.index_param(request, "after")
    about = request.query_params.get("review") or request.query_params.get("task")
    body = sse.stream(pages.ctx.feed, pages.sessions, cookie, after, about)
    return pages.streams.answer(session.voter.key, body, pages.stream_headers())


@routes.public("/static/{digest}/{name:path}", "GET", "HEAD")
async def static(pages: Pages, _: Request, digest: str, name: str) -> Response:
    found = pages.asset(digest, name)
    if found is None:
        raise NotFoundError(f"there is no file {name!r} of that digest")
    return found


# The API's handlers still log and choose the status. The answer becomes a page only for people: the request accepts
# HTML and the path is not one of the API.
def _wrap_error_handler(app: FastAPI, pages: Pages) -> None:
    """Wrap the installed handler of HTTP errors."""
    app.add_exception_handler(HTTPException, _as_page(app.exception_handlers[HTTPException], pages))


def _as_page(handler: Handler, pages: Pages) -> Handler:
    async def as_page(request: Request, error: Exception) -> Response:
        handled = handler(request, error)
        answer = await handled if isawaitable(handled) else handled
        if not _wants_a_page(request):
            return answer
        return await pages.refuse(request, _error_of_status(request, answer.status_code))

    return as_page


def _wants_a_page(request: Request) -> bool:
    asks = any("text/html" in one for one in request.headers.getlist("accept"))
    return asks and not request.url.path.startswith(_API_PATHS)


def _error_of_status(request: Request, status: int) -> ServiceError:
    if status == 404:
        return NotFoundError(f"there is no page {request.url.path!r}")
    if status == 405:
        return InvalidRequestError(
            f"{request.method} is not supported by this page", code="method_not_allowed"
        )
    return InvalidRequestError("the request is not valid")
