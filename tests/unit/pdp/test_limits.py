"""A limit is found only where a policy's text has a single meaning."""

from typing import Any

import pytest

from policy_service.domain.gates import Gate
from policy_service.pdp.limits import find_limit
from policy_service.pdp.rules import PolicySource

SPENT = "context.history.spent"
ADDED = f"{SPENT} + context.input.amount"


PAYING = 'principal, action == Action::"pay", resource'


def policy(when: str, effect: Any = "forbid", scope: str = PAYING, more: str = "", **of: Any) -> PolicySource:
    text = f'@id("cap") {effect} ({scope}) when {{ {when} }}{more};'
    return PolicySource(**{"id": "cap", "effect": effect, "file": "x.cedar", "line": 1, "text": text} | of)


def total_of(*policies: PolicySource, field: tuple[str, ...] = ("amount",)) -> int | None:
    found = find_limit(policies, meter="spent", field=field, action="pay", groups=frozenset({"money"}))
    return None if found is None else found.total


SCOPES = [
    "principal, action, resource",
    'principal, action in [Action::"x", Action::"pay"], resource',
    'principal, action in Action::"money", resource',
]
# A limit on a sum, the other way round, added in the other order, through other scopes, and on a count.
PLAIN: list[tuple[PolicySource, tuple[str, ...], int]] = [
    (policy(f"{ADDED} > 1000"), ("amount",), 1000),
    (policy(f"{ADDED} >= 1000"), ("amount",), 999),
    (policy(f"1000 < {ADDED}"), ("amount",), 1000),
    (policy(f"1000 <= {ADDED}"), ("amount",), 999),
    (policy(f"context.input.amount + {SPENT} > 1000"), ("amount",), 1000),
    *((policy(f"{ADDED} > 1000", scope=scope), ("amount",), 1000) for scope in SCOPES),
    (policy(f"{SPENT} >= 10"), (), 10),
    (policy(f"{SPENT} > 10"), (), 11),
    (policy(f"{SPENT} + 1 > 10"), (), 10),
]


@pytest.mark.parametrize(("one", "field", "total"), PLAIN)
def test_plain_limit_is_found(one: PolicySource, field: tuple[str, ...], total: int) -> None:
    assert total_of(one, field=field) == total


NOT_PLAIN = {
    "another condition": policy(f"{ADDED} > 1000 && context.now.hour > 8"),
    "an exception": policy(f"{ADDED} > 1000", more=' unless { context.env == "dev" }'),
    "either of two": policy(f"{ADDED} > 1000 || {ADDED} > 5"),
    "what was before, of a sum": policy(f"{SPENT} > 1000"),
    "another field": policy(f"{SPENT} + context.input.tip > 1000"),
    "another meter": policy("context.history.spent_today + context.input.amount > 1000"),
    "no number": policy(f"{ADDED} > context.input.cap"),
    "below": policy(f"{ADDED} < 1000"),
    "exactly": policy(f"{ADDED} == 1000"),
    "twice what it adds": policy(f"{ADDED} + context.input.amount > 1000"),
    "a permit": policy(f"{ADDED} > 1000", effect="permit"),
    "some principals": policy(f"{ADDED} > 1000", scope=f'principal in Role::"intern"{PAYING[9:]}'),
    "some resources": policy(f"{ADDED} > 1000", scope=f'{PAYING} == Account::"acme"'),
    "another tool": policy(f"{ADDED} > 1000", scope='principal, action == Action::"payout", resource'),
    "a policy longer than any plain one": policy(f"{ADDED} > 1000", more=" // " + "x" * 4_000 + "\n"),
}


@pytest.mark.parametrize("one", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_other_policies_have_no_limit(one: PolicySource) -> None:
    assert total_of(one) is None


def test_lowest_limit_counts_and_a_forbid_before_a_gate() -> None:
    low, high = policy(f"{ADDED} > 10", id="low"), policy(f"{ADDED} > 20", id="high")
    asks = policy(f"{ADDED} > 5", id="asks", gate=Gate("asks", frozenset({"finance"})))
    assert total_of(high, low) == 10
    assert (total_of(asks, high), total_of(asks)) == (20, 5)
