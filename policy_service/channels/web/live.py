"""The event stream of the pages: ids and kinds, never HTML, never a word of an agent's.

A stream belongs to a session, ends with it and does not keep it from idling out. It ends when the service stops, too:
browsers come back by themselves with the last index they saw. An idle tab costs a look at its session at each
heartbeat, when somebody has signed out, and before something is said; what no page shows does not wake it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

from fastapi import Request
from fastapi.sse import format_sse_event

from policy_service import metrics
from policy_service.channels.web.ports import EventFeed, QueueEvent, Sessions
from policy_service.errors import InvalidRequestError

HEARTBEAT_SECONDS = (
    15.0  # proxies cut a silent stream after 30 to 60; also how often the session is looked at
)
BATCH = 100  # events a read; more arrive with the next


async def stream(
    feed: EventFeed, sessions: Sessions, cookie: str, after: int, about: str | None
) -> AsyncIterator[bytes]:
    """Server-sent events after an index, about one review or task or about all, until the session or the service
    ends."""
    index, clock = after, asyncio.get_running_loop().time
    with metrics.STREAMS.labels("web").track_inprogress():
        yield format_sse_event(comment="open", retry=2_000)
        session, due = await sessions.find(cookie, touch=False), clock() + HEARTBEAT_SECONDS
        while session is not None and not feed.closing:
            batch = await feed.events_after(session.person, index, BATCH)
            told, silent = _about(batch.events, about), clock() >= due
            if told or silent or batch.somebody_left:
                session = await sessions.find(cookie, touch=False)
                if session is None:
                    return
            for event in told:
                yield _wire(event)
            if silent:
                yield format_sse_event(comment="still here", id=str(batch.index))
            if told or silent:
                due = clock() + HEARTBEAT_SECONDS
            if batch.index > index:
                index = batch.index
            else:
                index = await feed.wait_after(index, due - clock())


def _about(events: Sequence[QueueEvent], about: str | None) -> list[QueueEvent]:
    return [event for event in events if about is None or about in {event.review_id, event.task_id}]


def _wire(event: QueueEvent) -> bytes:
    name, told = ("task", event.task_id) if event.task_id else ("review", event.review_id)
    data = json.dumps({"kind": event.kind, f"{name}_id": told}, separators=(",", ":"))
    return format_sse_event(event=name, data_str=data, id=str(event.index))


def index_of(request: Request, name: str) -> int:
    """The index a page names in its address."""
    return whole(request.query_params.get(name, "0"))


def whole(text: str) -> int:
    """An index of the log, strictly.

    Raises InvalidRequestError for anything else.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidRequestError(f"an index is a whole number, not {text!r}")
    return int(text)


def tell(events: Sequence[QueueEvent], what: str = "review") -> tuple[int, int]:
    """How many reviews (or tasks) were opened and how many settled, each counted once and none as both."""
    opened = {_id_of(event) for event in events if event.kind == f"{what}_opened"}
    settled = {_id_of(event) for event in events if event.kind == f"{what}_settled"}
    return len(opened - settled), len(settled - opened)


def settled_ids(events: Sequence[QueueEvent]) -> tuple[str, ...]:
    """The reviews that settled, and were not opened again since."""
    last = {
        event.review_id: event.kind for event in events if event.kind in ("review_opened", "review_settled")
    }
    return tuple(review_id for review_id, kind in last.items() if kind == "review_settled")


def _id_of(event: QueueEvent) -> str:
    return event.task_id or event.review_id
