"""What `@tool` and `@probe` refuse where they are written: words that nothing knows, or that have no effect."""

import inspect
from typing import Any

import pytest

from countersign import Happened, MemoryAdapter, Unsure, errors, probe, tool
from countersign.contract import BUILT_IN_TYPES, RESERVED_IDENTIFIERS
from countersign.tools.declaration import OPTIONS
from countersign.tools.tool import tool_of
from tests.fakes.desk import Desk, refund_tool
from tests.fakes.running import fails, order_tool, run
from tests.unit.sdk.commit.probed import payment, probed_void, unsure

LIVE: dict[str, Any] = {"lane": "live", "adapter": MemoryAdapter()}
STAGED: dict[str, Any] = {"resource": ("Note", "text")}


def note(text: str) -> None: ...
def hide(customer: str, token: str, amount: int) -> None: ...


def refused(desk: Desk, match: str, fn: Any = note, **said: Any) -> str:
    """Declaring it is refused, and nothing of it is left."""
    with pytest.raises(errors.RegistrationError, match=match) as raised:
        tool("note", registry=desk.registry, **said)(fn)
    assert [*desk.registry] == []
    return str(raised.value)


NO_EFFECT: list[dict[str, Any]] = [
    *({"tries": 5}, {"failure_means": "not_done"}, {"own_thread": False}, {"repeat": True}),
    *({"idempotent": True}, {"on_exhausted": "tool"}, {"timeout_seconds": 1}, {"compensate": "void"}),
    {"compensation_map": {"id": "result:/id"}},
]


@pytest.mark.parametrize("said", NO_EFFECT, ids=str)
def test_w14_a_live_tool_has_no_options_without_effect(desk: Desk, said: dict[str, Any]) -> None:
    (option,) = said
    refused(desk, f"says {option}=.*for staged tools.*leave it out", **LIVE, **said)


UNKNOWN: list[Any] = [
    ({"lane": "Live"}, "says lane='Live'; write 'staged' or 'live'"),
    ({"failure_means": "nothing"}, "says failure_means='nothing'; write 'unknown' or 'not_done'"),
    ({**STAGED, "on_exhausted": None}, r"on_exhausted=.*'transaction' or 'tool'"),
    ({"idempotant": True}, "does not know idempotant; did you mean idempotent"),
    ({"lanes": "live"}, "does not know lanes; did you mean lane"),
    ({"retries": 3}, "does not know retries; did you mean tries"),
    ({"name": "note"}, "the name comes first and bare"),
    ({"x": 1}, "does not know x; it takes lane, adapter, "),
    ({"lane": "live"}, "a live tool needs the adapter that undoes it: write adapter="),
    ({**STAGED, "adapter": MemoryAdapter()}, r"is staged and has an adapter, .* write lane='live'"),
]


@pytest.mark.parametrize(("said", "raised"), UNKNOWN, ids=lambda said: str(said)[:24])
def test_an_unknown_option_is_reported_with_a_suggestion(desk: Desk, said: Any, raised: str) -> None:
    refused(desk, raised, **said)


def test_every_tool_option_is_listed_in_the_error() -> None:
    taken = [one for one in inspect.signature(tool).parameters if one not in {"name", "draft"}]
    assert sorted(taken) == sorted(OPTIONS)


def test_a_live_tool_may_say_what_holds_of_every_tool(desk: Desk) -> None:
    defaults: Any = {"idempotent": False, "timeout_seconds": 60, "compensation_map": {}, "tries": None}
    tool("note", registry=desk.registry, on_exhausted="transaction", repeat=False, **LIVE, **defaults)(note)
    assert "note" in [one.name for one in desk.registry]


MISSHAPEN: list[dict[str, Any]] = [
    *({"money": [5]}, {"money": [{"amount": 5}]}, {"money": 5}, {"recipients": [5]}, {"secret": [None]}),
    *({"groups": None}, {"compensation_map": "x", "compensate": "void"}),
    *({"compensation_map": {"id": 5}, "compensate": "void"}, {"timeout_seconds": "x"}),
    *({"timeout_seconds": True}, {"timeout_seconds": 3601}, {"risk": "huge"}, {"title": 5}, {"sentence": 5}),
    *({"compensate": 5}, {"probe": 5}, {"idempotent": 1}),
]


@pytest.mark.parametrize("said", MISSHAPEN, ids=str)
def test_a_member_of_another_shape_is_refused_with_one_to_write(desk: Desk, said: dict[str, Any]) -> None:
    refused(desk, rf"says {next(iter(said))}=.*; write ", **STAGED, **said)


NO_ARGUMENTS: list[Any] = [
    ({"secret": ["tokn"]}, "tokn"),
    ({"secret": ["/tokn/0"]}, "/tokn/0"),
    ({"secret": ["no/pointer"]}, "no/pointer"),
    ({"recipients": ["to"]}, "to"),
    ({"money": [{"amount": "cents", "currency": "const:USD"}]}, "cents"),
    ({"money": [{"amount": "amount", "currency": "currency"}]}, "currency"),
    ({"compensate": "void", "compensation_map": {"customer": "args:/client"}}, "/client"),
]


@pytest.mark.parametrize(("said", "named"), NO_ARGUMENTS)
def test_what_a_member_names_is_an_argument(desk: Desk, said: dict[str, Any], named: str) -> None:
    """A secret that is misspelt would stand in the journal in clear."""
    raised = refused(desk, r"is no argument of it.*takes customer, token, amount", hide, **said)
    assert repr(named) in raised


NO_TYPES: list[Any] = [
    *((one, "belongs to the service") for one in sorted(BUILT_IN_TYPES)),
    *((f"Shop::{one}", "belongs to the service") for one in ("Agent", "User", "Role", "Group", "Action")),
    *((one, "Cedar reserves") for one in [*sorted(RESERVED_IDENTIFIERS), "Shop::in", "__cedar::Order"]),
    *((one, "no type name") for one in ("", "Order Item", "1Order", "Order::", "Bestellung-Ü", "O" * 129)),
]


@pytest.mark.parametrize(("kind", "why"), NO_TYPES)
def test_an_invalid_resource_type_is_refused(desk: Desk, kind: str, why: str) -> None:
    refused(desk, why, resource=(kind, "text"))


@pytest.mark.parametrize(
    "kind", ["Order", "Shop::Order", "User::Order", "Set", "principal", "Shop::Review", "_x"]
)
def test_a_valid_resource_type_is_accepted(desk: Desk, kind: str) -> None:
    fn = tool("note", resource=(kind, "text"), registry=desk.registry)(note)
    assert tool_of(fn).draft_manifest().resource.type == kind


# ---------------------------------------------------------------------------------- how probes are declared


def test_a_class_may_have_a_probe(desk: Desk) -> None:
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


def test_the_reviewed_manifest_selects_the_probe(desk: Desk) -> None:
    payments = payment(desk, Happened({"paid": 1}), changes={"probe": None})
    fails(desk, errors.OutcomeUnknown, (payments.pay, "o-1", 100))
    assert payments.asked == []


def test_a_probe_that_is_not_here_is_missed_before_anything_is_sent(desk: Desk, refund: Any) -> None:
    desk.publish(refund, probe="find_refund")
    missed = r"import the module.*@probe\('find_refund'\)"
    fails(desk, errors.RegistrationError, (refund, "o-1", 100), match=missed)
    charge, _ = probed_void(desk, unsure)
    desk.registry._tools.pop("voided")  # that of a compensation
    fails(desk, errors.RegistrationError, (charge, "o-1"), match="'voided' is registered", key="t-2")
    assert (desk.done, desk.service.revisions) == ([], {})


def test_a_probe_takes_what_its_tool_hands_over(desk: Desk) -> None:
    refund = refund_tool(desk, probe="find_refund")
    for name, look in {"reason": lambda order_id, reason: Unsure(), "tags": lambda tags: Unsure()}.items():
        probe("find_refund", registry=desk.registry)(look)
        fails(desk, errors.NotStageable, (refund, "o-1", 100), match=f"takes '{name}'", key=name)
        desk.registry._tools.pop("find_refund")
    assert desk.done == []


def test_what_the_call_left_out_the_probe_has_a_default_for(desk: Desk) -> None:
    seen: list[Any] = []

    @order_tool(desk, probe="find_refund")
    def refund(order_id: str, tags: list[str] | None = None) -> None:
        raise ConnectionError

    @probe(registry=desk.registry)
    def find_refund(tags: list[str] | None = None) -> Happened:
        seen.append(tags)
        return Happened()

    run(desk, (refund, "o-1"), (refund, "o-2", ["late"]))
    assert seen == [None, ["late"]]


def test_names_are_given_once_to_a_tool_or_a_probe(desk: Desk) -> None:
    def both() -> Unsure:
        return Unsure()

    here: dict[str, Any] = {"registry": desk.registry}
    probe("find", **here)(unsure)
    probe("both", **here)(both)
    tool("refund", resource=("A", "a"), **here)(lambda a: None)
    tools = [tool(name, resource=("A", "const:a"), **here) for name in ("find", "both")]
    for taken in (*tools, probe("refund", **here), probe("find", **here)):
        with pytest.raises(errors.RegistrationError, match="needs another name"):
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


UNCALLABLE: list[Any] = [
    (Both, {"probe": "find"}, "has a method `probe`, and says probe='find'"),
    (Strange, {}, "takes 'reason'"),
    (Missing, {}, "takes 'tags'"),
]


@pytest.mark.parametrize(("cls", "options", "raised"), UNCALLABLE)
def test_uncallable_probes_are_refused(desk: Desk, cls: type, options: Any, raised: str) -> None:
    with pytest.raises(errors.RegistrationError, match=raised):
        tool("charge", resource=("Order", "order_id"), registry=desk.registry, **options)(cls)
    assert [*desk.registry] == []


@pytest.mark.parametrize("name", ["", "a b", "../x", "é"])
def test_a_bare_probe_decorator_is_refused_with_advice(desk: Desk, name: str) -> None:
    with pytest.raises((errors.RegistrationError, errors.CountersignError)):
        probe(name or " ", registry=desk.registry)(unsure)
    with pytest.raises(errors.RegistrationError, match=r"write @probe\('unsure'\)"):
        probe(unsure)  # type: ignore[arg-type]
