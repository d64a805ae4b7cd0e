"""A person's passkeys, and the page that asks for one.

Every ceremony is a page: a form starts it, a button on the page asks the authenticator, and the response is
submitted by a form. So a passkey is used only after a press on our own page, and no script request decides
anything.
"""

from __future__ import annotations

from fastapi import Request, Response

from policy_service.channels.presentation.review_status import signed_sentence
from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages, PageSession
from policy_service.channels.web.vote_form import OPTIONAL_VOTE_FIELDS, VOTE_FIELDS, read_ballot
from policy_service.errors import InvalidRequestError
from policy_service.identity.passkeys import dismiss_notices
from policy_service.workflow.passkeys import manage
from policy_service.workflow.passkeys.manage import Ceremony, RenewedSession
from policy_service.workflow.passkeys.step_up import begin_step_up

_UNDONE = "nothing was changed"
_SIGN = (
    "Your passkey signs exactly this vote: the bytes, the page as shown to you, your verdict and your name."
)

routes = PageRoutes()


@routes.page("/passkeys")
async def show_passkeys(pages: Pages, request: Request, session: PageSession) -> Response:
    found = await manage.passkey_page(pages.ctx, session.live)
    # providers that report the time of authentication
    ways = [(one.name, one.title) for one in pages.ctx.settings.providers if one.kind != "github"]
    return await pages.draw(request, "passkeys.html", session=session, found=found, ways=ways)


@routes.form("/passkeys/additions", {"name"}, undone=_UNDONE)
async def add(pages: Pages, request: Request, session: PageSession, form: dict[str, str]) -> Response:
    asked = await manage.begin_adding(pages.ctx, session.live, form["name"])
    return await _next_page(pages, request, session, asked)


@routes.form("/passkeys/removals", {"passkey_id"}, undone=_UNDONE)
async def remove(pages: Pages, request: Request, session: PageSession, form: dict[str, str]) -> Response:
    asked = await manage.begin_removing(pages.ctx, session.live, form["passkey_id"])
    return await _next_page(pages, request, session, asked)


@routes.form("/passkeys/answers", {"nonce", "credential"}, undone=_UNDONE)
async def answer(pages: Pages, request: Request, session: PageSession, form: dict[str, str]) -> Response:
    done = await manage.finish_ceremony(pages.ctx, session.live, form["nonce"], form["credential"])
    if not isinstance(done, RenewedSession):
        return await _next_page(pages, request, session, done)
    back = pages.go("/passkeys")
    pages.set_session(back, done.cookie)
    return back


async def _next_page(
    pages: Pages, request: Request, session: PageSession, asked: Ceremony | None
) -> Response:
    if asked is None:
        return pages.go("/passkeys")
    return await pages.draw(
        request, "ceremony.html", session=session, asked=asked, action="/passkeys/answers", fields={}
    )


@routes.form("/passkeys/seen", {"back"}, undone=_UNDONE)
async def seen(pages: Pages, _: Request, session: PageSession, form: dict[str, str]) -> Response:
    await pages.ctx.db.write(lambda tx: dismiss_notices(tx, session.live))
    return pages.go(form["back"])


@routes.form(
    "/reviews/{review_id}/step-up", VOTE_FIELDS, OPTIONAL_VOTE_FIELDS, undone="your vote was not counted"
)
async def step_up(
    pages: Pages, request: Request, session: PageSession, form: dict[str, str], review_id: str
) -> Response:
    """The form of a vote; the passkey signs its content."""
    ballot = read_ballot(session, review_id, form)
    if ballot.verdict == "deny":
        raise InvalidRequestError("a denial needs no passkey")
    page = await pages.review(session, review_id)
    asked = await begin_step_up(pages.ctx, session.live, ballot.signed_by(session.voter))
    return await pages.draw(
        request,
        "ceremony.html",
        session=session,
        asked=Ceremony("get", asked.nonce, asked.options, "Confirm with your passkey", _SIGN),
        action=f"/reviews/{review_id}/votes",
        fields={name: value for name, value in form.items() if name != "csrf_token"},
        page=page,
        signing=signed_sentence(page),
    )
