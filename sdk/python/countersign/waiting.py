"""Two executors, blocking and awaiting, and one HTTP exchange in either; all else is written once, as async.

`SyncExecutor` never suspends, so `run_sync` can drive any coroutine of the SDK to its end with a single `send`. A
coroutine that suspends anyway needs an event loop in a blocking transaction, and is refused. There is one protocol
engine (commit/commit.py), not two.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import httpx2

from countersign.concurrency import ThreadedCall, wait_for_any, wait_until_done
from countersign.errors import MisuseError, ServiceUnavailable


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One complete HTTP request."""

    method: str
    target: str  # path and query, exactly as sent and as signed in the proof
    headers: dict[str, str]
    body: bytes
    connect_seconds: float
    read_seconds: float
    max_bytes: int


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One HTTP response, read completely within its limit."""

    status: int
    headers: httpx2.Headers
    body: bytes


class BoundedBody:
    """The body of a response, limited in size and time.

    A connection's timeout restarts with each chunk, so a peer that sends a byte now and then would hold an agent,
    and the database sessions of its live effects, forever.
    """

    def __init__(self, asked: HttpRequest) -> None:
        self.read = bytearray()
        self._asked = asked
        self._max_bytes = asked.max_bytes
        self._seconds = asked.connect_seconds + asked.read_seconds
        self._until = time.monotonic() + self._seconds

    def require_plain(self, headers: httpx2.Headers) -> None:
        """Refuse compression, which was not requested: a thousandth of the limit expands to all of it.

        Raises:
            ServiceUnavailable: it is compressed.
        """
        coding = headers.get("Content-Encoding", "identity")
        if coding.strip().lower() != "identity":
            raise self._refused(f"is compressed ({coding[:40]!r})")

    def add(self, chunk: bytes) -> None:
        """Append one chunk.

        Raises:
            ServiceUnavailable: it is larger than the request allows.
            httpx2.ReadTimeout: it is incomplete when its time is up.
        """
        self.read += chunk
        if len(self.read) > self._max_bytes:
            raise self._refused(f"is larger than {self._max_bytes} bytes")
        if time.monotonic() > self._until:
            raise httpx2.ReadTimeout(f"the answer was not complete after {self._seconds:g} s")

    def _refused(self, why: str) -> ServiceUnavailable:
        return ServiceUnavailable(f"{self._asked.method} {self._asked.target}", f"its answer {why}")


def request_arguments(asked: HttpRequest) -> dict[str, Any]:
    """The request as keyword arguments of the library's clients."""
    return {
        "method": asked.method,
        "url": asked.target,
        "headers": asked.headers,
        "content": asked.body,
        "timeout": httpx2.Timeout(asked.read_seconds, connect=asked.connect_seconds),
        "follow_redirects": False,  # a redirect could lead to other keys; only the configured address is trusted
    }


T = TypeVar("T")


Part = Callable[[], Coroutine[Any, Any, object]]
"""One of several coroutines to run concurrently."""

OnProgress = Callable[[Sequence[tuple[int, object]]], None]
"""Receives the parts that have ended, as (index, result), while others still run."""


def _ignore(_: Sequence[tuple[int, object]]) -> None:
    """No progress is wanted."""


@dataclass(frozen=True, slots=True)
class CallRaised:
    """A call that did not return. Anything but an `Exception` (a tool that exits) was raised by the call itself; a
    cancelled task may have `left` something running.
    """

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

    async def send(self, asked: HttpRequest) -> HttpResponse:
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

    async def together(self, parts: Sequence[Part], meanwhile: OnProgress = _ignore) -> list[object]:
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

    async def send(self, asked: HttpRequest) -> HttpResponse:
        body = BoundedBody(asked)
        with self._http().stream(**request_arguments(asked)) as response:
            body.require_plain(response.headers)
            for chunk in response.iter_bytes():
                body.add(chunk)
            return HttpResponse(response.status_code, response.headers, bytes(body.read))

    async def sleep(self, seconds: float) -> None:
        # This class is meant to block; nothing else runs on this thread.
        time.sleep(seconds)  # noqa: ASYNC251

    async def call(
        self, fn: Callable[..., object], kwargs: dict[str, Any], timeout_seconds: float | None
    ) -> object:
        if inspect.iscoroutinefunction(fn):
            raise MisuseError(f"{fn!r} is async; use `async with transaction(...)`")
        return fn(**kwargs) if timeout_seconds is None else ThreadedCall(fn, kwargs).result(timeout_seconds)

    async def together(self, parts: Sequence[Part], meanwhile: OnProgress = _ignore) -> list[object]:
        """A single part on this thread, several in a thread each."""
        if len(parts) == 1:
            return [await _capture(parts[0])]
        threads: list[ThreadedCall] = []
        try:
            threads.extend(ThreadedCall(_in_thread, {"part": part}) for part in parts)
            left = dict(enumerate(threads))
            while left:
                wait_for_any(left.values())
                ended = [(place, thread.result(None)) for place, thread in left.items() if thread.has_ended]
                for place, _ in ended:
                    del left[place]
                if left:
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

    async def send(self, asked: HttpRequest) -> HttpResponse:
        async with self.opened():
            if self._http is None:
                self._http = self._open()
            return await self._stream(self._http, asked)

    @staticmethod
    async def _stream(http: httpx2.AsyncClient, asked: HttpRequest) -> HttpResponse:
        body = BoundedBody(asked)
        async with http.stream(**request_arguments(asked)) as response:
            body.require_plain(response.headers)
            async for chunk in response.aiter_bytes():
                body.add(chunk)
            return HttpResponse(response.status_code, response.headers, bytes(body.read))

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

    async def together(self, parts: Sequence[Part], meanwhile: OnProgress = _ignore) -> list[object]:
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
