"""A model behind an API, a price file, and what a program asks: the small world of the tests of this folder."""

from collections.abc import Callable
from typing import Any

from countersign import Budget, BudgetExceeded, llm_call
from tests.fakes.desk import Desk
from tests.fakes.llm_answers import OPENAI_CHAT

PRICES = """
[[price]]
models = "example-*"
currency = "USD"
valid_from = 2026-01-01
input = 1
output = 10
cached_input = 0.1
cache_write = 2

[[price]]
models = "euro"
currency = "EUR"
valid_from = 2026-01-01
input = 1
output = 10
"""
MODEL = "example-small"
TOKENS = Budget("tokens", "tokens", 10_000, "day")
CALLS = Budget("calls", "calls", 2, "day")
MONEY = Budget("money", "money", "0.02", "day", "USD")
SECONDS = Budget("seconds", "seconds", 60, "day")

Make = Callable[..., Desk]


class Vendor:
    """A model behind an API: counts how often it was called, and answers what it is given."""

    def __init__(self, answer: Any = OPENAI_CHAT, error: BaseException | None = None) -> None:
        self.answer, self.error, self.calls = answer, error, 0

    def create(self, **_: Any) -> Any:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return self.answer


def ask(desk: Desk, vendor: Vendor, model: str = MODEL, **changes: Any) -> Any:
    """One call, as a program makes it."""
    with begin(desk, model, **{"timeout": 30} | changes) as call:
        return call.record(vendor.create())


def may(desk: Desk, vendor: Vendor | None = None, **changes: Any) -> bool:
    """Whether a call is let through; it is made then, and counted."""
    try:
        ask(desk, vendor or Vendor(), **changes)
    except BudgetExceeded:
        return False
    return True


def begin(desk: Desk, model: str = MODEL, **changes: Any) -> Any:
    """The block of a call of up to 1000 tokens for 2000."""
    return llm_call(model, **{"max_tokens": 1000, "input_tokens": 2000, "runtime": desk.runtime} | changes)


def states(desk: Desk) -> list[str]:
    """Of all calls, in their order."""
    return [row["state"] for row in calls(desk)]


def usage_of(desk: Desk, budget: str, period: str | None = None) -> tuple[int, int]:
    """What is spent and reserved of a budget."""
    rows = desk.runtime.journal.spending.periods(budget, 100)
    found = [row for row in rows if period is None or row["period"] == period]
    return (found[0]["spent"], found[0]["reserved"]) if found else (0, 0)


def calls(desk: Desk) -> list[dict[str, Any]]:
    return [dict(row) for row in reversed(desk.runtime.journal.spending.calls(100))]
