"""Prices of tokens, from your own price file. This package contains no prices: they change, and yours may differ.

    [[price]]
    models = "example-small*"      # a pattern; the longest match counts, then the latest date
    currency = "USD"
    valid_from = 2026-01-01        # a UTC day; the price does not apply to earlier calls
    input = 0.15                   # per million tokens
    output = 0.60
    cached_input = 0.075           # default: the input price
    cache_write = 0.1875           # without it, the cost of a call that writes to a cache is unknown

Arithmetic is exact: a price has at most six decimal places, so one token is a whole number of picos (1e-12 of the
currency), and sums are sums of integers. A model without a price has an unknown cost, never zero.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from countersign.errors import SettingsError
from countersign.llm.usage import Billed

MAX_FILE_BYTES: Final = 1024 * 1024


def load_tables(path: Path, name: str, known: frozenset[str]) -> list[dict[str, Any]]:
    """The tables `[[name]]` of a file.

    Raises:
        SettingsError: it cannot be read, is not TOML, or has an unknown member.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise SettingsError(f"{str(path)!r} is larger than {MAX_FILE_BYTES} bytes")
        document = tomllib.loads(text.decode(), parse_float=Decimal)
    except OSError as error:
        raise SettingsError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{str(path)!r} is no TOML: {error}") from error
    rows = document.pop(name, [])
    if document or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SettingsError(f"{str(path)!r} may hold tables [[{name}]] and nothing else")
    for row in rows:
        unknown = sorted(row.keys() - known)
        if unknown:
            raise SettingsError(
                f"{str(path)!r}: [[{name}]] has no {unknown[0]!r}; it has {', '.join(sorted(known))}"
            )
    return rows


def require(row: Mapping[str, Any], key: str, kind: type, place: str) -> Any:
    """A required member.

    Raises:
        SettingsError: it is missing or has another type.
    """
    value = row.get(key)
    if type(value) is not kind:
        raise SettingsError(f"{place}: {key!r} must be {_KINDS[kind]}, not {value!r}")
    return value


_KINDS: Final[dict[type, str]] = {str: "text", list: "a list", dict: "a table"}


def exact_decimal(value: object, what: str, *, places: int, most: int) -> Decimal:
    """A non-negative number as a decimal. A float is refused, because it does not determine a decimal.

    Raises:
        SettingsError: it is invalid, negative, too precise or too large.
    """
    if type(value) not in {int, str, Decimal}:
        raise SettingsError(f"{what} must be a whole number, text or Decimal like '12.50', not {value!r}")
    try:
        number = Decimal(value)  # type: ignore[arg-type]
    except InvalidOperation as error:
        raise SettingsError(f"{what}: {value!r} is no number") from error
    if not number.is_finite() or not 0 <= number <= most:
        raise SettingsError(f"{what}: {value!r} must be from 0 to {most}")
    if number != round(number, places):
        raise SettingsError(f"{what}: {value!r} has more than {places} decimal places")
    return number


def currency_code(value: object, what: str) -> str:
    """A currency as three capital letters.

    Raises:
        SettingsError: it is not.
    """
    if not (
        isinstance(value, str) and len(value) == 3 and value.isascii() and value.isalpha() and value.isupper()
    ):
        raise SettingsError(f"{what}: currency {value!r} is not a code of three capital letters like USD")
    return value


def is_name(value: object, most: int) -> bool:
    """Whether it is a text of 1 to `most` characters."""
    return isinstance(value, str) and 0 < len(value) <= most


PICOS: Final = 10**12  # per unit of a currency
_MILLION: Final = 10**6
_PLACES: Final = 6  # of a price, so that one token's is a whole number of picos
_MOST: Final = 10_000  # of a currency for a million tokens: what a call may cost must fit 64 bits
_KNOWN: Final = frozenset(
    {"models", "currency", "valid_from", "input", "output", "cached_input", "cache_write"}
)


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens of some models cost from a day on."""

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
                object.__setattr__(
                    self, name, exact_decimal(value, f"{what}: {name}", places=_PLACES, most=_MOST)
                )

    def cost(self, billed: Billed) -> int | None:
        """The cost in picos; None if tokens were written to a cache and that has no price."""
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
        """The highest cost in picos of a call of at most that size, for any kind of input."""
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
            raise SettingsError(f"the price of {twice[0]!r} from {twice[1]} on is listed twice")

    def find(self, model: str, day: date) -> Price | None:
        """The price of a model on a day, if it has one."""
        fitting = (row for row in self._rows if row.valid_from <= day and fnmatchcase(model, row.models))
        return next(fitting, None)

    def of_answer(self, requested: str, answered: str | None, day: date) -> Price | None:
        """The price of the model that answered. A dated name of the requested model (`x`, `x-2026-01-31`) costs the
        same; any other model without a price has none.
        """
        if answered is None or answered == requested:
            return self.find(requested, day)
        found = self.find(answered, day)
        return self.find(requested, day) if found is None and answered.startswith(f"{requested}-") else found


def load_prices(path: Path) -> Prices:
    """Read a price file.

    Raises:
        SettingsError: an entry is invalid; then none is used.
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
