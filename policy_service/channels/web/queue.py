"""The routes of the queue: its tabs, its live fragment, the review beside the list."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from policy_service.channels.web import live
from policy_service.channels.web.drawing.filters import (
    address,
    chips,
    cleared,
    other_order,
    read_wanted,
    tabs,
)
from policy_service.channels.web.drawing.queue_views import queue_groups
from policy_service.channels.web.drawing.views import review_context
from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages
from policy_service.channels.web.ports import EventFeed, QueueSource, Session
from policy_service.channels.web.signing_in import signed_in
from policy_service.errors import NotFoundError
from policy_service.workflow.reading.queue import Wanted

PAGE_OF_ROWS = (
    25  # about a screen on a desktop; the next ones are a link away, and a row costs as much as it shows
)
EVENTS_COUNTED = 200  # the pill says "200+" beyond
_GATE_EXAMPLE = """@id("large-refunds-need-a-person") @approval("{group}")
forbid (principal, action == Action::"refund", resource)
when {{ context.input.amount_cents > 5000 }};"""


def add_queue(router: PageRoutes, pages: Pages, source: QueueSource, feed: EventFeed) -> None:
    """Give a router the queue."""

    @router.page("/")
    async def queue(request: Request) -> Response:
        session = await pages.session(request)
        if session is None:
            return pages.go("/sign-in")
        index = await feed.latest()  # read before the rows: what comes between is announced, not lost
        wanted, cursor = read_wanted(request.query_params), request.query_params.get("cursor")
        beside = request.query_params.get("review", "")
        page = await source.queue_page(session.person, wanted, cursor, PAGE_OF_ROWS)
        frame: dict[str, Any] = {
            "session": session,
            "index": index,
            "queue": page,
            "wanted": wanted,
            "query": address(wanted, review=beside).replace("/?", "&").removeprefix("/"),
            "tabs": tabs(wanted, page),
        }
        if not page.rows and cursor is None and not wanted.filtered and not beside:
            gate = _GATE_EXAMPLE.format(group=source.group_to_ask(session.person) or "GROUP")
            return await pages.draw(request, "empty.html", gate_example=gate, site=pages.site.origin, **frame)
        frame |= _list(wanted, cursor) | {
            "groups": queue_groups(page.rows, pages.now(), wanted, beside),
            "aside": address(wanted, cursor=cursor, review=page.rows[0].review_id) if page.rows else "",
            "following": address(wanted, cursor=page.next_cursor, review=beside) if page.next_cursor else "",
        }
        if not beside:
            return await pages.draw(request, "queue.html", **frame)
        return await _beside(request, session, beside, frame)

    async def _beside(request: Request, session: Session, review_id: str, frame: dict[str, Any]) -> Response:
        review = await source.review_page(review_id, session.person)
        if review is None:
            raise NotFoundError(f"there is no review {review_id!r} that you may see")
        heavy = len(review.canonical)
        context = await pages.beside(heavy, lambda: review_context(review, pages.now()))
        return await pages.draw(
            request, "split.html", heavy=heavy, as_shown=context["shown"], **context, **frame
        )

    @router.get("/queue/live")
    async def queue_live(request: Request) -> Response:
        session = await signed_in(pages, request, touch=False)
        batch = await feed.events_after(session.person, live.index_of(request, "since"), EVENTS_COUNTED)
        fresh, settled = live.tell(batch.events)
        wanted = read_wanted(request.query_params)
        return await pages.draw(
            request,
            "queue_live.html",
            fresh=fresh,
            settled=settled,
            capped=len(batch.events) >= EVENTS_COUNTED,
            settled_ids=live.settled_ids(batch.events),
            again=address(wanted, review=request.query_params.get("review")),
            waiting=await source.count_waiting(session.person),
        )


def _list(wanted: Wanted, cursor: str | None) -> dict[str, Any]:
    order, other = other_order(wanted)
    return {
        "chips": chips(wanted),
        "order": order,
        "other_order": other,
        "cleared": cleared(wanted),
        "alone": address(wanted, cursor=cursor),
    }
