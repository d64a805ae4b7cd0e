"""What a person whose vote came too late is told has changed."""

from typing import Any

import pytest

from countersign.contract import canonicalize
from policy_service.queries.arg_diff import diff_effects
from tests.unit.workflow.conftest import effect

CASES: dict[str, tuple[dict[str, Any], dict[str, Any] | None, list[tuple[str, str, str]]]] = {
    "nothing": ({"a": 1}, {"a": 1}, []),
    "a number": ({"a": 1, "b": 2}, {"a": 1, "b": 3}, [("b", "2", "3")]),
    "a number that became a truth": ({"a": 1}, {"a": True}, [("a", "1", "true")]),
    "a zero that became a no": ({"a": 0}, {"a": False}, [("a", "0", "false")]),
    "a number that became a text": ({"a": 1}, {"a": "1"}, [("a", "1", '"1"')]),
    "one that went": ({"a": 1, "b": 2}, {"a": 1}, [("b", "2", "(absent)")]),
    "one that came": ({"a": 1}, {"a": 1, "b": None}, [("b", "(absent)", "null")]),
    "deep inside": ({"a": {"b": [1, 1]}}, {"a": {"b": [1, True]}}, [("a", '{"b":[1,1]}', '{"b":[1,true]}')]),
    "all of it": ({"a": 1, "b": 2}, None, [("a", "1", "(absent)"), ("b", "2", "(absent)")]),
}


@pytest.mark.parametrize(("read", "now", "expected"), CASES.values(), ids=CASES)
def test_the_difference_is_told_argument_by_argument(read: Any, now: Any, expected: list[Any]) -> None:
    after = None if now is None else effect(1, args=canonicalize(now))
    told = diff_effects(effect(1, args=canonicalize(read)), after)
    assert [(change["name"], change["read"], change["now"]) for change in told] == expected


def test_a_secret_that_changed_is_told_to_have_changed_and_not_how() -> None:
    (change,) = diff_effects(
        *(effect(1, args=canonicalize({"pin": pin}), secret=["/pin"]) for pin in ("1234", "9876"))
    )
    assert change["name"] == "pin"
    assert "1234" not in str(change) and "9876" not in str(change)
