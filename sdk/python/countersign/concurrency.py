"""A call in a thread or task of its own: the only way to stop waiting for code that does not return.

A thread is a daemon and sees the caller's context variables. It cannot be ended, so what it does after its timeout is
unknown. It takes another call after one that returned, because starting a thread costs more than most of the SDK's own
work. A thread whose call raised ends, with its thread-local state; so does its copy in a child that the call forked. A
task is cancelled at its timeout with a short grace period; one that ignores that is left until the loop ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, NoReturn

from countersign.texts import text_of

_IDLE: Final = "countersign-idle"
_SLICE_SECONDS: Final = 0.5  # a signal just before a wait is only handled when that wait ends
_MAX_IDLE: Final = 8  # idle threads kept for a next call


class ToolTimeoutError(TimeoutError):
    """We stopped waiting for a tool. The tool did not report this, so the outcome is unknown, whatever it declares
    about its failures.
    """


def timed_out(seconds: float | None) -> ToolTimeoutError:
    """The error for an expired timeout."""
    return ToolTimeoutError(f"no answer within {seconds} s")


@dataclass(frozen=True, slots=True)
class _Value:
    value: Any

    def answer(self) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class _Error:
    """An exception as a value: asyncio may replace a raised one by another, which loses its origin."""

    error: BaseException

    def answer(self) -> NoReturn:
        raise self.error


class ThreadedCall:
    """One call in a thread, started."""

    def __init__(self, fn: Callable[..., object], kwargs: dict[str, Any]) -> None:
        self._future: Future[_Value | _Error] = Future()
        self._future.set_running_or_notify_cancel()  # it can no longer be cancelled
        context = contextvars.copy_context()
        _submit(lambda: context.run(self._run, fn, kwargs), f"countersign-{getattr(fn, '__name__', 'tool')}")

    def _run(self, fn: Callable[..., object], kwargs: dict[str, Any]) -> bool:
        """Whether it returned, in the process that started it."""
        pid = os.getpid()
        try:
            self._future.set_result(_Value(fn(**kwargs)))
        except StopIteration as error:  # a coroutine cannot raise it
            self._future.set_result(_Error(RuntimeError(f"it raised StopIteration({text_of(error)})")))
        except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
            self._future.set_result(_Error(error))
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
            raise timed_out(seconds)
        # Without a timeout here: a TimeoutError of the call itself is its result.
        return self._future.result().answer()

    async def ended(self) -> Any:
        """Await its result."""
        return (await asyncio.wrap_future(self._future)).answer()


def wait_for_any(calls: Iterable[ThreadedCall]) -> None:
    """Block until one of them has ended."""
    futures = [call._future for call in calls]
    while not wait(futures, _SLICE_SECONDS, FIRST_COMPLETED).done:
        pass


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
                raise timed_out(seconds)
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


async def _shield_exit(awaitable: Awaitable[Any]) -> _Value | _Error:
    """Keep an exit inside the task: it would stop the event loop before outcomes are recorded."""
    try:
        return _Value(await awaitable)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - it is raised again where it is awaited
        return _Error(error)
