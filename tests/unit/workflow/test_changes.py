"""The difference shown to a person whose vote was on an older revision."""

from typing import Any

import pytest

from countersign.contract import canonicalize
from policy_service.queries.arg_diff import diff_effects
from tests.unit.workflow.conftest import effect

CASES: dict[str, tuple[dict[str, Any], dict[str, Any] | None, list[tuple[str, str, str]]]] = {
    "nothing": ({"a": 1}, {"a": 1}, []),
    "a number": ({"a": 1, "b": 2}, {"a": 1, "b": 3}, [("b", "2", "3")]),
    "a number that became a boolean": ({"a": 1}, {"a": True}, [("a", "1", "true")]),
    "a zero that became false": ({"a": 0}, {"a": False}, [("a", "0", "false")]),
    "a number that became a text": ({"a": 1}, {"a": "1"}, [("a", "1", '"1"')]),
    "a removed argument": ({"a": 1, "b": 2}, {"a": 1}, [("b", "2", "(absent)")]),
    "an added argument": ({"a": 1}, {"a": 1, "b": None}, [("b", "(absent)", "null")]),
    "a nested value": ({"a": {"b": [1]}}, {"a": {"b": [True]}}, [("a", '{"b":[1]}', '{"b":[true]}')]),
    "all arguments": ({"a": 1, "b": 2}, None, [("a", "1", "(absent)"), ("b", "2", "(absent)")]),
}


@pytest.mark.parametrize(("read", "now", "expected"), CASES.values(), ids=CASES)
def test_the_difference_lists_each_changed_argument(read: Any, now: Any, expected: list[Any]) -> None:
    after = None if now is None else effect(1, args=canonicalize(now))
    changes = diff_effects(effect(1, args=canonicalize(read)), after)
    assert [(change["name"], change["read"], change["now"]) for change in changes] == expected


def test_a_changed_secret_is_listed_without_its_values() -> None:
    old, new = (effect(1, args=canonicalize({"pin": pin}), secret=["/pin"]) for pin in ("1234", "9876"))
    (change,) = diff_effects(old, new)
    assert change["name"] == "pin"
    assert "1234" not in str(change) and "9876" not in str(change)
