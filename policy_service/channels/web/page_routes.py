"""How a page is bound to its path: where a request is from is checked first, and every refusal is a page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps

from fastapi import Request, Response
from starlette.routing import Match, Route
from starlette.types import Scope

from policy_service.channels.web.pages import Pages
from policy_service.errors import ServiceError
from policy_service.identity.origin import require_host, require_own_page

# It is called with the request and the strings that the path names.
Handler = Callable[..., Awaitable[Response]]


class PageRoutes:
    """The routes of people's pages, in the order in which they are tried.

    Plain routes of Starlette: FastAPI takes each handler's signature apart, and a page has none to declare.
    """

    def __init__(self, pages: Pages) -> None:
        self.routes: list[Route] = []
        self._pages = pages

    def page(self, path: str) -> Callable[[Handler], Handler]:
        """A page to look at: GET and HEAD."""
        return self._bind(path, {"GET", "HEAD"})

    def get(self, path: str) -> Callable[[Handler], Handler]:
        """What a page fetches."""
        return self._bind(path, {"GET"})

    def post(self, path: str) -> Callable[[Handler], Handler]:
        """Where a form of our own pages goes."""
        return self._bind(path, {"POST"})

    def _bind(self, path: str, methods: set[str]) -> Callable[[Handler], Handler]:
        def bound(handle: Handler) -> Handler:
            @wraps(handle)
            async def guarded(request: Request) -> Response:
                try:
                    require_host(self._pages.site, request.headers.get("host"))
                    if request.method == "POST":
                        require_own_page(self._pages.site, request.headers)
                    return await handle(request, **request.path_params)
                except ServiceError as error:
                    return await self._pages.refuse(request, error)

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
