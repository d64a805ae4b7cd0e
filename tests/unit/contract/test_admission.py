"""Strict I-JSON admission: what gets in, what does not, and that nothing hostile costs time or memory."""

import hashlib
import tracemalloc
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
from tests.unit.contract.reading import cases, raw


class Word(StrEnum):
    ONE = "one"


class Number(IntEnum):
    ONE = 1


class Named(dict[str, Any]):
    pass


@pytest.mark.parametrize("case", cases("admission/refused.json"))
def test_hostile_bytes_are_refused_with_their_code(case: dict[str, Any]) -> None:
    with pytest.raises(AdmissionError) as refused:
        load(raw(case))
    assert refused.value.code == case["code"]


@pytest.mark.parametrize("case", cases("admission/admitted.json") + cases("admission/admitted_large.json"))
def test_good_bytes_are_admitted_and_canonical_bytes_load_as_themselves(case: dict[str, Any]) -> None:
    value = load(raw(case))
    canonical = canonicalize(value)
    assert canonical.hex() == case.get("canonical_hex", canonical.hex())
    assert hashlib.sha256(canonical).hexdigest() == case["canonical_sha256"]
    assert repr(load(canonical)) == repr(_sorted(value))


@pytest.mark.parametrize("case", cases("admission/refused.json"))
def test_a_refusal_uses_little_memory(case: dict[str, Any]) -> None:
    hostile = raw(case)
    tracemalloc.start()
    with pytest.raises(AdmissionError):
        load(hostile)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000_000


@pytest.mark.parametrize(
    ("value", "code"),
    [
        pytest.param((1, 2), "not_a_json_value", id="tuple"),
        pytest.param({1, 2}, "not_a_json_value", id="set"),
        pytest.param(b"bytes", "not_a_json_value", id="bytes"),
        pytest.param(bytearray(b"x"), "not_a_json_value", id="bytearray"),
        pytest.param(Decimal("1.5"), "not_a_json_value", id="decimal"),
        pytest.param(datetime(2026, 1, 1, tzinfo=UTC), "not_a_json_value", id="datetime"),
        pytest.param(1j, "not_a_json_value", id="complex"),
        pytest.param(object(), "not_a_json_value", id="object"),
        pytest.param(Word.ONE, "not_a_json_value", id="text enum"),
        pytest.param(Number.ONE, "not_a_json_value", id="integer enum"),
        pytest.param(Named(a=1), "not_a_json_value", id="dict subclass"),
        pytest.param({1: "a"}, "not_a_json_value", id="integer key"),
        pytest.param({Word.ONE: 1}, "not_a_json_value", id="enum key"),
        pytest.param({None: 1}, "not_a_json_value", id="null key"),
        pytest.param(float("nan"), "not_finite", id="nan"),
        pytest.param(float("inf"), "not_finite", id="infinity"),
        pytest.param(2**53, "integer_out_of_range", id="2^53"),
        pytest.param(-(2**53), "integer_out_of_range", id="-2^53"),
        pytest.param(10**5000, "integer_out_of_range", id="5000 digits"),
        pytest.param(float(2**53), "integer_out_of_range", id="2^53 as a float"),
        pytest.param("\ud800", "lone_surrogate", id="lone surrogate"),
        pytest.param({"\udfff": 1}, "lone_surrogate", id="lone surrogate in a key"),
        pytest.param({"a": {"__entity": 1}}, "reserved_key", id="reserved key"),
        pytest.param("a" * 262_145, "too_large", id="one byte too long"),
        pytest.param(["é" * 100_000, "é" * 40_000], "too_large", id="too long in UTF-8"),
        pytest.param([1] * 10_000, "too_many_nodes", id="10001 nodes"),
    ],
)
def test_values_from_python_obey_the_same_rules(value: object, code: str) -> None:
    with pytest.raises(AdmissionError) as refused:
        admit({"a": value})
    assert refused.value.code == code


def test_a_value_inside_itself_is_too_deep() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(AdmissionError) as refused:
        admit(cycle)
    assert refused.value.code == "too_deep"


def test_admission_gives_a_copy_nobody_else_holds() -> None:
    inner = [1.0]
    given_value = {"a": inner}
    admitted = admit(given_value)
    inner.append(2.0)
    given_value["b"] = []
    assert admitted == {"a": [1]}
    assert repr(admitted) == "{'a': [1]}"


@pytest.mark.parametrize(("depth", "fits"), [(1, True), (64, True), (65, False)])
def test_depth_is_counted_alike_for_bytes_and_values(depth: int, fits: bool) -> None:
    array: object = 1
    members: object = 1
    for _ in range(depth):
        array, members = [array], {"a": members}
    written = b"[" * depth + b"1" + b"]" * depth
    for attempt in (lambda: admit(array), lambda: admit(members), lambda: load(written)):
        if fits:
            attempt()
        else:
            with pytest.raises(AdmissionError, match="64 levels"):
                attempt()


@pytest.mark.parametrize(("count", "fits"), [(1, True), (9_999, True), (10_000, False)])
def test_nodes_are_counted_alike_for_bytes_and_values(count: int, fits: bool) -> None:
    for attempt in (lambda: admit([1] * count), lambda: load(b"[" + b"1," * (count - 1) + b"1]")):
        if fits:
            attempt()
        else:
            with pytest.raises(AdmissionError, match="10000 values"):
                attempt()


@pytest.mark.parametrize(
    ("announced", "code"),
    [
        pytest.param(b"[" + b"1," * 9_999, "not_json", id="10000 values"),
        pytest.param(b"[" + b"1," * 10_000, "too_many_nodes", id="10001 values"),
        pytest.param(b"[" + b"[]" * 9_999, "not_json", id="10000 arrays"),
        pytest.param(b"[" + b"[]" * 10_000, "too_many_nodes", id="10001 arrays"),
        pytest.param(b"[" + b"{}" * 10_000, "too_many_nodes", id="10001 objects"),
        pytest.param(b"[" * 64 + b"]" * 60 + b"[" * 60, "not_json", id="depth 64 twice"),
        pytest.param(b"[" * 64 + b"]" * 60 + b"{" * 61, "too_deep", id="depth 65 the second time"),
    ],
)
def test_width_and_depth_are_seen_before_parsing(announced: bytes, code: str) -> None:
    """None of these is JSON; which refusal comes first shows who looked first."""
    with pytest.raises(AdmissionError) as refused:
        load(announced + b"!")
    assert refused.value.code == code


@pytest.mark.parametrize(("size", "fits"), [(262_144, True), (262_145, False)])
def test_size_is_counted_in_bytes_of_the_canonical_form(size: int, fits: bool) -> None:
    text = "é" * ((size - 2) // 2) + "a" * (size % 2)
    if fits:
        assert admit(text) == text
    else:
        with pytest.raises(AdmissionError, match="262144 bytes"):
            admit(text)


def test_commas_and_brackets_inside_text_count_for_nothing() -> None:
    text = '[{,"' * 20_000
    assert load(canonicalize([text])) == [text]


@pytest.mark.parametrize("raw_float", [b"1.0", b"1e0", b"-0.0", b"0.5"])
def test_limits_without_floats_refuse_every_float(raw_float: bytes) -> None:
    with pytest.raises(AdmissionError) as refused:
        load(raw_float, Limits(floats=False))
    assert refused.value.code == "float_refused"
    with pytest.raises(AdmissionError):
        admit(0.5, Limits(floats=False))


def test_a_refusal_says_what_and_what_to_do() -> None:
    with pytest.raises(AdmissionError, match=r"key 'amount' appears twice in one object; keep one"):
        load(b'{"a":1,"b":2,"amount":1,"amount":2,"z":3}')
    with pytest.raises(AdmissionError, match=r"key '__extn' is reserved by the policy engine; rename it"):
        load(b'{"__extn":1}')


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


@given(json_values)
def test_admitting_is_loading_the_canonical_bytes(value: object) -> None:
    try:
        admitted = admit(value)
    except AdmissionError:
        with pytest.raises(AdmissionError):
            load(canonicalize(value))
        return
    assert repr(load(canonicalize(value))) == repr(_sorted(admitted))
    assert repr(admit(admitted)) == repr(admitted)


@given(
    st.binary(max_size=200) | st.text(alphabet='[]{}",:\\u0dD8 1.e-truefalsn', max_size=60).map(str.encode)
)
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
    roomy = replace(limits, max_bytes=limits.max_bytes + 1)
    return _answer(raw, limits), _answer(b" " + raw, roomy)


NEARLY_CANONICAL = [
    b'{"a":1,"a":1}',
    b'{"b":1,"a":2}',
    b'{"a":1.0}',
    b'{"a":1.5}',
    b'{"a":[1e400]}',
    b'{"a":-0}',
    b'{"a":9007199254740991}',
    b'{"a":9007199254740992}',
    b'{"a":[18446744073709551616]}',
    b'{"a":"\\u0041"}',
    b'{"a":"\\ud800"}',
    b'{"a":{"__entity":1}}',
    b'{"__extn":1}',
    b'{"a":[{"__expr":1}]}',
    b'{"a":"\xff"}',
    b'{"a":1}\n',
    b'{"a":NaN}',
    b'{"\xef\xac\xb3":1,"\xf0\x9f\x98\x80":2}',
    b'{"":[],"\x7f":{}}',
    b'{"a":[[[[[[[1]]]]]]]}',
    b'{"a":[[[[[[[[1]]]]]]]]}',
    b'{"a":[1,2,3,4,5,6,7,8]}',
    b'{"a":[1,2,3,4,5,6,7,8,9]}',
    b'{"a":["1","2","3","4","5","6","7","8","9"]}',
]
TIGHT = [
    Limits(),
    Limits(floats=False),
    Limits(max_depth=8, floats=False),
    Limits(max_nodes=10),
    Limits(max_bytes=23),
]


@pytest.mark.parametrize("raw", NEARLY_CANONICAL, ids=repr)
@pytest.mark.parametrize("limits", TIGHT, ids=repr)
def test_the_quick_way_answers_as_the_long_way(raw: bytes, limits: Limits) -> None:
    quick, long = _both(raw, limits)
    assert quick == long


@pytest.mark.parametrize("case", cases("admission/refused.json") + cases("admission/admitted.json"))
def test_the_quick_way_answers_the_vectors_as_the_long_way(case: dict[str, Any]) -> None:
    if not raw(case).startswith(b"\xef\xbb\xbf"):  # after a space a mark is another fault
        quick, long = _both(raw(case), Limits())
        assert quick == long


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=4), st.sampled_from(TIGHT), st.data())
def test_the_quick_way_answers_what_was_canonical_and_was_changed_as_the_long_way(
    value: Any, limits: Limits, data: st.DataObject
) -> None:
    canonical = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    assert len(set(_both(canonical, limits))) == 1
    place = data.draw(st.integers(0, len(canonical) - 1))
    piece = data.draw(st.sampled_from([b"", b"0", b".", b"e", b",", b'"', b"[", b"}", b"\\", b"\x80", b" "]))
    changed = canonical[:place] + piece + canonical[place + data.draw(st.integers(0, 2)) :]
    assert len(set(_both(changed, limits))) == 1


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=4))
def test_canonical_bytes_are_told_from_others(value: Any) -> None:
    canonical = canonicalize(value)
    try:
        loaded = load(canonical)
    except AdmissionError:
        return  # a whole number beyond 2^53-1, or a reserved key
    assert repr(load_canonical(canonical)) == repr(loaded)
    for other in (b" " + canonical, canonical + b" ", orjson.dumps(value, option=orjson.OPT_INDENT_2)):
        if other != canonical:
            with pytest.raises(AdmissionError) as refused:
                load_canonical(other)
            assert refused.value.code == "not_canonical"


ORDERED_AS_ORJSON_DOES = '{"\ufb33":1,"\U0001f600":2}'.encode()


@pytest.mark.parametrize(
    "other",
    [b'{"a":1.0}', b'{"a":1e2}', b'{"b":1,"a":2}', b'{"a":1 }', b'{"a":"\\u00e9"}', ORDERED_AS_ORJSON_DOES],
    ids=repr,
)
def test_what_is_not_canonical_is_refused_as_that(other: bytes) -> None:
    with pytest.raises(AdmissionError) as refused:
        load_canonical(other)
    assert refused.value.code == "not_canonical"


def test_keys_beyond_ascii_are_canonical_in_utf16_order() -> None:
    assert load_canonical('{"\U0001f600":2,"\ufb33":1}'.encode()) == {"\U0001f600": 2, "\ufb33": 1}
