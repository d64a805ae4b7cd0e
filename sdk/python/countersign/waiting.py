"""The two ways to wait, blocking and awaiting, and one HTTP exchange in either; all else is written once, as async.

`SyncWaits` never suspends, so `run` can drive any coroutine of the SDK to its end with a single `send`; a coroutine
that suspends anyway has met something async in a blocking transaction, and is refused. There is one protocol engine
(commit/commit.py), not two.
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
    """One HTTP request, complete."""

    method: str
    target: str  # path and query, exactly as they go over the wire and into the proof
    headers: dict[str, str]
    body: bytes
    connect_seconds: float
    read_seconds: float
    max_bytes: int


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One HTTP answer, read whole and within its limit."""

    status: int
    headers: httpx2.Headers
    body: bytes


class BoundedBody:
    """What has been read of an answer: no more than its limit, and not for longer than it was given.

    The timeouts of a connection begin anew with each piece that comes, so a peer that sends a byte now and then would
    keep an agent, and the database sessions of its live effects, for ever.
    """

    def __init__(self, asked: HttpRequest) -> None:
        self.read = bytearray()
        self._asked = asked
        self._max_bytes = asked.max_bytes
        self._seconds = asked.connect_seconds + asked.read_seconds
        self._until = time.monotonic() + self._seconds

    def require_plain(self, headers: httpx2.Headers) -> None:
        """Refuse what is compressed although nobody asked for it: a thousandth of the limit unpacks to all of it.

        Raises:
            ServiceUnavailable: it is.
        """
        coding = headers.get("Content-Encoding", "identity")
        if coding.strip().lower() != "identity":
            raise self._refused(f"is compressed ({coding[:40]!r})")

    def add(self, chunk: bytes) -> None:
        """One more piece.

        Raises:
            ServiceUnavailable: it is larger than the request allows.
            httpx2.ReadTimeout: it is still not complete when its time is up.
        """
        self.read += chunk
        if len(self.read) > self._max_bytes:
            raise self._refused(f"is larger than {self._max_bytes} bytes")
        if time.monotonic() > self._until:
            raise httpx2.ReadTimeout(f"the answer was not complete after {self._seconds:g} s")

    def _refused(self, why: str) -> ServiceUnavailable:
        return ServiceUnavailable(f"{self._asked.method} {self._asked.target}", f"its answer {why}")


def request_arguments(asked: HttpRequest) -> dict[str, Any]:
    """The request as both of the library's clients take it."""
    return {
        "method": asked.method,
        "url": asked.target,
        "headers": asked.headers,
        "content": asked.body,
        "timeout": httpx2.Timeout(asked.read_seconds, connect=asked.connect_seconds),
        "follow_redirects": False,  # a redirect could lead to other keys; the address in the settings is the address
    }


T = TypeVar("T")


Part = Callable[[], Coroutine[Any, Any, object]]
"""One of several things to be done at the same time."""

OnProgress = Callable[[Sequence[tuple[int, object]]], None]
"""Hears which of several have ended, by their places, and how, while others still go on."""


def _ignore(_: Sequence[tuple[int, object]]) -> None:
    """Whoever waits wants to hear of all of them at the end."""


@dataclass(frozen=True, slots=True)
class CallRaised:
    """How one of them ended, where it did not return. What is no `Exception` (a tool that exits) is its own word; but
    a task that was cancelled may have `left` something running that it waited for.
    """

    error: BaseException
    left: bool = False


@dataclass(frozen=True, slots=True)
class StillRunning:
    """It had not ended when whoever waited for it was interrupted."""


class InterruptedWaitError(BaseException):
    """Whoever waited was interrupted. `answers` has what ended before, in order, and `Unended` for the others."""

    def __init__(self, answers: Sequence[object], interrupt: BaseException) -> None:
        self.answers, self.interrupt = tuple(answers), interrupt
        super().__init__(f"interrupted by {type(interrupt).__name__}")


class Executor(Protocol):
    """What the engine needs from the world of its caller."""

    async def send(self, asked: HttpRequest) -> HttpResponse:
        """Perform one request. Raises httpx2.TransportError for what the network did."""

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""

    async def call(
        self, fn: Callable[..., object], kwargs: dict[str, Any], timeout_seconds: float | None
    ) -> object:
        """Call a tool and return its result, awaiting it where it is async. With a timeout a plain function runs in a
        thread of its own; without, in the caller's.

        Raises:
            ToolTimeoutError: it has not ended in that time. A thread goes on, so does a task that will not be
                cancelled, and what it does is not known.
        """

    async def together(self, parts: Sequence[Part], meanwhile: OnProgress = _ignore) -> list[object]:
        """Run all of them at the same time and wait until each has ended; the results in order, `Raised` for an
        exception. Of one alone, what is no `Exception` goes on its way. `meanwhile` hears of each that ends before the
        last, where this waits.

        Raises:
            LeftEarlyError: the wait for several was interrupted; those that had not ended go on, or were cancelled.
        """


class SyncExecutor:
    """Blocks the calling thread."""

    def __init__(self, http: Callable[[], httpx2.Client]) -> None:
        self._http = http

    async def send(self, asked: HttpRequest) -> HttpResponse:
        """Perform one request on the runtime's connection pool."""
        body = BoundedBody(asked)
        with self._http().stream(**request_arguments(asked)) as response:
            body.require_plain(response.headers)
            for chunk in response.iter_bytes():
                body.add(chunk)
            return HttpResponse(response.status_code, response.headers, bytes(body.read))

    async def sleep(self, seconds: float) -> None:
        """Block."""
        # Blocking is what this class is for; nothing else runs on this thread.
        time.sleep(seconds)  # noqa: ASYNC251

    async def call(
        self, fn: Callable[..., object], kwargs: dict[str, Any], timeout_seconds: float | None
    ) -> object:
        """Call a plain function."""
        if inspect.iscoroutinefunction(fn):
            raise MisuseError(f"{fn!r} is async; use `async with transaction(...)`")
        return fn(**kwargs) if timeout_seconds is None else ThreadedCall(fn, kwargs).result(timeout_seconds)

    async def together(self, parts: Sequence[Part], meanwhile: OnProgress = _ignore) -> list[object]:
        """One by one if it is one, else each in a thread."""
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
    """Awaits on the running event loop. The HTTP client lives inside `opened` and no longer."""

    def __init__(self, http: Callable[[], httpx2.AsyncClient]) -> None:
        self._open = http
        self._http: httpx2.AsyncClient | None = None
        self._depth = 0

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[AsyncExecutor]:
        """Keep connections for the block: a client must not outlive the event loop it was made in."""
        self._depth += 1
        try:
            yield self
        finally:
            self._depth -= 1
            if self._depth == 0 and self._http is not None:
                http, self._http = self._http, None
                await http.aclose()

    async def send(self, asked: HttpRequest) -> HttpResponse:
        """Perform one request."""
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
        """Let other tasks run."""
        await asyncio.sleep(seconds)

    async def call(
        self, fn: Callable[..., object], kwargs: dict[str, Any], timeout_seconds: float | None
    ) -> object:
        """Call an async tool on the event loop, where it is cancelled after its timeout, a plain one beside it. With a
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
        """Each in a task, with a context of its own; cancelled together. One may end itself by a cancellation."""
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
    except Exception as error:  # noqa: BLE001 - a tool may raise anything; what it means is for others to say
        return CallRaised(error)


def _in_thread(part: Part) -> object:
    """One of several: what ends it ends nothing beside it, and no signal is raised in its thread."""
    try:
        return run_sync(part())
    except BaseException as error:  # noqa: BLE001 - it is raised again once the others have ended
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
    """Drive a coroutine that waits by `SyncWaits` to its end, on this thread.

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
