"""The log as those follow it who wait: long polls, event streams, later webhooks and the tree.

A feed follows the index, on every replica alike: what it shows is committed, in order and without a gap. It
keeps the newest events in memory, so that a thousand who wait cost one query. Waiting holds no lock and no
connection. Events carry ids and kinds, never content.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from policy_service.audit.log import Entry, entries_after, highest_index
from policy_service.health import Signal
from policy_service.storage.database import Database

log = structlog.get_logger(__name__)

_PAGE = 500  # lines read at once


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
        self._everything: set[asyncio.Future[None]] = set()
        self._by_txn: dict[str, set[asyncio.Future[None]]] = {}
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
            while entries := await self._db.read(lambda conn: entries_after(conn, self._index, _PAGE)):
                events = [_event(entry) for entry in entries]
                self._recent.extend(events)
                self._index = events[-1].index
                self._on_index(self._index)
                self._wake({event.txn for event in events if event.txn is not None})

    def close(self) -> None:
        """The service stops: everybody who waits goes on at once."""
        self.closing = True
        self._hurry.set()
        self._wake(set(self._by_txn))

    # -- waiting -------------------------------------------------------------------------------------------

    async def wait_after(self, index: int, timeout: float, *, txn: str | None = None) -> Sequence[Event]:
        """Events above ``index``, as soon as there are any; none when the time is up.

        With ``txn`` only events of that transaction count and end the wait. Whoever reads a row first and
        then waits with the index noted *before* reading misses nothing.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            reached = self._index
            page = await self.events_after(index, _PAGE)
            if events := [event for event in page if txn in (None, event.txn)]:
                return events
            index = page[-1].index if len(page) == _PAGE else max(index, reached)
            if index < self._index:
                continue  # there is another page, or something came while this one was read
            if self.closing or not await self._woken(txn, deadline - loop.time()):
                return []

    async def events_after(self, index: int, limit: int) -> list[Event]:
        """At most ``limit`` events above ``index``, in order; from memory where it reaches back so far."""
        if index >= self._index:
            return []
        oldest = self._recent[0].index if self._recent else self._index + 1
        if index + 1 >= oldest:
            return self._remembered(index)[:limit]
        entries = await self._db.read(lambda conn: entries_after(conn, index, limit))
        return [_event(entry) for entry in entries if entry.index <= self._index]

    def _remembered(self, index: int) -> list[Event]:
        """From the newest backwards: who waits is seldom far behind."""
        newer: list[Event] = []
        for event in reversed(self._recent):
            if event.index <= index:
                break
            newer.append(event)
        newer.reverse()
        return newer

    async def _woken(self, txn: str | None, seconds: float) -> bool:
        if seconds <= 0:
            return False
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._everything if txn is None else self._by_txn.setdefault(txn, set())
        waiters.add(woken)
        try:
            async with asyncio.timeout(seconds):
                await woken
        except TimeoutError:
            return False
        finally:
            waiters.discard(woken)
            if txn is not None and not waiters:
                self._by_txn.pop(txn, None)
        return True

    def _wake(self, txns: set[str]) -> None:
        for waiters in (self._everything, *(self._by_txn.get(txn, set()) for txn in txns)):
            for woken in waiters:
                if not woken.done():
                    woken.set_result(None)


def _event(entry: Entry) -> Event:
    return Event(
        entry.index, entry.kind, entry.txn, entry.effect_id, entry.rev,
        _named(entry, "review_id"), _named(entry, "task_id"),
    )  # fmt: skip


def _named(entry: Entry, name: str) -> str | None:
    value = entry.body.get(name)
    return value if isinstance(value, str) else None
