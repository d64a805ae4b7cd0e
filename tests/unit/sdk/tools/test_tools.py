"""Declaring tools, their manifests, and the drafts people review."""

import json
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel

from countersign import (
    Denied,
    NotStageable,
    OutsideTransaction,
    RegistrationError,
    ToolRegistry,
    tool,
    tool_of,
    transaction,
)
from countersign.contract import load_manifest
from countersign.manifests.drafting import manifest_json
from tests.fakes.desk import Desk, changed, refund_tool


class Line(BaseModel):
    sku: str
    count: int


@pytest.fixture
def registry() -> ToolRegistry:
    return ToolRegistry()


def test_a_name_is_given_once(registry: ToolRegistry) -> None:
    @tool("pay", registry=registry)
    def pay(order_id: str) -> None: ...

    def other(order_id: str) -> None: ...

    with pytest.raises(RegistrationError, match="already"):
        tool("pay", registry=registry)(other)
    assert tool_of(pay).name == "pay"


def test_the_same_function_imported_twice_is_one_tool(registry: ToolRegistry) -> None:
    def declare() -> None:
        @tool("pay", registry=registry)
        def pay(order_id: str) -> None: ...

    declare()
    declare()
    assert [one.name for one in registry] == ["pay"]


@pytest.mark.parametrize("name", ["", "a/../b", "has space", "ä", "x" * 129, "semi;colon"])
def test_a_name_that_is_no_action_id_is_refused(registry: ToolRegistry, name: str) -> None:
    with pytest.raises(RegistrationError):
        tool(name or " ", registry=registry)(lambda: None)


def test_a_bare_decorator_takes_the_functions_name() -> None:
    @tool
    def a_rather_special_tool(order_id: str) -> None: ...

    assert tool_of(a_rather_special_tool).name == "a_rather_special_tool"
    with pytest.raises(OutsideTransaction):
        a_rather_special_tool("o-1")


def test_the_draft_says_what_the_code_says(registry: ToolRegistry) -> None:
    @tool(
        "order.create",
        resource=("Customer", "customer"),
        compensate="order.cancel",
        compensation_map={"order": "result:/order"},
        money=[{"amount": "total_cents", "currency": "const:EUR"}],
        recipients=["customer"],
        secret=["card"],
        groups=["orders"],
        risk="high",
        registry=registry,
    )
    def create(
        customer: str,
        lines: list[Line],
        total_cents: int,
        kind: Literal["a", "b"],
        card: str,
        title: str | None = None,
    ) -> None:
        """Create an order."""

    manifest = load_manifest(manifest_json(tool_of(create).draft_manifest()))
    assert manifest.args == {
        "type": "object",
        "additionalProperties": False,
        "required": ["customer", "lines", "total_cents", "kind", "card"],
        "properties": {
            "customer": {"type": "string"},
            "lines": {
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["sku", "count"],
                    "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}},
                },
            },
            "total_cents": {"type": "integer"},
            "kind": {"type": "string", "enum": ["a", "b"]},
            "card": {"type": "string"},
            "title": {"type": "string"},
        },
    }
    assert (manifest.risk, manifest.groups, manifest.secret) == ("high", ("orders",), ("/card",))
    assert manifest.money[0].currency == "const:EUR"
    assert manifest.description == "Create an order."


def test_defaults_are_required_in_the_draft_because_they_are_always_written(registry: ToolRegistry) -> None:
    @tool("pay", resource=("System", "const:billing"), registry=registry)
    def pay(cents: int = 5, note: str | None = None) -> None: ...

    assert tool_of(pay).draft_manifest().args["required"] == ["cents"]


def test_a_draft_without_a_resource_says_how_to_name_one(registry: ToolRegistry) -> None:
    @tool("pay", registry=registry)
    def pay(order_id: str) -> None: ...

    with pytest.raises(RegistrationError, match="resource="):
        tool_of(pay).draft_manifest()


def test_a_dict_of_anything_cannot_be_reviewed(registry: ToolRegistry) -> None:
    @tool("pay", resource=("Order", "order"), registry=registry)
    def pay(order: str, extra: dict) -> None: ...  # type: ignore[type-arg]

    with pytest.raises(RegistrationError):
        tool_of(pay).draft_manifest()


def test_the_manifest_beside_the_module_is_taken_and_nobody_is_asked(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "refund.json"
    refund = refund_tool(desk, manifest=path)
    path.write_bytes(manifest_json(tool_of(refund).draft_manifest()))
    with transaction("t-1", runtime=desk.runtime):
        refund("o-1", 100)
    assert desk.face.asked("/v1/tools") == 0
    assert len(desk.done) == 1


def test_the_service_is_asked_once_for_each_tool(desk: Desk) -> None:
    refund = refund_tool(desk)
    for key in ("t-1", "t-2"):
        with transaction(key, runtime=desk.runtime):
            refund("o-1", 100)
    assert desk.face.asked("/v1/tools/refund") == 2  # the first answer was a nonce


def test_a_manifest_file_that_is_none_stops_the_call(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "refund.json"
    path.write_text("{}")
    refund = refund_tool(desk, manifest=path)
    with pytest.raises(RegistrationError, match=r"refund\.json"), transaction("t-1", runtime=desk.runtime):
        refund("o-1", 100)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tool": "other"}, "fix its name"),
        ({"lane": "live"}, "make them agree"),
        (
            {
                "args": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"order_id": {"type": "string"}},
                },
                "sentence": "Refund",
            },
            "amount_cents",
        ),
    ],
)
def test_a_manifest_that_describes_something_else_is_refused(
    desk: Desk, tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    path = tmp_path / "refund.json"
    refund = refund_tool(desk, manifest=path)
    path.write_text(json.dumps(changed(tool_of(refund).draft_manifest(), **changes).to_json()))
    with pytest.raises(RegistrationError, match=says), transaction("t-1", runtime=desk.runtime):
        refund("o-1", 100)
    assert desk.done == []


def test_a_tool_that_fires_elsewhere_is_not_staged_here(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "refund.json"
    refund = refund_tool(desk, manifest=path)
    path.write_bytes(manifest_json(changed(tool_of(refund).draft_manifest(), aud="payments-gateway")))
    with pytest.raises(NotStageable, match="payments-gateway"), transaction("t-1", runtime=desk.runtime):
        refund("o-1", 100)


def test_a_tool_nobody_reviewed_is_denied_with_the_way_out(desk: Desk) -> None:
    refund = refund_tool(desk)
    desk.service.manifests.clear()
    with pytest.raises(Denied, match="countersign tools export"), transaction("t-1", runtime=desk.runtime):
        refund("o-1", 100)


def test_a_manifest_that_changed_in_the_bundle_is_read_again_after_the_denial(desk: Desk) -> None:
    refund = refund_tool(desk)
    with transaction("t-1", runtime=desk.runtime):
        refund("o-1", 100)
    desk.publish(refund, title="Refund, but renamed")
    with pytest.raises(Denied, match="tool_changed"), transaction("t-2", runtime=desk.runtime):
        refund("o-1", 100)
    with transaction("t-3", runtime=desk.runtime):
        refund("o-1", 100)
    assert len(desk.done) == 2


def test_a_compensation_that_does_not_fit_its_tool_is_refused_before_anything_is_sent(desk: Desk) -> None:
    @tool("void", resource=("Charge", "charge_id"), registry=desk.registry)
    def void(charge_id: str) -> None: ...

    @tool(
        "charge",
        resource=("Order", "order_id"),
        compensate="void",
        compensation_map={"charge": "result:/id"},
        registry=desk.registry,
    )
    def charge(order_id: str) -> None: ...

    desk.publish(void)
    desk.publish(charge)
    with pytest.raises(NotStageable, match="charge_id"), transaction("t-1", runtime=desk.runtime):
        charge("o-1")
    assert desk.face.asked("/v1/transactions") == 0


@pytest.mark.parametrize("member", ["groups", "recipients", "secret", "money"])
def test_one_text_where_there_may_be_several_is_not_taken_apart(registry: ToolRegistry, member: str) -> None:
    with pytest.raises(RegistrationError, match=rf"write {member}=\['order_id'\]"):

        @tool("pay", registry=registry, **{member: "order_id"})
        def pay(order_id: str) -> None:
            """Pay."""
