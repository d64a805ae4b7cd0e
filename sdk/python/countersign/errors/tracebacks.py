"""What a traceback shows: the lines of the program and of its tools, and of ours none that nobody can act on.

An error of the SDK is an answer: where in the SDK it was made says nothing to its reader. What else is raised may be a
bug, and keeps every frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Final, TypeVar

from countersign.errors.base import CountersignError
from countersign.errors.execution import IndependentFailures

E = TypeVar("E", bound=BaseException)
_OURS: Final = frozenset({"countersign", "asyncio", "concurrent", "contextlib"})
"""Packages: the SDK, and what it calls others through."""


def skip_sdk_frames(trace: TracebackType | None) -> TracebackType | None:
    """From the first frame on that is not the SDK's; None where all of them are."""
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] not in _OURS:
            break
        trace = trace.tb_next
    return trace


def shorten_traceback(error: E) -> E:
    """The same error without the SDK's frames before those of anybody else; and so of what it came from, and of the
    errors of a group, as far as they are the SDK's.
    """
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
