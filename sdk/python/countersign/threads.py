"""A function in a thread of its own: the only way to stop waiting for code that does not return.

The thread is a daemon, so that a tool that hangs does not keep the process; it sees the caller's context variables.
Nobody can end it: whoever stops waiting does not know what it still does.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any


class ToolTimeoutError(TimeoutError):
    """We stopped waiting for a tool: not its word, so whatever it declares about its failures, this is unknown."""


def timed_out(seconds: float | None) -> ToolTimeoutError:
    """The error of a wait that has ended."""
    return ToolTimeoutError(f"no answer within {seconds} s")


class Threaded:
    """One call, begun."""

    def __init__(self, fn: Callable[..., object], kwargs: dict[str, Any]) -> None:
        self._future: Future[Any] = Future()
        self._future.set_running_or_notify_cancel()  # nobody takes it back any more
        context = contextvars.copy_context()
        name = f"countersign-{getattr(fn, '__name__', 'tool')}"
        threading.Thread(target=context.run, args=(self._run, fn, kwargs), name=name, daemon=True).start()

    def _run(self, fn: Callable[..., object], kwargs: dict[str, Any]) -> None:
        try:
            self._future.set_result(fn(**kwargs))
        except StopIteration as error:  # no future can carry it
            self._future.set_exception(RuntimeError(f"{fn!r} raised {error!r}"))
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits for it
            self._future.set_exception(error)

    def result(self, seconds: float | None) -> Any:
        """Block until it has returned.

        Raises:
            ToolTimeoutError: it has not in that time.
            BaseException: what it raised.
        """
        if not wait([self._future], seconds).done:
            raise timed_out(seconds)
        return self._future.result()

    def ended(self) -> asyncio.Future[Any]:
        """The same, to be awaited."""
        return asyncio.wrap_future(self._future)
