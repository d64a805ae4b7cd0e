"""Looked-up values in their declared types: taken as they are, or refused."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from policy_service.facts.attributes import moment_of, parse_attribute_type

AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def extension(function: str, text: str) -> dict[str, Any]:
    return {"__extn": {"fn": function, "arg": text}}


TAKEN: dict[str, tuple[str, object, object]] = {
    "a text": ("String", "open", "open"),
    "a text that looks like an entity stays a text": ("String", '{"__entity": 1}', '{"__entity": 1}'),
    "a number": ("Long", -5, -5),
    "the largest number": ("Long", 2**63 - 1, 2**63 - 1),
    "true": ("Bool", True, True),
    "SQLite's true": ("Bool", 1, True),
    "SQLite's false": ("Bool", 0, False),
    "a decimal as text": ("decimal", "1.50", extension("decimal", "1.5")),
    "a decimal as the driver has it": ("decimal", Decimal("1.5"), extension("decimal", "1.5")),
    "a decimal that is whole": ("decimal", 3, extension("decimal", "3.0")),
    "a float by its shortest digits": ("decimal", 0.1, extension("decimal", "0.1")),
    "a time": ("datetime", AT, extension("datetime", "2026-01-31T12:00:00.000Z")),
    "a time as text": ("datetime", "2026-01-31T13:00:00+01:00", extension("datetime", "2026-01-31T12:00:00.000Z")),
    "a time as seconds": ("datetime", int(AT.timestamp()), extension("datetime", "2026-01-31T12:00:00.000Z")),
    "a set": ("Set<String>", ["a", "b"], ["a", "b"]),
    "a set as JSON text": ("Set<String>", '["a"]', ["a"]),
    "an empty set": ("Set<String>", "[]", []),
}  # fmt: skip

REFUSED: dict[str, tuple[str, object]] = {
    "a number for a text": ("String", 5),
    "bytes for a text": ("String", b"open"),
    "a text for a number": ("Long", "5"),
    "a float for a number": ("Long", 5.0),
    "a truth value for a number": ("Long", True),
    "a number beyond 64 bits": ("Long", 2**63),
    "two for a truth value": ("Bool", 2),
    "a text for a truth value": ("Bool", "true"),
    "a float for a truth value": ("Bool", 1.0),
    "five places": ("decimal", "0.00001"),
    "a float that is not what it seems": ("decimal", 0.1 + 0.2),
    "not a number": ("decimal", "NaN"),
    "a word for a decimal": ("decimal", "much"),
    "a truth value for a decimal": ("decimal", True),
    "a time without a zone": ("datetime", "2026-01-31T12:00:00"),
    "a day for a time": ("datetime", "2026-01-31"),
    "a word for a time": ("datetime", "yesterday"),
    "a truth value for a time": ("datetime", True),
    "a set with a number": ("Set<String>", ["a", 1]),
    "a text for a set": ("Set<String>", "a,b"),
    "an object for a set": ("Set<String>", '{"a": 1}'),
}


@pytest.mark.parametrize(("kind", "value", "written"), TAKEN.values(), ids=TAKEN)
def test_a_value_of_its_type_is_written(kind: str, value: object, written: object) -> None:
    assert parse_attribute_type(kind).encode(value) == written


@pytest.mark.parametrize(("kind", "value"), REFUSED.values(), ids=REFUSED)
def test_a_value_of_another_type_is_refused(kind: str, value: object) -> None:
    with pytest.raises(ValueError):
        parse_attribute_type(kind).encode(value)


def test_a_question_mark_makes_an_attribute_optional() -> None:
    assert parse_attribute_type("Long?").optional
    assert not parse_attribute_type("Long").optional
    assert parse_attribute_type("Long").as_optional().optional


@pytest.mark.parametrize("name", ["", "?", "long", "Float", "Set<Long>", "String??", "Record"])
def test_an_unknown_type_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not an attribute type"):
        parse_attribute_type(name)


def test_a_moment_is_always_aware() -> None:
    assert moment_of("2026-01-31T12:00:00Z") == moment_of(int(AT.timestamp())) == moment_of(AT) == AT
