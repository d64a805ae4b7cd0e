"""Strict I-JSON admission: what gets in, what does not, and that nothing hostile costs time or memory."""

import hashlib
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from countersign.contract import AdmissionError, Limits, admit, canonicalize, load
from countersign.contract.admission import load_canonical
from tests.unit.contract.reading import cases, code_of, raw, read


class Word(StrEnum):
    ONE = "one"


class Number(IntEnum):
    ONE = 1


class Named(dict[str, Any]):
    pass


@pytest.mark.parametrize("case", cases("admission/refused.json"))
def test_hostile_bytes_are_refused_with_their_code(case: dict[str, Any]) -> None:
    assert code_of(load, raw(case)) == case["code"]


@pytest.mark.parametrize("case", cases("admission/admitted.json") + cases("admission/admitted_large.json"))
def test_good_bytes_are_admitted_and_canonical_bytes_load_as_themselves(case: dict[str, Any]) -> None:
    value = load(raw(case))
    canonical = canonicalize(value)
    assert canonical.hex() == case.get("canonical_hex", canonical.hex())
    assert hashlib.sha256(canonical).hexdigest() == case["canonical_sha256"]
    assert repr(load(canonical)) == repr(_sorted(value))


def test_a_refusal_uses_little_memory() -> None:
    hostile = [raw(case) for case in read("admission/refused.json")["cases"]]
    large = [one for one in hostile if len(one) > 10_000]
    assert len(large) > 10
    for one in large:
        tracemalloc.start()
        with pytest.raises(AdmissionError):
            load(one)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 20_000_000


NO_VALUES: list[object] = [
    *((1, 2), {1, 2}, b"bytes", bytearray(b"x"), Decimal("1.5"), datetime(2026, 1, 1, tzinfo=UTC)),
    *(1j, object(), Word.ONE, Number.ONE, Named(a=1), {1: "a"}, {Word.ONE: 1}, {None: 1}),
]


FROM_PYTHON: list[tuple[object, str]] = [
    *((value, "not_a_json_value") for value in NO_VALUES),
    *((float(name), "not_finite") for name in ("nan", "inf")),
    *((value, "integer_out_of_range") for value in (2**53, -(2**53), 10**5000, float(2**53))),
    *((value, "lone_surrogate") for value in ("\ud800", {"\udfff": 1})),
    ({"a": {"__entity": 1}}, "reserved_key"),
    *((value, "too_large") for value in ("a" * 262_145, ["é" * 100_000, "é" * 40_000])),
    ([1] * 10_000, "too_many_nodes"),
]


def test_values_from_python_obey_the_same_rules() -> None:
    for value, code in FROM_PYTHON:
        assert code_of(admit, {"a": value}) == code
    cycle: list[object] = []
    cycle.append(cycle)
    assert code_of(admit, cycle) == "too_deep"


def test_admission_returns_a_copy() -> None:
    inner = [1.0]
    given_value = {"a": inner}
    admitted = admit(given_value)
    inner.append(2.0)
    given_value["b"] = []
    assert repr(admitted) == "{'a': [1]}"


def require_limit(attempt: Callable[[], object], fits: bool, message: str) -> None:
    with nullcontext() if fits else pytest.raises(AdmissionError, match=message):
        attempt()


@pytest.mark.parametrize(("depth", "fits"), [(1, True), (64, True), (65, False)])
def test_depth_is_counted_alike_for_bytes_and_values(depth: int, fits: bool) -> None:
    array: object = 1
    members: object = 1
    for _ in range(depth):
        array, members = [array], {"a": members}
    written = b"[" * depth + b"1" + b"]" * depth
    for attempt in (lambda: admit(array), lambda: admit(members), lambda: load(written)):
        require_limit(attempt, fits, "64 levels")


@pytest.mark.parametrize(("count", "fits"), [(1, True), (9_999, True), (10_000, False)])
def test_nodes_are_counted_alike_for_bytes_and_values(count: int, fits: bool) -> None:
    require_limit(lambda: admit([1] * count), fits, "10000 values")
    require_limit(lambda: load(b"[" + b"1," * (count - 1) + b"1]"), fits, "10000 values")


ANNOUNCED: dict[str, Any] = {
    "10000 values": (b"[" + b"1," * 9_999, "not_json"),
    "10001 values": (b"[" + b"1," * 10_000, "too_many_nodes"),
    "10000 arrays": (b"[" + b"[]" * 9_999, "not_json"),
    "10001 arrays": (b"[" + b"[]" * 10_000, "too_many_nodes"),
    "10001 objects": (b"[" + b"{}" * 10_000, "too_many_nodes"),
    "depth 64 twice": (b"[" * 64 + b"]" * 60 + b"[" * 60, "not_json"),
    "depth 65 the second time": (b"[" * 64 + b"]" * 60 + b"{" * 61, "too_deep"),
}


@pytest.mark.parametrize(("announced", "code"), ANNOUNCED.values(), ids=ANNOUNCED.keys())
def test_width_and_depth_are_seen_before_parsing(announced: bytes, code: str) -> None:
    """None of these is JSON; which refusal comes first shows who looked first."""
    assert code_of(load, announced + b"!") == code


@pytest.mark.parametrize(("size", "fits"), [(262_144, True), (262_145, False)])
def test_size_is_counted_in_bytes_of_the_canonical_form(size: int, fits: bool) -> None:
    text = "é" * ((size - 2) // 2) + "a" * (size % 2)
    require_limit(lambda: admit(text), fits, "262144 bytes")


def test_commas_and_brackets_inside_text_count_for_nothing() -> None:
    text = '[{,"' * 20_000
    assert load(canonicalize([text])) == [text]


def test_limits_without_floats_refuse_every_float() -> None:
    for spelling in (b"1.0", b"1e0", b"-0.0", b"0.5"):
        assert code_of(load, spelling, Limits(floats=False)) == "float_refused"
    assert code_of(admit, 0.5, Limits(floats=False)) == "float_refused"


def test_a_refusal_states_the_problem_and_the_fix() -> None:
    with pytest.raises(AdmissionError, match=r"key 'amount' appears twice in one object; keep one"):
        load(b'{"a":1,"b":2,"amount":1,"amount":2,"z":3}')
    with pytest.raises(AdmissionError, match=r"key '__extn' is reserved by the policy engine; rename it"):
        load(b'{"__extn":1}')


numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


@given(json_values)
def test_admitting_is_loading_the_canonical_bytes(value: object) -> None:
    try:
        admitted = admit(value)
    except AdmissionError:
        code_of(load, canonicalize(value))
        return
    assert repr(load(canonicalize(value))) == repr(_sorted(admitted))
    assert repr(admit(admitted)) == repr(admitted)


@given(st.binary(max_size=200) | st.text('[]{}",:\\u0dD8 1.e-truefalsn', max_size=60).map(str.encode))
def test_any_bytes_are_admitted_or_refused_never_worse(noise: bytes) -> None:
    try:
        value = load(noise)
    except AdmissionError:
        return
    assert repr(load(canonicalize(value))) == repr(_sorted(value))


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value, key=lambda key: key.encode("utf-16-be"))}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


# --- the quick way answers as the long way, which one space before the text is enough to take


def _answer(raw: bytes, limits: Limits) -> str:
    try:
        return repr(load(raw, limits))
    except AdmissionError as error:
        return error.code


def _both(raw: bytes, limits: Limits) -> tuple[str, str]:
    return _answer(raw, limits), _answer(b" " + raw, replace(limits, max_bytes=limits.max_bytes + 1))


NUMBERS = b"1.0 1.5 [1e400] -0 9007199254740991 9007199254740992 [18446744073709551616]".split()
TEXTS = [b'"\\u0041"', b'"\\ud800"', b'"\xff"', b"NaN"]
DEEP = [b"[" * depth + b"1" + b"]" * depth for depth in (7, 8)]
LONG = [b"[1,2,3,4,5,6,7,8]", b"[1,2,3,4,5,6,7,8,9]", b'["1","2","3","4","5","6","7","8","9"]']
RESERVED = [b'{"__entity":1}', b'[{"__expr":1}]']
NEARLY_CANONICAL = [
    *(b'{"a":' + value + b"}" for value in NUMBERS + TEXTS + DEEP + LONG + RESERVED),
    *(b'{"a":1,"a":1}', b'{"b":1,"a":2}', b'{"__extn":1}', b'{"a":1}\n', b'{"":[],"\x7f":{}}'),
    b'{"\xef\xac\xb3":1,"\xf0\x9f\x98\x80":2}',
]


LIMITS = [{}, {"floats": False}, {"max_depth": 8, "floats": False}, {"max_nodes": 10}, {"max_bytes": 23}]
TIGHT = [Limits(**limits) for limits in LIMITS]


@pytest.mark.parametrize("limits", TIGHT, ids=repr)
def test_the_fast_path_agrees_with_the_slow_path(limits: Limits) -> None:
    for text in NEARLY_CANONICAL:
        assert len(set(_both(text, limits))) == 1, text


def test_the_fast_path_agrees_on_the_vectors() -> None:
    for case in read("admission/refused.json")["cases"] + read("admission/admitted.json")["cases"]:
        if not raw(case).startswith(b"\xef\xbb\xbf"):  # after a space a mark is another fault
            assert len(set(_both(raw(case), Limits()))) == 1, case["name"]


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=4), st.sampled_from(TIGHT), st.data())
def test_the_fast_path_agrees_on_mutated_bytes(value: Any, limits: Limits, data: st.DataObject) -> None:
    canonical = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    assert len(set(_both(canonical, limits))) == 1
    place = data.draw(st.integers(0, len(canonical) - 1))
    piece = data.draw(st.sampled_from([b"", b"0", b".", b"e", b",", b'"', b"[", b"}", b"\\", b"\x80", b" "]))
    changed = canonical[:place] + piece + canonical[place + data.draw(st.integers(0, 2)) :]
    assert len(set(_both(changed, limits))) == 1


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=4))
def test_load_canonical_refuses_other_bytes(value: Any) -> None:
    canonical = canonicalize(value)
    try:
        loaded = load(canonical)
    except AdmissionError:
        return  # a whole number beyond 2^53-1, or a reserved key
    assert repr(load_canonical(canonical)) == repr(loaded)
    for other in (b" " + canonical, canonical + b" ", orjson.dumps(value, option=orjson.OPT_INDENT_2)):
        if other != canonical:
            assert code_of(load_canonical, other) == "not_canonical"


OTHERS = [b'{"a":1.0}', b'{"a":1e2}', b'{"b":1,"a":2}', b'{"a":1 }', b'{"a":"\\u00e9"}']


def test_what_is_not_canonical_is_refused_as_that() -> None:
    for other in (*OTHERS, '{"\ufb33":1,"\U0001f600":2}'.encode()):
        assert code_of(load_canonical, other) == "not_canonical"
    assert load_canonical('{"\U0001f600":2,"\ufb33":1}'.encode()) == {"\U0001f600": 2, "\ufb33": 1}
