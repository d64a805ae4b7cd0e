"""An effect holds bytes, names itself, and refuses to be inconsistent."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersign import contract
from tests.unit.contract.reading import code_of, effect, read
from tests.unit.contract.test_admission import json_values

HEX = "ab" * 32
EFFECTS = [case["value"] for case in read("names/effect_digest.json")["cases"]]


def stage(args: object = None, **changed: Any) -> contract.Effect:
    members: dict[str, Any] = {"agent": "bot", "txn": HEX, "call_key": "cd" * 32, "seq": 1, "tool": "refund"}
    members |= {"tool_digest": "ef" * 32, "resource": contract.Resource("Account", "acc-17")}
    return contract.Effect.stage(**members | {"args": {"amount": 5} if args is None else args} | changed)


def test_mutating_what_was_staged_changes_nothing() -> None:
    args = {"to": ["a@example.com"]}
    staged = stage(args)
    before = staged.digest
    args["to"].append("thief@example.com")
    staged.args["to"] = "thief@example.com"
    assert (staged.args, staged.digest) == ({"to": ["a@example.com"]}, before)


def test_the_tool_gets_the_canonical_value() -> None:
    assert repr(stage({"b": 1.0, "a": -0.0}).args) == "{'a': 0, 'b': 1}"


@pytest.mark.parametrize("value", EFFECTS, ids=["with", "without", "compensating"])
def test_the_canonical_bytes_are_those_of_the_whole_object(value: dict[str, Any]) -> None:
    assert effect(value).canonical == contract.canonicalize(value)


@given(args=st.dictionaries(st.text(), json_values, max_size=4), agent=st.text(min_size=1, max_size=20))
def test_splicing_the_args_gives_canonical_bytes(args: dict[str, Any], agent: str) -> None:
    try:
        staged = stage(args, agent=agent)
    except contract.AdmissionError:
        return
    whole = {"v": 1, "agent": agent, "args": staged.args, "resource": staged.resource.to_json()}
    names = ("txn", "effect_id", "seq", "tool", "tool_digest", "call_key")
    assert staged.canonical == contract.canonicalize(whole | {name: getattr(staged, name) for name in names})


UNDO = contract.Compensation("undo", HEX, {"id": "result:/id"})


def test_a_compensation_keeps_its_own_copy_of_the_map() -> None:
    mapping = {"id": "result:/id"}
    undo = contract.Compensation("undo", HEX, mapping)
    mapping["id"] = "const:1"
    assert undo == UNDO


NOT_CANONICAL = (b'{ "amount":5}', b'{"amount":5.0}', b'{"b":1,"a":2}', b"[1]")
INCONSISTENT: list[tuple[dict[str, Any], str]] = [
    ({"agent": ""}, "bad_name"),
    ({"tool": "x" * 1025}, "bad_name"),
    *(({"txn": other}, "bad_digest") for other in ("ab", HEX.upper())),
    *(({"tool_digest": HEX + more}, "bad_digest") for more in ("0", "\n")),
    *(({name: HEX}, "effect_id_mismatch") for name in ("effect_id", "call_key")),
    *(({"seq": seq}, "bad_seq") for seq in (0, True, "1")),
    *(({"args_bytes": other}, "not_canonical") for other in NOT_CANONICAL),
    ({"args_bytes": b'{"a":1,"a":1}'}, "duplicate_key"),
    ({"args_bytes": b'{"__entity":1}'}, "reserved_key"),
]


@pytest.mark.parametrize(("changed", "code"), INCONSISTENT)
def test_an_inconsistent_effect_cannot_be_made(changed: dict[str, Any], code: str) -> None:
    assert code_of(replace, stage(), **changed) == code


def test_a_compensation_names_a_reviewed_tool() -> None:
    assert code_of(contract.Compensation, "", HEX, {}) == "bad_name"
    assert code_of(contract.Compensation, "undo", "ab", {}) == "bad_digest"


def test_a_resource_needs_a_type_and_an_id() -> None:
    assert contract.Resource("A", "x" * 1024).id == "x" * 1024
    others: list[Any] = [("", "a"), ("A", ""), ("A", "x" * 1025), (None, "a"), ("A", 7)]
    for other in others:
        with pytest.raises(contract.ContractError, match="1 to 1024 characters"):
            contract.Resource(*other)


SOURCES = ["id", "env:/HOME", "args:id", "const:{", "const:", 'const:{"a":1,"a":2}', "result:/~2"]


@pytest.mark.parametrize("source", SOURCES)
def test_a_compensation_takes_its_args_from_known_places(source: str) -> None:
    with pytest.raises(contract.PointerError):
        contract.Compensation("undo", HEX, {"id": source})


@pytest.mark.parametrize("args", [[1], "text", False, 1])
def test_args_are_an_object(args: object) -> None:
    with pytest.raises(contract.ContractError, match="form of an object"):
        stage(args)
