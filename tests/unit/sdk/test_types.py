"""What a type checker makes of the SDK; strict mypy reads these lines, and they hold when they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_type

from countersign import Placeholder, Transaction, run_transaction
from tests.fakes.desk import Desk


def test_a_step_that_answers_a_placeholder_is_a_plain_one(
    desk: Desk, refund: Callable[[str, int], Placeholder[dict[str, str]]]
) -> None:
    def step(txn: Transaction) -> Placeholder[dict[str, str]]:
        return refund("o-1", 100)

    placed = assert_type(run_transaction(step, key="t-1", runtime=desk.runtime), Placeholder[dict[str, str]])
    assert assert_type(placed.result, dict[str, str]) == {"refund_id": "r-o-1-100"}
