"""What a function must be to become a tool: its parameters, annotations and result.

A union of text and a type that JSON writes as text (a time, a UUID, a `Decimal`) is refused, because its values would
be read back as text. A generator function is refused, because it does nothing until its result is iterated.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import PydanticUserError, TypeAdapter

from countersign.errors import RegistrationError


def type_hints(fn: Callable[..., object], tool: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise RegistrationError(
            f"the annotations of tool {tool!r} cannot be read ({error}); define the types it names at module level"
        ) from error
    except TypeError as error:  # a `partial`, or an object with `__call__`
        raise RegistrationError(
            f"tool {tool!r} is a {type(fn).__name__}, whose annotations cannot be read; write a function or a class"
        ) from error


def require_named(parameter: inspect.Parameter, tool: str) -> None:
    if parameter.name in {"self", "cls"}:
        raise RegistrationError(
            f"tool {tool!r} is a method: {parameter.name!r} cannot be written down for people to approve; write a "
            f"plain function at module level with @tool({tool!r}), and let it find its object by an id it takes"
        )
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise RegistrationError(
            f"tool {tool!r} takes {str(parameter)!r}; every argument needs a name of its own, so that people can read "
            "what they approve (no *args, **kwargs or positional-only arguments)"
        )


def require_runs_when_called(fn: object, tool: str) -> None:
    """Refuse a generator function, plain or async, also as a method of an object or inside a `partial`.

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
            f"{tool!r} is a generator function (it contains `yield`), and calling it runs nothing; return what "
            "it yields as a list"
        )


def text_like_types(hint: Any) -> Iterator[str]:
    """The names of types that form a union with text and are text in JSON."""
    members = list(_members(hint))
    if len(members) > 1 and any(member is str for member in members):
        yield from (
            _name(member) for member in members if not _is_text(member) and _is_written_as_text(member)
        )
    for member in members:
        for inner in typing.get_args(member) if typing.get_origin(member) is not typing.Literal else ():
            yield from text_like_types(inner)


def _members(hint: Any) -> Iterator[Any]:
    """The members of a union, or the type itself, with type aliases resolved."""
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
    """Whether it is text, or a type whose JSON text equals the value."""
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
