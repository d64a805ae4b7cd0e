"""The generated schema: what policy may speak of."""

import json
from typing import Any

import cedarpy

from policy_service.facts.attributes import parse_attribute_type
from policy_service.facts.schema import ToolShape, approval_schema, tools_schema

INPUT = {"type": "Record", "attributes": {"amount": {"type": "Long", "required": True}}}
PAY = ToolShape("pay", ("money", "writes"), "Account", INPUT)


def handle(schema: dict[str, Any]) -> cedarpy.Schema:
    return cedarpy.Schema.from_json_str(json.dumps(schema))


def test_cedar_takes_it_and_prints_it_for_people() -> None:
    text = str(handle(tools_schema([PAY], {"Account": {"state": parse_attribute_type("String?")}})))
    for line in (
        'action "pay" in [Action::"money", Action::"writes"]',
        "entity Agent in [Role, Group]",
        "owner?: User",
        "state?: __cedar::String",
        "on_behalf_of?: User",
        "now: __cedar::datetime",
        "amount: __cedar::Long",
    ):
        assert line in text


def test_names_of_tools_need_no_mangling() -> None:
    odd = ToolShape("billing.pay-out_2", ("a.b-c",), "Account", INPUT)
    assert '"billing.pay-out_2" in [Action::"a.b-c"]' in str(handle(tools_schema([odd], {})))


def test_resource_types_may_have_a_namespace() -> None:
    shape = ToolShape("pay", (), "Shop::Billing::Account", INPUT)
    assert "namespace Shop::Billing" in str(handle(tools_schema([shape], {})))


def test_a_declared_type_without_a_tool_is_in_it_too() -> None:
    schema = tools_schema([PAY], {"Other": {"x": parse_attribute_type("Long")}}, ["Other"])
    assert "entity Other" in str(handle(schema))


def test_a_bundle_without_tools_has_a_schema() -> None:
    handle(tools_schema([], {}))


def test_votes_have_a_schema_of_their_own() -> None:
    text = str(handle(approval_schema()))
    assert 'action "approve"' in text
    assert "principal: [User]" in text
    assert 'action "pay"' not in text
