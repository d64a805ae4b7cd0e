"""Money and durations as text.

Money text is the same in every locale: a currency without a known symbol is written with its code.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

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
