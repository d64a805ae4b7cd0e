"""Looked-up values keep their declared types or are refused, and the schema follows from them."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import cedarpy
import pytest

from policy_service.facts.config import parse_attribute_type, parse_timestamp
from policy_service.facts.schema import ToolShape, approval_schema, tools_schema

AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def decimal(text: str) -> dict[str, Any]:
    return {"__extn": {"fn": "decimal", "arg": text}}


JSON_TEXT = '{"__entity": 1}'  # a text that looks like an entity stays a text
TIME = {"__extn": {"fn": "datetime", "arg": "2026-01-31T12:00:00.000Z"}}
TAKEN: dict[str, list[tuple[object, object]]] = {
    "String": [("open", "open"), (JSON_TEXT, JSON_TEXT)],
    "Long": [(-5, -5), (2**63 - 1, 2**63 - 1)],
    "Bool": [(True, True), (1, True), (0, False)],  # numbers are SQLite's
    "decimal": [*((value, decimal("1.5")) for value in ("1.50", Decimal("1.5"))), (3, decimal("3.0"))],
    "datetime": [(AT, TIME), ("2026-01-31T13:00:00+01:00", TIME), (int(AT.timestamp()), TIME)],
    "Set<String>": [(["a", "b"], ["a", "b"]), ('["a"]', ["a"]), ("[]", [])],
}
REFUSED: dict[str, list[object]] = {
    "String": [5, b"open"],
    "Long": ["5", 5.0, True, 2**63],
    "Bool": [2, "true", 1.0],
    "decimal": ["0.00001", 0.1 + 0.2, "NaN", "much", True],
    "datetime": ["2026-01-31T12:00:00", "2026-01-31", "yesterday", True],
    "Set<String>": [["a", 1], "a,b", '{"a": 1}'],
}


@pytest.mark.parametrize("kind", TAKEN)
def test_a_value_of_its_type_is_written_and_one_of_another_refused(kind: str) -> None:
    for value, written in TAKEN[kind]:
        encoded = parse_attribute_type(kind).encode(value)
        assert (encoded, type(encoded)) == (written, type(written))
    for other in REFUSED[kind]:
        with pytest.raises(ValueError):
            parse_attribute_type(kind).encode(other)


def test_a_question_mark_makes_an_attribute_optional() -> None:
    required, optional = parse_attribute_type("Long"), parse_attribute_type("Long?")
    assert (required.optional, optional.optional, required.as_optional().optional) == (False, True, True)


@pytest.mark.parametrize("name", ["", "?", "long", "Float", "Set<Long>", "String??", "Record"])
def test_an_unknown_type_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not an attribute type"):
        parse_attribute_type(name)


def test_a_moment_is_always_aware() -> None:
    assert {parse_timestamp(one) for one in ("2026-01-31T12:00:00Z", int(AT.timestamp()), AT)} == {AT}


INPUT = {"type": "Record", "attributes": {"amount": {"type": "Long", "required": True}}}
PAY = ToolShape("pay", ("money", "writes"), "Account", INPUT)


def handle(schema: dict[str, Any]) -> cedarpy.Schema:
    return cedarpy.Schema.from_json_str(json.dumps(schema))


def test_cedar_takes_it_and_prints_it_for_people() -> None:
    text = str(handle(tools_schema([PAY], {"Account": {"state": parse_attribute_type("String?")}})))
    lines = ['action "pay" in [Action::"money", Action::"writes"]', "entity Agent in [Role, Group]"]
    lines += ["owner?: User", "on_behalf_of?: User", "state?: __cedar::String", "now: __cedar::datetime"]
    assert [line for line in [*lines, "amount: __cedar::Long"] if line not in text] == []


def test_tools_and_types_keep_their_names_and_none_is_needed() -> None:
    odd = ToolShape("billing.pay-out_2", ("a.b-c",), "Shop::Billing::Account", INPUT)
    text = str(handle(tools_schema([odd], {"Other": {"x": parse_attribute_type("Long")}}, ["Other"])))
    assert '"billing.pay-out_2" in [Action::"a.b-c"]' in text
    assert "namespace Shop::Billing" in text
    assert "entity Other" in text, "a declared type without a tool"
    handle(tools_schema([], {}))


def test_votes_have_a_schema_of_their_own() -> None:
    text = str(handle(approval_schema()))
    assert 'action "approve"' in text
    assert "principal: [User]" in text
    assert 'action "pay"' not in text
