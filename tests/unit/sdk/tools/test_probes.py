"""How probes are declared, and what is refused."""

from typing import Any

import pytest

from countersign import (
    CountersignError,
    Happened,
    NotStageable,
    OutcomeUnknown,
    RegistrationError,
    Unsure,
    probe,
    tool,
)
from countersign.tools.tool import tool_of
from tests.fakes.desk import Desk, refund_tool
from tests.fakes.running import fails, order_tool, run
from tests.unit.sdk.commit.probed import payment, probed_void, unsure


def test_a_class_may_tell_whether_its_call_has_happened(desk: Desk) -> None:
    @tool("charge", resource=("Order", "order_id"), registry=desk.registry)
    class Charge:
        def execute(self, order_id: str, cents: int) -> dict[str, str]:
            raise ConnectionError

        def compensate(self, order_id: str) -> None: ...
        def probe(self, order_id: str) -> Happened:
            return Happened({"charge_id": f"c-{order_id}"})

    assert tool_of(Charge).draft_manifest().probe == "charge.probe"
    assert [one.name for one in desk.registry] == ["charge", "charge.compensate"]
    desk.service.review([one.draft_manifest() for one in desk.registry])
    assert run(desk, (Charge, "o-1", 5)).placed[0].result == {"charge_id": "c-o-1"}


def test_the_reviewed_manifest_decides_which_probe_is_asked(desk: Desk) -> None:
    payments = payment(desk, Happened({"paid": 1}), changes={"probe": None})
    fails(desk, OutcomeUnknown, (payments.pay, "o-1", 100))
    assert payments.asked == []


def test_a_probe_that_is_not_here_is_missed_before_anything_is_sent(desk: Desk) -> None:
    refund = refund_tool(desk)
    desk.publish(refund, probe="find_refund")
    missed = r"import the module.*@probe\('find_refund'\)"
    fails(desk, RegistrationError, (refund, "o-1", 100), match=missed)
    charge, _ = probed_void(desk, unsure)
    desk.registry._tools.pop("voided")  # that of a compensation
    fails(desk, RegistrationError, (charge, "o-1"), match="'voided' is registered", key="t-2")
    assert (desk.done, desk.service.revisions) == ([], {})


def test_a_probe_takes_what_its_tool_hands_over(desk: Desk) -> None:
    refund = refund_tool(desk, probe="find_refund")

    @probe(registry=desk.registry)
    def find_refund(order_id: str, reason: str) -> Unsure:
        return Unsure(reason)

    fails(desk, NotStageable, (refund, "o-1", 100), match="takes 'reason'")
    desk.registry._tools.pop("find_refund")

    @probe("find_refund", registry=desk.registry)
    def left_out(tags: list[str]) -> Unsure:
        return Unsure()

    fails(desk, NotStageable, (refund, "o-1", 100), match="takes 'tags'", key="t-2")
    assert desk.done == []


def test_what_the_call_left_out_the_probe_has_a_default_for(desk: Desk) -> None:
    seen: list[Any] = []

    @order_tool(desk, probe="find_refund")
    def refund(order_id: str, tags: list[str] | None = None) -> None:
        raise ConnectionError

    @probe("find_refund", registry=desk.registry)
    def find_refund(tags: list[str] | None = None) -> Happened:
        seen.append(tags)
        return Happened()

    run(desk, (refund, "o-1"), (refund, "o-2", ["late"]))
    assert seen == [None, ["late"]]


def test_names_are_given_once_to_a_tool_or_a_probe(desk: Desk) -> None:
    def both() -> Unsure:
        return Unsure()

    said: dict[str, Any] = {"registry": desk.registry}
    probe("find", **said)(unsure)
    probe("both", **said)(both)
    tool("refund", resource=("A", "a"), **said)(lambda a: None)
    a_tool = {"resource": ("A", "const:a"), **said}
    for taken in (
        probe("refund", **said),
        probe("find", **said),
        tool("find", **a_tool),
        tool("both", **a_tool),
    ):
        with pytest.raises(RegistrationError, match="needs another name"):
            taken(both)


class Both:
    def execute(self, order_id: str, tags: list[str] | None = None) -> None: ...
    def probe(self, order_id: str) -> Unsure:
        return Unsure()


class Strange(Both):
    def probe(self, reason: str) -> Unsure:  # type: ignore[override]
        return Unsure()


class Missing(Both):
    def probe(self, tags: list[str]) -> Unsure:  # type: ignore[override]
        return Unsure()


@pytest.mark.parametrize(
    ("cls", "options", "told"),
    [
        (Both, {"probe": "find"}, "has a method `probe`, and says probe='find'"),
        (Strange, {}, "takes 'reason'"),
        (Missing, {}, "takes 'tags'"),
    ],
)
def test_probes_of_classes_that_could_not_be_asked_are_refused(
    desk: Desk, cls: type, options: Any, told: str
) -> None:
    with pytest.raises(RegistrationError, match=told):
        tool("charge", resource=("Order", "order_id"), registry=desk.registry, **options)(cls)
    assert [*desk.registry] == []


@pytest.mark.parametrize("name", ["", "a b", "../x", "é"])
def test_a_probe_has_a_name_like_a_tool_and_a_bare_one_says_what_to_write(desk: Desk, name: str) -> None:
    with pytest.raises((RegistrationError, CountersignError)):
        probe(name or " ", registry=desk.registry)(unsure)
    with pytest.raises(RegistrationError, match=r"write @probe\('unsure'\)"):
        probe(unsure)  # type: ignore[arg-type]
