"""Budgets of model calls against a naive account: the sums agree for any programs, answers, crashes and days.

I-10: spent and reserved never exceed the limit, as long as no call takes more than it declared.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as profile
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from countersign import Budget, BudgetExceeded, Settings
from countersign.journal import Journal
from countersign.llm.budgets import Bounds
from countersign.llm.ledger import Ledger, Reservation
from countersign.llm.prices import load_prices
from countersign.llm.usage import Billed, Usage
from tests.fakes.desk import TickingClock

PRICES = Path(__file__).parents[2] / "sdk/python/countersign/llm/example-prices.toml"
MODELS = ("example-small", "example-opus-1")
BUDGETS = (
    Budget("day-money", "money", "0.004", "day", "USD"),
    Budget("run-money", "money", "0.002", "run", "USD", ("example-opus-*",)),
    Budget("day-tokens", "tokens", 900, "day", models=("example-small",)),
    Budget("run-tokens", "tokens", 500, "run"),
    Budget("run-calls", "calls", 5, "run"),
    Budget("day-seconds", "seconds", 40, "day"),
)
LIST = load_prices(PRICES)
DAY = date(2026, 11, 23)


@dataclass
class Call:
    """A running call in the account."""

    reserved: Reservation
    bounds: Bounds
    asked: dict[tuple[str, str], int]


PRICED = dict(zip(MODELS, ((Decimal("0.15"), Decimal("0.60")), (Decimal("6.25"), Decimal(25))), strict=True))


BOUNDS = st.builds(Bounds, st.integers(0, 300), st.integers(0, 100), st.integers(0, 15))


def asked_of(budget: Budget, model: str, bounds: Bounds) -> int:
    given, output = bounds.input_tokens or 0, bounds.output_tokens or 0
    dearest, out = PRICED[model]
    seconds, money = int(Decimal(bounds.seconds or 0) * 1000), int((given * dearest + output * out) * 10**6)
    return {"calls": 1, "tokens": given + output, "seconds": seconds, "money": money}[budget.measure]


class Spending(RuleBasedStateMachine):
    """One journal, and programs that start and end."""

    calls = Bundle("calls")

    @initialize()
    def begin(self) -> None:
        self.clock = TickingClock(datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp())
        self.journal = Journal(":memory:", clock=self.clock)
        where: dict[str, Any] = dict.fromkeys(("key_path", "journal_path"), Path("none"))
        where["prices_path"] = PRICES
        given = Settings(url="http://127.0.0.1", agent="a", budgets=BUDGETS, **where)
        self.ledger = Ledger(given, self.journal, self.clock)
        # per (budget, period): what is gone and what is held, as anybody would add it up
        self.spent: Counter[tuple[str, str]] = Counter()
        self.held: Counter[tuple[str, str]] = Counter()

    @rule(target=calls, model=st.sampled_from(MODELS), run=st.sampled_from(["r-1", "r-2"]), bounds=BOUNDS)
    def ask(self, model: str, run: str, bounds: Bounds) -> Call | None:
        budgets = [one for one in BUDGETS if one.applies_to(model)]
        asked = {(one.name, self.period(one, run)): asked_of(one, model, bounds) for one in budgets}
        most = {one.name: one.units for one in BUDGETS}
        taken = {key: self.spent[key] + self.held[key] + amount for key, amount in asked.items()}
        short = [key for key, amount in taken.items() if amount > most[key[0]]]
        if short:
            with pytest.raises(BudgetExceeded) as refused:
                self.ledger.reserve(model, run, bounds, ())
            error = refused.value
            assert error.budget == short[0][0]
            assert error.spent + error.reserved + error.asked > error.limit
            return None
        reserved = self.ledger.reserve(model, run, bounds, ())
        self.held.update(asked)
        return Call(reserved, bounds, asked)

    @rule(call=consumes(calls), part=st.integers(0, 4), cached=st.booleans(), known=st.booleans())
    def answer(self, call: Call | None, part: int, cached: bool, known: bool) -> None:
        """It takes a part of the declared amount, or an unknown number of tokens."""
        if call is None:
            return
        whole = (call.bounds.input_tokens or 0) * part // 4
        output = (call.bounds.output_tokens or 0) * part // 4
        billed = Billed(0, whole, 0, output) if cached else Billed(whole, 0, 0, output)
        milliseconds = int(Decimal(call.bounds.seconds or 0) * 1000) * part // 4
        usage = Usage(model=call.reserved.model, billed=billed if known else None)
        record = self.ledger.settle(call.reserved, usage, milliseconds)
        assert record.over == ()
        price = LIST.find(call.reserved.model, DAY)
        assert price is not None
        took = {"calls": 1, "seconds": milliseconds, "tokens": whole + output, "money": price.cost(billed)}
        for key, held in call.asked.items():
            measure = next(one.measure for one in BUDGETS if one.name == key[0])
            unknown = not known and measure in {"tokens", "money"}
            self.held[key] -= held
            self.spent[key] += held if unknown else took[measure] or 0

    @rule(call=consumes(calls))
    def take_back(self, call: Call | None) -> None:
        """The call was never made."""
        if call is None:
            return
        self.ledger.release(call.reserved.call_id, "never sent")
        self.held.subtract(call.asked)

    @rule(call=consumes(calls), counted=st.booleans())
    def lose(self, call: Call | None, counted: bool) -> None:
        """Its answer or its process is lost; the reservation stays."""
        if call is not None and counted:
            self.ledger.doubt(call.reserved.call_id, "lost")

    @rule(hours=st.sampled_from([1, 11, 12, 24]))
    def pass_time(self, hours: int) -> None:
        self.clock.advance(hours * 3600)

    @invariant()
    def nothing_is_passed_and_everything_adds_up(self) -> None:
        for budget in self.journal.spending.budgets():
            for row in self.journal.spending.periods(budget["name"], 1000):
                key = (budget["name"], row["period"])
                assert row["spent"] + row["reserved"] <= budget["most"]
                counted = (row["spent"], row["reserved"])
                assert counted == (self.spent[key], self.held[key]) == self.added_up(key)

    def added_up(self, key: tuple[str, str]) -> tuple[int, int]:
        """The counters, computed from the single calls."""
        row = self.journal.database.row(
            "SELECT coalesce(sum(charged), 0) AS spent, coalesce(sum(CASE WHEN charged IS NULL THEN held END), 0) "
            "AS held FROM llm_holds WHERE budget = ? AND period = ?",
            key,
        )
        assert row is not None
        return row["spent"], row["held"]

    def period(self, budget: Budget, run: str) -> str:
        today = datetime.fromtimestamp(self.clock.wall(), UTC).date()
        return run if budget.per == "run" else today.isoformat()

    def teardown(self) -> None:
        self.journal.close()


LONG = profile().max_examples > 1_000  # HYPOTHESIS_PROFILE=long
TestSpending = Spending.TestCase
TestSpending.settings = profile(max_examples=2_000 if LONG else 40, stateful_step_count=40)
