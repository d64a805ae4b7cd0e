"""Signing in and out: the page that offers the ways, the provider's way there and back, the development link.

One GET here does change something: the one a provider sends the browser back with. It can be no form of ours; what
guards it is the sealed note of the browser that left (`identity.oidc`).
"""

from __future__ import annotations

from collections.abc import Collection

from fastapi import Request, Response
from starlette.responses import RedirectResponse

from policy_service.channels.web.drawing.forms import read_form
from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages
from policy_service.channels.web.ports import NewSession, Session, Sessions, WebSettings
from policy_service.channels.web.voting import require_csrf
from policy_service.errors import ForbiddenError, InvalidRequestError, ServiceError, UnauthenticatedError
from policy_service.identity.oidc import NOTE_S
from policy_service.identity.origin import local_path

_MAX_TOKEN_CHARS = 200
_MAX_QUERY_CHARS = 8_192  # a provider's answer: code, state and issuer


async def signed_in(pages: Pages, request: Request, *, touch: bool = True) -> Session:
    """The session of this request; ``touch`` says whether it is activity of the person's.

    Raises:
        UnauthenticatedError: there is none any more.
    """
    session = await pages.session(request, touch=touch)
    if session is None:
        raise UnauthenticatedError("nobody is signed in here any more; sign in again")
    return session


async def sent_by(
    pages: Pages,
    request: Request,
    required: Collection[str],
    optional: Collection[str],
    *,
    undone: str,
    **limits: int,
) -> tuple[Session, dict[str, str]]:
    """Who sends a form, and its fields. The form is read first: a session that ends while it is on its way sends
    nothing any more. ``undone`` says to somebody without a session what did not happen; ``limits`` are `read_form`'s.

    Raises:
        InvalidRequestError: the form is not as it should be.
        UnauthenticatedError: there is no session any more.
        ForbiddenError: the form is not this session's (`csrf`).
    """
    form = await read_form(request, required, optional, **limits)
    session = await pages.session(request)
    if session is None:
        raise UnauthenticatedError(f"{undone}: nobody is signed in here any more; sign in again")
    require_csrf(session, form)
    return session, form


def add_sign_in(router: PageRoutes, pages: Pages, sessions: Sessions, settings: WebSettings) -> None:
    """Every route somebody without a session may use, and those that end one."""

    # The development link comes first: its address would otherwise be a provider's name.
    _add_development_link(router, pages, sessions, settings)
    _add_providers(router, pages, sessions)
    _add_sign_out(router, pages, sessions)

    @router.page("/sign-in")
    async def sign_in(request: Request) -> Response:
        return await pages.draw(
            request,
            "sign_in.html",
            providers=sessions.providers(),
            dev_signin=settings.dev_signin,
            public_url=pages.site.origin,
            next=local_path(request.query_params.get("next", "/")),
        )


def _add_providers(router: PageRoutes, pages: Pages, sessions: Sessions) -> None:
    @router.get("/sign-in/{name}")
    async def leave(request: Request, name: str) -> Response:
        fresh = request.query_params.get("fresh") == "yes"
        departure = await sessions.begin(name, local_path(request.query_params.get("next", "/")), fresh=fresh)
        answer = RedirectResponse(departure.url, 303, pages.headers())
        pages.set_cookie(answer, pages.site.note_cookie, departure.note, NOTE_S)
        return answer

    @router.get("/sign-in/{name}/callback")
    async def come_back(request: Request, name: str) -> Response:
        note = pages.cookie(request, pages.site.note_cookie)
        try:
            opened, next_path = await sessions.finish(name, _answer(request), note, _cookie(pages, request))
            answer = _opened(pages, opened, next_path)
        except ServiceError as error:
            answer = await pages.refuse(request, error)
        pages.set_cookie(answer, pages.site.note_cookie, "", 0)  # it was for one answer, whatever that was
        return answer


def _add_development_link(
    router: PageRoutes, pages: Pages, sessions: Sessions, settings: WebSettings
) -> None:
    @router.page("/sign-in/dev")
    async def landing(request: Request) -> Response:
        token = request.query_params.get("token", "")
        _require_dev_signin(settings)
        if not 0 < len(token) <= _MAX_TOKEN_CHARS:
            raise InvalidRequestError(
                "this sign-in link is not complete; open the whole link", code="bad_token"
            )
        return await pages.draw(request, "sign_in_dev.html", token=token)

    @router.post("/sign-in/dev")
    async def spend(request: Request) -> Response:
        _require_dev_signin(settings)
        form = await read_form(request, {"token"})
        return _opened(pages, await sessions.sign_in(form["token"], _cookie(pages, request)), "/")


def _add_sign_out(router: PageRoutes, pages: Pages, sessions: Sessions) -> None:
    @router.post("/sign-out")
    async def sign_out(request: Request) -> Response:
        """End this session; with ``everywhere``, every session of this person."""
        session = await signed_in(pages, request)
        form = await read_form(request, {"csrf_token"}, {"everywhere"})
        require_csrf(session, form)
        await sessions.sign_out(_cookie(pages, request) or "", everywhere=form.get("everywhere") == "yes")
        answer = pages.go("/sign-in")
        pages.set_cookie(answer, pages.site.session_cookie, "", 0)
        return answer


def _opened(pages: Pages, opened: NewSession, next_path: str) -> Response:
    answer = pages.go(next_path)
    pages.set_cookie(answer, pages.site.session_cookie, opened.cookie, opened.max_age_seconds)
    return answer


def _cookie(pages: Pages, request: Request) -> str | None:
    return pages.cookie(request, pages.site.session_cookie)


def _answer(request: Request) -> dict[str, str]:
    """The provider's answer; a parameter that is there twice has two readings and is refused (RFC 6749, 3.1)."""
    if len(request.url.query) > _MAX_QUERY_CHARS:
        raise InvalidRequestError("the provider's answer is too long; sign in again", code="bad_token")
    items = request.query_params.multi_items()
    answer = dict(items)
    if len(answer) != len(items):
        raise InvalidRequestError(
            "the provider's answer names something twice; sign in again", code="bad_token"
        )
    return answer


def _require_dev_signin(settings: WebSettings) -> None:
    if not settings.dev_signin:
        raise ForbiddenError("the development sign-in is off here")
