"""A call in a thread or task of its own: the only way to stop waiting for code that does not return.

A thread is a daemon and sees the caller's context variables; it cannot be ended, so what it does after its timeout is
unknown. It takes another call after one that returned, for starting a thread costs more than most of what the SDK does.
A thread whose call raised ends, with its thread-local state; so does the copy of it in a child that the call forked. A
task is cancelled at its timeout and given a short grace; one that goes on is left until the loop ends.
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
_SLICE_SECONDS: Final = 0.5  # a signal that comes just before a wait begins is only seen when that wait ends
_MAX_IDLE: Final = 8  # threads that wait for a next call; those of a large group end


class ToolTimeoutError(TimeoutError):
    """We stopped waiting for a tool: not its word, so whatever it declares about its failures, this is unknown."""


def timed_out(seconds: float | None) -> ToolTimeoutError:
    """The error of a wait that has ended."""
    return ToolTimeoutError(f"no answer within {seconds} s")


@dataclass(frozen=True, slots=True)
class _Value:
    value: Any

    def answer(self) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class _Error:
    """A result like any other: of an exception asyncio may make another one, which does not know where it came from."""

    error: BaseException

    def answer(self) -> NoReturn:
        raise self.error


class ThreadedCall:
    """One call, begun."""

    def __init__(self, fn: Callable[..., object], kwargs: dict[str, Any]) -> None:
        self._future: Future[_Value | _Error] = Future()
        self._future.set_running_or_notify_cancel()  # nobody takes it back any more
        context = contextvars.copy_context()
        _submit(lambda: context.run(self._run, fn, kwargs), f"countersign-{getattr(fn, '__name__', 'tool')}")

    def _run(self, fn: Callable[..., object], kwargs: dict[str, Any]) -> bool:
        """Whether it returned, in the process that began it."""
        pid = os.getpid()
        try:
            self._future.set_result(_Value(fn(**kwargs)))
        except StopIteration as error:  # no coroutine can raise it
            self._future.set_result(_Error(RuntimeError(f"it raised StopIteration({text_of(error)})")))
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits for it
            self._future.set_result(_Error(error))
        else:
            return os.getpid() == pid
        return False

    def wait(self, seconds: float | None = None) -> bool:
        """Block until it has ended, one way or another, or the time is up; whether it has ended."""
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            left = _SLICE_SECONDS if until is None else min(_SLICE_SECONDS, until - time.monotonic())
            if wait([self._future], max(left, 0.0)).done:
                return True
            if until is not None and time.monotonic() >= until:
                return False

    @property
    def has_ended(self) -> bool:
        """Whether it has."""
        return self._future.done()

    def result(self, seconds: float | None) -> Any:
        """Block until it has returned.

        Raises:
            ToolTimeoutError: it has not in that time.
            BaseException: what it raised.
        """
        if not self.wait(seconds):
            raise timed_out(seconds)
        # Not asked for with a timeout: a TimeoutError of its own is its word.
        return self._future.result().answer()

    async def ended(self) -> Any:
        """The same, to be awaited."""
        return (await asyncio.wrap_future(self._future)).answer()


def wait_for_any(calls: Iterable[ThreadedCall]) -> None:
    """Block until one of them has ended."""
    futures = [call._future for call in calls]
    while not wait(futures, _SLICE_SECONDS, FIRST_COMPLETED).done:
        pass


class _Worker:
    """A thread that takes one call after the other, and ends when one raised or enough others are idle."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[Callable[[], bool]] = SimpleQueue()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        while True:
            call = self.calls.get()
            if not call():
                return
            del call  # what the call held is not kept until the next one
            self.thread.name = _IDLE
            if len(_idle) >= _MAX_IDLE:
                return
            _idle.append(self)


_idle: deque[_Worker] = deque()
os.register_at_fork(after_in_child=_idle.clear)  # the child has none of its parent's threads


def _submit(call: Callable[[], bool], name: str) -> None:
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
        worker.thread.start()
    worker.thread.name = name
    worker.calls.put(call)


GRACE_SECONDS: Final = 1.0  # to close what is open; who needs longer is not being cancelled

# a loop holds its tasks weakly, and one that was left must come to its own end
_abandoned_tasks: set[asyncio.Task[Any]] = set()


async def wait_until_done(seconds: float, awaitable: Awaitable[Any]) -> Any:
    """Wait until it has ended. What it answers or raises as it is cancelled for its timeout is its word too.

    Raises:
        ToolTimeoutError: it has not in that time.
        BaseException: what it raised.
    """
    task = asyncio.ensure_future(_shield_exit(awaitable))
    try:
        if not await _is_done_within(task, seconds):
            task.cancel()
            if not await _is_done_within(task, GRACE_SECONDS) or task.cancelled():
                raise timed_out(seconds)
    except asyncio.CancelledError:
        if task.cancel():  # what it answers now is nobody's: whoever was cancelled stays so
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
    """An exit must not leave the task by itself: it would stop the event loop before anything of it is written down."""
    try:
        return _Value(await awaitable)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - it is raised again where somebody waits for it
        return _Error(error)
