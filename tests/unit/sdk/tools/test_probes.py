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
    transaction,
)
from countersign.tools.tool import tool_of
from tests.fakes.desk import Desk, refund_tool
from tests.unit.sdk.commit.probed import payment, probed_void, unsure


def test_a_class_may_tell_whether_its_call_has_happened(desk: Desk) -> None:
    @tool("charge", resource=("Order", "order_id"), registry=desk.registry)
    class Charge:
        """Charge an order."""

        def execute(self, order_id: str, cents: int) -> dict[str, str]:
            raise ConnectionError

        def compensate(self, order_id: str) -> None:
            """Take it back."""

        def probe(self, order_id: str) -> Happened:
            return Happened({"charge_id": f"c-{order_id}"})

    manifest = tool_of(Charge).draft_manifest()
    assert manifest.probe == "charge.probe"
    assert [one.name for one in desk.registry] == ["charge", "charge.compensate"]
    desk.service.review([desk.registry.require("charge.compensate", "of its class").draft_manifest()])
    desk.publish(Charge)
    with transaction("t-1", runtime=desk.runtime):
        made = Charge("o-1", 5)
    assert made.result == {"charge_id": "c-o-1"}


def test_the_reviewed_manifest_decides_which_probe_is_asked(desk: Desk) -> None:
    payments = payment(desk, Happened({"paid": 1}), changes={"probe": None})
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime):
        payments.pay("o-1", 100)
    assert payments.asked == []


def test_a_probe_that_is_not_here_is_missed_before_anything_is_sent(desk: Desk) -> None:
    refund = refund_tool(desk)
    desk.publish(refund, probe="find_refund")
    with (
        pytest.raises(RegistrationError, match=r"import the module.*@probe\('find_refund'\)"),
        transaction("t-1", runtime=desk.runtime),
    ):
        refund("o-1", 100)
    assert (desk.done, desk.service.revisions) == ([], {})


def test_the_probe_of_a_compensation_is_missed_as_well(desk: Desk) -> None:
    charge, _ = probed_void(desk, unsure)
    desk.registry._tools.pop("voided")
    with (
        pytest.raises(RegistrationError, match="'voided' is registered"),
        transaction("t-1", runtime=desk.runtime),
    ):
        charge("o-1")
    assert desk.done == []


def test_a_probe_takes_what_its_tool_hands_over(desk: Desk) -> None:
    refund = refund_tool(desk, probe="find_refund")

    @probe(registry=desk.registry)
    def find_refund(order_id: str, reason: str) -> Unsure:
        return Unsure(reason)

    with pytest.raises(NotStageable, match="takes 'reason'"), transaction("t-1", runtime=desk.runtime):
        refund("o-1", 100)
    desk.registry._tools.pop("find_refund")

    @probe("find_refund", registry=desk.registry)
    def left_out(tags: list[str]) -> Unsure:
        return Unsure()

    with pytest.raises(NotStageable, match="takes 'tags'"), transaction("t-2", runtime=desk.runtime):
        refund("o-1", 100)
    assert desk.done == []


def test_what_the_call_left_out_the_probe_has_a_default_for(desk: Desk) -> None:
    seen: list[Any] = []

    @tool("refund", resource=("Order", "order_id"), probe="find_refund", registry=desk.registry)
    def refund(order_id: str, tags: list[str] | None = None) -> None:
        """Refund."""
        raise ConnectionError

    @probe("find_refund", registry=desk.registry)
    def find_refund(tags: list[str] | None = None) -> Happened:
        seen.append(tags)
        return Happened()

    desk.publish(refund)
    with transaction("t-1", runtime=desk.runtime):
        refund("o-1")
        refund("o-2", ["late"])
    assert seen == [None, ["late"]]


def test_names_are_given_once_to_a_tool_or_a_probe(desk: Desk) -> None:
    def both() -> Unsure:
        return Unsure()

    probe("find", registry=desk.registry)(unsure)
    probe("both", registry=desk.registry)(both)
    tool("refund", resource=("A", "a"), registry=desk.registry)(lambda a: None)
    for declares in (
        probe("refund", registry=desk.registry),
        tool("find", resource=("A", "const:a"), registry=desk.registry),
        tool("both", resource=("A", "const:a"), registry=desk.registry),
        probe("find", registry=desk.registry),
    ):
        with pytest.raises(RegistrationError, match="needs another name"):
            declares(both)


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
    ids=["two", "strange", "left out"],
)
def test_probes_of_classes_that_could_not_be_asked_are_refused(
    desk: Desk, cls: type, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(RegistrationError, match=told):
        tool("charge", resource=("Order", "order_id"), registry=desk.registry, **options)(cls)
    assert [*desk.registry] == []


@pytest.mark.parametrize("name", ["", "a b", "../x", "é"])
def test_a_probe_has_a_name_like_a_tool(desk: Desk, name: str) -> None:
    with pytest.raises((RegistrationError, CountersignError)):
        probe(name or " ", registry=desk.registry)(unsure)


def test_a_bare_probe_says_what_to_write() -> None:
    def find_it() -> Unsure:
        return Unsure()

    with pytest.raises(RegistrationError, match=r"write @probe\('find_it'\)"):
        probe(find_it)  # type: ignore[arg-type]
