"""The event stream of the pages: ids and kinds, never HTML, never a word of an agent's.

A stream belongs to a session, ends with it and does not keep it from idling out. It ends when the service stops, too:
browsers come back by themselves with the last index they saw.
"""

import json
from collections.abc import AsyncIterator, Sequence

from fastapi.sse import format_sse_event

from policy_service.channels.web.ports import EventFeed, QueueEvent, Sessions

HEARTBEAT_SECONDS = (
    15.0  # proxies cut a silent stream after 30 to 60; also how often the session is looked at
)
BATCH = 100  # events a read; more arrive with the next


async def stream(
    feed: EventFeed, sessions: Sessions, cookie: str, after: int, review_id: str | None
) -> AsyncIterator[bytes]:
    """Server-sent events after an index, for one session, until it or the service ends."""
    index = after
    yield format_sse_event(comment="open", retry=2_000)
    while not feed.closing and (session := await sessions.find(cookie, touch=False)) is not None:
        batch = await feed.events_after(session.person, index, BATCH)
        for event in _about(batch.events, review_id):
            yield _wire(event)
        if batch.index > index:
            index = batch.index
            continue
        await feed.wait_after(index, HEARTBEAT_SECONDS)
        yield format_sse_event(comment="still here")


def _about(events: Sequence[QueueEvent], review_id: str | None) -> list[QueueEvent]:
    return [event for event in events if review_id is None or event.review_id == review_id]


def _wire(event: QueueEvent) -> bytes:
    data = json.dumps({"kind": event.kind, "review_id": event.review_id}, separators=(",", ":"))
    return format_sse_event(event="review", data_str=data, id=str(event.index))


def tell(events: Sequence[QueueEvent]) -> tuple[int, int]:
    """How many reviews were opened and how many settled, each counted once and none as both."""
    opened = {event.review_id for event in events if event.kind == "review_opened"}
    settled = {event.review_id for event in events if event.kind == "review_settled"}
    return len(opened - settled), len(settled - opened)
