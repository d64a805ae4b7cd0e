"""What a tool returns, as the journal keeps it and as another run of the same key gets it back.

Rules: a result is kept as canonical JSON, and its type is what the return annotation says of that. A union in which
text stands beside what JSON writes as text (a time, a UUID, a `Decimal`) cannot say it, for each such text is taken for
text: it is refused where the tool is declared. What else does not come back equal has fired all the same; that is told
by its kinds, never by its values.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any

from pydantic import PydanticUserError, TypeAdapter
from pydantic_core import to_jsonable_python

from countersign.contract.admission import admit, load
from countersign.contract.canonical import canonicalize
from countersign.errors import RegistrationError
from countersign.tools.nested import nested


class Result:
    """What one tool says that it returns."""

    def __init__(self, hint: Any, tool: str) -> None:
        self._hint = hint
        self._tool = tool

    def require_told_apart(self) -> None:
        """Refuse a type that would come back as another one.

        Raises:
            RegistrationError: in a union with text, it would come back as text.
        """
        kind = self.taken_for_text
        if kind is not None:
            raise RegistrationError(
                f"tool {self._tool!r} says that it returns text or a {kind}: results are kept as JSON, where a {kind} "
                "is text too, so another run of the same key would get text for it; return one of the two, or an "
                "object with a field for each"
            )

    @property
    def taken_for_text(self) -> str | None:
        """The first type it names that would come back as text, for it stands beside text; None where there is none."""
        return next(_taken_for_text(self._hint), None)

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
    return any(hasattr(type(one), "__next__") for _, one in nested(value))


def _taken_for_text(hint: Any) -> Iterator[str]:
    """The names of types that stand beside text in a union, and are text in JSON."""
    members = list(_members(hint))
    if len(members) > 1 and any(member is str for member in members):
        yield from (
            _name(member) for member in members if not _is_text(member) and _is_written_as_text(member)
        )
    for member in members:
        for inner in typing.get_args(member) if typing.get_origin(member) is not typing.Literal else ():
            yield from _taken_for_text(inner)


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
