"""Sign in and out: the list of methods, the provider's redirect and callback, the development link.

The provider's callback is the one GET that changes something. It cannot be a form of ours; the sealed cookie
of the browser that started the sign-in protects it (`identity.oidc`).
"""

from __future__ import annotations

from fastapi import Request, Response
from starlette.responses import RedirectResponse

from policy_service.channels.web.form_parser import read_form
from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages, PageSession
from policy_service.errors import ForbiddenError, InvalidRequestError, ServiceError
from policy_service.identity.dev_signin import spend_link
from policy_service.identity.oidc import SIGN_IN_LIFETIME_S, Identity
from policy_service.identity.origin import local_path
from policy_service.identity.people import record_sign_in
from policy_service.identity.sessions import end_session, open_session
from policy_service.settings import Settings
from policy_service.storage.database import Tx

_MAX_TOKEN_CHARS = 200
_MAX_QUERY_CHARS = 8_192  # a provider's response: code, state and issuer

routes = PageRoutes()


@routes.public("/sign-in", "GET", "HEAD")
async def sign_in(pages: Pages, request: Request) -> Response:
    return await pages.draw(
        request,
        "sign_in.html",
        providers=pages.sign_in.choices,
        dev_signin=pages.ctx.settings.dev_signin,
        public_url=pages.site.origin,
        next=local_path(request.query_params.get("next", "/")),
    )


# The development link comes first: its path would otherwise match a provider's name.
@routes.public("/sign-in/dev", "GET", "HEAD")
async def development_link(pages: Pages, request: Request) -> Response:
    token = request.query_params.get("token", "")
    _require_dev_signin(pages.ctx.settings)
    if not 0 < len(token) <= _MAX_TOKEN_CHARS:
        raise InvalidRequestError("this sign-in link is incomplete; open the whole link", code="bad_token")
    return await pages.draw(request, "sign_in_dev.html", token=token)


@routes.public("/sign-in/dev", "POST")
async def spend_development_link(pages: Pages, request: Request) -> Response:
    _require_dev_signin(pages.ctx.settings)
    form = await read_form(request, {"token"})
    old = pages.cookie(request, pages.site.session_cookie)

    def spend(tx: Tx) -> str:
        cookie = spend_link(tx, pages.ctx.settings, form["token"])
        end_session(tx, old)
        return cookie

    answer = pages.go("/")
    pages.set_session(answer, await pages.ctx.db.write(spend))
    return answer


@routes.public("/sign-in/{name}", "GET")
async def start_sign_in(pages: Pages, request: Request, name: str) -> Response:
    fresh = request.query_params.get("fresh") == "yes"
    next_path = local_path(request.query_params.get("next", "/"))
    departure = await pages.sign_in.begin(name, next_path, fresh=fresh)
    answer = RedirectResponse(departure.url, 303, pages.headers())
    pages.set_cookie(answer, pages.site.sign_in_cookie, departure.note, SIGN_IN_LIFETIME_S)
    return answer


@routes.public("/sign-in/{name}/callback", "GET")
async def finish_sign_in(pages: Pages, request: Request, name: str) -> Response:
    note = pages.cookie(request, pages.site.sign_in_cookie)
    answer: Response
    try:
        who, next_path = await pages.sign_in.finish(name, _provider_response(request), note)
        old = pages.cookie(request, pages.site.session_cookie)
        cookie = await pages.ctx.db.write(lambda tx: _open(tx, pages.ctx.settings, who, old))
        answer = pages.go(next_path)
        pages.set_session(answer, cookie)
    except ServiceError as error:
        answer = await pages.refuse(request, error)
    pages.set_cookie(answer, pages.site.sign_in_cookie, "", 0)  # the note is valid for one response
    return answer


def _open(tx: Tx, settings: Settings, who: Identity, old_cookie: str | None) -> str:
    end_session(tx, old_cookie)
    record_sign_in(
        tx,
        who.iss,
        who.sub,
        who.name,
        email=who.email,
        groups=who.groups,
        groups_problem=who.groups_problem,
    )
    return open_session(
        tx,
        who.iss,
        who.sub,
        "oidc",
        max_s=settings.session_max_s,
        trust=who.trust,
        sid=who.sid,
        auth_at=who.auth_at,
    )


@routes.form("/sign-out", optional={"everywhere"}, undone="nothing was ended")
async def sign_out(pages: Pages, request: Request, session: PageSession, form: dict[str, str]) -> Response:
    """End this session; with ``everywhere``, every session of this person."""
    cookie = pages.cookie(request, pages.site.session_cookie) or ""
    await pages.sessions.sign_out(cookie, everywhere=form.get("everywhere") == "yes")
    answer = pages.go("/sign-in")
    pages.set_session(answer, "")
    return answer


def _provider_response(request: Request) -> dict[str, str]:
    """The provider's response. A repeated parameter is ambiguous and refused (RFC 6749, 3.1)."""
    if len(request.url.query) > _MAX_QUERY_CHARS:
        raise InvalidRequestError("the provider's response is too long; sign in again", code="bad_token")
    items = request.query_params.multi_items()
    answer = dict(items)
    if len(answer) != len(items):
        raise InvalidRequestError(
            "the provider's response repeats a parameter; sign in again", code="bad_token"
        )
    return answer


def _require_dev_signin(settings: Settings) -> None:
    if not settings.dev_signin:
        raise ForbiddenError("the development sign-in is disabled")
