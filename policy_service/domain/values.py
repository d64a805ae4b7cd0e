"""Money, durations, and Cedar's decimal and datetime values in JSON.

Money text is the same in every locale: a currency without a known symbol is written with its code. Only this module
writes Cedar's `__extn`, so no argument can forge a typed value.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

_NO_DECIMALS = frozenset("BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF".split())
_THREE_DECIMALS = frozenset({"BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"})
_SYMBOLS = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥"}
_CODE = re.compile(r"[A-Z]{3}", re.ASCII)


def is_currency(code: str) -> bool:
    """Whether a text has the form of an ISO 4217 code."""
    return _CODE.fullmatch(code) is not None


def decimals(currency: str) -> int:
    """The number of decimal places of a currency (ISO 4217)."""
    if currency in _NO_DECIMALS:
        return 0
    return 3 if currency in _THREE_DECIMALS else 2


def money_text(minor: int, currency: str) -> str:
    """Format minor units: ``124000, "USD"`` is ``$1,240.00``; a currency without a symbol is ``CHF 1,240.00``."""
    places = decimals(currency)
    whole, rest = divmod(abs(minor), 10**places)
    number = f"{whole:,}" + (f".{rest:0{places}d}" if places else "")
    sign = "-" if minor < 0 else ""
    symbol = _SYMBOLS.get(currency)
    return f"{sign}{symbol}{number}" if symbol else f"{currency} {sign}{number}"


MAX_DURATION: Final = timedelta(days=366)
"""The longest accepted duration; a longer one is most likely a wrong unit."""

_DURATION: Final = re.compile(r"([0-9]{1,9})([smhd])\Z")
_UNITS: Final = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}


def parse_duration(text: str) -> timedelta:
    """Parse a duration such as ``90s``, ``30m``, ``4h`` or ``7d``.

    Raises:
        ValueError: the text is not a duration, or is outside one second to `MAX_DURATION`.
    """
    match = _DURATION.match(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a duration; write a whole number and s, m, h or d, like 90s, 30m, 4h, 7d"
        )
    duration = int(match.group(1)) * _UNITS[match.group(2)]
    if not timedelta() < duration <= MAX_DURATION:
        raise ValueError(f"{text!r} is not between one second and {MAX_DURATION.days} days")
    return duration


MAX_DECIMAL_PLACES: Final = 4
"""Cedar's decimal is a 64-bit count of ten-thousandths."""

MAX_DECIMAL: Final = Decimal(2**63 - 1).scaleb(-MAX_DECIMAL_PLACES)


def decimal_value(number: Decimal) -> dict[str, Any]:
    """A number as a Cedar decimal.

    Raises:
        ValueError: it has more than four places or is too large. Rounding would show policies another number than the
            tool gets.
    """
    if decimal_places(number) > MAX_DECIMAL_PLACES:
        raise ValueError(
            f"{number} has more than {MAX_DECIMAL_PLACES} decimal places; round it before sending"
        )
    if abs(number) > MAX_DECIMAL:
        raise ValueError(f"{number} is outside +-{MAX_DECIMAL}")
    text = f"{number.normalize():f}"
    return {"__extn": {"fn": "decimal", "arg": text if "." in text else text + ".0"}}


def decimal_places(number: Decimal) -> int:
    """The number of decimal places; for NaN and infinity, more than a Cedar decimal may have."""
    exponent = number.normalize().as_tuple().exponent
    return -exponent if isinstance(exponent, int) else MAX_DECIMAL_PLACES + 1


def datetime_value(moment: datetime) -> dict[str, Any]:
    """A time as a Cedar datetime, to the millisecond.

    Raises:
        ValueError: the time has no time zone.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no time zone; write it with Z")
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"__extn": {"fn": "datetime", "arg": text}}
