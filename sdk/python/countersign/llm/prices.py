"""What tokens cost, from a price file of your own. This package knows no prices: they change, and yours may be others.

    [[price]]
    models = "example-small*"      # a pattern; the longest that fits counts, then the latest date
    currency = "USD"
    valid_from = 2026-01-01        # a UTC day; calls before it have no price by this row
    input = 0.15                   # all for a million tokens
    output = 0.60
    cached_input = 0.075           # without it, cached tokens cost what input costs
    cache_write = 0.1875           # without it, the cost of a call that writes to a cache is unknown

Everything is exact: a price has at most six decimal places, so one token is a whole number of picos (1e-12 of the
currency), and sums are sums of integers. A model without a price has an unknown cost, never a cost of zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from countersign.errors import SettingsError
from countersign.llm.shapes import Billed
from countersign.llm.tables import currency_code, exact, load_tables, require

PICOS: Final = 10**12  # in one unit of a currency
_MILLION: Final = 10**6
_PLACES: Final = 6  # of a price: then one token's is a whole number of picos
_MOST: Final = 10_000  # of a currency for a million tokens: what a call may cost must fit 64 bits
_KNOWN: Final = frozenset(
    {"models", "currency", "valid_from", "input", "output", "cached_input", "cache_write"}
)


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens of some models cost, from a day on."""

    models: str
    currency: str
    valid_from: date
    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None
    cache_write: Decimal | None = None

    def __post_init__(self) -> None:
        what = f"price of {self.models!r}"
        if not self.models or not isinstance(self.models, str):
            raise SettingsError(f"{what}: 'models' must be a pattern of model names")
        currency_code(self.currency, what)
        if type(self.valid_from) is not date:
            raise SettingsError(
                f"{what}: 'valid_from' must be a day like 2026-01-31, not {self.valid_from!r}"
            )
        for name in ("input", "output", "cached_input", "cache_write"):
            value = getattr(self, name)
            if value is not None or name in {"input", "output"}:
                object.__setattr__(self, name, exact(value, f"{what}: {name}", places=_PLACES, most=_MOST))

    def cost(self, billed: Billed) -> int | None:
        """In picos; None where tokens were written to a cache and that has no price."""
        if billed.written and self.cache_write is None:
            return None
        cached = self.input if self.cached_input is None else self.cached_input
        parts = (
            (billed.input, self.input),
            (billed.cached, cached),
            (billed.written, self.cache_write or Decimal(0)),
            (billed.output, self.output),
        )
        return sum(tokens * _per_token(price) for tokens, price in parts)

    def most(self, input_tokens: int, output_tokens: int) -> int:
        """In picos: what a call of at most that size can cost, whichever kind its input turns out to be."""
        dearest = max(self.input, self.cached_input or Decimal(0), self.cache_write or Decimal(0))
        return input_tokens * _per_token(dearest) + output_tokens * _per_token(self.output)


def _per_token(price: Decimal) -> int:
    return int(price * PICOS / _MILLION)


class Prices:
    """A price list."""

    def __init__(self, rows: Iterable[Price] = ()) -> None:
        self._rows = sorted(rows, key=lambda row: (len(row.models), row.valid_from), reverse=True)
        named = [(row.models, row.valid_from) for row in self._rows]
        twice = next((one for one in named if named.count(one) > 1), None)
        if twice is not None:
            raise SettingsError(f"the price of {twice[0]!r} from {twice[1]} on stands there twice")

    def find(self, model: str, day: date) -> Price | None:
        """The price of a model on a day, if it has one."""
        fitting = (row for row in self._rows if row.valid_from <= day and fnmatchcase(model, row.models))
        return next(fitting, None)

    def of_answer(self, asked: str, answered: str | None, day: date) -> Price | None:
        """The price of the model that answered. A dated name of the model that was asked (`x`, `x-2026-01-31`) costs
        what that one costs; another model that has no price has none.
        """
        if answered is None or answered == asked:
            return self.find(asked, day)
        found = self.find(answered, day)
        return self.find(asked, day) if found is None and answered.startswith(f"{asked}-") else found


def load_prices(path: Path) -> Prices:
    """Read a price file.

    Raises:
        SettingsError: something in it cannot be taken; nothing of it is.
    """
    return Prices(_price(row, str(path)) for row in load_tables(path, "price", _KNOWN))


def _price(row: dict[str, Any], path: str) -> Price:
    place = f"{path!r}: [[price]]"
    return Price(
        models=require(row, "models", str, place),
        currency=require(row, "currency", str, place),
        valid_from=row.get("valid_from"),  # type: ignore[arg-type] # the class refuses what is no day
        input=row.get("input"),  # type: ignore[arg-type] # and what is no number
        output=row.get("output"),  # type: ignore[arg-type] # the same
        cached_input=row.get("cached_input"),
        cache_write=row.get("cache_write"),
    )
