"""Every name of design section 6, recomputed here by hand from its label and its value."""

import hashlib
from typing import Any

import pytest
import rfc8785

from countersign import contract
from countersign.contract import independent_txn_id
from tests.unit.contract.reading import cases, effect, read

NAMES = {f"{value}_digest": value for value in ("args", "effect", "txn", "tool")}
NAMES |= {"call_key": "call", "txn_id": "txn-id", "effect_id": "effect-id"}
NAMES["compensation_call_key"] = "compensate"
LABELS = {name: f"countersign/{label}/v1\n" for name, label in NAMES.items()}


FUNCTIONS: dict[str, Any] = {
    "args_digest": lambda value: contract.args_digest(args=value),
    "call_key": lambda value: contract.call_key(**value),
    "txn_id": lambda value: (independent_txn_id if "call_key" in value else contract.txn_id)(**value),
    "effect_id": lambda value: contract.effect_id(**value),
    "effect_digest": lambda value: effect(value).digest,
    "txn_digest": lambda value: contract.txn_digest(effect_digests=value),
    "compensation_call_key": lambda value: contract.compensation_call_key(**value),
    "tool_digest": contract.tool_digest,
}
NAMED = [(name, case) for name in LABELS for case in read(f"names/{name}.json")["cases"]]


@pytest.mark.parametrize(("name", "case"), NAMED, ids=[f"{name}: {case['about']}" for name, case in NAMED])
def test_a_name_is_the_labelled_digest_of_its_value(name: str, case: dict[str, Any]) -> None:
    assert read(f"names/{name}.json")["label"] == LABELS[name]
    assert case["canonical"] == rfc8785.dumps(case["value"]).decode()
    by_hand = hashlib.sha256((LABELS[name] + case["canonical"]).encode()).hexdigest()
    assert FUNCTIONS[name](case["value"]) == by_hand == case["digest"]


@pytest.mark.parametrize("case", cases("names/body_digest.json"))
def test_body_digest_is_sha256_in_base64url(case: dict[str, Any]) -> None:
    assert contract.body_digest(case["body"].encode()) == case["digest"]


@pytest.mark.parametrize("case", cases("names/tool_digest.json"))
def test_a_manifest_has_one_digest_however_its_defaults_are_written(case: dict[str, Any]) -> None:
    manifest = contract.load_manifest(rfc8785.dumps(case["manifest"]))
    assert (manifest.digest, manifest.to_json()) == (case["digest"], case["value"])


BASE: dict[str, Any] = {"agent": "a", "run_key": "r", "tool": "t", "args": {"x": 1}, "n": 0}


def test_spelling_of_a_number_is_not_part_of_a_call() -> None:
    assert contract.call_key(**{**BASE, "args": {"x": 1.0}}) == contract.call_key(**BASE)
    first = {name: value for name, value in BASE.items() if name != "n"}
    assert contract.call_key(**first) == contract.call_key(**BASE), "a call is the first by default"


@pytest.mark.parametrize("bad", [{"a": (1,)}, {"a": 2**60}, {"a": float("nan")}, {"\ud800": 1}])
def test_a_value_without_canonical_form_has_no_name(bad: object) -> None:
    with pytest.raises(contract.AdmissionError):
        contract.args_digest(args=bad)
