"""The awaiting executor, on an event loop, and calls in a task of their own.

A task is cancelled at its timeout with a short grace period; one that ignores that is left until the loop ends.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2

from countersign.concurrency import (
    CallRaised,
    InterruptedWaitError,
    OnProgress,
    Part,
    StillRunning,
    ThreadedCall,
    ToolTimeoutError,
    ValueOrError,
    capture,
)
from countersign.http_clients import HttpRequest, HttpResponse, async_send

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


async def _shield_exit(awaitable: Awaitable[Any]) -> ValueOrError:
    """Keep an exit inside the task: it would stop the event loop before outcomes are recorded."""
    try:
        return ValueOrError(await awaitable)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - it is raised again where it is awaited
        return ValueOrError(error=error)


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
            return [await capture(parts[0])]
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


async def _in_task(part: Part) -> object:
    """The same on the event loop, where a cancellation ends all of them."""
    try:
        return await part()
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - as above
        return CallRaised(error)
