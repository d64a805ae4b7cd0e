"""Reserves and records calls in budgets, using the journal's counters and the price list.

A call that a budget cannot bound is refused before it is made: money without a price, tokens without a bound, time
without a timeout. After it was made it is always recorded: usage that the response does not state counts as reserved.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from countersign.clock import Clock
from countersign.errors import JournalSealed, MisuseError
from countersign.journal import Journal
from countersign.journal.spending import BudgetHold, Shortage
from countersign.llm.budgets import (
    Bounds,
    Budget,
    day_of,
    format_amount,
    load_budgets,
    renews_at,
    require_unique_names,
)
from countersign.llm.errors import BudgetExceeded, PriceUnknown
from countersign.llm.prices import Price, Prices, load_prices
from countersign.llm.usage import Usage
from countersign.settings import BUDGETS_VARIABLE, PRICES_VARIABLE, Settings

_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Reservation:
    """A call reserved in the budgets."""

    call_id: str
    run: str | None
    model: str
    began_at: float  # determines the day and the price, even if it ends later
    budgets: tuple[Budget, ...]


@dataclass(frozen=True, slots=True)
class LlmRecord:
    """A call as recorded in the journal. None means unknown, never zero."""

    call_id: str
    run: str | None
    model: str
    usage: Usage
    cost: Decimal | None  # in units of the currency
    currency: str | None
    seconds: Decimal | None
    over: tuple[str, ...] = ()  # budgets that this call exceeded
    uncounted: tuple[str, ...] = ()  # budgets that could not count it


class Ledger:
    """The budgets and prices of one agent, on its journal."""

    def __init__(self, settings: Settings, journal: Journal, clock: Clock) -> None:
        self._settings = settings
        self._spending = journal.spending
        self.clock = clock
        self._lock = threading.Lock()
        self._read: tuple[tuple[Budget, ...], Prices] | None = None

    def declared(self, more: Iterable[Budget] = ()) -> tuple[Budget, ...]:
        """The budgets of the settings, of their file, and these.

        Raises:
            SettingsError: the file is invalid, or two different budgets have the same name.
        """
        return require_unique_names([*self._files()[0], *more])

    def reserve(
        self,
        model: str,
        run: str | None,
        bounds: Bounds,
        more: Sequence[Budget],
        *,
        keeps_reasoning: bool = False,
    ) -> Reservation:
        """Reserve the most that the call may take.

        Raises:
            BudgetExceeded: a budget is too small. Nothing is reserved.
            PriceUnknown: a money budget applies and the model has no price.
            MisuseError: a budget needs a bound that is missing.
            JournalSealed: its reasoning should be stored, and the journal has no key to seal it with.
        """
        now = self.clock.wall()
        applying = tuple(budget for budget in self.declared(more) if budget.applies_to(model))
        holds = [_budget_hold(one, self._asked(one, model, bounds, now), run, now) for one in applying]
        reservation = Reservation(secrets.token_hex(_ID_BYTES), run, model, now, applying)
        short = self._spending.reserve(
            reservation.call_id, run, model, holds, keeps_reasoning=keeps_reasoning
        )
        if short is not None:
            raise _exceeded(short, now)
        return reservation

    def settle(self, reserved: Reservation, usage: Usage, milliseconds: int) -> LlmRecord:
        """Record the usage of a reserved call.

        Raises:
            JournalSealed: its reasoning cannot be stored any more. Its usage is recorded.
        """
        price, cost = self._cost(reserved.model, usage, reserved.began_at)
        charges = {one.name: _amount_used(one, usage, price, cost, milliseconds) for one in reserved.budgets}
        outcome = _outcome(usage, price, cost, milliseconds)
        over = _written(lambda row: self._spending.settle(reserved.call_id, row, charges), outcome)
        return _record(reserved.call_id, reserved.run, reserved.model, usage, price, cost, milliseconds, over)

    def record(
        self, run: str | None, model: str, usage: Usage, milliseconds: int | None, more: Sequence[Budget]
    ) -> LlmRecord:
        """Record a call that was made without a reservation, regardless of its budgets.

        Raises:
            JournalSealed: its reasoning cannot be stored. The call itself is recorded.
        """
        now = self.clock.wall()
        price, cost = self._cost(model, usage, now)
        applying = [one for one in self.declared(more) if one.applies_to(model)]
        took = {one.name: _amount_used(one, usage, price, cost, milliseconds) for one in applying}
        counting = [one for one in applying if took[one.name] is not None and (one.per == "day" or run)]
        holds = [_budget_hold(one, took[one.name] or 0, run, now) for one in counting]
        call_id = secrets.token_hex(_ID_BYTES)
        outcome = _outcome(usage, price, cost, milliseconds)
        over = _written(lambda row: self._spending.record(call_id, run, model, row, holds), outcome)
        uncounted = tuple(one.name for one in applying if one not in counting)
        return _record(call_id, run, model, usage, price, cost, milliseconds, over, uncounted)

    def release(self, call_id: str, note: str) -> None:
        """The call was never made."""
        self._spending.release(call_id, note)

    def doubt(self, call_id: str, note: str) -> None:
        """It is not known whether the call was made."""
        self._spending.doubt(call_id, note)

    def _files(self) -> tuple[tuple[Budget, ...], Prices]:
        """Load both files at the first call: a program without model calls needs neither."""
        with self._lock:
            if self._read is None:
                budgets, prices = self._settings.budgets_path, self._settings.prices_path
                listed = () if budgets is None else load_budgets(budgets)
                priced = Prices() if prices is None else load_prices(prices)
                self._read = require_unique_names([*self._settings.budgets, *listed]), priced
            return self._read

    def _asked(self, budget: Budget, model: str, bounds: Bounds, now: float) -> int:
        if budget.measure == "calls":
            return 1
        if budget.measure == "seconds":
            return _bound_attributes(budget, {"timeout": bounds.milliseconds})[0]
        given, output = _bound_attributes(
            budget, {"input_tokens (or prompt)": bounds.input_tokens, "max_tokens": bounds.output_tokens}
        )
        if budget.measure == "tokens":
            return given + output
        price = self._files()[1].find(model, day_of(now))
        if price is None:
            raise PriceUnknown(
                f"the model was not called: budget {budget.name!r} counts money and {model!r} has no price today; "
                f"add one to the price file ({PRICES_VARIABLE})"
            )
        if price.currency != budget.currency:
            raise PriceUnknown(
                f"the model was not called: budget {budget.name!r} is in {budget.currency} and the price of "
                f"{model!r} in {price.currency}; use the same currency for both ({BUDGETS_VARIABLE}, "
                f"{PRICES_VARIABLE})"
            )
        return price.most(given, output)

    def _cost(self, model: str, usage: Usage, began_at: float) -> tuple[Price | None, int | None]:
        price = self._files()[1].of_answer(model, usage.model, day_of(began_at))
        if price is None or usage.billed is None:
            return price, None
        return price, price.cost(usage.billed)


def _written(write: Callable[[dict[str, Any]], tuple[str, ...]], outcome: dict[str, Any]) -> tuple[str, ...]:
    """Record a call, without its reasoning if that cannot be sealed: the call was made and must count.

    Raises:
        JournalSealed: it was recorded without reasoning.
    """
    try:
        return write(outcome)
    except JournalSealed:
        write({**outcome, "reasoning": None})
        raise


def _bound_attributes(budget: Budget, bounds: Mapping[str, int | None]) -> list[int]:
    """The bounds that a budget needs.

    Raises:
        MisuseError: one is missing.
    """
    missing = [f"{name}=..." for name, value in bounds.items() if value is None]
    if missing:
        raise MisuseError(
            f"the model was not called: budget {budget.name!r} counts {budget.measure}, so each call must state "
            f"the most it may take: {' and '.join(missing)}"
        )
    return [value for value in bounds.values() if value is not None]


def _budget_hold(budget: Budget, amount: int, run: str | None, now: float) -> BudgetHold:
    return BudgetHold(
        budget=budget.name,
        measure=budget.measure,
        per=budget.per,
        currency=budget.currency,
        most=budget.units,
        period=budget.period(now, run),
        amount=amount,
    )


def _exceeded(short: Shortage, now: float) -> BudgetExceeded:
    hold = short.hold
    return BudgetExceeded(
        hold.budget,
        measure=f"{hold.measure} {hold.currency}".strip(),
        per=hold.per,
        limit=format_amount(hold.measure, hold.most),
        spent=format_amount(hold.measure, short.spent),
        reserved=format_amount(hold.measure, short.reserved),
        asked=format_amount(hold.measure, hold.amount),
        renews_at=renews_at(hold.per, now),
    )


def _amount_used(
    budget: Budget, usage: Usage, price: Price | None, cost: int | None, milliseconds: int | None
) -> int | None:
    """The amount that a call used of a budget; None is unknown."""
    if budget.measure == "calls":
        return 1
    if budget.measure == "seconds":
        return milliseconds
    if budget.measure == "tokens":
        return None if usage.billed is None else usage.billed.total
    return cost if price is not None and price.currency == budget.currency else None


def _outcome(usage: Usage, price: Price | None, cost: int | None, milliseconds: int | None) -> dict[str, Any]:
    return {
        "provider": usage.provider,
        "answered_by": usage.model,
        "finish_reasons": ",".join(usage.finish_reasons) or None,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "written_tokens": usage.written_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "all_tokens": None if usage.billed is None else usage.billed.total,
        "cost": cost,
        "currency": None if price is None or cost is None else price.currency,
        "milliseconds": milliseconds,
        "reasoning": usage.reasoning,
    }


def _record(
    call_id: str,
    run: str | None,
    model: str,
    usage: Usage,
    price: Price | None,
    cost: int | None,
    milliseconds: int | None,
    over: tuple[str, ...],
    uncounted: tuple[str, ...] = (),
) -> LlmRecord:
    return LlmRecord(
        call_id=call_id,
        run=run,
        model=model,
        usage=usage,
        cost=None if cost is None else format_amount("money", cost),
        currency=None if price is None or cost is None else price.currency,
        seconds=None if milliseconds is None else format_amount("seconds", milliseconds),
        over=over,
        uncounted=uncounted,
    )
