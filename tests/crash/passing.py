"""The points an agent process of alone.py passes, and what becomes of it at one: a `kill -9`, or its task is cancelled.

Every journal commit, every request, every move of the live lane and every act on the world, before and after. They are
counted and written down as they are passed, so a list of all of them comes from a run that survives.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from countersign.adapters.postgres import PostgresSession
from countersign.adapters.redo_log import SessionFolder
from countersign.adapters.sqlite import SQLiteSession
from countersign.async_executor import AsyncExecutor
from countersign.concurrency import SyncExecutor
from countersign.http_clients import HttpRequest, HttpResponse
from countersign.journal.database import Database
from countersign.live.work import LiveWork


class Points:
    """Those of one process, and where it ends."""

    def __init__(self, log: Path, life: Any) -> None:
        """`life`, an `alone.Life`, has the point at which it ends."""
        self._log = log.open("w", buffering=1)
        self._dies_at, self._dies_after = life.dies_at, life.dies_after
        self._cancelled_after, self._cancelled_at = life.cancelled_after, life.cancelled_at
        self._counts: dict[str, int] = {}
        self.cancel: Callable[[], object] = lambda: None  # of the running task

    def __call__(self, name: str) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1
        point, passed = f"{name} #{self._counts[name]}", sum(self._counts.values())
        self._log.write(point + "\n")
        if point == self._dies_at or passed == self._dies_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if passed == self._cancelled_after or (self._cancelled_at is not None and self._cancelled_at in name):
            self._cancelled_at = None
            self.cancel()


_here: list[Points] = []  # in a process that is watched


def passing(name: str) -> None:
    """This point is passed here; it matters in a watched process alone."""
    for points in _here:
        points(name)


def watch(points: Points) -> None:
    """Put the points of the SDK into this process."""
    _here.append(points)
    unit = Database.unit

    @contextmanager
    def watched_unit(self: Database, *, durable: bool) -> Iterator[Any]:
        kind = "durable commit" if durable else "commit"
        with unit(self, durable=durable) as connection:
            yield connection
            passing(f"before {kind}")
        passing(f"after {kind}")

    Database.unit = watched_unit  # type: ignore[method-assign]
    for waits in (SyncExecutor, AsyncExecutor):
        waits.send = _watched_send(waits.send)  # type: ignore[method-assign]
    for move in ("prepare", "commit"):
        _watch_act(LiveWork, move, f"live {move}")
    for session in (SQLiteSession, PostgresSession):
        _watch_act(session, "commit", "live rows committed")
    _watch_act(SessionFolder, "_apply", "file put in place")


def _watched_send(send: Callable[..., Any]) -> Callable[..., Any]:
    async def watched(self: Any, asked: HttpRequest) -> HttpResponse:
        where = f"{asked.method} {'/'.join(asked.target.split('/')[:3])}"
        passing(f"before {where}")
        answered: HttpResponse = await send(self, asked)
        passing(f"after {where}")
        return answered

    return watched


def _watch_act(owner: Any, name: str, what: str) -> None:
    act = getattr(owner, name)

    def acting(self: Any, *args: Any) -> Any:
        if owner is LiveWork and not self:
            return act(self, *args)
        passing(f"before {what}")
        answer = act(self, *args)
        passing(f"after {what}")
        return answer

    setattr(owner, name, acting)
