"""Tools as classes: `execute` is the tool, `compensate` becomes one of its own."""

from dataclasses import dataclass
from typing import Any

import pytest
from typing_extensions import TypedDict

from countersign import EffectFailed, MemoryAdapter, RegistrationError, tool
from countersign.tools.tool import tool_of
from policy_service.facts.manifests import InputCodec
from tests.fakes.desk import Desk
from tests.fakes.running import fails, refusing_tool


def declare(desk: Desk, cls: Any, name: str = "charge", **options: Any) -> Any:
    """Declare a class as a tool, and have what it makes reviewed as drafted."""
    said = {"resource": ("Order", "order_id"), **options}
    made = tool(name, registry=desk.registry, **said)(cls)
    desk.service.review([one.draft_manifest() for one in desk.registry])
    return made


def back_of(desk: Desk, name: str = "charge") -> Any:
    """The manifest of its compensation."""
    return desk.registry.require(f"{name}.compensate", "of its class").draft_manifest()


def taken_back(desk: Desk, *call: Any) -> None:
    """Run this, and let the step fail."""
    fails(desk, EffectFailed, call, (refusing_tool(desk), "o-1"))


def test_scenario_37_its_compensation_gets_the_forward_arguments_and_the_result(desk: Desk) -> None:
    tried: list[str] = []

    class Charge:
        """Charge an order."""

        def execute(self, order_id: str, amount_cents: int) -> dict[str, str]:
            tried.append(order_id)
            if len(tried) < 3:
                raise ConnectionError("lost")
            desk.act("charge", order_id, amount_cents)
            return {"charge_id": f"c-{order_id}"}

        def compensate(self, order_id: str, result: dict[str, str]) -> None:
            """Take the charge back."""
            desk.act("void", order_id, result["charge_id"])

    charge = declare(desk, Charge, idempotent=True, tries=3)
    manifest, back = tool_of(charge).draft_manifest(), back_of(desk)
    assert (manifest.description, back.description) == ("Charge an order.", "Take the charge back.")
    assert back.resource.type == "Order"
    assert manifest.compensation is not None and manifest.compensation.tool == "charge.compensate"
    assert dict(manifest.compensation.map) == {"order_id": "args:/order_id", "result": "result:"}
    taken_back(desk, charge, "o-1", 100)
    assert desk.done == [("charge", "o-1", 100), ("void", "o-1", "c-o-1")]
    assert (tried, len(set(desk.keys))) == (["o-1"] * 3, 2)  # a call key of its own


def test_a_compensation_may_take_a_part_of_the_result_by_its_name(desk: Desk) -> None:
    """What Cedar can weigh: a map of free keys asks people of the group `unseen`."""

    class Charge:
        """Charge an order."""

        def execute(self, order_id: str) -> dict[str, str]:
            return {"charge_id": f"c-{order_id}"}

        def compensate(self, order_id: str, charge_id: str) -> None:
            desk.act("void", order_id, charge_id)

    with pytest.raises(RegistrationError, match=r"where 'charge' comes from.*it takes order_id, charge_id"):
        tool("charge", registry=desk.registry, compensation_map={"charge": "result:/charge_id"})(Charge)
    charge = declare(desk, Charge, compensation_map={"charge_id": "result:/charge_id"})
    back = back_of(desk)
    assert back.title == "Take back: Charge an order"
    assert "Charge an order." not in (back.description, back.sentence)
    taken_back(desk, charge, "o-1")
    assert desk.done == [("void", "o-1", "c-o-1")]


def test_a_compensation_may_take_the_result_alone_or_nothing(desk: Desk) -> None:
    class Book:
        def execute(self, order_id: str) -> str:
            return f"booking-{order_id}"

        def compensate(self, result: str) -> None:
            desk.act("cancel", result)

    class Open:
        def execute(self, order_id: str) -> None: ...
        def compensate(self) -> None:
            desk.act("closed")

    book, opens = declare(desk, Book, "book"), declare(desk, Open, "open")
    back = back_of(desk, "book")
    assert (back.resource.type, back.resource.id) == ("Order", "/order_id")
    assert back.properties == {"order_id", "result"}
    fails(desk, EffectFailed, (book, "o-1"), (opens, "o-1"), (refusing_tool(desk), "o-1"))
    assert desk.done == [("closed",), ("cancel", "booking-o-1")]
    assert [desk.registry.unmet(one) for one in desk.registry] == [()] * 5


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


class Cancels:
    def execute(self, order: dict[str, str], why: str) -> None: ...
    def compensate(self, order: dict[str, str]) -> None: ...


class RaisesItself:
    def __init__(self) -> None:
        raise TypeError("the bank's client takes a token")

    def execute(self, order_id: str) -> None: ...


NO_RESOURCES = ["Order", ("Order", "/why~2"), ("Order", "/nothing"), ("Order", "/")]
REFUSED: list[tuple[type, dict[str, Any], type[Exception], str]] = [
    (NoExecute, {}, RegistrationError, "without a method `execute`"),
    (NeedsMore, {}, RegistrationError, "cannot be created without arguments"),
    (TakesFromNowhere, {}, RegistrationError, "takes 'reason'"),
    (Sound, {"compensate": "void"}, RegistrationError, "keep one of them"),
    (Sound, {"lane": "live", "adapter": MemoryAdapter()}, RegistrationError, "its adapter undoes it"),
    (RaisesItself, {}, TypeError, "takes a token"),  # its own word
    *((Cancels, {"resource": one}, RegistrationError, "no type with the argument") for one in NO_RESOURCES),
]


@pytest.mark.parametrize(("cls", "options", "error", "message"), REFUSED)
def test_an_unfit_class_is_refused(desk: Desk, cls: type, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        declare(desk, cls, **options)
    assert [*desk.registry] == []


@pytest.mark.parametrize("resource", [("Order", "order"), ("Order", "/order/id"), ("Order", "const:shop")])
def test_a_compensation_acts_on_what_its_class_does(desk: Desk, resource: tuple[str, str]) -> None:
    tool("cancel", resource=resource, registry=desk.registry)(Cancels)
    assert desk.registry.require("cancel.compensate", "").draft.resource == resource


class CannotUndo:
    name = "plain"

    def begin(self, txn: str) -> None: ...


@pytest.mark.parametrize("adapter", [CannotUndo(), object(), "notes.db"])
def test_w14_a_live_tool_whose_adapter_cannot_undo_is_refused(desk: Desk, adapter: Any) -> None:
    with pytest.raises(RegistrationError, match="cannot undo"):
        tool("note", lane="live", adapter=adapter, registry=desk.registry)(lambda text: None)


@pytest.mark.parametrize("taken", ["charge", "charge.compensate"])
def test_a_class_with_a_used_name_registers_nothing(desk: Desk, taken: str) -> None:
    first = tool(taken, resource=("Order", "order_id"), registry=desk.registry)(lambda order_id: None)
    with pytest.raises(RegistrationError, match="needs another name"):
        declare(desk, Sound)
    assert [*desk.registry] == [tool_of(first)]


class Receipt(TypedDict):
    charge_id: str


@dataclass
class Booking:
    charge_id: str


@pytest.mark.parametrize(
    ("result", "is_reported"), [(dict[str, str], True), (Receipt, False), (Booking, False), (str, False)]
)
def test_a_result_with_free_keys_is_reported(desk: Desk, result: Any, is_reported: bool) -> None:
    """A typed one is weighed."""

    class Charge:
        def execute(self, order_id: str): ...  # type: ignore[no-untyped-def]
        def compensate(self, order_id: str, result) -> None: ...  # type: ignore[no-untyped-def]

    Charge.execute.__annotations__["return"] = result
    Charge.compensate.__annotations__["result"] = result
    declare(desk, Charge)
    unmet = desk.registry.unmet(desk.registry.require("charge", ""))
    assert [("TypedDict" in one) for one in unmet] == [True] * is_reported
    assert bool(InputCodec(back_of(desk)).possible_unseen) is is_reported
