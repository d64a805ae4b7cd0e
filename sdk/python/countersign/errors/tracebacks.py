"""Shortens tracebacks of SDK errors: frames of the program and its tools stay, frames of the SDK go.

An SDK error is addressed to the program, and its location in the SDK does not help. Any other exception may be a bug
and keeps every frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Final, TypeVar

from countersign.errors.base import CountersignError
from countersign.errors.execution import IndependentFailures

E = TypeVar("E", bound=BaseException)
_OURS: Final = frozenset({"countersign", "asyncio", "concurrent", "contextlib"})
"""Packages whose frames are hidden: the SDK, and those it calls user code through."""


def skip_sdk_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame outside the SDK; None if there is none."""
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] not in _OURS:
            break
        trace = trace.tb_next
    return trace


def shorten_traceback(error: E) -> E:
    """The same error without leading SDK frames, likewise its causes and the members of a group that are SDK errors."""
    for one in _error_chain(error):
        if isinstance(one, CountersignError | IndependentFailures):
            one.__traceback__ = skip_sdk_frames(one.__traceback__)
    return error


def _error_chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, IndependentFailures):
            waiting += one.exceptions
