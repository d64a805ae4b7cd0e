"""Types of entity attributes, as facts.toml declares them, and the code that writes looked-up values in them.

Rules kept here: a value is never coerced into something else (a text is no number, 2 is no Bool); a missing
value is an error unless the type says `?`. Bool takes SQLite's 0 and 1 because SQLite has no other; a set may
come as JSON text because SQL has no sets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from policy_service.domain.cedar_values import datetime_value, decimal_value

_INT64: Final = 2**63


@dataclass(frozen=True, slots=True)
class AttributeType:
    """One declared type. `optional`: the attribute may be missing, and policy must ask `has` first."""

    name: str
    cedar_type: Mapping[str, Any]
    optional: bool
    _write: Callable[[Any], Any]

    def encode(self, value: object) -> Any:
        """The value in Cedar's JSON.

        Raises:
            ValueError: the value is not of this type.
        """
        return self._write(value)

    def as_optional(self) -> AttributeType:
        """The same type for an attribute that is only there for some tools."""
        return AttributeType(self.name, self.cedar_type, True, self._write)


def parse_attribute_type(text: str) -> AttributeType:
    """The type that facts.toml names.

    Raises:
        ValueError: there is no such type.
    """
    name = text.removesuffix("?")
    if name not in _TYPES:
        raise ValueError(
            f"{text!r} is not an attribute type; known are {', '.join(_TYPES)}, each with ? when optional"
        )
    cedar_type, write = _TYPES[name]
    return AttributeType(name, cedar_type, text.endswith("?"), write)


def moment_of(value: object) -> datetime:
    """A time as sources give it: an aware datetime, RFC 3339 text, or seconds since 1970.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC)
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ValueError(f"{value!r} is not a time with a zone; write it like 2026-01-31T12:00:00Z")
    return moment


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise _not(value, "a text")
    return value


def _long(value: object) -> int:
    if type(value) is not int or not -_INT64 <= value < _INT64:
        raise _not(value, "a whole number of 64 bits")
    return value


def _bool(value: object) -> bool:
    if type(value) is bool or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise _not(value, "true or false")


def _decimal(value: object) -> dict[str, Any]:
    # A float is taken by its shortest digits, the ones a person would read; more than four places are refused.
    if isinstance(value, bool) or not isinstance(value, Decimal | int | float | str):
        raise _not(value, "a decimal")
    try:
        return decimal_value(Decimal(value if isinstance(value, Decimal | int | str) else repr(value)))
    except InvalidOperation as error:
        raise _not(value, "a decimal") from error


def _datetime(value: object) -> dict[str, Any]:
    return datetime_value(moment_of(value))


def _set_of_strings(value: object) -> list[str]:
    items = json.loads(value) if isinstance(value, str) else value
    if not isinstance(items, list):
        raise _not(value, "a list of texts")
    return [_string(item) for item in items]


def _not(value: object, expected: str) -> ValueError:
    return ValueError(f"{value!r} is not {expected}")


_TYPES: Final[Mapping[str, tuple[Mapping[str, Any], Callable[[Any], Any]]]] = {
    "String": ({"type": "String"}, _string),
    "Long": ({"type": "Long"}, _long),
    "Bool": ({"type": "Boolean"}, _bool),
    "decimal": ({"type": "Extension", "name": "decimal"}, _decimal),
    "datetime": ({"type": "Extension", "name": "datetime"}, _datetime),
    "Set<String>": ({"type": "Set", "element": {"type": "String"}}, _set_of_strings),
}
