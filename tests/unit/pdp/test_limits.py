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


OTHER_SCOPES = [
    *(f'principal in Role::"intern"{PAYING[9:]}', f'{PAYING} == Account::"acme"'),
    'principal, action == Action::"payout", resource',
]
# Another condition, field, meter, comparison or effect, an exception, and another scope.
NOT_PLAIN = [
    *(policy(f"{ADDED} {more}") for more in ("> 1000 && context.now.hour > 8", "< 1000", "== 1000")),
    *(policy(f"{ADDED} {more}") for more in ("> context.input.cap", "+ context.input.amount > 1000")),
    *(policy(f"{ADDED} > 1000 || {ADDED} > 5"), policy(f"{SPENT} > 1000")),
    *(
        policy(f"{spent} > 1000")
        for spent in (f"{SPENT} + context.input.tip", f"{SPENT}_today + context.input.amount")
    ),
    *(policy(f"{ADDED} > 1000", scope=scope) for scope in OTHER_SCOPES),
    *(
        policy(f"{ADDED} > 1000", more=more)
        for more in (' unless { context.env == "dev" }', f" // {'x' * 4_000}\n")
    ),
    policy(f"{ADDED} > 1000", effect="permit"),
]


@pytest.mark.parametrize("one", NOT_PLAIN)
def test_other_policies_have_no_limit(one: PolicySource) -> None:
    assert total_of(one) is None


def test_lowest_limit_counts_and_a_forbid_before_a_gate() -> None:
    low, high = policy(f"{ADDED} > 10", id="low"), policy(f"{ADDED} > 20", id="high")
    asks = policy(f"{ADDED} > 5", id="asks", gate=Gate("asks", frozenset({"finance"})))
    assert total_of(high, low) == 10
    assert (total_of(asks, high), total_of(asks)) == (20, 5)
