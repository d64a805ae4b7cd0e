"""What `@tool` refuses where it is written: words that nothing knows, and those that have no effect."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from countersign import MemoryAdapter, RegistrationError, tool
from countersign.contract import BUILT_IN_TYPES, RESERVED_IDENTIFIERS
from countersign.tools.declaring import OPTIONS
from countersign.tools.tool import tool_of
from tests.fakes.desk import Desk

LIVE: dict[str, Any] = {"lane": "live", "adapter": MemoryAdapter()}
STAGED: dict[str, Any] = {"resource": ("Note", "text")}


def note(text: str) -> None: ...
def hide(customer: str, token: str, amount: int) -> None: ...
def show(customer: str, token: str, amount: int, to: list[str]) -> dict[str, str]: ...


def refused(desk: Desk, match: str, fn: Any = note, **said: Any) -> str:
    """Declaring it is refused, and nothing of it is left."""
    with pytest.raises(RegistrationError, match=match) as told:
        tool("note", registry=desk.registry, **said)(fn)
    assert [*desk.registry] == []
    return str(told.value)


NO_EFFECT: list[dict[str, Any]] = [
    *({"tries": 5}, {"failure_means": "not_done"}, {"own_thread": False}, {"repeat": True}),
    *({"idempotent": True}, {"on_exhausted": "tool"}, {"timeout_seconds": 1}, {"compensate": "void"}),
    {"compensation_map": {"id": "result:/id"}},
]


@pytest.mark.parametrize("said", NO_EFFECT, ids=str)
def test_w14_a_live_tool_says_nothing_that_has_no_effect_on_it(desk: Desk, said: dict[str, Any]) -> None:
    (option,) = said
    refused(desk, f"says {option}=.*for staged tools.*leave it out", **LIVE, **said)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"lane": "Live"}, "says lane='Live'; write 'staged' or 'live'"),
        ({"failure_means": "nothing"}, "says failure_means='nothing'; write 'unknown' or 'not_done'"),
        ({"idempotant": True}, "does not know idempotant; did you mean idempotent"),
        ({"lanes": "live"}, "does not know lanes; did you mean lane"),
        ({"retries": 3}, "does not know retries; did you mean tries"),
        ({"name": "note"}, "the name comes first and bare"),
        ({"x": 1}, "does not know x; it takes lane, adapter, "),
        ({"lane": "live"}, "a live tool needs the adapter that undoes it: write adapter="),
        ({**STAGED, "adapter": MemoryAdapter()}, r"is staged and has an adapter, .* write lane='live'"),
    ],
    ids=lambda said: str(said)[:24],
)
def test_a_word_that_no_tool_knows_is_told_with_the_one_that_was_meant(
    desk: Desk, said: Any, told: str
) -> None:
    refused(desk, told, **said)


def test_every_option_of_a_tool_is_among_those_that_are_told() -> None:
    taken = [one for one in inspect.signature(tool).parameters if one not in {"name", "draft"}]
    assert sorted(taken) == sorted(OPTIONS)


def test_a_live_tool_may_say_what_holds_of_every_tool(desk: Desk) -> None:
    defaults = {
        "idempotent": False,
        "timeout_seconds": 60,
        "compensation_map": {},
        "tries": None,
        "repeat": False,
    }
    tool("note", registry=desk.registry, on_exhausted="transaction", **LIVE, **defaults)(note)
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


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"secret": ["tokn"]}, "tokn"),
        ({"secret": ["/tokn/0"]}, "/tokn/0"),
        ({"secret": ["no/pointer"]}, "no/pointer"),
        ({"recipients": ["to"]}, "to"),
        ({"money": [{"amount": "cents", "currency": "const:USD"}]}, "cents"),
        ({"money": [{"amount": "amount", "currency": "currency"}]}, "currency"),
        ({"compensate": "void", "compensation_map": {"customer": "args:/client"}}, "/client"),
    ],
)
def test_what_a_member_names_is_an_argument(desk: Desk, said: dict[str, Any], named: str) -> None:
    """A secret that is misspelt would stand in the journal in clear."""
    told = refused(desk, r"is no argument of it.*takes customer, token, amount", hide, **said)
    assert repr(named) in told


def test_arguments_and_pointers_into_them_may_be_named(desk: Desk) -> None:
    said: dict[str, Any] = {
        "secret": ["token"],
        "recipients": ["/to/0"],
        "money": [{"amount": "amount", "currency": "const:USD"}],
        "compensate": "void",
        "compensation_map": {"charge": "result:/id", "customer": "args:/customer", "why": 'const:"late"'},
    }
    tool("show", registry=desk.registry, **said)(show)
    assert desk.registry.get("show") is not None


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        *((one, "belongs to the service") for one in sorted(BUILT_IN_TYPES)),
        *((f"Shop::{one}", "belongs to the service") for one in ("Agent", "User", "Role", "Group", "Action")),
        *((one, "Cedar reserves") for one in [*sorted(RESERVED_IDENTIFIERS), "Shop::in", "__cedar::Order"]),
        *(
            (one, "no type name")
            for one in ("", "Order Item", "1Order", "Order::", "Bestellung-Ü", "O" * 129)
        ),
    ],
)
def test_a_resource_type_that_no_bundle_takes_is_refused(desk: Desk, kind: str, why: str) -> None:
    refused(desk, why, resource=(kind, "text"))


@pytest.mark.parametrize(
    "kind", ["Order", "Shop::Order", "User::Order", "Set", "principal", "Shop::Review", "_x"]
)
def test_a_resource_type_that_a_bundle_takes_is_taken(desk: Desk, kind: str) -> None:
    fn = tool("note", resource=(kind, "text"), registry=desk.registry)(note)
    assert tool_of(fn).draft_manifest().resource.type == kind
