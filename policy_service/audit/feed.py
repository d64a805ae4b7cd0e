"""The feed: committed audit lines for readers that wait, such as long polls and event streams.

The feed follows the index on every replica, so it shows committed lines in order without gaps. The newest events stay
in memory with their topics. A thousand waiting readers then cost one query, and only readers of a matching topic wake.
Waiting holds no lock and no connection. Events carry ids and kinds, never content.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection

from policy_service.audit.log import Entry, entries_after, highest_index, parties_by_txn
from policy_service.health import Signal
from policy_service.storage.database import Database

log = structlog.get_logger(__name__)

EVERYTHING = "everything"
"""The topic of every event."""

PEOPLE = "people"
"""The topic of events an open page may show: reviews, tasks, and sign-outs."""

_PAGE = 500  # lines read at once
_SPACING_S = 0.02  # under load, one pass reads the lines of many commits


def transaction_topic(txn: str) -> str:
    """The topic of one transaction."""
    return f"txn {txn}"


def party_topic(name: str) -> str:
    """The topic of the transactions an agent submitted or may redeem."""
    return f"party {name}"


@dataclass(frozen=True, slots=True)
class Event:
    """An audit line without its content."""

    index: int
    kind: str
    txn: str | None = None
    effect_id: str | None = None
    rev: int | None = None
    review_id: str | None = None
    task_id: str | None = None
    parties: frozenset[str] = frozenset()  # the agent and the aud of its transaction

    @property
    def for_people(self) -> bool:
        """Whether an open page may have to show it, or to close."""
        return self.review_id is not None or self.task_id is not None or self.kind == "signed_out"

    @property
    def topics(self) -> frozenset[str]:
        """The topics it belongs to."""
        found = {EVERYTHING, *map(party_topic, self.parties)}
        if self.txn is not None:
            found.add(transaction_topic(self.txn))
        return frozenset(found | {PEOPLE} if self.for_people else found)


class Feed:
    """Follows the audit log. One per process."""

    def __init__(
        self,
        db: Database,
        *,
        keep: int = 5_000,
        poll_s: float = 0.5,
        on_index: Callable[[int], None] = lambda index: None,
        signal: Signal | None = None,
    ) -> None:
        self._db = db
        self._recent: deque[Event] = deque(maxlen=keep)
        self._poll_s = poll_s
        self._on_index = on_index
        self._index = 0
        self._refreshing = asyncio.Lock()
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}  # by topic
        self._hurry = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.closing = False
        self.errors = 0
        self.signal = signal or Signal()

    @property
    def index(self) -> int:
        """The highest index this process has seen; 0 for an empty log."""
        return self._index

    # -- following -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start at the highest index; older events are read from the database."""
        self._index = await self._db.read(highest_index)

    async def run(self) -> None:
        """Follow until cancelled. An error is logged and the next pass retries."""
        self._loop = asyncio.get_running_loop()
        while not self.closing:
            self._hurry.clear()
            try:
                await self.refresh()
                self.signal.good()
            except Exception:
                # Waiting readers depend on this loop, so it ends only with the service.
                self.errors += 1
                self.signal.bad("the audit log cannot be read, so waiting clients get no news")
                log.exception("feed_refresh_failed", errors=self.errors)
            await asyncio.sleep(_SPACING_S)
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._hurry.wait()
            except TimeoutError:
                continue

    def nudge(self) -> None:
        """Signal that there may be new lines, from any thread. A hint: the next pass comes without it too."""
        loop = self._loop
        if loop is not None and not self._hurry.is_set() and not loop.is_closed():
            loop.call_soon_threadsafe(self._hurry.set)

    async def refresh(self) -> None:
        """Read the new lines and wake the readers of their topics."""
        async with self._refreshing:
            while events := await self._db.read(lambda conn: _events_after(conn, self._index, _PAGE)):
                self._recent.extend(events)
                self._index = events[-1].index
                self._on_index(self._index)
                self._wake({topic for event in events for topic in event.topics})

    def close(self) -> None:
        """The service stops: wake every reader."""
        self.closing = True
        self._hurry.set()
        self._wake(set(self._waiting))

    # -- waiting -------------------------------------------------------------------------------------------

    async def wait_after(self, index: int, timeout: float, *, topic: str = EVERYTHING) -> Sequence[Event]:
        """Wait for events of a topic above ``index``; empty after the timeout.

        To miss nothing, note the index, read the row, then wait after that index.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            events, index = await self.follow(index, deadline - loop.time(), topic)
            if events or self.closing or (index >= self._index and loop.time() >= deadline):
                return events

    async def follow(self, index: int, timeout: float, topic: str) -> tuple[list[Event], int]:
        """Events of a topic above ``index``, and the index scanned so far: at most one page.

        Returns at once if there are lines to scan, else at the first event or after the timeout.
        """
        events, reached = await self._look(index, topic)
        if events or reached < self._index or self.closing:
            return events, reached
        if not await self._woken(topic, timeout):
            return [], self._index  # a matching event would have woken this reader
        return await self._look(reached, topic)

    async def _look(self, index: int, topic: str) -> tuple[list[Event], int]:
        reached = self._index
        page = await self.events_after(index, _PAGE)
        if page:
            last = page[-1].index  # lines committed during the read are on the page and must not repeat
            reached = last if len(page) == _PAGE else max(reached, last)
        return [event for event in page if topic in event.topics], max(index, reached)

    async def events_after(self, index: int, limit: int) -> list[Event]:
        """At most ``limit`` events above ``index``, in order, from memory if it reaches back far enough."""
        if index >= self._index:
            return []
        oldest = self._recent[0].index if self._recent else self._index + 1
        if index + 1 >= oldest:
            return self._remembered(index)[:limit]
        events = await self._db.read(lambda conn: _events_after(conn, index, limit))
        return [event for event in events if event.index <= self._index]

    def _remembered(self, index: int) -> list[Event]:
        """Scanned from the newest: a waiting reader is rarely far behind."""
        newer: list[Event] = []
        for event in reversed(self._recent):
            if event.index <= index:
                break
            newer.append(event)
        newer.reverse()
        return newer

    async def _woken(self, topic: str, seconds: float) -> bool:
        if seconds <= 0:
            return False
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiting.setdefault(topic, set())
        waiters.add(woken)
        try:
            async with asyncio.timeout(seconds):
                await woken
        except TimeoutError:
            return woken.done() and not woken.cancelled()  # woken at the moment of the timeout
        finally:
            waiters.discard(woken)
            if not waiters and self._waiting.get(topic) is waiters:
                del self._waiting[topic]
        return True

    def _wake(self, topics: set[str]) -> None:
        for topic in topics & self._waiting.keys():
            for woken in self._waiting[topic]:
                if not woken.done():
                    woken.set_result(None)


def _events_after(conn: Connection, index: int, limit: int) -> list[Event]:
    entries = entries_after(conn, index, limit)
    parties = parties_by_txn(conn, {entry.txn for entry in entries if entry.txn is not None})
    return [_event(entry, parties.get(entry.txn or "", frozenset())) for entry in entries]


def _event(entry: Entry, parties: frozenset[str]) -> Event:
    return Event(
        entry.index, entry.kind, entry.txn, entry.effect_id, entry.rev,
        _string_member(entry, "review_id"), _string_member(entry, "task_id"), parties,
    )  # fmt: skip


def _string_member(entry: Entry, name: str) -> str | None:
    value = entry.body.get(name)
    return value if isinstance(value, str) else None
