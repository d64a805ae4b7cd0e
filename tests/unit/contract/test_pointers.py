"""RFC 6901 pointers and the places a compensation takes its args from."""

from typing import Any

import pytest

from countersign.contract import compensation_args, pointer_tokens, resolve_pointer
from tests.unit.contract.reading import code_of

# RFC 6901 section 5


PLAIN = {"c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5, 'k"l': 6, " ": 7, "10": "ten"}
DOCUMENT: Any = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "m~n": 8, **PLAIN}


NAMED = [
    *(("", DOCUMENT), ("/foo", ["bar", "baz"]), ("/foo/0", "bar"), ("/", 0), ("/a~1b", 1), ("/m~0n", 8)),
    *((f"/{name}", value) for name, value in PLAIN.items()),
]


@pytest.mark.parametrize(("pointer", "value"), NAMED)
def test_pointers_resolve_as_rfc6901_specifies(pointer: str, value: object) -> None:
    assert resolve_pointer(DOCUMENT, pointer) == value


@pytest.mark.parametrize("end", "nope foo/2 foo/-1 foo/- foo/00 foo/1e0 foo/０ foo/0/x a/b 10/0".split())
def test_a_pointer_to_nothing_is_an_error_not_a_null(end: str) -> None:
    assert code_of(resolve_pointer, DOCUMENT, f"/{end}") == "pointer_missing"


@pytest.mark.parametrize("pointer", ["foo", "/a~", "/a~2", "#/foo", " /foo", "/~/x"])
def test_a_malformed_pointer_is_refused(pointer: str) -> None:
    assert code_of(pointer_tokens, pointer) == "bad_pointer"


def test_tilde_is_unescaped_last() -> None:
    assert pointer_tokens("/~01") == ("~1",)


def test_a_compensation_takes_args_results_and_constants() -> None:
    mapping = {"payment": "args:/payment/id", "refund": "result:/refunds/0", "all": "result:"}
    mapping |= {"why": 'const:{"a":[1]}'}
    built = compensation_args(mapping, args={"payment": {"id": "p1"}}, result={"refunds": ["r1"]})
    assert built == {"payment": "p1", "refund": "r1", "all": {"refunds": ["r1"]}, "why": {"a": [1]}}


@pytest.mark.parametrize("result", [None, {}, {"refunds": []}, "text"])
def test_a_compensation_without_its_value_is_not_built(result: Any) -> None:
    mapping = {"refund": "result:/refunds/0"}
    assert code_of(compensation_args, mapping, args={}, result=result) == "pointer_missing"
