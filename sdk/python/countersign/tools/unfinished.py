"""Work that a call has returned instead of doing it: a generator, a coroutine, a `map`.

A generator function does nothing until somebody iterates over what it returns, so as a tool it would be recorded as
fired without having run. It is refused where it is declared. Where a call returns such an object all the same (from a
wrapper), nobody knows what was done: the object has not run to its end, and the code around it may have acted.
"""

from __future__ import annotations

import functools
import inspect
from concurrent.futures import Future
from contextlib import AsyncContextDecorator, ContextDecorator, suppress
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final

from countersign.errors import RegistrationError
from countersign.tools.nested import nested

# What `@contextmanager` makes is a `ContextDecorator`. `Future`: a pool works on it still.
_KINDS: Final = (
    *(GeneratorType, AsyncGeneratorType, ContextDecorator, AsyncContextDecorator, Future),
    *(map, filter, zip, enumerate),
)
_LAZY_MODULE: Final = "itertools"


class UnfinishedError(Exception):
    """A tool returned work instead of doing it: not the tool's word, so whatever it declares, this is unknown."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"it returned a {kind}, which has not run to its end; have the tool do its work before it returns (an "
            "async tool is an `async def`)"
        )


def require_runs_when_called(fn: object, tool: str) -> None:
    """Refuse a generator function, plain or async, also as the method of an object or inside a `partial`.

    Raises:
        RegistrationError: it is one.
    """
    inner: Any = fn
    while isinstance(inner, functools.partial | staticmethod | classmethod):
        inner = inner.func if isinstance(inner, functools.partial) else inner.__func__
    if not inspect.isroutine(inner) and not inspect.isclass(inner):
        inner = getattr(type(inner), "__call__", inner)  # noqa: B004 - the function, to be looked at
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise RegistrationError(
            f"{tool!r} is a generator function (it says `yield`), and a call of that runs nothing; return what it "
            "yields as a list"
        )


def unfinished(value: object) -> UnfinishedError | None:
    """The error of a result that is such work, or holds it. A coroutine in it that was never begun is closed, so that
    Python warns of none; nothing of it is run.
    """
    kind = None
    with suppress(Exception):  # looking runs code of the value
        for _, one in nested(value):
            if not _is_unfinished(type(one)):
                continue
            kind = kind or type(one).__name__
            if inspect.iscoroutine(one) and inspect.getcoroutinestate(one) == inspect.CORO_CREATED:
                one.close()
    return None if kind is None else UnfinishedError(kind)


def is_awaitable(value: object) -> bool:
    """Whether it waits for somebody to await it."""
    return hasattr(type(value), "__await__")


def _is_unfinished(kind: type) -> bool:
    return (
        issubclass(kind, _KINDS)
        or hasattr(kind, "__await__")
        or hasattr(kind, "__anext__")
        or kind.__module__ == _LAZY_MODULE
    )
