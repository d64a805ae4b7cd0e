"""The routes of the queue: its tabs, its live updates, and a review next to the list."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from policy_service.channels.web import sse
from policy_service.channels.web.page_routes import PageRoutes
from policy_service.channels.web.pages import Pages, PageSession
from policy_service.channels.web.presenters.queue_rows import (
    address,
    chips,
    other_order,
    parse_filter,
    queue_groups,
    tabs,
    unfiltered_address,
)
from policy_service.channels.web.presenters.review_page import review_template_context
from policy_service.pdp.rules import UNSEEN
from policy_service.queries.context import Context
from policy_service.queries.queue import QueueFilter, count_waiting, queue_page
from policy_service.queries.vote_eligibility import Voter, current_groups

PAGE_OF_ROWS = 25  # about one screen on a desktop
EVENTS_COUNTED = 200  # more are shown as "200+"
_GATE_EXAMPLE = """@id("large-refunds-need-a-person") @approval("{group}")
forbid (principal, action == Action::"refund", resource)
when {{ context.input.amount_cents > 5000 }};"""


routes = PageRoutes()


@routes.page("/")
async def queue(pages: Pages, request: Request, session: PageSession) -> Response:
    index = pages.ctx.feed.index  # read before the rows, so that changes in between are announced
    wanted, cursor = parse_filter(request.query_params), request.query_params.get("cursor")
    open_id = request.query_params.get("review", "")
    page = await queue_page(pages.ctx, session.voter, wanted, cursor, PAGE_OF_ROWS)
    frame: dict[str, Any] = {
        "session": session,
        "index": index,
        "queue": page,
        "wanted": wanted,
        "query": address(wanted, review=open_id).replace("/?", "&").removeprefix("/"),
        "tabs": tabs(wanted, page),
    }
    if not page.rows and cursor is None and not wanted.filtered and not open_id:
        gate = _GATE_EXAMPLE.format(group=_group_to_ask(pages.ctx, session.voter) or "GROUP")
        return await pages.draw(request, "empty.html", gate_example=gate, site=pages.site.origin, **frame)
    frame |= _list(wanted, cursor) | {
        "groups": queue_groups(page.rows, pages.now(), wanted, open_id),
        "aside": address(wanted, cursor=cursor, review=page.rows[0].review_id) if page.rows else "",
        "following": address(wanted, cursor=page.next_cursor, review=open_id) if page.next_cursor else "",
    }
    if not open_id:
        return await pages.draw(request, "queue.html", **frame)
    review = await pages.review(session, open_id)
    heavy = len(review.canonical)
    context = await pages.run_pure(heavy, lambda: review_template_context(review, pages.now()))
    return await pages.draw(request, "split.html", heavy=heavy, as_shown=context["shown"], **context, **frame)


@routes.get("/queue/live")
async def queue_live(pages: Pages, request: Request, session: PageSession) -> Response:
    since = sse.index_param(request, "since")
    batch = await sse.read_events(pages.ctx.feed, since, EVENTS_COUNTED)
    fresh, settled = sse.count_changes(batch.events)
    wanted = parse_filter(request.query_params)
    return await pages.draw(
        request,
        "queue_live.html",
        fresh=fresh,
        settled=settled,
        capped=len(batch.events) >= EVENTS_COUNTED,
        settled_ids=sse.settled_ids(batch.events),
        again=address(wanted, review=request.query_params.get("review")),
        waiting=await count_waiting(pages.ctx, session.voter),
    )


def _group_to_ask(ctx: Context, voter: Voter) -> str | None:
    """A group for the example gate: one of this person's, or any other of the bundle."""
    bundle = ctx.active.current
    known = bundle.directory.groups - {UNSEEN}  # its members review arguments that policies cannot evaluate
    return min(known & current_groups(bundle, voter.key, voter.groups) or known, default=None)


def _list(wanted: QueueFilter, cursor: str | None) -> dict[str, Any]:
    order, other = other_order(wanted)
    return {
        "chips": chips(wanted),
        "order": order,
        "other_order": other,
        "cleared": unfiltered_address(wanted),
        "alone": address(wanted, cursor=cursor),
    }
