"""Waiting: the blocking executor, and calls in a thread of their own (async_executor.py has the awaiting one).

`SyncExecutor` never suspends, so `run_sync` can drive any coroutine of the SDK to its end with one `send`: there is
one protocol engine (commit/commit.py), written as async, not two. A coroutine that suspends anyway needs an event loop
in a blocking transaction, and is refused.

A call in a thread of its own is the only way to stop waiting for code that does not return. A thread is a
daemon and sees the caller's context variables. It cannot be ended, so its effects after a timeout are unknown. It takes
another call after one that returned, since starting one is costly; it ends if its call raised, or in a forked child.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

import httpx2

from countersign.errors import MisuseError
from countersign.http_clients import HttpRequest, HttpResponse, send
from countersign.texts import text_of

_IDLE: Final = "countersign-idle"
_SLICE_SECONDS: Final = 0.5  # a signal just before a wait is only handled when that wait ends
_MAX_IDLE: Final = 8  # idle threads kept for a next call


class ToolTimeoutError(TimeoutError):
    """We stopped waiting for a tool, so the outcome is unknown, even if it declares what its failures mean."""


@dataclass(frozen=True, slots=True)
class ValueOrError:
    """A value or an exception: asyncio may replace a raised exception by another, which loses its origin."""

    value: Any = None
    error: BaseException | None = None

    def answer(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class ThreadedCall:
    """One call in a thread, started."""

    def __init__(self, fn: Callable[..., object], kwargs: dict[str, Any]) -> None:
        self._future: Future[ValueOrError] = Future()
        self._future.set_running_or_notify_cancel()  # it can no longer be cancelled
        context = contextvars.copy_context()
        _submit(lambda: context.run(self._run, fn, kwargs), f"countersign-{getattr(fn, '__name__', 'tool')}")

    def _run(self, fn: Callable[..., object], kwargs: dict[str, Any]) -> bool:
        """Whether it returned, in the process that started it."""
        pid = os.getpid()
        try:
            self._future.set_result(ValueOrError(fn(**kwargs)))
        except StopIteration as error:  # a coroutine cannot raise it
            self._future.set_result(
                ValueOrError(error=RuntimeError(f"it raised StopIteration({text_of(error)})"))
            )
        except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
            self._future.set_result(ValueOrError(error=error))
        else:
            return os.getpid() == pid
        return False

    def wait(self, seconds: float | None = None) -> bool:
        """Block until it has ended or the time is up; returns whether it has ended."""
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            left = _SLICE_SECONDS if until is None else min(_SLICE_SECONDS, until - time.monotonic())
            if wait([self._future], max(left, 0.0)).done:
                return True
            if until is not None and time.monotonic() >= until:
                return False

    @property
    def has_ended(self) -> bool:
        return self._future.done()

    def result(self, seconds: float | None) -> Any:
        """Block until it has returned.

        Raises:
            ToolTimeoutError: it has not in that time.
            BaseException: what it raised.
        """
        if not self.wait(seconds):
            raise ToolTimeoutError(f"no answer within {seconds} s")
        # Without a timeout here: a TimeoutError of the call itself is its result.
        return self._future.result().answer()

    async def ended(self) -> Any:
        """Await its result."""
        return (await asyncio.wrap_future(self._future)).answer()


class _Worker:
    """A thread that takes one call after the other. It ends when one raised or enough others are idle."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[Callable[[], bool]] = SimpleQueue()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        while True:
            call = self.calls.get()
            if not call():
                return
            del call  # release what the call holds before waiting for the next one
            self.thread.name = _IDLE
            if len(_idle) >= _MAX_IDLE:
                return
            _idle.append(self)


_idle: deque[_Worker] = deque()
os.register_at_fork(after_in_child=_idle.clear)  # the child has none of the parent's threads


def _submit(call: Callable[[], bool], name: str) -> None:
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
        worker.thread.start()
    worker.thread.name = name
    worker.calls.put(call)


T = TypeVar("T")

Part = Callable[[], Coroutine[Any, Any, object]]
"""One of several coroutines to run concurrently."""

OnProgress = Callable[[Sequence[tuple[int, object]]], None]
"""Receives the parts that have ended, as (index, result), while others still run."""


@dataclass(frozen=True, slots=True)
class CallRaised:
    """A call that did not return. A cancelled task may have `left` something running."""

    error: BaseException
    left: bool = False


@dataclass(frozen=True, slots=True)
class StillRunning:
    """The call had not ended when the wait for it was interrupted."""


class InterruptedWaitError(BaseException):
    """The wait was interrupted. `answers` has what ended before, in order, and `StillRunning` for the others."""

    def __init__(self, answers: Sequence[object], interrupt: BaseException) -> None:
        self.answers, self.interrupt = tuple(answers), interrupt
        super().__init__(f"interrupted by {type(interrupt).__name__}")


class Executor(Protocol):
    """How the engine waits, calls tools and sends requests."""

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Perform one request. Raises httpx2.TransportError for network errors."""

    async def sleep(self, seconds: float) -> None: ...

    async def call(
        self, fn: Callable[..., object], kwargs: dict[str, Any], timeout_seconds: float | None
    ) -> object:
        """Call a tool and return its result, awaited if it is async. With a timeout a plain function runs in a
        thread of its own; without one, in the caller's.

        Raises:
            ToolTimeoutError: it has not ended in that time. A thread, or a task that ignores its cancellation, goes
                on with unknown effect.
        """

    async def together(self, parts: Sequence[Part], meanwhile: OnProgress = lambda _: None) -> list[object]:
        """Run all of them concurrently and wait until each has ended; the results in order, `CallRaised` for an
        exception. A single part may raise anything but an `Exception`. `meanwhile` receives each part that ends
        before the last.

        Raises:
            InterruptedWaitError: the wait for several was interrupted; the others still run, or were cancelled.
        """


class SyncExecutor:
    """Blocks the calling thread."""

    def __init__(self, http: Callable[[], httpx2.Client]) -> None:
        self._http = http

    async def send(self, request: HttpRequest) -> HttpResponse:
        return send(self._http(), request)

    async def sleep(self, seconds: float) -> None:
        # This class is meant to block; nothing else runs on this thread.
        time.sleep(seconds)  # noqa: ASYNC251

    async def call(
        self, fn: Callable[..., object], kwargs: dict[str, Any], timeout_seconds: float | None
    ) -> object:
        if inspect.iscoroutinefunction(fn):
            raise MisuseError(f"{fn!r} is async; use `async with transaction(...)`")
        return fn(**kwargs) if timeout_seconds is None else ThreadedCall(fn, kwargs).result(timeout_seconds)

    async def together(self, parts: Sequence[Part], meanwhile: OnProgress = lambda _: None) -> list[object]:
        """A single part on this thread, several in a thread each."""
        if len(parts) == 1:
            return [await capture(parts[0])]
        threads: list[ThreadedCall] = []
        try:
            threads.extend(ThreadedCall(in_thread, {"part": part}) for part in parts)
            left = dict(enumerate(threads))
            while left:
                wait([thread._future for thread in left.values()], _SLICE_SECONDS, FIRST_COMPLETED)
                ended = [(place, thread.result(None)) for place, thread in left.items() if thread.has_ended]
                for place, _ in ended:
                    del left[place]
                if ended and left:
                    meanwhile(ended)
        except BaseException as interrupt:
            known = [thread.result(None) if thread.has_ended else StillRunning() for thread in threads]
            never_begun = [StillRunning()] * (len(parts) - len(threads))
            raise InterruptedWaitError([*known, *never_begun], interrupt) from interrupt
        return [thread.result(None) for thread in threads]


async def capture(part: Part) -> object:
    """What it returns, or the error it raises."""
    try:
        return await part()
    except Exception as error:  # noqa: BLE001 - a tool may raise anything; the caller decides what it means
        return CallRaised(error)


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine that uses `SyncExecutor` to its end on this thread.

    Raises:
        MisuseError: it suspended, so something in it needs an event loop.
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise MisuseError("something async was reached from blocking code; use the async form of this call")


def in_thread(part: Part) -> object:
    """Run one of several in a thread: its exception must not end the others."""
    try:
        return run_sync(part())
    except BaseException as error:  # noqa: BLE001 - it is raised again after the others have ended
        return CallRaised(error)
