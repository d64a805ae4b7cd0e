"""A person's passkeys, and the page that asks for one.

Every ceremony is a page: a form post begins it, the page's button asks the authenticator, and its answer goes back in a
form post. So a passkey is only ever asked for after a press on our own page, and nothing a script sends decides.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from policy_service.channels.showing.signing import signing
from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages
from policy_service.channels.web.ports import NewSession, Passkeys, QueueSource, Session
from policy_service.channels.web.signing_in import sent_by
from policy_service.channels.web.voting import FIELDS, OPTIONAL, read_ballot
from policy_service.errors import InvalidRequestError, NotFoundError
from policy_service.workflow.passkeys.managing import Ceremony

_UNDONE = "nothing was changed"


def add_passkeys(router: PageRoutes, pages: Pages, passkeys: Passkeys, source: QueueSource) -> None:
    """The routes."""
    _add_list(router, pages, passkeys)
    _add_step_up(router, pages, passkeys, source)

    async def next_page(request: Request, session: Session, asked: Ceremony | None) -> Response:
        if asked is None:
            return pages.go("/passkeys")
        return await pages.draw(
            request, "ceremony.html", session=session, asked=asked, action="/passkeys/answers", fields={}
        )

    @router.post("/passkeys/additions")
    async def add(request: Request) -> Response:
        session, form = await sent_by(pages, request, {"csrf_token", "name"}, (), undone=_UNDONE)
        return await next_page(request, session, await passkeys.begin_adding(session, form["name"]))

    @router.post("/passkeys/removals")
    async def remove(request: Request) -> Response:
        session, form = await sent_by(pages, request, {"csrf_token", "passkey_id"}, (), undone=_UNDONE)
        return await next_page(request, session, await passkeys.begin_removing(session, form["passkey_id"]))

    @router.post("/passkeys/answers")
    async def answers(request: Request) -> Response:
        session, form = await sent_by(
            pages, request, {"csrf_token", "nonce", "credential"}, (), undone=_UNDONE
        )
        said = await passkeys.answer(session, form["nonce"], form["credential"])
        if not isinstance(said, NewSession):
            return await next_page(request, session, said)
        answer = pages.go("/passkeys")
        pages.set_cookie(answer, pages.site.session_cookie, said.cookie, said.max_age_seconds)
        return answer


def _add_list(router: PageRoutes, pages: Pages, passkeys: Passkeys) -> None:
    @router.page("/passkeys")
    async def show(request: Request) -> Response:
        session = await pages.session(request)
        if session is None:
            return pages.go("/sign-in?next=/passkeys")
        found = await passkeys.page(session)
        ways = passkeys.fresh_ways()
        return await pages.draw(request, "passkeys.html", session=session, found=found, ways=ways)

    @router.post("/passkeys/seen")
    async def seen(request: Request) -> Response:
        session, form = await sent_by(pages, request, {"csrf_token", "back"}, (), undone=_UNDONE)
        await passkeys.dismiss(session)
        return pages.go(form["back"])


def _add_step_up(router: PageRoutes, pages: Pages, passkeys: Passkeys, source: QueueSource) -> None:
    @router.post("/reviews/{review_id}/step-up")
    async def step_up(request: Request, review_id: str) -> Response:
        """The same form as a vote; what it says is what the passkey is asked to sign."""
        session, form = await sent_by(pages, request, FIELDS, OPTIONAL, undone="your vote was not counted")
        ballot = read_ballot(form)
        if ballot.verdict == "deny":
            raise InvalidRequestError("a denial asks for no passkey")
        page = await source.review_page(review_id, session.person)
        if page is None:
            raise NotFoundError(f"there is no review {review_id!r} that you may see")
        asked = await passkeys.ask_step_up(session, review_id, ballot)
        carried = {name: value for name, value in form.items() if name != "csrf_token"}
        context: dict[str, Any] = {"page": page, "signing": signing(page)}
        return await pages.draw(
            request,
            "ceremony.html",
            session=session,
            asked=asked,
            action=f"/reviews/{review_id}/votes",
            fields=carried,
            **context,
        )
