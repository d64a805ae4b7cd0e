"""An awaitable in a task of its own: the only way to stop waiting for one that will not be cancelled.

Whoever stops waiting, at its timeout or because he was cancelled himself, cancels it and gives it a short grace to put
things away. Then he goes; it may go on, and what it still does is not known. Only the end of the event loop waits for
it: `asyncio.run` cancels what is left once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final

from countersign.threads import timed_out

GRACE_SECONDS: Final = 1.0  # to close what is open; who needs longer is not being cancelled

# a loop holds its tasks weakly, and one that was left must come to its own end
_left: set[asyncio.Task[Any]] = set()


async def ended_within(seconds: float, awaitable: Awaitable[Any]) -> Any:
    """Wait until it has ended. What it answers or raises as it is cancelled for its timeout is its word too.

    Raises:
        ToolTimeoutError: it has not in that time.
        BaseException: what it raised.
    """
    task = asyncio.ensure_future(_told(awaitable))
    try:
        if not await _has_ended(task, seconds):
            task.cancel()
            if not await _has_ended(task, GRACE_SECONDS) or task.cancelled():
                raise timed_out(seconds)
    except asyncio.CancelledError:
        if task.cancel():  # what it answers now is nobody's: whoever was cancelled stays so
            await _has_ended(task, GRACE_SECONDS)
        raise
    finally:
        if not task.done():
            _left.add(task)
            task.add_done_callback(_left.discard)
    told: _Returned | _Raised = task.result()
    if isinstance(told, _Raised):
        raise told.error
    return told.value


async def _has_ended(task: asyncio.Task[Any], seconds: float) -> bool:
    return bool((await asyncio.wait({task}, timeout=seconds))[0])


@dataclass(frozen=True, slots=True)
class _Returned:
    value: Any


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


async def _told(awaitable: Awaitable[Any]) -> _Returned | _Raised:
    """An exit must not leave the task by itself: it would stop the event loop before anything of it is written down."""
    try:
        return _Returned(await awaitable)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - it is raised again where somebody waits for it
        return _Raised(error)
