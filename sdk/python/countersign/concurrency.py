"""Waiting: two executors, blocking and awaiting, and calls in a thread or task of their own.

`SyncExecutor` never suspends, so `run_sync` can drive any coroutine of the SDK to its end with one `send`: there is
one protocol engine (commit/commit.py), written as async, not two. A coroutine that suspends anyway needs an event loop
in a blocking transaction, and is refused.

A call in a thread or task of its own is the only way to stop waiting for code that does not return. A thread is a
daemon and sees the caller's context variables. It cannot be ended, so its effects after a timeout are unknown. It takes
another call after one that returned, since starting one is costly; it ends if its call raised, or in a forked child. A
task is cancelled at its timeout with a short grace period; one that ignores that is left until the loop ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import asynccontextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar

import httpx2

from countersign.errors import MisuseError
from countersign.http_clients import HttpRequest, HttpResponse, async_send, send
from countersign.texts import text_of

_IDLE: Final = "countersign-idle"
_SLICE_SECONDS: Final = 0.5  # a signal just before a wait is only handled when that wait ends
_MAX_IDLE: Final = 8  # idle threads kept for a next call


class ToolTimeoutError(TimeoutError):
    """We stopped waiting for a tool, so the outcome is unknown, even if it declares what its failures mean."""


@dataclass(frozen=True, slots=True)
class _Outcome:
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
        self._future: Future[_Outcome] = Future()
        self._future.set_running_or_notify_cancel()  # it can no longer be cancelled
        context = contextvars.copy_context()
        _submit(lambda: context.run(self._run, fn, kwargs), f"countersign-{getattr(fn, '__name__', 'tool')}")

    def _run(self, fn: Callable[..., object], kwargs: dict[str, Any]) -> bool:
        """Whether it returned, in the process that started it."""
        pid = os.getpid()
        try:
            self._future.set_result(_Outcome(fn(**kwargs)))
        except StopIteration as error:  # a coroutine cannot raise it
            self._future.set_result(
                _Outcome(error=RuntimeError(f"it raised StopIteration({text_of(error)})"))
            )
        except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
            self._future.set_result(_Outcome(error=error))
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


GRACE_SECONDS: Final = 1.0  # for cleanup; a task that needs longer ignores its cancellation

# a loop holds its tasks weakly, and an abandoned one must still finish
_abandoned_tasks: set[asyncio.Task[Any]] = set()


async def wait_until_done(seconds: float, awaitable: Awaitable[Any]) -> Any:
    """Await it with a timeout. A result or exception while it is cancelled for the timeout still counts.

    Raises:
        ToolTimeoutError: it has not ended in that time.
        BaseException: what it raised.
    """
    task = asyncio.ensure_future(_shield_exit(awaitable))
    try:
        if not await _is_done_within(task, seconds):
            task.cancel()
            if not await _is_done_within(task, GRACE_SECONDS) or task.cancelled():
                raise ToolTimeoutError(f"no answer within {seconds} s")
    except asyncio.CancelledError:
        if task.cancel():  # its result is dropped: the caller stays cancelled
            await _is_done_within(task, GRACE_SECONDS)
        raise
    finally:
        if not task.done():
            _abandoned_tasks.add(task)
            task.add_done_callback(_abandoned_tasks.discard)
    return task.result().answer()


async def _is_done_within(task: asyncio.Task[Any], seconds: float) -> bool:
    return bool((await asyncio.wait({task}, timeout=seconds))[0])


async def _shield_exit(awaitable: Awaitable[Any]) -> _Outcome:
    """Keep an exit inside the task: it would stop the event loop before outcomes are recorded."""
    try:
        return _Outcome(await awaitable)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - it is raised again where it is awaited
        return _Outcome(error=error)


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
            return [await _capture(parts[0])]
        threads: list[ThreadedCall] = []
        try:
            threads.extend(ThreadedCall(_in_thread, {"part": part}) for part in parts)
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


class AsyncExecutor:
    """Awaits on the running event loop. The HTTP client exists inside `opened` only."""

    def __init__(self, http: Callable[[], httpx2.AsyncClient]) -> None:
        self._open = http
        self._http: httpx2.AsyncClient | None = None
        self._depth = 0

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[AsyncExecutor]:
        """Keep connections for the block: a client must not outlive its event loop."""
        self._depth += 1
        try:
            yield self
        finally:
            self._depth -= 1
            if self._depth == 0 and self._http is not None:
                http, self._http = self._http, None
                await http.aclose()

    async def send(self, request: HttpRequest) -> HttpResponse:
        async with self.opened():
            if self._http is None:
                self._http = self._open()
            return await async_send(self._http, request)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def call(
        self, fn: Callable[..., object], kwargs: dict[str, Any], timeout_seconds: float | None
    ) -> object:
        """Call an async tool on the event loop, where its timeout cancels it, or a plain one next to it. With a
        timeout it has a task of its own.
        """
        if inspect.iscoroutinefunction(fn):
            answer = _response(fn(**kwargs))
        elif timeout_seconds is None:
            return fn(**kwargs)
        else:
            answer = ThreadedCall(fn, kwargs).ended()
        return await (answer if timeout_seconds is None else wait_until_done(timeout_seconds, answer))

    async def together(self, parts: Sequence[Part], meanwhile: OnProgress = lambda _: None) -> list[object]:
        """Each in a task with a context of its own, cancelled together. A part may end itself by a cancellation."""
        if len(parts) == 1:
            return [await _capture(parts[0])]
        tasks: list[asyncio.Task[object]] = []
        try:
            async with asyncio.TaskGroup() as group:
                tasks.extend(group.create_task(_in_task(part)) for part in parts)
                left = set(tasks)
                while left:
                    ended, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                    if left:
                        meanwhile([(tasks.index(one), one.result()) for one in ended if not one.cancelled()])
        except BaseException as interrupt:
            answers = [
                StillRunning() if task.cancelled() or not task.done() else task.result() for task in tasks
            ]
            raise InterruptedWaitError(answers, interrupt) from interrupt
        return [
            CallRaised(asyncio.CancelledError(), left=True) if task.cancelled() else task.result()
            for task in tasks
        ]


async def _response(result: Awaitable[object]) -> object:
    answer = await result
    return await answer if inspect.isawaitable(answer) else answer


async def _capture(part: Part) -> object:
    try:
        return await part()
    except Exception as error:  # noqa: BLE001 - a tool may raise anything; the caller decides what it means
        return CallRaised(error)


def _in_thread(part: Part) -> object:
    """Run one of several in a thread: its exception must not end the others."""
    try:
        return run_sync(part())
    except BaseException as error:  # noqa: BLE001 - it is raised again after the others have ended
        return CallRaised(error)


async def _in_task(part: Part) -> object:
    """The same on the event loop, where a cancellation ends all of them."""
    try:
        return await part()
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - as above
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
