"""Durations as authors write them in annotations and configuration: `90s`, `30m`, `4h`, `7d`. One unit, no
zero.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

MAX_DURATION: Final = timedelta(days=366)
"""Nobody means longer; a slipped unit does."""

_DURATION: Final = re.compile(r"([0-9]{1,9})([smhd])\Z")
_UNITS: Final = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}


def parse_duration(text: str) -> timedelta:
    """The duration this text names.

    Raises:
        ValueError: it names none, or zero, or more than a year.
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
