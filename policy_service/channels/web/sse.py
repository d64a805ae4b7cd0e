"""Server-sent events of the pages: ids and kinds, no HTML and no text of agents.

A stream ends with its session and does not count as activity. It also ends when the service stops; browsers
reconnect with the last index they saw. An idle stream checks its session at each heartbeat, after a sign-out
and before it sends. Rows that no page shows do not wake it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from fastapi import Request
from fastapi.sse import format_sse_event

from policy_service import metrics
from policy_service.audit.feed import PEOPLE, Event, Feed
from policy_service.errors import InvalidRequestError
from policy_service.identity.sessions import Sessions

HEARTBEAT_SECONDS = (
    15.0  # proxies close a silent stream after 30 to 60 s; also the interval of session checks
)
BATCH_SIZE = 100  # events per read


_ABOUT_TASKS = frozenset({"task_opened", "task_settled"})
_OPENED = frozenset({"review_opened", "review_reopened"})


@dataclass(frozen=True, slots=True)
class QueueEvent:
    """An event of a review or a task. `index` is the index of its audit row."""

    index: int
    kind: str  # "review_opened", "vote_recorded", "review_settled", "task_opened", "task_settled", ...
    review_id: str = ""
    task_id: str = ""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events in order, and the index reached; rows about other things are skipped."""

    events: tuple[QueueEvent, ...]
    index: int
    session_ended: bool  # whether a session ended among the skipped rows


async def read_events(feed: Feed, index: int, limit: int) -> EventBatch:
    """Events about reviews and tasks among the next `limit` audit rows after an index."""
    found = await feed.events_after(index, limit)
    events = tuple(shown for event in found if (shown := _queue_event(event)) is not None)
    left = any(event.kind == "signed_out" for event in found)
    return EventBatch(events, found[-1].index if found else index, left)


def _queue_event(event: Event) -> QueueEvent | None:
    if event.kind in _ABOUT_TASKS and event.task_id is not None:
        return QueueEvent(event.index, event.kind, task_id=event.task_id)
    if event.review_id is None:
        return None
    return QueueEvent(event.index, "review_opened" if event.kind in _OPENED else event.kind, event.review_id)


async def _wait_after(feed: Feed, index: int, timeout_seconds: float) -> int:
    """Wait until there may be an event, and return the index before it."""
    found, reached = await feed.follow(index, timeout_seconds, PEOPLE)
    return found[0].index - 1 if found else reached


async def stream(
    feed: Feed, sessions: Sessions, cookie: str, after: int, about: str | None
) -> AsyncIterator[bytes]:
    """Server-sent events after an index, about one review or task or about all, until the session or the
    service ends.
    """
    index, clock = after, asyncio.get_running_loop().time
    with metrics.STREAMS.labels("web").track_inprogress():
        yield format_sse_event(comment="open", retry=2_000)
        session, due = await sessions.find(cookie, touch=False), clock() + HEARTBEAT_SECONDS
        while session is not None and not feed.closing:
            batch = await read_events(feed, index, BATCH_SIZE)
            shown, silent = _about(batch.events, about), clock() >= due
            if shown or silent or batch.session_ended:
                session = await sessions.find(cookie, touch=False)
                if session is None:
                    return
            for event in shown:
                yield _encode(event)
            if silent:
                yield format_sse_event(comment="still here", id=str(batch.index))
            if shown or silent:
                due = clock() + HEARTBEAT_SECONDS
            if batch.index > index:
                index = batch.index
            else:
                index = await _wait_after(feed, index, due - clock())


def _about(events: Sequence[QueueEvent], about: str | None) -> list[QueueEvent]:
    return [event for event in events if about is None or about in {event.review_id, event.task_id}]


def _encode(event: QueueEvent) -> bytes:
    name, shown = ("task", event.task_id) if event.task_id else ("review", event.review_id)
    data = json.dumps({"kind": event.kind, f"{name}_id": shown}, separators=(",", ":"))
    return format_sse_event(event=name, data_str=data, id=str(event.index))


def index_param(request: Request, name: str) -> int:
    """An index in the page's address."""
    return parse_index(request.query_params.get(name, "0"))


def parse_index(text: str) -> int:
    """An index of the audit log.

    Raises InvalidRequestError for any other text.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidRequestError(f"an index is a whole number, not {text!r}")
    return int(text)


def count_changes(events: Sequence[QueueEvent], what: str = "review") -> tuple[int, int]:
    """How many reviews (or tasks) were opened and how many settled; none is counted as both."""
    opened = {_id_of(event) for event in events if event.kind == f"{what}_opened"}
    settled = {_id_of(event) for event in events if event.kind == f"{what}_settled"}
    return len(opened - settled), len(settled - opened)


def settled_ids(events: Sequence[QueueEvent]) -> tuple[str, ...]:
    """The reviews that settled and were not reopened."""
    last = {
        event.review_id: event.kind for event in events if event.kind in ("review_opened", "review_settled")
    }
    return tuple(review_id for review_id, kind in last.items() if kind == "review_settled")


def _id_of(event: QueueEvent) -> str:
    return event.task_id or event.review_id
