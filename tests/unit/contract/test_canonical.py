"""RFC 8785: one sequence of bytes for each value, the fast way byte-equal to the slow one."""

import struct
from enum import StrEnum
from typing import Any

import orjson
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from countersign.contract import ARGS_LIMITS, AdmissionError, canonicalize
from countersign.contract.digests import MAX_DEPTH
from tests.unit.contract.reading import cases, code_of, read
from tests.unit.contract.test_admission import json_values


class Word(StrEnum):
    ONE = "one"


@pytest.mark.parametrize("case", cases("canonical/numbers.json"))
def test_numbers_are_written_as_ecmascript_writes_them(case: dict[str, Any]) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(case["ieee754"]))
    assert canonicalize(number).decode() == case["canonical"]


def test_keys_are_sorted_by_utf16_unit() -> None:
    vector = read("canonical/sorting.json")
    assert canonicalize(vector["value"]).hex() == vector["canonical_hex"]


@pytest.mark.parametrize("case", cases("canonical/strings.json"))
def test_strings_are_escaped_only_where_they_must_be(case: dict[str, Any]) -> None:
    assert canonicalize(case["text"]).hex() == case["canonical_hex"]


characters = st.characters(exclude_categories=["Cs"])
ascii_keys = st.text(st.characters(max_codepoint=127))
fast_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(characters),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(ascii_keys, inner, max_size=8),
    max_leaves=30,
)


@given(json_values | fast_values)
def test_the_bytes_are_those_of_the_rfc8785_package(value: Any) -> None:
    assert canonicalize(value) == rfc8785.dumps(value)


NO_VALUES: list[Any] = [(1,), {1}, b"", Word.ONE, {"a": Word.ONE}, {Word.ONE: 1}, {1: 1}]
NO_FORM: list[tuple[object, str]] = [
    *((value, "not_a_json_value") for value in NO_VALUES),
    *((number, "integer_out_of_range") for number in (2**53, -(2**53))),
    *((number, "not_finite") for number in (float("nan"), float("-inf"))),
    *((text, "lone_surrogate") for text in ("\ud800", ["\udc00", 1.5], {"\udc00": 1}, {"a\udc00": 1.5})),
]


@pytest.mark.parametrize(("value", "code"), NO_FORM)
def test_what_has_no_canonical_form_is_refused(value: object, code: str) -> None:
    assert code_of(canonicalize, value) == code


SLOW: list[Any] = [
    *(1e16, [1e16], {"a": 1e16}, [["a"], 1e16, "a"], {"a": "a", "b": 1e16, "c": "c"}, [{"a": [1e16]}, 1]),
    *(-0.0, [1.0], {"\ufb33": 1, "\U0001f600": 2}, {"\U0001f600": 2, "\ufb33": {"a": 1}}),
    [{"\ufb33": 1, "\U0001f600": 2}, 1],
]


@pytest.mark.parametrize("value", SLOW, ids=repr)
def test_the_fast_path_is_not_used_where_it_would_differ(value: Any) -> None:
    assert orjson.dumps(value, option=orjson.OPT_SORT_KEYS) != rfc8785.dumps(value)
    assert canonicalize(value) == rfc8785.dumps(value)


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"a": value}], ids=["array", "object"])
def test_depth_is_twice_that_of_admission(wrap: Any) -> None:
    assert MAX_DEPTH == 2 * ARGS_LIMITS.max_depth == 128
    value: object = 1
    for _ in range(MAX_DEPTH):
        value = wrap(value)
    canonicalize(value)
    with pytest.raises(AdmissionError, match="128 levels"):
        canonicalize(wrap(value))


@pytest.mark.parametrize("leaf", ["a", 1.5])
def test_depth_ends_in_a_refusal_not_in_a_recursion_error(leaf: object) -> None:
    value = leaf
    for _ in range(MAX_DEPTH):
        value = [value]
    assert canonicalize(value).startswith(b"[[")
    for _ in range(20_000):
        value = {"a": value}
    assert code_of(canonicalize, value) == "too_deep"
    while isinstance(value, dict):  # taken apart by hand: freeing 20,000 levels at once is another test
        value = value["a"]
