"""Converts a call to canonical bytes by the function's signature, and back; results are in `results.py`.

Binding makes keyword and positional forms the same args. Freezing validates each argument by its annotation (pydantic),
writes canonical JSON and reads it back. What does not survive the round trip is refused, naming the argument. Firing
parses those bytes again, so the caller's own objects are never used later.

An argument that is None where None is the default is left out, because policy cannot evaluate null. Every other default
is written out, so that what people approve is complete. Bytes, sets, Decimals and times with a named zone are refused:
their JSON is ambiguous or lossy. Error texts never quote a value, which may be a secret.
"""

from __future__ import annotations

import datetime as dt
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from decimal import Decimal
from functools import cached_property, partial
from typing import Any, Final, NotRequired, TypeVar

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from countersign.contract.admission import JSON, admit, admitted_bytes, load
from countersign.contract.errors import AdmissionError
from countersign.errors import CountersignError, NotStageable, RegistrationError
from countersign.texts import text_of
from countersign.tools.annotations import require_named, require_runs_when_called, type_hints
from countersign.tools.refused_arguments import (
    bracketed,
    refused_pointer,
    serialization_error_text,
    validation_text,
)
from countersign.tools.results import Placeholder, Result, is_utf8_text, pointer_step, walk_values

T = TypeVar("T")

_typed_dict: Final[Any] = TypedDict  # the functional form, with fields from the signature
_UNFAITHFUL: Final = (bytes, bytearray, memoryview, set, frozenset, Decimal, complex)
_INSTEAD: Final = "use text, a list, or whole minor units instead"


class Signature:
    """The typed arguments of one tool."""

    def __init__(self, fn: Callable[..., object], tool: str) -> None:
        self.tool = tool
        require_runs_when_called(fn, tool)
        self._signature = inspect.signature(fn)
        self._hints = type_hints(fn, tool)
        for parameter in self._signature.parameters.values():
            require_named(parameter, tool)
        self.result: Final = Result(self._hints.get("return", Any), tool)

    @property
    def names(self) -> frozenset[str]:
        """The names of the arguments."""
        return frozenset(self.parameters)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The argument names in the order of the signature."""
        return tuple(self._signature.parameters)

    @property
    def bare(self) -> tuple[str, ...]:
        """Arguments without an annotation, or with `Any`."""
        return tuple(name for name in self.parameters if self._hints.get(name, Any) in (Any, object))

    @property
    def optional(self) -> frozenset[str]:
        """Arguments that are left out when they are None."""
        return frozenset(n for n, p in self._signature.parameters.items() if p.default is None)

    def freeze(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        """Turn one call into canonical bytes that parse to the same arguments.

        Raises:
            NotStageable: naming the argument and what to write instead.
        """
        bound = self._bind(args, kwargs)
        for name, value in bound.items():
            self._written(name, partial(self._require_value, name, value))
        typed = self._validate(bound)
        for name, value in typed.items():
            self._written(name, partial(self._require_same_kind, name, bound[name], value))
        raw = self._canonical(typed)
        again = self.retype(raw)
        for name, value in typed.items():
            self._written(name, partial(self._require_round_trip, name, value, again))
        return raw

    def require_call(self, given: Mapping[str, object], later: Iterable[str] = ()) -> None:
        """Refuse a call by name, listing everything wrong: missing, unknown and ill-typed arguments. `later`: arguments
        that are not known yet.

        Raises:
            NotStageable: listing the problems.
        """
        parameters = self._signature.parameters
        names = {*given, *later}
        lacks = [n for n, one in parameters.items() if one.default is one.empty and n not in names]
        wrong = [f"missing {', '.join(map(repr, lacks))}"] if lacks else []
        wrong += [f"it takes no {name!r}" for name in (*given, *later) if name not in parameters]
        known = {n: v for n, v in given.items() if n in parameters and not (v is None and n in self.optional)}
        try:
            typed = self._adapter.validate_python(known)
            wrong += [text for n, value in typed.items() for text in _converted(n, known[n], value)]
        except ValidationError as error:
            found = error.errors(include_input=False, include_url=False)
            wrong += [
                validation_text(one) for one in found if one["type"] != "missing" or len(one["loc"]) > 1
            ]
        if wrong:
            raise NotStageable(f"{self.tool!r} cannot be called like this: {'; '.join(wrong)}")

    def retype(self, raw: bytes) -> dict[str, Any]:
        """Parse canonical bytes into new argument values.

        Raises:
            NotStageable: the bytes do not fit the signature (an edit, or another version of the tool).
        """
        value = load(raw)
        if not isinstance(value, dict):
            raise NotStageable(f"the args of {self.tool!r} are not an object")
        return self._validate(value)

    def typed(self, values: Mapping[str, JSON]) -> dict[str, Any]:
        """Approved values, typed as these arguments.

        Raises:
            NotStageable: they do not fit.
        """
        return self._validate(values)

    def require_args_fit(self, raw: bytes) -> None:
        """Refuse bytes written elsewhere unless they round-trip exactly. A text that pydantic would parse as a number
        would reach the tool as a number, although people approved a text.

        Raises:
            NotStageable: they do not fit the signature, or do not round-trip.
        """
        if self._canonical(self.retype(raw)) != raw:
            raise NotStageable(
                f"the args of {self.tool!r} would reach the tool as others than they are written"
            )

    @cached_property
    def schema(self) -> dict[str, JSON]:
        """JSON Schema of the args: one closed object, references expanded.

        Raises:
            RegistrationError: an argument has a type without a schema.
        """
        with self._described():
            return self._adapter.json_schema(mode="validation")

    @property
    def answers_nothing(self) -> bool:
        """Whether it is annotated to return None."""
        return self._hints.get("return", Any) is type(None)

    @cached_property
    def _adapter(self) -> TypeAdapter[dict[str, Any]]:
        fields = {name: self._field(name) for name in self._signature.parameters}
        shape = _typed_dict(f"{self.tool}_args", fields)
        shape.__pydantic_config__ = ConfigDict(extra="forbid")
        with self._described():
            return TypeAdapter(shape)

    @contextmanager
    def _described(self) -> Iterator[None]:
        try:
            yield
        except PydanticUserError as error:
            raise RegistrationError(
                f"tool {self.tool!r} has an argument that no schema describes: {error.message}"
            ) from error

    def _field(self, name: str) -> Any:
        hint = self._hints.get(name, Any)
        return NotRequired[hint] if name in self.optional else hint

    def _bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            why = self._missing(args, kwargs) or text_of(error)
            raise NotStageable(f"{self.tool!r} cannot be called like this: {why}") from error
        bound.apply_defaults()
        return {n: v for n, v in bound.arguments.items() if not (v is None and n in self.optional)}

    def _missing(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """All missing arguments, if that is the problem: Python names only the first."""
        try:
            given = self._signature.bind_partial(*args, **kwargs).arguments
        except TypeError:
            return ""
        needed = [name for name, one in self._signature.parameters.items() if one.default is one.empty]
        return f"missing {', '.join(repr(name) for name in needed if name not in given)}"

    def _require_value(self, name: str, value: object) -> None:
        for place, one in walk_values(value):
            if isinstance(one, Placeholder):
                raise NotStageable(
                    f"argument {name!r} of {self.tool!r} is the placeholder of {one.tool!r}{bracketed(place)}, which "
                    "has not happened yet and may never; call it in a later transaction, with the .result of this one"
                )
            if isinstance(one, str) and not is_utf8_text(one):
                raise NotStageable(
                    f"argument {name!r} of {self.tool!r} holds half of a surrogate pair{bracketed(place)}; "
                    "repair the text"
                )
            if isinstance(one, float) and not math.isfinite(one):
                raise NotStageable(
                    f"argument {name!r} of {self.tool!r} holds a number that is not finite{bracketed(place)}; leave it "
                    "out or send text"
                )
            if isinstance(one, _UNFAITHFUL):
                raise NotStageable(
                    f"argument {name!r} of {self.tool!r} holds a {type(one).__name__}{bracketed(place)}, which JSON "
                    f"does not carry faithfully; {_INSTEAD}"
                )

    def _require_same_kind(self, name: str, given: object, typed: object) -> None:
        for text in _converted(name, given, typed):
            raise NotStageable(f"{self.tool!r}: {text}")

    def _validate(self, values: Mapping[str, object]) -> dict[str, Any]:
        adapter = self._adapter
        try:
            try:
                return adapter.validate_python(dict(values))
            except ValidationError as error:
                problems = "; ".join(
                    validation_text(item) for item in error.errors(include_input=False, include_url=False)
                )
        except Exception as error:  # noqa: BLE001 - a validator or a value may raise anything
            problems = serialization_error_text(error)
        # Raised outside `except`: pydantic's error contains every value given, secrets too, and would become the
        # context of this one.
        raise NotStageable(f"the args of {self.tool!r} do not fit its signature: {problems}")

    def _canonical(self, typed: dict[str, Any]) -> bytes:
        written: dict[str, object] = {
            name: self._written(name, partial(self._dumped, name, value)) for name, value in typed.items()
        }
        try:
            return admitted_bytes(written)
        except AdmissionError as error:  # each argument is within the limits, but not all of them together
            raise NotStageable(f"the args of {self.tool!r} cannot be written as JSON: {error}") from None

    def _written(self, name: str, act: Callable[[], T]) -> T:
        """Run a step of serialising an argument, which may run any code of its value."""
        try:
            return act()
        except CountersignError:
            raise
        except Exception as error:  # noqa: BLE001 - as it says
            why = serialization_error_text(error)
        # outside `except`, as above
        raise NotStageable(f"argument {name!r} of {self.tool!r} cannot be written as JSON: {why}")

    def _dumped(self, name: str, value: object) -> JSON:
        dumped = self._adapter.dump_python({name: value}, mode="json", by_alias=True, warnings=False)[name]
        try:
            return admit(dumped)
        except AdmissionError as error:
            why = f"{error}{bracketed(refused_pointer(dumped))}"
        # outside `except`, as above
        raise NotStageable(f"argument {name!r} of {self.tool!r} cannot be written as JSON: {why}")

    def _require_round_trip(self, name: str, value: object, again: Mapping[str, object]) -> None:
        if name not in again or not _same(value, again[name]):
            raise NotStageable(
                f"argument {name!r} of {self.tool!r} does not survive being written as JSON (a "
                f"{type(value).__name__} comes back different); {_INSTEAD}, and give times a fixed UTC offset"
            )


def _children(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, BaseModel):
        return [getattr(value, name) for name in type(value).model_fields]
    return []


def _converted(name: str, given: object, typed: object) -> Iterator[str]:
    """Numbers and booleans that pydantic made of something else, like 42 of "42": what people approve would differ from
    what was given. A text that says another number is left out: a validator of the tool's own has read it.
    """
    for place, one, other in _leaves(given, typed):
        if type(other) not in (int, float, bool) or not isinstance(one, str | bool | int | float):
            continue
        read = isinstance(one, str) and (isinstance(other, bool) or _is_written(other, one))
        if read or (not isinstance(one, str) and isinstance(one, bool) is not isinstance(other, bool)):
            yield (
                f"argument {name!r} is {_kind(one)}{bracketed(place)} where the signature says {_kind(other)}; convert "
                "it before the call"
            )


def _leaves(given: object, typed: object, place: str = "") -> Iterator[tuple[str, object, object]]:
    """The parts of an argument as given and as validated, each with its place."""
    if isinstance(given, Mapping) and isinstance(typed, Mapping | BaseModel):
        parts = typed if isinstance(typed, Mapping) else vars(typed)
        for key in given.keys() & parts.keys():
            yield from _leaves(given[key], parts[key], f"{place}/{pointer_step(key)}")
    elif isinstance(given, list | tuple) and isinstance(typed, list | tuple):
        for step, (one, other) in enumerate(zip(given, typed, strict=False)):
            yield from _leaves(one, other, f"{place}/{step}")
    else:
        yield place, given, typed


def _is_written(number: object, text: str) -> bool:
    for read in (int, float):  # a float lacks the last digits of a large integer
        with suppress(ValueError):
            if read(text) == number:
                return True
    return False


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean"
    return "text" if isinstance(value, str) else "a number"


def _same(one: object, other: object) -> bool:
    """Equal in value and in type; 1.0 and 1 are the same number (RFC 8785), True and 1 are not."""
    if isinstance(one, float) and type(other) is int:
        return one == other
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, BaseModel):
        return all(map(_same, _children(one), _children(other)))
    if isinstance(one, dt.datetime | dt.time) and isinstance(other, dt.datetime | dt.time):
        return one == other and _fixed_offset(one)
    return bool(one == other)


def _fixed_offset(moment: dt.datetime | dt.time) -> bool:
    """Whether the zone is a fixed offset. A named zone's rules may change, and JSON keeps only the offset."""
    return moment.tzinfo is None or moment.tzinfo.utcoffset(None) is not None
