"""Typed Cedar values in Cedar's JSON: the only code that writes `__extn`, so that no argument ever does."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

MAX_DECIMAL_PLACES: Final = 4
"""Cedar's decimal is a 64-bit count of ten-thousandths."""

MAX_DECIMAL: Final = Decimal(2**63 - 1).scaleb(-MAX_DECIMAL_PLACES)


def decimal_value(number: Decimal) -> dict[str, Any]:
    """A decimal.

    Raises:
        ValueError: more than four places, or too large: rounding would show the policy another number than
            the tool.
    """
    if decimal_places(number) > MAX_DECIMAL_PLACES:
        raise ValueError(
            f"{number} has more than {MAX_DECIMAL_PLACES} decimal places; round it before sending"
        )
    if abs(number) > MAX_DECIMAL:
        raise ValueError(f"{number} is beyond +-{MAX_DECIMAL}")
    text = f"{number.normalize():f}"
    return {"__extn": {"fn": "decimal", "arg": text if "." in text else text + ".0"}}


def decimal_places(number: Decimal) -> int:
    """How many places it has after the point; of what is no number, more than any decimal may have."""
    exponent = number.normalize().as_tuple().exponent
    return -exponent if isinstance(exponent, int) else MAX_DECIMAL_PLACES + 1


def datetime_value(moment: datetime) -> dict[str, Any]:
    """A datetime, to the millisecond.

    Raises:
        ValueError: the time names no zone.
    """
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} names no time zone; write it with Z")
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"__extn": {"fn": "datetime", "arg": text}}
