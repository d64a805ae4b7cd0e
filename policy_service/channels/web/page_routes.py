"""Bind pages to paths: check the origin of each request first, and answer every refusal with a page.

A handler receives the `Pages`, the request, the session and, for a form, its fields, then the path
parameters. Routes are declared once per module and serve every application: `Pages` comes from the request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import wraps
from urllib.parse import quote

import structlog
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route
from starlette.types import Scope

from policy_service.channels.web.form_parser import read_form
from policy_service.channels.web.pages import Pages, PageSession
from policy_service.channels.web.vote_form import require_csrf
from policy_service.errors import ServiceError, StorageUnavailableError, UnauthenticatedError
from policy_service.identity.origin import require_host, require_own_page
from policy_service.pap.bundle import NoActiveBundleError

log = structlog.get_logger(__name__)

_NO_POLICIES = "no valid policies are loaded, so nothing can be decided; try again later"

Handler = Callable[..., Awaitable[Response]]


class PageRoutes:
    """Routes of pages, in matching order.

    They are plain Starlette routes: FastAPI would interpret each handler's signature.
    """

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def page(self, path: str) -> Callable[[Handler], Handler]:
        """A page for a signed-in person; others are redirected to sign in. GET and HEAD."""

        async def call(handle: Handler, pages: Pages, request: Request) -> Response:
            session = await pages.session(request)
            if session is None:
                asked = quote(request.url.path)
                return pages.go("/sign-in" if asked == "/" else f"/sign-in?next={asked}")
            return await handle(pages, request, session, **request.path_params)

        return self._bind(path, {"GET", "HEAD"}, call)

    def get(self, path: str, *, touch: bool = False) -> Callable[[Handler], Handler]:
        """A fragment or stream for a signed-in person; ``touch`` counts it as activity."""

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
        """A form of a signed-in person; see `read_submission`."""

        async def call(handle: Handler, pages: Pages, request: Request) -> Response:
            session, form = await read_submission(pages, request, required, optional, undone=undone, **limits)
            return await handle(pages, request, session, form, **request.path_params)

        return self._bind(path, {"POST"}, call)

    def public(self, path: str, *methods: str) -> Callable[[Handler], Handler]:
        """A page without a session."""

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
                except NoActiveBundleError:
                    return await pages.refuse(request, StorageUnavailableError(_NO_POLICIES))
                except ClientDisconnect:
                    raise  # the client is gone
                except Exception:
                    log.exception("fault", route=path, method=request.method)
                    return await pages.fault(request)

            self.routes.append(_PageRoute(path, guarded, methods))
            return handle

        return bound


class _PageRoute(Route):
    """Records the route for request metrics, and answers only the given methods."""

    def __init__(self, path: str, endpoint: Handler, methods: set[str]) -> None:
        super().__init__(path, endpoint, methods=methods, include_in_schema=False)
        self.methods = methods  # Starlette adds HEAD to every GET

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        return match, {**found, "route": self}


def pages_of(request: Request) -> Pages:
    """The pages of the application that handles a request."""
    pages: Pages = request.app.state.pages
    return pages


async def require_session(pages: Pages, request: Request, *, touch: bool = True) -> PageSession:
    """The session of this request; ``touch`` counts it as activity.

    Raises:
        UnauthenticatedError: there is none.
    """
    session = await pages.session(request, touch=touch)
    if session is None:
        raise UnauthenticatedError("you are not signed in any more; sign in again")
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
    """The session of a submitted form, and its fields; `csrf_token` is always required.

    The form is read first, so a session that ends during the upload submits nothing. ``undone`` says to a
    person without a session what did not happen. ``limits`` are those of `read_form`.

    Raises:
        InvalidRequestError: the form is invalid.
        UnauthenticatedError: there is no session.
        ForbiddenError: the form belongs to another session (`csrf`).
    """
    form = await read_form(request, {"csrf_token", *required}, optional, **limits)
    session = await pages.session(request)
    if session is None:
        raise UnauthenticatedError(f"{undone}: you are not signed in any more; sign in again")
    require_csrf(session, form)
    return session, form
