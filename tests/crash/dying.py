"""A process that ends by SIGKILL at a given point, and records which fault points it has passed.

Put into a child process after it was forked, around the real code: what commits, what makes files durable, what asks
the service, what calls a tool. `before` is the last moment at which the act has not happened (a unit of work has run,
its COMMIT is not sent; a journal transaction has run, its COMMIT is not sent; a request is not sent; a tool is not
called); `after` is the first at which it has and no caller was notified.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tests.crash import points
from tests.crash.points import Site


@dataclass(frozen=True)
class Death:
    """Where a process ends: at the nth time it passes that point in that phase."""

    point: str
    phase: str
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.phase} {self.point} #{self.nth}"


Act = Callable[..., Any]


class Passing:
    """Counts and writes down the points as they are passed, and ends the process at one of them."""

    def __init__(self, log: Path, death: Death | None) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._death = death
        self._counts: dict[tuple[str, str], int] = {}

    def __call__(self, phase: str, point: str) -> None:
        nth = self._counts[phase, point] = self._counts.get((phase, point), 0) + 1
        died = self._death == Death(point, phase, nth)
        os.write(self._log, f"{phase}\t{point}\t{nth}\t{'died' if died else ''}\n".encode())
        if died:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()  # another thread may be a moment ahead of the signal; this one goes no further


def _name(sites: dict[str, list[Site]], frame: FrameType | None) -> str | None:
    """The fault point of the calling frame."""
    if frame is None:
        return None
    for site in sites.get(frame.f_code.co_filename, ()):
        if site.first <= frame.f_lineno <= site.last:
            return site.name if site.many is None else f"{site.name}[{_which(frame.f_locals[site.many])}]"
    return None


def _which(value: Any) -> str:
    """The name of a value that distinguishes the points of one call: its own, or its name in the table it is from."""
    if isinstance(value, str):
        return value
    from policy_service.channels.admin.commands import COMMANDS
    from policy_service.workflow.expiry import sweep

    tables: tuple[dict[str, Any], ...] = (COMMANDS, vars(sweep))
    return next(name for table in tables for name, known in table.items() if known is value)


@functools.cache
def _by_file(sites: tuple[Site, ...]) -> dict[str, list[Site]]:
    found: dict[str, list[Site]] = {}
    for site in sites:
        found.setdefault(str(site.file), []).append(site)
    return found


# ------------------------------------------------------------------------------------------------------ the service


class _Watched:
    """A unit of work that reports when it has run; `resolve_futures` reports the commit."""

    def __init__(self, unit: Callable[[Any], Any], point: str, passing: Passing) -> None:
        self.unit, self.point, self.passing = unit, point, passing

    def __call__(self, tx: Any) -> Any:
        answer = self.unit(tx)
        self.passing("before", self.point)
        return answer


def watch_service(passing: Passing) -> None:
    """Put the points of the service into this process."""
    from policy_service.storage import database, postgres, sqlite_writer
    from policy_service.storage.unit_of_work import ObservedUnit

    sites = _by_file(points.service_sites())

    def watching(write: Callable[..., Any]) -> Callable[..., Any]:
        def watched(self: Any, unit: Callable[[Any], Any]) -> Any:
            point = _name(sites, sys._getframe(1))
            if point is None:
                passing("unnamed", sys._getframe(1).f_code.co_qualname)
                return write(self, unit)
            return write(self, _Watched(unit, point, passing))

        return watched

    def delivering(deliver: Callable[[Any], None]) -> Callable[[Any], None]:
        def watched(batch: Any) -> None:
            waiting = list(batch)
            for one in waiting:
                unit = one.unit.unit if isinstance(one.unit, ObservedUnit) else one.unit
                if isinstance(unit, _Watched) and one.error is None:
                    passing("after", unit.point)
            deliver(waiting)

        return watched

    for name in points.WRITES:
        setattr(database.Database, name, watching(getattr(database.Database, name)))
    for module in (sqlite_writer, postgres):
        module.resolve_futures = delivering(module.resolve_futures)  # type: ignore[attr-defined]
    _watch_files(sites, passing)


def _watch_files(sites: dict[str, list[Site]], passing: Passing) -> None:
    """Wrap, in each module that has such a point, the functions that make files durable."""
    for found in sites.values():
        for site in found:
            module = importlib.import_module(f"policy_service.{site.name.partition(':')[0]}")
            for name in points.DURABLE & vars(module).keys():
                if not hasattr(vars(module)[name], "watched"):
                    setattr(module, name, _watched_call(vars(module)[name], sites, passing))


def _watched_call(act: Act, sites: dict[str, list[Site]], passing: Passing) -> Act:
    @functools.wraps(act)
    def watched(*args: Any, **kwargs: Any) -> Any:
        point = _name(sites, sys._getframe(1))
        if point is None:
            return act(*args, **kwargs)
        passing("before", point)
        answer = act(*args, **kwargs)
        passing("after", point)
        return answer

    watched.watched = True  # type: ignore[attr-defined]
    return watched


# -------------------------------------------------------------------------------------------------------- the agent


def watch_agent(passing: Passing) -> None:
    """Put the points of the SDK into this process."""
    from countersign.async_executor import AsyncExecutor
    from countersign.concurrency import SyncExecutor
    from countersign.journal.database import Database
    from countersign.journal.leases import Leases
    from countersign.live.work import LiveWork
    from countersign.service.client import Service

    sites = _by_file(points.agent_sites())
    unit = Database.unit

    through = Leases.unit.__wrapped__.__code__  # type: ignore[attr-defined]

    def watched_unit(self: Any, *, durable: bool) -> Any:
        frame = sys._getframe(1)
        if frame.f_code is through and frame.f_back is not None:  # past contextlib, to who begins the unit
            frame = frame.f_back.f_back or frame
        point = _name(sites, frame)
        if point is None:
            passing("unnamed", frame.f_code.co_qualname)
        return _journaled(unit(self, durable=durable), point or "?", passing)

    Database.unit = watched_unit  # type: ignore[method-assign,assignment]
    for waits in (SyncExecutor, AsyncExecutor):
        waits.call = _watched_tool(waits.call, sites, passing)  # type: ignore[method-assign]
    for point in points.requests():
        name = point.rpartition(".")[2]
        setattr(Service, name, _watched_request(getattr(Service, name), point, passing))
    for point in points.live_moves():
        name = point.rpartition(".")[2]
        setattr(LiveWork, name, _watched_live(getattr(LiveWork, name), point, passing))


@contextmanager
def _journaled(unit: Any, point: str, passing: Passing) -> Iterator[Any]:
    with unit as connection:
        yield connection
        passing("before", point)
    passing("after", point)


def _watched_tool(call: Act, sites: dict[str, list[Site]], passing: Passing) -> Act:
    def watched(self: Any, fn: Any, kwargs: Any, timeout_seconds: float | None) -> Any:
        point = _name(sites, sys._getframe(1)) or "?"

        async def called() -> Any:
            passing("before", point)
            try:
                return await call(self, fn, kwargs, timeout_seconds)
            finally:
                passing("after", point)

        return called()

    return watched


def _watched_request(send: Act, point: str, passing: Passing) -> Callable[..., Any]:
    assert inspect.iscoroutinefunction(send)

    @functools.wraps(send)
    async def watched(*args: Any, **kwargs: Any) -> Any:
        passing("before", point)
        answer = await send(*args, **kwargs)
        passing("after", point)
        return answer

    return watched


def _watched_live(act: Act, point: str, passing: Passing) -> Callable[..., Any]:
    @functools.wraps(act)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        nothing = not point.endswith(".run") and not self
        if nothing:
            return act(self, *args, **kwargs)
        passing("before", point)
        answer = act(self, *args, **kwargs)
        passing("after", point)
        return answer

    return watched


_by_file(points.service_sites())  # read once, before anything forks: every child begins with it
_by_file(points.agent_sites())
