"""The log as those follow it who wait: long polls, event streams, later webhooks and the tree.

A feed follows the index, on every replica alike: what it shows is committed, in order and without a gap. It
keeps the newest events in memory with whose they are, so that a thousand who wait cost one query, and wakes only
those whom an event is about. Waiting holds no lock and no connection. Events carry ids and kinds, never content.
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
"""The topic of what open pages show: what people are asked and say, and that one of them has signed out."""

_PAGE = 500  # lines read at once


def transaction_topic(txn: str) -> str:
    """The topic of one transaction."""
    return f"txn {txn}"


def party_topic(name: str) -> str:
    """The topic of what an agent submitted and what it alone may redeem."""
    return f"party {name}"


@dataclass(frozen=True, slots=True)
class Event:
    """That something happened, and to what."""

    index: int
    kind: str
    txn: str | None = None
    effect_id: str | None = None
    rev: int | None = None
    review_id: str | None = None
    task_id: str | None = None
    parties: frozenset[str] = frozenset()  # who submitted its transaction, and who may redeem that

    @property
    def for_people(self) -> bool:
        """Whether an open page may have to show it, or to end."""
        return self.review_id is not None or self.task_id is not None or self.kind == "signed_out"

    @property
    def topics(self) -> frozenset[str]:
        """What it is about."""
        found = {EVERYTHING, *map(party_topic, self.parties)}
        if self.txn is not None:
            found.add(transaction_topic(self.txn))
        return frozenset(found | {PEOPLE} if self.for_people else found)


class Feed:
    """Follows the log. One for each process."""

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
        self.closing = False
        self.errors = 0
        self.signal = signal or Signal()

    @property
    def index(self) -> int:
        """The newest index this process knows; 0 while the log is empty."""
        return self._index

    # -- following -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin at the newest line: whoever asks for older ones is served from the database."""
        self._index = await self._db.read(highest_index)

    async def run(self) -> None:
        """Follow until cancelled. An error of one look is said and the next look tries again."""
        while not self.closing:
            self._hurry.clear()
            try:
                await self.refresh()
                self.signal.good()
            except Exception:
                # Those who wait are told by nobody else, so this loop ends only with the service.
                self.errors += 1
                self.signal.bad("the log cannot be followed, so nobody who waits is told anything")
                log.exception("feed_refresh_failed", errors=self.errors)
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._hurry.wait()
            except TimeoutError:
                continue

    def hint(self, _index: int = 0) -> None:
        """There is something new: look now. On the event loop."""
        self._hurry.set()

    async def refresh(self) -> None:
        """Read what is new and wake whom it concerns."""
        async with self._refreshing:
            while events := await self._db.read(lambda conn: _events_after(conn, self._index, _PAGE)):
                self._recent.extend(events)
                self._index = events[-1].index
                self._on_index(self._index)
                self._wake({topic for event in events for topic in event.topics})

    def close(self) -> None:
        """The service stops: everybody who waits goes on at once."""
        self.closing = True
        self._hurry.set()
        self._wake(set(self._waiting))

    # -- waiting -------------------------------------------------------------------------------------------

    async def wait_after(self, index: int, timeout: float, *, topic: str = EVERYTHING) -> Sequence[Event]:
        """Events of a topic above ``index``, as soon as there are any; none when the time is up.

        Whoever reads a row first and then waits with the index noted *before* reading misses nothing.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            events, index = await self.follow(index, deadline - loop.time(), topic)
            if events or self.closing or (index >= self._index and loop.time() >= deadline):
                return events

    async def follow(self, index: int, timeout: float, topic: str) -> tuple[list[Event], int]:
        """Events of a topic above ``index``, and how far was looked: at most through a page.

        At once where there are lines to look through, else as soon as there are events, or when the time is up.
        """
        events, reached = await self._look(index, topic)
        if events or reached < self._index or self.closing:
            return events, reached
        if not await self._woken(topic, timeout):
            return [], self._index  # whatever came meanwhile would have woken us
        return await self._look(reached, topic)

    async def _look(self, index: int, topic: str) -> tuple[list[Event], int]:
        reached = self._index
        page = await self.events_after(index, _PAGE)
        if page:
            last = page[-1].index  # what came while the page was read is on it, and not told twice
            reached = last if len(page) == _PAGE else max(reached, last)
        return [event for event in page if topic in event.topics], max(index, reached)

    async def events_after(self, index: int, limit: int) -> list[Event]:
        """At most ``limit`` events above ``index``, in order; from memory where it reaches back so far."""
        if index >= self._index:
            return []
        oldest = self._recent[0].index if self._recent else self._index + 1
        if index + 1 >= oldest:
            return self._remembered(index)[:limit]
        events = await self._db.read(lambda conn: _events_after(conn, index, limit))
        return [event for event in events if event.index <= self._index]

    def _remembered(self, index: int) -> list[Event]:
        """From the newest backwards: who waits is seldom far behind."""
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
            return woken.done() and not woken.cancelled()  # woken in the very moment the time was up
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
