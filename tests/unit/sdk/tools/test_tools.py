"""Declaring tools, their manifests, and the drafts people review."""

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from countersign import ToolRegistry, errors, tool, tool_of
from countersign.contract import load_manifest
from countersign.manifests.drafts import manifest_json
from tests.fakes.desk import Desk, changed, refund_tool
from tests.fakes.running import fails, order_tool, run


class Line(BaseModel):
    sku: str
    count: int


@pytest.fixture
def registry() -> ToolRegistry:
    return ToolRegistry()


def pay(order_id: str, cents: int = 5, note: str | None = None) -> None: ...


def test_names_are_unique_and_a_function_imported_twice_is_one_tool(registry: ToolRegistry) -> None:
    def declare() -> None:
        @tool("pay", registry=registry)
        def pay(order_id: str) -> None: ...

        assert tool_of(pay).name == "pay"

    declare()
    declare()
    with pytest.raises(errors.RegistrationError, match="already"):
        tool("pay", registry=registry)(pay)
    assert [one.name for one in registry] == ["pay"]


@pytest.mark.parametrize("name", ["", "a/../b", "has space", "ä", "x" * 129, "semi;colon"])
def test_a_name_that_is_no_action_id_is_refused(registry: ToolRegistry, name: str) -> None:
    with pytest.raises(errors.RegistrationError):
        tool(name or " ", registry=registry)(lambda: None)


def test_a_bare_decorator_takes_the_functions_name() -> None:
    @tool
    def a_rather_special_tool(order_id: str) -> None: ...

    assert tool_of(a_rather_special_tool).name == "a_rather_special_tool"
    with pytest.raises(errors.OutsideTransaction):
        a_rather_special_tool("o-1")


def an_object(**properties: Any) -> dict[str, Any]:
    """The schema of an object that has all of these, and `title`."""
    required = [name for name in properties if name != "title"]
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return schema | {"required": required}


def test_a_gated_tool_has_the_name_of_what_it_gates(registry: ToolRegistry) -> None:
    class BookSeat:
        def execute(self, flight: str) -> None: ...

    async def look_up(flight: str) -> None: ...

    seat, look = (tool(registry=registry)(one) for one in (BookSeat, look_up))
    assert (seat.__name__, look.__name__) == ("BookSeat", "look_up")
    assert "BookSeat" in repr(seat)
    assert repr(look) == f"<async tool look_up of {__name__}>"


def test_the_draft_repeats_the_declaration(registry: ToolRegistry) -> None:
    said: dict[str, Any] = {
        "compensate": "order.cancel",
        "compensation_map": {"order": "result:/order", "to": "args:/customer", "why": 'const:"late"'},
        "money": [{"amount": "total", "currency": "const:EUR"}],
        "recipients": ["/lines/0/sku"],
        "secret": ["card"],
        "groups": ["orders"],
        "risk": "high",
    }

    @tool("order.create", resource=("Customer", "customer"), registry=registry, **said)
    def create(
        customer: str,
        lines: list[Line],
        total: int,
        kind: Literal["a", "b"],
        card: str,
        title: str | None = None,
    ) -> None:
        """Create an order."""

    manifest = load_manifest(manifest_json(tool_of(create).draft_manifest()))
    text, number = {"type": "string"}, {"type": "integer"}
    lines = {"type": "array", "items": an_object(sku=text, count=number)}
    kind = {"type": "string", "enum": ["a", "b"]}
    expected = an_object(customer=text, lines=lines, total=number, kind=kind, card=text, title=text)
    assert manifest.args == expected
    assert manifest.compensation is not None and manifest.compensation.map == said["compensation_map"]
    assert (manifest.risk, manifest.groups, manifest.secret) == ("high", ("orders",), ("/card",))
    assert (manifest.money[0].currency, manifest.description) == ("const:EUR", "Create an order.")


def test_defaults_are_required_in_the_draft_because_they_are_always_written(registry: ToolRegistry) -> None:
    declared = tool("pay", resource=("System", "const:billing"), registry=registry)(pay)
    assert tool_of(declared).draft_manifest().args["required"] == ["order_id", "cents"]


def test_a_draft_without_a_resource_or_of_a_dict_of_anything_is_refused(registry: ToolRegistry) -> None:
    def free(order: str, extra: dict) -> None: ...  # type: ignore[type-arg]

    with pytest.raises(errors.RegistrationError, match="resource="):
        tool_of(tool("pay", registry=registry)(pay)).draft_manifest()
    with pytest.raises(errors.RegistrationError):
        tool_of(tool("free", resource=("Order", "order"), registry=registry)(free)).draft_manifest()


@pytest.fixture
def path(tmp_path: Any) -> Any:
    """The manifest path of `reviewed`."""
    return tmp_path / "refund.json"


@pytest.fixture
def reviewed(desk: Desk, path: Any) -> Any:
    """A refund whose manifest is next to its module."""
    return refund_tool(desk, manifest=path)


CALL = "o-1", 100


def test_a_manifest_next_to_the_module_is_used_by_default(desk: Desk, path: Any, reviewed: Any) -> None:
    path.write_bytes(manifest_json(tool_of(reviewed).draft_manifest()))
    run(desk, (reviewed, *CALL))
    assert (desk.face.asked("/v1/tools"), len(desk.done)) == (0, 1)


def test_a_manifest_file_that_is_none_stops_the_call(desk: Desk, path: Any, reviewed: Any) -> None:
    path.write_text("{}")
    fails(desk, errors.RegistrationError, (reviewed, *CALL), match=r"refund\.json")


ONLY_ORDER = {"type": "object", "additionalProperties": False, "properties": {"order_id": {"type": "string"}}}


MISFITS: list[Any] = [
    ({"tool": "other"}, errors.RegistrationError, "fix its name"),
    ({"lane": "live"}, errors.RegistrationError, "make them agree"),
    ({"args": ONLY_ORDER, "sentence": "Refund"}, errors.RegistrationError, "amount_cents"),
    ({"aud": "payments-gateway"}, errors.NotStageable, "payments-gateway"),  # it fires elsewhere
]


@pytest.mark.parametrize(("changes", "error", "says"), MISFITS)
def test_manifest_refusals(desk: Desk, path: Any, reviewed: Any, changes: Any, error: Any, says: str) -> None:
    path.write_text(json.dumps(changed(tool_of(reviewed).draft_manifest(), **changes).to_json()))
    fails(desk, error, (reviewed, *CALL), match=says)
    assert desk.done == []


def test_an_unreviewed_tool_is_denied_with_advice(desk: Desk, refund: Any) -> None:
    desk.service.manifests.clear()
    fails(desk, errors.Denied, (refund, *CALL), match="countersign tools export")


def test_manifests_are_fetched_once_and_again_after_a_denial(desk: Desk, refund: Any) -> None:
    for key in ("t-1", "t-2"):
        run(desk, (refund, *CALL), key=key)
    assert desk.face.asked("/v1/tools/refund") == 2  # the first answer was a nonce
    desk.publish(refund, title="Refund, but renamed")
    fails(desk, errors.Denied, (refund, *CALL), match="tool_changed", key="t-3")
    run(desk, (refund, *CALL), key="t-4")
    assert len(desk.done) == 3


def test_a_compensation_that_does_not_fit_its_tool_is_refused_before_anything_is_sent(desk: Desk) -> None:
    @order_tool(desk, resource=("Charge", "charge_id"))
    def void(charge_id: str) -> None: ...

    @order_tool(desk, compensate="void", compensation_map={"charge": "result:/id"})
    def charge(order_id: str) -> None: ...

    fails(desk, errors.NotStageable, (charge, "o-1"), match="charge_id")
    assert desk.face.asked("/v1/transactions") == 0


@pytest.mark.parametrize("member", ["groups", "recipients", "secret", "money"])
def test_a_text_in_place_of_a_list_is_refused(registry: ToolRegistry, member: Any) -> None:
    with pytest.raises(errors.RegistrationError, match=rf"write {member}=\['order_id'\]"):
        tool("pay", registry=registry, **{member: "order_id"})(pay)
