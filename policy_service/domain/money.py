"""Money for people: minor units and a currency code become one fixed text, the same in every locale.

A currency we do not know gets its code and no symbol; the number of its decimals is 2 unless ISO 4217 says otherwise.
"""

from __future__ import annotations

import re

_NO_DECIMALS = frozenset(
    {
        "BIF",
        "CLP",
        "DJF",
        "GNF",
        "ISK",
        "JPY",
        "KMF",
        "KRW",
        "PYG",
        "RWF",
        "UGX",
        "VND",
        "VUV",
        "XAF",
        "XOF",
        "XPF",
    }
)
_THREE_DECIMALS = frozenset({"BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"})
_SYMBOLS = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥"}


_CODE = re.compile(r"[A-Z]{3}", re.ASCII)


def is_currency(code: str) -> bool:
    """Whether this has the form of an ISO 4217 code; nothing else may stand beside an amount."""
    return _CODE.fullmatch(code) is not None


def decimals(currency: str) -> int:
    """How many digits of ``currency`` stand after the point (ISO 4217)."""
    if currency in _NO_DECIMALS:
        return 0
    return 3 if currency in _THREE_DECIMALS else 2


def money_text(minor: int, currency: str) -> str:
    """``124000, "USD"`` is ``$1,240.00``; a code without a symbol stands in front: ``CHF 1,240.00``."""
    places = decimals(currency)
    whole, rest = divmod(abs(minor), 10**places)
    number = f"{whole:,}" + (f".{rest:0{places}d}" if places else "")
    sign = "-" if minor < 0 else ""
    symbol = _SYMBOLS.get(currency)
    return f"{sign}{symbol}{number}" if symbol else f"{currency} {sign}{number}"
