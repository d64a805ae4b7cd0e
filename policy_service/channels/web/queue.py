"""The routes of the queue: its tabs, its live fragment, and reviews alike decided together."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from policy_service.channels.showing.signing import MAX_REASON_CHARS
from policy_service.channels.showing.wording import sentence as as_sentence
from policy_service.channels.web import live
from policy_service.channels.web.drawing.filters import (
    address,
    chips,
    cleared,
    other_order,
    read_wanted,
    tabs,
)
from policy_service.channels.web.drawing.queue_views import line_views, queue_groups
from policy_service.channels.web.drawing.views import PICKS, review_context
from policy_service.channels.web.pages import Pages
from policy_service.channels.web.ports import EventFeed, QueueSource, Session, Shown
from policy_service.channels.web.signing_in import sent_by, signed_in
from policy_service.channels.web.voting import batch_fields, line_value, read_batch
from policy_service.errors import ConflictError, InvalidRequestError, NotFoundError, ServiceError
from policy_service.workflow.pages.alike import MAX_TOGETHER
from policy_service.workflow.reading.queue import Wanted

PAGE_OF_ROWS = (
    25  # about a screen on a desktop; the next ones are a link away, and a row costs as much as it shows
)
EVENTS_COUNTED = 200  # the pill says "200+" beyond
_GATE_EXAMPLE = """@id("large-refunds-need-a-person") @approval("{group}")
forbid (principal, action == Action::"refund", resource)
when {{ context.input.amount_cents > 5000 }};"""
_BATCH = frozenset({"csrf_token", "verdict"})
_BATCH_OPTIONAL = frozenset({"reason", "pick", "note"}) | batch_fields(MAX_TOGETHER)


def add_queue(router: APIRouter, pages: Pages, source: QueueSource, feed: EventFeed) -> None:
    """Give a router the queue."""
    _add_list(router, pages, source, feed)
    _add_alike(router, pages, source)


def _add_list(router: APIRouter, pages: Pages, source: QueueSource, feed: EventFeed) -> None:
    @router.api_route("/", methods=["GET", "HEAD"])
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
            "open_tasks": await source.count_tasks(),
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


def _add_alike(router: APIRouter, pages: Pages, source: QueueSource) -> None:
    @router.api_route("/alike/{review_id}", methods=["GET", "HEAD"])
    async def alike(request: Request, review_id: str) -> Response:
        session = await pages.session(request)
        if session is None:
            return pages.go(f"/sign-in?next=/alike/{review_id}")
        page = await source.alike(session.person, review_id)
        lines = line_views(page, pages.now())[:MAX_TOGETHER]
        return await pages.draw(
            request,
            "alike.html",
            session=session,
            open_tasks=await source.count_tasks(),
            page=page,
            review_id=review_id,
            more=page.more or len(page.lines) > MAX_TOGETHER,
            lines=lines,
            values=[line_value(view.line) for view in lines],
            picks=PICKS,
            max_reason=MAX_REASON_CHARS,
        )

    @router.post("/alike/{review_id}/votes")
    async def vote(request: Request, review_id: str) -> Response:
        """One vote for each ticked line, each on its own bytes; one that is refused stops no other."""
        session, form = await sent_by(
            pages, request, _BATCH, _BATCH_OPTIONAL, undone="none of your votes was counted"
        )
        batch = read_batch(form, MAX_TOGETHER)
        page = await source.alike(session.person, review_id)
        may = {view.line.review_id for view in line_views(page, pages.now()) if not view.alone}
        told = []
        for line in batch.lines:
            named = line["review_id"]
            try:
                if named not in may:
                    await _explain(session, named, review_id)
                result = await source.cast_vote(
                    session.person, named, batch.verdict, int(line["rev"]),
                    line["effect_digest"], line["txn_digest"], batch.reason,
                    shown=Shown(line["view_digest"], ""), proof=None,
                )  # fmt: skip
                if not result.counted:
                    raise ConflictError(f"it had settled before ({result.state}); your vote changed nothing")
                told.append({"review_id": named, "state": result.state, "refused": ""})
            except ServiceError as error:
                told.append({"review_id": named, "state": "", "refused": as_sentence(error.detail)})
        return await pages.draw(
            request,
            "alike_told.html",
            session=session,
            open_tasks=await source.count_tasks(),
            told=told,
            verdict=batch.verdict,
            review_id=review_id,
        )

    async def _explain(session: Session, named: str, like: str) -> None:
        """Why a line may not be decided here: it is no longer open for this person, or was never of this kind."""
        now = await source.review_page(named, session.person)
        if now is not None and now.state != "open":
            raise InvalidRequestError(
                f"it has settled meanwhile ({now.state}); your vote would change nothing"
            )
        raise InvalidRequestError(
            f"it is not one of the kind of {like} that you may decide together: open it"
        )
