"""The emergency stop: a page with three forms that stop, and one for each thing that is stopped."""

from __future__ import annotations

from typing import cast

from fastapi import Request, Response

from countersign.contract.wire import MAX_TEXT_CHARS
from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages
from policy_service.channels.web.ports import Oversight
from policy_service.channels.web.signing_in import sent_by
from policy_service.errors import InvalidRequestError
from policy_service.workflow.oversight.stopping import Stoppable, Target
from policy_service.workflow.words import require_short

_FIELDS = frozenset({"csrf_token", "what", "reason"})
_WHAT = ("agent", "tool", "everything")


def add_stopping(router: PageRoutes, pages: Pages, oversight: Oversight) -> None:
    """Give a router the stop. Its link is on every page, and no page but this and an agent's can press it."""

    @router.page("/stop")
    async def stop_page(request: Request) -> Response:
        session = await pages.session(request)
        if session is None:
            return pages.go("/sign-in?next=/stop")
        return await pages.draw(
            request,
            "stop.html",
            session=session,
            page=await oversight.stop_page(session.person),
            max_reason=MAX_TEXT_CHARS,
        )

    @router.post("/stop")
    async def stop(request: Request) -> Response:
        session, form = await sent_by(pages, request, _FIELDS, {"name"}, undone="nothing was stopped")
        await oversight.stop(session.person, _target(form), _reason(form, "a stop"))
        return pages.go("/stop")

    @router.post("/start-again")
    async def start_again(request: Request) -> Response:
        session, form = await sent_by(pages, request, _FIELDS, {"name"}, undone="nothing was started again")
        await oversight.start_again(session.person, _target(form), _reason(form, "starting again"))
        return pages.go("/stop")


def _target(form: dict[str, str]) -> Target:
    what, name = form["what"], form.get("name", "").strip()
    if what not in _WHAT:
        raise InvalidRequestError(f"{what!r} cannot be stopped; an agent, a tool and everything can")
    if (what == "everything") is bool(name):
        raise InvalidRequestError("name the agent or the tool; everything has no name")
    return Target(cast(Stoppable, what), name)


def _reason(form: dict[str, str], of: str) -> str:
    words = form["reason"].replace("\r\n", "\n").strip()
    if not words:
        raise InvalidRequestError(f"{of} needs a reason: everybody reads it", code="reason_required")
    return require_short(words)
