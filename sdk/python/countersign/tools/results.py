"""Return types and results of tools, refused argument values, and results that are unfinished work.

A result is kept as canonical JSON, typed by the return annotation. A union of text and a type that JSON writes as text
(a time, a UUID, a `Decimal`) is refused at the declaration. Other results that do not compare equal after a round trip
have fired all the same; they are reported by their types, never by their values. The refusal of an argument states its
location and reason, without any of the caller's values.

A generator function does nothing until its result is iterated, so it is refused at the declaration. If a call returns
such an object all the same (from a wrapper), its outcome is unknown. A value may contain itself, or share parts so that
its JSON would be endless: the walk calls none of its methods and stops at the limits of admission.
"""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AsyncContextDecorator, ContextDecorator, suppress
from dataclasses import fields, is_dataclass
from functools import cached_property
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_jsonable_python

from countersign.contract.admission import ARGS_LIMITS, admitted_bytes, load, too_deep, too_many_nodes
from countersign.errors import RegistrationError
from countersign.tools.annotations import text_like_types

# A field, a type of a union (`list[any]`) or a key that looks like one; other keys may be values of the caller.
_NAME: Final = re.compile(r"[^\W\d][\w\[\],.| -]{0,63}\Z")


def walk_values(value: object) -> Iterator[tuple[str, object]]:
    """The value and everything inside it, keys too, each with a readable pointer (`""` is the value itself).

    Raises:
        AdmissionError: `too_deep`, `too_many_nodes`.
    """
    waiting: list[tuple[str, int, object]] = [("", 1, value)]
    seen = 0
    while waiting:
        place, depth, one = waiting.pop()
        seen += 1
        yield place, one
        inside = children_of(one)
        if inside is None:
            continue
        if depth > ARGS_LIMITS.max_depth:
            raise too_deep(ARGS_LIMITS)
        if isinstance(one, Mapping):
            yield from ((place, key) for key in one)
        found: list[tuple[str, int, object]] = []
        for step, child in inside:
            if seen + len(waiting) + len(found) >= ARGS_LIMITS.max_nodes:
                raise too_many_nodes(ARGS_LIMITS)
            found.append((f"{place}/{pointer_step(step)}", depth + 1, child))
        waiting += reversed(found)


def pointer_step(step: object) -> str:
    """An index, a field or a key in a readable pointer; `*` for a key that is not a plain name, since a key is a value
    of the caller.
    """
    if type(step) is int and 0 <= step < ARGS_LIMITS.max_nodes:
        return str(step)
    return step if type(step) is str and _NAME.match(step) else "*"


def children_of(value: object) -> Iterable[tuple[object, object]] | None:
    """The steps into a container and their values; None if it is not a container."""
    if isinstance(value, Mapping):
        return ((key if isinstance(key, str) else None, value[key]) for key in value)
    if isinstance(value, list | tuple | set | frozenset | deque):
        return enumerate(value)
    if isinstance(value, BaseModel):
        return vars(value).items()
    if is_dataclass(value) and not isinstance(value, type):
        return ((one.name, getattr(value, one.name, None)) for one in fields(value))
    return None


# What `@contextmanager` makes is a `ContextDecorator`. A `Future` is still being worked on by a pool.
_KINDS: Final = (
    *(GeneratorType, AsyncGeneratorType, ContextDecorator, AsyncContextDecorator, Future),
    *(map, filter, zip, enumerate),
)
_LAZY_MODULE: Final = "itertools"


class UnfinishedError(Exception):
    """A tool returned work instead of doing it. This is unknown regardless of what the tool declares."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"it returned a {kind}, which has not run to its end; have the tool do its work before it returns "
            "(an async tool is an `async def`)"
        )


def unfinished_error(value: object) -> UnfinishedError | None:
    """The error for a result that is or contains unfinished work; None otherwise. Coroutines that were never started
    are closed, so that Python does not warn about them; nothing of them is run.
    """
    kind = None
    with suppress(Exception):  # inspecting runs code of the value
        for _, one in walk_values(value):
            if not _is_unfinished(type(one)):
                continue
            kind = kind or type(one).__name__
            if inspect.iscoroutine(one) and inspect.getcoroutinestate(one) == inspect.CORO_CREATED:
                one.close()
    return None if kind is None else UnfinishedError(kind)


def is_awaitable(value: object) -> bool:
    """Whether the value must be awaited."""
    return hasattr(type(value), "__await__")


def _is_unfinished(kind: type) -> bool:
    return (
        issubclass(kind, _KINDS)
        or hasattr(kind, "__await__")
        or hasattr(kind, "__anext__")
        or kind.__module__ == _LAZY_MODULE
    )


class Result:
    """The declared return type of a tool."""

    def __init__(self, hint: Any, tool: str) -> None:
        self._hint = hint
        self._tool = tool

    def require_unambiguous(self) -> None:
        """Refuse a type whose values would be read back as another type.

        Raises:
            RegistrationError: in a union with text, it would be read back as text.
        """
        kind = self.text_like_types
        if kind is not None:
            raise RegistrationError(
                f"tool {self._tool!r} says that it returns text or a {kind}: results are kept as JSON, where a {kind} "
                "is text too, so another run of the same key would get text for it; return one of the two, or an "
                "object with a field for each"
            )

    @property
    def text_like_types(self) -> str | None:
        """The first type of a union with text that would be read back as text; None if there is none."""
        return next(text_like_types(self._hint), None)

    def dump(self, value: object) -> bytes | None:
        """The result as canonical bytes, or None if it has no JSON form: it raises when inspected, or serialising would
        consume it (an iterator, a cursor, a file) before the caller can read it.
        """
        try:
            if _is_spent_by_reading(value):
                return None
            return admitted_bytes(to_jsonable_python(value, by_alias=True))
        except Exception:  # noqa: BLE001 - looking runs code of the value, and the tool has done its work all the same
            return None

    def load(self, raw: bytes) -> object:
        """A result from the journal, typed as far as possible."""
        value = load(raw)
        try:
            return self._adapter.validate_python(value)
        except Exception:  # noqa: BLE001 - of another type, of one that no schema describes, or its validator raised
            return value

    def fits(self, raw: bytes) -> bool:
        """Whether a result from the journal still matches the declared type."""
        try:
            self._adapter.validate_python(load(raw))
        except Exception:  # noqa: BLE001 - as above
            return False
        return True

    def loses(self, value: object, raw: bytes | None) -> str | None:
        """The type that another run would get instead of this value; None if it would get an equal one."""
        again = None if raw is None else self.load(raw)
        try:
            is_equal = bool(again == value)
        except Exception:  # noqa: BLE001 - comparing runs code of the value, and the effect has fired all the same
            is_equal = False
        if is_equal:
            return None
        kind = type(again).__name__
        return (
            f"another {kind}" if type(again) is type(value) else f"a {kind}" if again is not None else "None"
        )

    @cached_property
    def _adapter(self) -> TypeAdapter[object]:
        return TypeAdapter(self._hint)


def _is_spent_by_reading(value: object) -> bool:
    return any(hasattr(type(one), "__next__") for _, one in walk_values(value))


def is_utf8_text(text: str) -> bool:
    """Whether it can be encoded as UTF-8."""
    try:
        str.encode(text)  # a subclass may override `encode`
    except UnicodeEncodeError:
        return False
    return True
