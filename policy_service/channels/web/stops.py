"""Emergency stops: a page with three forms that stop, and one form for each stop in force."""

from __future__ import annotations

from typing import cast

from fastapi import Request, Response

from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages, PageSession
from policy_service.errors import InvalidRequestError
from policy_service.queries.review_context import require_text_length
from policy_service.queries.stops import Stoppable, Target, stop_page
from policy_service.workflow.revocation.stops_by_people import start_again, stop

_FIELDS = frozenset({"what", "reason"})
_WHAT = ("agent", "tool", "everything")


# Every page links here; only this page and an agent's page can submit a stop.
routes = PageRoutes()


@routes.page("/stop")
async def show_stop(pages: Pages, request: Request, session: PageSession) -> Response:
    page = await stop_page(pages.ctx, session.voter, Target("everything"))
    return await pages.draw(request, "stop.html", session=session, page=page)


@routes.form("/stop", _FIELDS, {"name"}, undone="nothing was stopped")
async def press_stop(pages: Pages, _: Request, session: PageSession, form: dict[str, str]) -> Response:
    await stop(pages.ctx, session.voter, _target(form), _reason(form, "a stop"))
    return pages.go("/stop")


@routes.form("/start-again", _FIELDS, {"name"}, undone="nothing was started again")
async def press_start(pages: Pages, _: Request, session: PageSession, form: dict[str, str]) -> Response:
    await start_again(pages.ctx, session.voter, _target(form), _reason(form, "starting again"))
    return pages.go("/stop")


def _target(form: dict[str, str]) -> Target:
    what, name = form["what"], form.get("name", "").strip()
    if what not in _WHAT:
        raise InvalidRequestError(f"{what!r} cannot be stopped; an agent, a tool and everything can")
    if (what == "everything") is bool(name):
        raise InvalidRequestError("name the agent or the tool; 'everything' takes no name")
    return Target(cast(Stoppable, what), name)


def _reason(form: dict[str, str], of: str) -> str:
    words = form["reason"].replace("\r\n", "\n").strip()
    if not words:
        raise InvalidRequestError(f"{of} needs a reason: everybody reads it", code="reason_required")
    return require_text_length(words)
