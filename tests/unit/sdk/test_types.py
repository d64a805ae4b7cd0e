"""What a type checker makes of the SDK; strict mypy reads these lines, and they hold when they run."""

from collections.abc import Callable
from typing import assert_type

import pytest

from countersign import Placeholder, Transaction, run_transaction, tool, transaction
from tests.fakes.desk import Desk


def test_a_step_that_answers_a_placeholder_is_a_plain_one(
    desk: Desk, refund: Callable[[str, int], Placeholder[dict[str, str]]]
) -> None:
    def step(txn: Transaction) -> Placeholder[dict[str, str]]:
        return refund("o-1", 100)

    placed = assert_type(run_transaction(step, key="t-1", runtime=desk.runtime), Placeholder[dict[str, str]])
    assert assert_type(placed.result, dict[str, str]) == {"refund_id": "r-o-1-100"}


class Seat:
    """A tool that is a class."""

    def execute(self, flight: str, seat: str) -> str:
        return f"booking-{flight}-{seat}"


class Meal:
    """One that is awaited."""

    async def execute(self, flight: str) -> int:
        return len(flight)


@pytest.mark.anyio
async def test_a_class_that_is_a_tool_is_called_as_its_execute(desk: Desk) -> None:
    """mypy takes no class decorator's word, so that it reads the call is written out."""
    seat = tool("seat", resource=("Flight", "flight"), registry=desk.registry)(Seat)
    meal = tool("meal", resource=("Flight", "flight"), registry=desk.registry)(Meal)
    desk.publish(seat, meal)
    async with transaction("t-1", runtime=desk.runtime):
        booked = assert_type(seat("LH 454", "12A"), Placeholder[str])
        eaten = assert_type(await meal("LH 454"), Placeholder[int])
    assert (booked.result, eaten.result) == ("booking-LH 454-12A", 6)
