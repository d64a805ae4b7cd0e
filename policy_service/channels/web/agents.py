"""The list of agents, and a page for each with its recent activity and its emergency stop."""

from __future__ import annotations

from fastapi import Request, Response

from policy_service.channels.presentation.formatting import span_words
from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages, PageSession
from policy_service.errors import NotFoundError
from policy_service.queries.agents import RECENT, agent_list, agent_page
from policy_service.queries.stops import Target, stop_page

_PAGE_OF_AGENTS = 50
_BAR_WIDTH, _BAR_STEP, _TALLEST = 8, 10, 48


routes = PageRoutes()


@routes.page("/agents")
async def agents(pages: Pages, request: Request, session: PageSession) -> Response:
    found = await agent_list(pages.ctx, request.query_params.get("cursor"), _PAGE_OF_AGENTS)
    return await pages.draw(request, "agents.html", agents=found, session=session)


@routes.page("/agents/{name}")
async def agent(pages: Pages, request: Request, session: PageSession, name: str) -> Response:
    page = await agent_page(pages.ctx, name)
    if page is None:
        raise NotFoundError(f"no agent {name!r} is enrolled here")
    return await pages.draw(
        request,
        "agent.html",
        session=session,
        page=page,
        may=await stop_page(pages.ctx, session.voter, Target("agent", name)),
        bars=bars(page.hours),
        recent=RECENT,
        decided_in=None if page.decided_in is None else span_words(page.decided_in),
    )


def bars(hours: tuple[int, ...]) -> tuple[dict[str, int], ...]:
    """A column for each hour: position, height and count. A single submission is visible."""
    most = max((*hours, 1))
    drawn = []
    for place, count in enumerate(hours):
        height = 0 if count == 0 else max(2, round(_TALLEST * count / most))
        drawn.append(
            {
                "x": place * _BAR_STEP,
                "y": _TALLEST - height,
                "width": _BAR_WIDTH,
                "height": height,
                "count": count,
            }
        )
    return tuple(drawn)
