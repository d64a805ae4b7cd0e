"""Tools as classes: `execute` is the tool, `compensate` becomes one of its own."""

from dataclasses import dataclass
from typing import Any

import pytest
from typing_extensions import TypedDict

from countersign import EffectFailed, MemoryAdapter, NotDone, RegistrationError, tool, transaction
from countersign.tools.tool import tool_of
from policy_service.facts.manifests import InputCodec
from tests.fakes.desk import Desk, failing_tool


def charge_class(desk: Desk) -> Any:
    @tool("charge", resource=("Order", "order_id"), registry=desk.registry)
    class Charge:
        """Charge an order."""

        def execute(self, order_id: str, amount_cents: int) -> dict[str, str]:
            desk.act("charge", order_id, amount_cents)
            return {"charge_id": f"c-{order_id}"}

        def compensate(self, order_id: str, result: dict[str, str]) -> None:
            """Take the charge back."""
            desk.act("void", order_id, result["charge_id"])

    desk.service.review([desk.registry.require("charge.compensate", "of its class").draft_manifest()])
    desk.publish(Charge)
    return Charge


def test_scenario_37_its_compensation_gets_the_forward_arguments_and_the_result(desk: Desk) -> None:
    charge, notify = charge_class(desk), failing_tool(desk, NotDone("no"), acts=False)
    with pytest.raises(EffectFailed), transaction("t-1", runtime=desk.runtime):
        charge("o-1", 100)
        notify("o-1")
    assert desk.done == [("charge", "o-1", 100), ("void", "o-1", "c-o-1")]
    assert len(set(desk.keys)) == 2  # its own call key


def test_people_read_where_each_argument_comes_from(desk: Desk) -> None:
    manifest = tool_of(charge_class(desk)).draft_manifest()
    assert manifest.description == "Charge an order."
    assert manifest.compensation is not None
    assert (manifest.compensation.tool, dict(manifest.compensation.map)) == (
        "charge.compensate",
        {"order_id": "args:/order_id", "result": "result:"},
    )
    back = desk.registry.require("charge.compensate", "of its class").draft_manifest()
    assert (back.description, back.resource.type) == ("Take the charge back.", "Order")


def test_a_compensation_may_take_a_part_of_the_result_by_its_name(desk: Desk) -> None:
    """What Cedar can weigh: a map of free keys asks people of the group `unseen`."""

    @tool(
        "charge",
        resource=("Order", "order_id"),
        registry=desk.registry,
        compensation_map={"charge_id": "result:/charge_id"},
    )
    class Charge:
        """Charge an order."""

        def execute(self, order_id: str) -> dict[str, str]:
            return {"charge_id": f"c-{order_id}"}

        def compensate(self, order_id: str, charge_id: str) -> None:
            desk.act("void", order_id, charge_id)

    back = desk.registry.require("charge.compensate", "of its class").draft_manifest()
    assert back.title == "Take back: Charge an order"
    assert "Charge an order." not in (back.description, back.sentence)
    desk.service.review([back])
    desk.publish(Charge)
    notify = failing_tool(desk, NotDone("no"), acts=False)
    with pytest.raises(EffectFailed), transaction("t-1", runtime=desk.runtime):
        Charge("o-1")
        notify("o-1")
    assert desk.done == [("void", "o-1", "c-o-1")]


def test_what_a_map_names_is_an_argument_of_the_compensation(desk: Desk) -> None:
    with pytest.raises(RegistrationError, match=r"where 'charge' comes from.*it takes order_id, charge_id"):

        @tool("charge", registry=desk.registry, compensation_map={"charge": "result:/charge_id"})
        class Charge:
            def execute(self, order_id: str) -> dict[str, str]: ...

            def compensate(self, order_id: str, charge_id: str) -> None: ...


def test_a_class_without_compensate_needs_none(desk: Desk) -> None:
    @tool(resource=("Order", "order_id"), registry=desk.registry)
    class Mail:
        """Tell the customer."""

        async def execute(self, order_id: str) -> None: ...

    assert (tool_of(Mail).name, tool_of(Mail).is_async, tool_of(Mail).draft.compensate) == (
        "Mail",
        True,
        None,
    )


class NoExecute:
    def compensate(self, result: str) -> None: ...


class NeedsMore:
    def __init__(self, bank: object) -> None: ...
    def execute(self, order_id: str) -> None: ...


class TakesFromNowhere:
    def execute(self, order_id: str) -> None: ...
    def compensate(self, order_id: str, reason: str) -> None: ...


class Sound:
    def execute(self, order_id: str) -> None: ...
    def compensate(self, order_id: str) -> None: ...


@pytest.mark.parametrize(
    ("cls", "options", "told"),
    [
        (NoExecute, {}, "without a method `execute`"),
        (NeedsMore, {}, "cannot be made without arguments"),
        (TakesFromNowhere, {}, "takes 'reason'"),
        (Sound, {"compensate": "void"}, "keep one of them"),
        (Sound, {"lane": "live", "adapter": MemoryAdapter()}, "its adapter undoes it"),
    ],
    ids=["no execute", "needs more", "from nowhere", "two compensations", "live"],
)
def test_classes_that_cannot_be_kept_are_refused_when_they_are_declared(
    desk: Desk, cls: type, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(RegistrationError, match=told):
        tool("charge", resource=("Order", "order_id"), registry=desk.registry, **options)(cls)
    assert [*desk.registry] == []


class Cancels:
    def execute(self, order: dict[str, str], why: str) -> None: ...
    def compensate(self, order: dict[str, str]) -> None: ...


@pytest.mark.parametrize("resource", [("Order", "order"), ("Order", "/order/id"), ("Order", "const:shop")])
def test_a_compensation_acts_on_what_its_class_does_however_that_is_named(
    desk: Desk, resource: tuple[str, str]
) -> None:
    tool("cancel", resource=resource, registry=desk.registry)(Cancels)
    assert desk.registry.require("cancel.compensate", "").draft.resource == resource


@pytest.mark.parametrize("resource", ["Order", ("Order", "/why~2"), ("Order", "/nobody"), ("Order", "/")])
def test_a_resource_that_names_nothing_is_told_as_of_any_tool(desk: Desk, resource: Any) -> None:
    with pytest.raises(RegistrationError, match="no type with the argument"):
        tool("cancel", resource=resource, registry=desk.registry)(Cancels)
    assert [*desk.registry] == []


class CannotUndo:
    name = "plain"

    def begin(self, txn: str) -> None: ...


@pytest.mark.parametrize("adapter", [CannotUndo(), object(), "notes.db"])
def test_w14_a_live_tool_whose_adapter_cannot_undo_is_refused_when_it_is_declared(
    desk: Desk, adapter: Any
) -> None:
    with pytest.raises(RegistrationError, match="cannot undo"):

        @tool("note", lane="live", adapter=adapter, registry=desk.registry)
        def note(text: str) -> None:
            """Note."""


class RaisesItself:
    """A class whose own __init__ is wrong."""

    def __init__(self) -> None:
        raise TypeError("the bank's client takes a token")

    def execute(self, order_id: str) -> None: ...


def test_what_a_class_raises_as_it_is_made_is_its_own_word(desk: Desk) -> None:
    with pytest.raises(TypeError, match="takes a token"):
        tool("charge", resource=("Order", "order_id"), registry=desk.registry)(RaisesItself)
    assert [*desk.registry] == []


@pytest.mark.parametrize("taken", ["charge", "charge.compensate"])
def test_a_class_whose_name_is_taken_leaves_nothing_of_itself(desk: Desk, taken: str) -> None:
    first = tool(taken, resource=("Order", "order_id"), registry=desk.registry)(lambda order_id: None)
    with pytest.raises(RegistrationError, match="needs another name"):
        tool("charge", resource=("Order", "order_id"), registry=desk.registry)(Sound)
    assert [*desk.registry] == [tool_of(first)]


def refuse(desk: Desk, *tools: Any) -> None:
    """Have these reviewed as drafted, run each, and let the step fail."""
    for one in desk.registry:
        desk.service.review([one.draft_manifest()])
    fails = failing_tool(desk, NotDone("no"), acts=False)
    with pytest.raises(EffectFailed), transaction("t-1", runtime=desk.runtime):
        for one in tools:
            one("o-1")
        fails("o-1")


def test_a_compensation_may_take_the_result_alone(desk: Desk) -> None:
    @tool("book", resource=("Order", "order_id"), registry=desk.registry)
    class Book:
        def execute(self, order_id: str) -> str:
            return f"booking-{order_id}"

        def compensate(self, result: str) -> None:
            """Cancel it."""
            desk.act("cancel", result)

    back = desk.registry.require("book.compensate", "").draft_manifest()
    assert (back.resource.type, back.resource.id, back.properties) == (
        "Order",
        "/order_id",
        {"order_id", "result"},
    )
    refuse(desk, Book)
    assert desk.done == [("cancel", "booking-o-1")]


def test_a_compensation_may_take_nothing(desk: Desk) -> None:
    @tool("open", resource=("Order", "order_id"), registry=desk.registry)
    class Open:
        def execute(self, order_id: str) -> None: ...

        def compensate(self) -> None:
            desk.act("closed")

    refuse(desk, Open)
    assert desk.done == [("closed",)]


def test_tries_of_a_class_count_its_execute_and_it_runs_as_drafted(desk: Desk) -> None:
    tried = []

    @tool("charge", resource=("Order", "order_id"), idempotent=True, tries=3, registry=desk.registry)
    class Charge:
        def execute(self, order_id: str) -> str:
            tried.append(order_id)
            if len(tried) < 3:
                raise ConnectionError("lost")
            return f"c-{order_id}"

        def compensate(self, order_id: str, result: str) -> None:
            desk.act("void", result)

    for one in desk.registry:
        assert desk.registry.unmet(one) == ()
    refuse(desk, Charge)
    assert (tried, desk.done) == (["o-1"] * 3, [("void", "c-o-1")])


class Receipt(TypedDict):
    charge_id: str


@dataclass
class Booking:
    charge_id: str


@pytest.mark.parametrize(
    ("result", "is_told"), [(dict[str, str], True), (Receipt, False), (Booking, False), (str, False)]
)
def test_a_result_with_free_keys_is_told_to_ask_people_and_a_typed_one_is_weighed(
    desk: Desk, result: Any, is_told: bool
) -> None:
    class Charge:
        def execute(self, order_id: str): ...  # type: ignore[no-untyped-def]
        def compensate(self, order_id: str, result) -> None: ...  # type: ignore[no-untyped-def]

    Charge.execute.__annotations__["return"] = result
    Charge.compensate.__annotations__["result"] = result
    tool("charge", resource=("Order", "order_id"), registry=desk.registry)(Charge)
    unmet = desk.registry.unmet(desk.registry.require("charge", ""))
    assert [("TypedDict" in one) for one in unmet] == [True] * is_told
    back = desk.registry.require("charge.compensate", "").draft_manifest()
    assert bool(InputCodec(back).may_be_unseen) is is_told
