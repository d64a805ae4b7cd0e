"""How a page is bound to its path: where a request is from is checked first, and every refusal is a page.

A handler is called with the site's `Pages`, the request, the session and, of a form, its fields; then with the strings
that the path names. Routes are declared once a module, and serve every application: `Pages` comes with the request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import wraps
from urllib.parse import quote

from fastapi import Request, Response
from starlette.routing import Match, Route
from starlette.types import Scope

from policy_service.channels.web.form_parser import read_form
from policy_service.channels.web.pages import Pages, PageSession
from policy_service.channels.web.vote_form import require_csrf
from policy_service.errors import ServiceError, UnauthenticatedError
from policy_service.identity.origin import require_host, require_own_page

Handler = Callable[..., Awaitable[Response]]


class PageRoutes:
    """The routes of people's pages, in the order in which they are tried.

    Plain routes of Starlette: FastAPI takes each handler's signature apart, and a page has none to declare.
    """

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def page(self, path: str) -> Callable[[Handler], Handler]:
        """A page of somebody signed in; others are sent to sign in first. GET and HEAD."""

        async def call(handle: Handler, pages: Pages, request: Request) -> Response:
            session = await pages.session(request)
            if session is None:
                asked = quote(request.url.path)
                return pages.go("/sign-in" if asked == "/" else f"/sign-in?next={asked}")
            return await handle(pages, request, session, **request.path_params)

        return self._bind(path, {"GET", "HEAD"}, call)

    def get(self, path: str, *, touch: bool = False) -> Callable[[Handler], Handler]:
        """What a page of somebody signed in fetches; `touch`: and the fetch shows that its person is there."""

        async def call(handle: Handler, pages: Pages, request: Request) -> Response:
            session = await require_session(pages, request, touch=touch)
            return await handle(pages, request, session, **request.path_params)

        return self._bind(path, {"GET"}, call)

    def form(
        self,
        path: str,
        required: Collection[str] = (),
        optional: Collection[str] = (),
        *,
        undone: str,
        **limits: int,
    ) -> Callable[[Handler], Handler]:
        """Where a form of somebody signed in goes; see `sent_by`."""

        async def call(handle: Handler, pages: Pages, request: Request) -> Response:
            session, form = await read_submission(pages, request, required, optional, undone=undone, **limits)
            return await handle(pages, request, session, form, **request.path_params)

        return self._bind(path, {"POST"}, call)

    def public(self, path: str, *methods: str) -> Callable[[Handler], Handler]:
        """What needs no session; the handler is called without one."""

        async def call(handle: Handler, pages: Pages, request: Request) -> Response:
            return await handle(pages, request, **request.path_params)

        return self._bind(path, set(methods), call)

    def _bind(self, path: str, methods: set[str], call: Handler) -> Callable[[Handler], Handler]:
        def bound(handle: Handler) -> Handler:
            @wraps(handle)
            async def guarded(request: Request) -> Response:
                pages = pages_of(request)
                try:
                    require_host(pages.site, request.headers.get("host"))
                    if request.method == "POST":
                        require_own_page(pages.site, request.headers)
                    return await call(handle, pages, request)
                except ServiceError as error:
                    return await pages.refuse(request, error)

            self.routes.append(_PageRoute(path, guarded, methods))
            return handle

        return bound


class _PageRoute(Route):
    """Says which route it was to what measures requests, and answers the methods it was given and no other."""

    def __init__(self, path: str, endpoint: Handler, methods: set[str]) -> None:
        super().__init__(path, endpoint, methods=methods, include_in_schema=False)
        self.methods = methods  # Starlette adds HEAD to every GET

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        return match, {**found, "route": self}


def pages_of(request: Request) -> Pages:
    """The pages of the application that a request has come to."""
    pages: Pages = request.app.state.pages
    return pages


async def require_session(pages: Pages, request: Request, *, touch: bool = True) -> PageSession:
    """The session of this request; ``touch`` says whether it is activity of the person's.

    Raises:
        UnauthenticatedError: there is none any more.
    """
    session = await pages.session(request, touch=touch)
    if session is None:
        raise UnauthenticatedError("nobody is signed in here any more; sign in again")
    return session


async def read_submission(
    pages: Pages,
    request: Request,
    required: Collection[str],
    optional: Collection[str],
    *,
    undone: str,
    **limits: int,
) -> tuple[PageSession, dict[str, str]]:
    """Who sends a form, and its fields; `csrf_token` is always required. The form is read first: a session that ends
    while it is on its way sends nothing any more. ``undone`` says to somebody without a session what did not happen;
    ``limits`` are `read_form`'s.

    Raises:
        InvalidRequestError: the form is not as it should be.
        UnauthenticatedError: there is no session any more.
        ForbiddenError: the form is not this session's (`csrf`).
    """
    form = await read_form(request, {"csrf_token", *required}, optional, **limits)
    session = await pages.session(request)
    if session is None:
        raise UnauthenticatedError(f"{undone}: nobody is signed in here any more; sign in again")
    require_csrf(session, form)
    return session, form
