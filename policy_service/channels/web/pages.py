"""Render pages: nonce, headers, session, theme and refusals."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeVar

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from countersign.contract.wire import MAX_TEXT_CHARS
from policy_service import metrics
from policy_service.channels.presentation.formatting import as_sentence
from policy_service.channels.streams import EventStreams
from policy_service.channels.web.error_texts import error_text_for
from policy_service.channels.web.presenters.review_page import DENIAL_REASONS, stale_changes
from policy_service.channels.web.rendering import Asset, load_assets, templates_of, web_folder
from policy_service.errors import RETRY_AFTER_S, UNHANDLED, InternalError, NotFoundError, ServiceError
from policy_service.identity.oidc import SignIn
from policy_service.identity.origin import Site, local_path, parse_site, read_cookie
from policy_service.identity.people import Person
from policy_service.identity.sessions import Notice, Session, Sessions
from policy_service.pap.bundle import NoActiveBundleError
from policy_service.queries.alarms import alarms
from policy_service.queries.context import Context
from policy_service.queries.policies import PoliciesReader
from policy_service.queries.review_models import ReviewPage
from policy_service.queries.reviews import review_page
from policy_service.queries.tasks import count_open
from policy_service.queries.vote_eligibility import Voter, current_groups, voter_from_person

# One nonce a response. `Referrer-Policy: same-origin` rather than `no-referrer`, because with the latter browsers send
# `Origin: null` with a form, and the origin check would refuse our own page.
_CSP = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "require-trusted-types-for 'script'; trusted-types htmx"
)
_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "X-Robots-Tag": "noindex, nofollow",
}
_TWO_YEARS_SECONDS = 63_072_000


def common_headers(site: Site) -> dict[str, str]:
    """For every response, static files and event streams included."""
    if not site.secure:
        return dict(_ALWAYS)
    return _ALWAYS | {"Strict-Transport-Security": f"max-age={_TWO_YEARS_SECONDS}"}


def page_headers(site: Site, nonce: str) -> dict[str, str]:
    """For a page or a fragment: its content security policy, and no caching."""
    return common_headers(site) | {
        "Content-Security-Policy": _CSP.format(nonce=nonce),
        "Cache-Control": "no-store",
    }


def asset_headers(site: Site) -> dict[str, str]:
    """For a file named by its digest; the policy applies when it is opened directly."""
    return common_headers(site) | {
        "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
        "Cache-Control": "public, max-age=31536000, immutable",
    }


T = TypeVar("T")

THREAD_ABOVE_BYTES = 16_384  # a page with more data is rendered in a thread
_THEMES = frozenset({"light", "dark"})


@dataclass(frozen=True, slots=True)
class PageSession:
    """The session of a request, as pages show it."""

    live: Session
    groups: frozenset[str]  # the person's current groups, by title

    @property
    def person(self) -> Person:
        """The signed-in person. Their groups are those of their token; a vote reads the others again."""
        return self.live.person

    @property
    def voter(self) -> Voter:
        """The person as a voter."""
        return voter_from_person(self.live.person)

    @property
    def csrf(self) -> str:
        """The form token of the session."""
        return self.live.csrf

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Passkey and Slack changes made in other sessions."""
        return self.live.notices


class Pages:
    """The pages of one service: dependencies of the routes, and rendering."""

    def __init__(self, ctx: Context, sessions: Sessions, sign_in: SignIn) -> None:
        folder = web_folder()
        self.ctx = ctx
        self.sessions = sessions
        self.sign_in = sign_in
        self.policies = PoliciesReader(ctx)
        self.streams, self.exports = EventStreams(), EventStreams()
        self.site: Site = parse_site(ctx.settings.public_url)
        self.assets: Mapping[str, Asset] = load_assets(folder / "static")
        self._templates = templates_of(folder / "templates")

    async def session(self, request: Request, *, touch: bool = True) -> PageSession | None:
        """The session of the request's cookie. `touch` counts the request as activity."""
        cookie = self.cookie(request, self.site.session_cookie)
        live = await self.sessions.find(cookie, touch=touch) if cookie else None
        if live is None:
            return None
        bundle = self.ctx.active.current
        groups = current_groups(bundle, live.person.key, live.person.groups)
        return PageSession(live, frozenset(bundle.directory.title_of(group) for group in groups))

    async def review(self, session: PageSession, review_id: str) -> ReviewPage:
        """A review as this person may see it.

        Raises:
            NotFoundError: it does not exist.
        """
        page = await review_page(self.ctx, session.voter, review_id)
        if page is None:
            raise NotFoundError(f"there is no review {review_id!r} that you may see")
        return page

    def cookie(self, request: Request, name: str) -> str | None:
        return read_cookie(request.headers, name)

    def now(self) -> datetime:
        return self.ctx.clock()

    async def run_pure(self, size: int, work: Callable[[], T]) -> T:
        """Run CPU-bound work; in a thread if it concerns much data."""
        return await anyio.to_thread.run_sync(work) if size > THREAD_ABOVE_BYTES else work()

    async def draw(
        self, request: Request, template: str, *, status: int = 200, heavy: int = 0, **context: Any
    ) -> Response:
        """A page or a fragment with a new nonce, not cached. `heavy` is the size of its data."""
        nonce = secrets.token_urlsafe(16)
        theme = request.cookies.get(self.site.theme_cookie, "")
        everything = {
            "now": self.now(),
            "nonce": nonce,
            "assets": self.assets,
            "theme": theme if theme in _THEMES else "",
            "keys_off": request.cookies.get(self.site.keys_cookie) == "off",
            "here": current_path(request),
            "in_force": self.ctx.active.status().active_commit or "",
            "slack": self.ctx.settings.slack is not None,
            "max_reason": MAX_TEXT_CHARS,
            "picks": DENIAL_REASONS,
            "alarms": await self._or_none(alarms) if "session" in context else None,
            "open_tasks": await self._or_none(count_open) if "session" in context else None,
            **context,
        }
        html = await self.run_pure(heavy, lambda: self._templates.render(template, **everything))
        return HTMLResponse(html, status, page_headers(self.site, nonce))

    async def _or_none(self, read: Callable[[Context], Awaitable[T]]) -> T | None:
        """A value that every page shows; None if it cannot be read. The page then says that stops are
        unknown.
        """
        try:
            return await read(self.ctx)
        except ServiceError:
            return None

    async def refuse(self, request: Request, error: ServiceError) -> Response:
        """The page of a refusal, in the frame of a signed-in person if there is one."""
        session = await self._session_or_none(request)
        if error.code == "stale_review" and session is not None:
            return await self._stale(request, session, error)
        if session is None:
            return await self._refusal(request, error, "refusal_gate.html")
        return await self._refusal(request, error, "refusal.html", session=session)

    async def _refusal(
        self, request: Request, error: ServiceError, template: str, **context: Any
    ) -> Response:
        words = error_text_for(str(error.code), request.url.path)
        context |= asdict(words) | {"alert": words.alert, "detail": as_sentence(error.detail)}
        if error.code == "misdirected_host":
            context |= {"href": self.site.origin + "/", "label": f"Go to {self.site.origin}"}
        answer = await self.draw(request, template, status=error.status, **context)
        if error.status == 429:
            answer.headers["Retry-After"] = str(RETRY_AFTER_S)
        return answer

    async def _stale(self, request: Request, session: PageSession, error: ServiceError) -> Response:
        rev, read_rev = error.extras.get("rev"), error.extras.get("read_rev")
        review_id = str(error.extras.get("review_id", ""))
        if rev != read_rev and review_id == request.path_params.get("review_id"):
            review_id = ""  # the newest revision has no review of it: do not link back to the one just read
        return await self.draw(
            request,
            "stale.html",
            status=error.status,
            session=session,
            undone=as_sentence(str(error.extras.get("undone", "your vote was not counted"))).rstrip("."),
            read_rev=read_rev,
            rev=rev,
            review_id=review_id,
            changed=stale_changes(error.extras.get("changed", ())),
            moved=error.extras.get("moved", ()),
        )

    async def _session_or_none(self, request: Request) -> PageSession | None:
        """The session for a refusal, even if sessions cannot be read. A foreign host gets none."""
        if request.headers.get("host", "").lower() not in self.site.hosts:
            return None
        try:
            return await self.session(request, touch=False)  # a refusal is no activity
        except (ServiceError, NoActiveBundleError):
            return None

    async def fault(self, request: Request) -> Response:
        """The page of an unexpected error. It has no session frame, because reading a session may be what failed."""
        error = InternalError(UNHANDLED)
        metrics.REFUSALS.labels(error.code.value).inc()
        return await self._refusal(request, error, "refusal_gate.html")

    def set_session(self, answer: Response, cookie: str) -> None:
        """Set the session cookie; an empty value deletes it."""
        seconds = self.ctx.settings.session_max_s if cookie else 0
        self.set_cookie(answer, self.site.session_cookie, cookie, seconds)

    def set_cookie(self, answer: Response, name: str, value: str, max_age_seconds: int) -> None:
        """A host-only cookie for every path, not readable by scripts; Secure if the site is."""
        answer.set_cookie(
            name, value, max_age_seconds, path="/", secure=self.site.secure, httponly=True, samesite="lax"
        )

    def go(self, path: str) -> Response:
        """303 See Other to a path of this site."""
        return RedirectResponse(local_path(path), 303, self.headers())

    def headers(self) -> dict[str, str]:
        """Headers of a redirect."""
        return page_headers(self.site, secrets.token_urlsafe(16))

    def asset(self, digest: str, name: str) -> Response | None:
        """A static file, if digest and name match."""
        asset = self.assets.get(name)
        if asset is None or asset.digest != digest:
            return None
        return Response(asset.body, 200, asset_headers(self.site), asset.media_type)

    def stream_headers(self) -> dict[str, str]:
        """Headers of an event stream: not cached, not buffered."""
        return common_headers(self.site) | {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def current_path(request: Request) -> str:
    """The page's own path and query, to return to."""
    query = f"?{request.url.query}" if request.url.query else ""
    if request.url.path.startswith("/sign-in"):
        return "/"  # the address may contain a provider's code, which must not be on a page
    return local_path(request.url.path + query) if request.method in ("GET", "HEAD") else "/"
