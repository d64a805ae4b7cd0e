"""What a tool takes and returns: arguments that cannot be staged, results as the journal keeps them, unfinished work.

Rules: a result is kept as canonical JSON, and its type is what the return annotation says of that. A union in which
text stands beside what JSON writes as text (a time, a UUID, a `Decimal`) is refused where the tool is declared. What
else does not come back equal has fired all the same; that is reported by its kinds, never by its values. A refusal of
an argument says where it is wrong and why, without any value of the caller's.

A generator function does nothing until somebody iterates over its result, so it is refused where it is declared. Where
a call returns such an object all the same (from a wrapper), its outcome is unknown. A value may hold itself, or share
its parts so that it is endless as JSON: the walk calls nothing of it and ends at the limits of admission.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AsyncContextDecorator, ContextDecorator, suppress
from dataclasses import fields, is_dataclass
from functools import cached_property
from types import AsyncGeneratorType, GeneratorType
from typing import Annotated, Any, Final

from pydantic import BaseModel, PydanticUserError, TypeAdapter
from pydantic_core import to_jsonable_python

from countersign.contract.admission import ARGS_LIMITS, admit, load, too_deep, too_many_nodes
from countersign.contract.canonical import canonicalize
from countersign.contract.errors import AdmissionError
from countersign.errors import RegistrationError
from countersign.texts import storable, text_of

# A field, a type of a union (`list[any]`) or a key like one. No number and no `repr`: pydantic names other keys so.
_NAME: Final = re.compile(r"[^\W\d][\w\[\],.| -]{0,63}\Z")


def walk_values(value: object) -> Iterator[tuple[str, object]]:
    """The value and all that is inside it, keys too, each with a pointer for people (`""` is the value itself).

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
    """An index, a field or a key as a pointer for people has it; `*` for a key that is no plain name, for a key is a
    value of the caller's.
    """
    if type(step) is int and 0 <= step < ARGS_LIMITS.max_nodes:
        return str(step)
    return step if type(step) is str and _NAME.match(step) else "*"


def children_of(value: object) -> Iterable[tuple[object, object]] | None:
    """Of a container each step into it, with what is there; None of anything else."""
    if isinstance(value, Mapping):
        return ((key if isinstance(key, str) else None, value[key]) for key in value)
    if isinstance(value, list | tuple | set | frozenset | deque):
        return enumerate(value)
    if isinstance(value, BaseModel):
        return vars(value).items()
    if is_dataclass(value) and not isinstance(value, type):
        return ((one.name, getattr(value, one.name, None)) for one in fields(value))
    return None


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


def unfinished_error(value: object) -> UnfinishedError | None:
    """The error of a result that is such work, or holds it. A coroutine in it that was never begun is closed, so that
    Python warns of none; nothing of it is run.
    """
    kind = None
    with suppress(Exception):  # looking runs code of the value
        for _, one in walk_values(value):
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


class Result:
    """What one tool says that it returns."""

    def __init__(self, hint: Any, tool: str) -> None:
        self._hint = hint
        self._tool = tool

    def require_unambiguous(self) -> None:
        """Refuse a type that would come back as another one.

        Raises:
            RegistrationError: in a union with text, it would come back as text.
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
        """The first type it names that would come back as text, for it stands beside text; None where there is none."""
        return next(_text_like_types(self._hint), None)

    def dump(self, value: object) -> bytes | None:
        """It as canonical bytes, or None where it has no JSON form: neither has what raises when it is looked at, nor
        what writing would read to its end (an iterator, a cursor, a file), for its caller goes on to read that.
        """
        try:
            if _is_spent_by_reading(value):
                return None
            return canonicalize(admit(to_jsonable_python(value, by_alias=True)))
        except Exception:  # noqa: BLE001 - looking runs code of the value, and the tool has done its work all the same
            return None

    def load(self, raw: bytes) -> object:
        """One from the journal, typed as far as that is possible."""
        value = load(raw)
        try:
            return self._adapter.validate_python(value)
        except Exception:  # noqa: BLE001 - of another type, of one that no schema describes, or its validator raised
            return value

    def fits(self, raw: bytes) -> bool:
        """Whether one from the journal still is what the tool says."""
        try:
            self._adapter.validate_python(load(raw))
        except Exception:  # noqa: BLE001 - as above
            return False
        return True

    def loses(self, value: object, raw: bytes | None) -> str | None:
        """What another run would get in its place, by its kind; None where it gets one that is equal."""
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


def _text_like_types(hint: Any) -> Iterator[str]:
    """The names of types that stand beside text in a union, and are text in JSON."""
    members = list(_members(hint))
    if len(members) > 1 and any(member is str for member in members):
        yield from (
            _name(member) for member in members if not _is_text(member) and _is_written_as_text(member)
        )
    for member in members:
        for inner in typing.get_args(member) if typing.get_origin(member) is not typing.Literal else ():
            yield from _text_like_types(inner)


def _members(hint: Any) -> Iterator[Any]:
    """Of a union each, of anything else itself, without the names that were given to them."""
    while (named := getattr(hint, "__supertype__", None) or getattr(hint, "__value__", None)) is not None:
        hint = named
    if typing.get_origin(hint) is Annotated:
        yield from _members(typing.get_args(hint)[0])
    elif typing.get_origin(hint) in (typing.Union, types.UnionType):
        for member in typing.get_args(hint):
            yield from _members(member)
    else:
        yield hint


def _is_text(member: Any) -> bool:
    """Text itself, or what is equal to the text it is written as."""
    return typing.get_origin(member) is typing.Literal or (
        isinstance(member, type) and issubclass(member, str)
    )


def _is_written_as_text(member: Any) -> bool:
    try:
        schema = TypeAdapter(member).json_schema(mode="serialization")
    except PydanticUserError:
        return False
    return schema.get("type") == "string"


def _name(member: Any) -> str:
    return str(getattr(member, "__name__", member))


_UNKNOWN_TYPE: Final = "Unable to serialize unknown type"  # how pydantic begins where it names a type alone


def validation_text(item: Mapping[str, Any]) -> str:
    """One error of pydantic: the place and its message."""
    steps, what = item["loc"], ""
    if steps[-1:] == ("[key]",):  # of a mapping; the step before is the key itself
        steps, what = steps[:-2], "a key: "
    where = "/".join(map(pointer_step, steps))
    instead = (
        " (money is whole minor units: write 1250 for 12.50)" if item["type"] == "int_from_float" else ""
    )
    # whoever reads it gave an argument, no input
    told = storable(item["msg"]).replace("Input should be", "it should be")
    return f"{where}: {what}{told}{instead}"


def serialization_error_text(error: Exception) -> str:
    """Why a value cannot be written. What code of its own raised may quote it."""
    text = text_of(error)
    if isinstance(error, AdmissionError) or text.startswith(_UNKNOWN_TYPE):
        return text
    return f"reading it raised {type(error).__name__}"


def is_utf8_text(text: str) -> bool:
    """Whether it can be written as UTF-8."""
    try:
        str.encode(text)  # a subclass may have an `encode` of its own
    except UnicodeEncodeError:
        return False
    return True


def bracketed(place: str) -> str:
    """The place in brackets, where there is one."""
    return f" (at {place})" if place else ""


def refused_pointer(value: object) -> str:
    """A pointer to the innermost value that admission refuses by itself; `""` where that is the whole."""
    for step, child in children_of(value) or ():
        try:
            admit(child)
        except AdmissionError:
            return f"/{pointer_step(step)}{refused_pointer(child)}"
    return ""
