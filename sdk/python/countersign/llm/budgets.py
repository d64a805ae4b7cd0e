"""Budgets: how much calls to models may take, in money, tokens, calls or time, for a run or for a day (UTC).

    [[budget]]
    name = "a-day"
    measure = "money"              # money, tokens, calls or seconds
    limit = "20.00"
    currency = "USD"               # only for money
    per = "day"                    # day or run
    models = ["example-*"]         # without it, every model

Internally every amount is an integer: picos of the currency, tokens, calls, milliseconds. A budget is identified by its
name: two programs that use the same name on the same journal share it, each with the limit it declares.

`Bounds` are the upper bounds of one call, declared before it is made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal, cast

from countersign.errors import MisuseError, SettingsError
from countersign.llm.prices import PICOS, currency_code, exact_decimal, is_name, load_tables, require
from countersign.llm.usage import MAX_TOKENS

Measure = Literal["money", "tokens", "calls", "seconds"]
Per = Literal["day", "run"]
Number = int | str | Decimal

_SCALE: Final = {"money": PICOS, "tokens": 1, "calls": 1, "seconds": 1000}
_PLACES: Final = {"money": 12, "tokens": 0, "calls": 0, "seconds": 3}
_MOST: Final = {"money": 10**6, "tokens": 10**15, "calls": 10**12, "seconds": 10**9}  # sums of it fit 64 bits
_PERIODS: Final = ("day", "run")
_KNOWN: Final = frozenset({"name", "measure", "limit", "currency", "per", "models"})
_MAX_NAME: Final = 100


@dataclass(frozen=True, slots=True)
class Budget:
    """One limit. `limit` is in units of the currency, tokens, calls or seconds; a float is refused."""

    name: str
    measure: Measure
    limit: Number
    per: Per
    currency: str = ""
    models: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        what = f"budget {self.name!r}"
        if not is_name(self.name, _MAX_NAME):
            raise SettingsError(f"{what}: a name has 1 to {_MAX_NAME} characters")
        if self.measure not in _SCALE:
            raise SettingsError(f"{what}: measure {self.measure!r} is none of {', '.join(_SCALE)}")
        if self.per not in _PERIODS:
            raise SettingsError(f"{what}: per {self.per!r} is none of {', '.join(_PERIODS)}")
        if self.measure == "money":
            currency_code(self.currency, what)
        elif self.currency:
            raise SettingsError(f"{what} counts {self.measure} and has no currency")
        if not self.models or not all(is_name(one, _MAX_NAME) for one in self.models):
            raise SettingsError(f"{what}: 'models' must be patterns of model names")
        places, most = _PLACES[self.measure], _MOST[self.measure]
        object.__setattr__(
            self, "limit", exact_decimal(self.limit, f"{what}: limit", places=places, most=most)
        )

    @property
    def units(self) -> int:
        """The limit as an integer of the measure."""
        return int(Decimal(self.limit) * _SCALE[self.measure])

    def applies_to(self, model: str) -> bool:
        """Whether calls to this model count."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)

    def period(self, now: float, run: str | None) -> str:
        """The current period: a UTC day, or a run.

        Raises:
            SettingsError: the budget is per run, and the call belongs to no run.
        """
        if self.per == "day":
            return day_of(now).isoformat()
        if run is None:
            raise SettingsError(
                f"budget {self.name!r} is for each run, and this call belongs to none: make it inside "
                "`with transaction(key=...)`, or say run=..."
            )
        return run


def format_amount(measure: str, units: int) -> Decimal:
    """An amount in units for people: currency units, tokens, calls, seconds."""
    return Decimal(units) / _SCALE[measure]


def day_of(now: float) -> date:
    """The UTC day of a moment."""
    return datetime.fromtimestamp(now, UTC).date()


def renews_at(per: str, now: float) -> datetime | None:
    """When a budget per day is renewed; a budget per run never is."""
    if per != "day":
        return None
    midnight = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + timedelta(days=1)


def load_budgets(path: Path) -> tuple[Budget, ...]:
    """Read a file of budgets.

    Raises:
        SettingsError: an entry is invalid; then none is used.
    """
    rows = load_tables(path, "budget", _KNOWN)
    return require_unique_names(_budget(row, f"{str(path)!r}: [[budget]]") for row in rows)


def require_unique_names(budgets: Iterable[Budget]) -> tuple[Budget, ...]:
    """These budgets without duplicates.

    Raises:
        SettingsError: two different budgets have the same name.
    """
    found: dict[str, Budget] = {}
    for one in budgets:
        if found.setdefault(one.name, one) != one:
            raise SettingsError(f"two different budgets are named {one.name!r}; give each a name of its own")
    return tuple(found.values())


def _budget(row: dict[str, Any], place: str) -> Budget:
    models = require(row, "models", list, place) if "models" in row else ["*"]
    return Budget(
        name=require(row, "name", str, place),
        measure=cast(Measure, require(row, "measure", str, place)),
        limit=cast(Number, row.get("limit")),
        per=cast(Per, require(row, "per", str, place)),
        currency=row.get("currency", ""),
        models=tuple(models),
    )


_MAX_SECONDS: Final = 10**6  # of one call
_TEMPLATE_TOKENS: Final = 64  # what a vendor's chat template adds to a text


@dataclass(frozen=True, slots=True)
class Bounds:
    """None means not declared."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    seconds: float | str | Decimal | None = None

    def __post_init__(self) -> None:
        for name in ("input_tokens", "output_tokens"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 0 <= value <= MAX_TOKENS):
                raise MisuseError(f"{name} of a call is a whole number up to {MAX_TOKENS}, not {value!r}")
        if self.seconds is not None and not _is_time(self.seconds):
            raise MisuseError(f"the time of a call is in seconds, 0 to {_MAX_SECONDS}, not {self.seconds!r}")

    @property
    def milliseconds(self) -> int | None:
        """The time in milliseconds, rounded up."""
        return None if self.seconds is None else math.ceil(Decimal(self.seconds) * 1000)


def _is_time(value: float | str | Decimal) -> bool:
    try:
        seconds = Decimal(value)
    except (InvalidOperation, TypeError, ValueError):
        return False
    return seconds.is_finite() and 0 <= seconds <= _MAX_SECONDS


def input_bound(tokens: int | None, prompt: object) -> int | None:
    """The most tokens that are sent: as declared, or the number of bytes of the prompt."""
    if prompt is None:
        return tokens
    if tokens is not None:
        raise MisuseError("say either input_tokens or prompt: one bounds what is sent")
    try:
        text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False, default=_as_json)
        return len(text.encode("utf-8", "surrogatepass")) + _TEMPLATE_TOKENS
    except (TypeError, ValueError) as error:
        raise MisuseError(
            f"prompt is text or JSON, as it is sent ({error}); say input_tokens=... instead"
        ) from error


def _as_json(message: object) -> object:
    """A message of a client's own class as JSON."""
    dump = getattr(message, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"{type(message).__name__} is no JSON")
