"""Time: wall time for names and leases, monotonic time for intervals, and pauses between retries.

Monotonic time does not jump with the wall clock and, where the system offers it (CLOCK_BOOTTIME), counts while the
machine sleeps: a laptop that was closed for an hour must not treat its permit as fresh.
"""

from __future__ import annotations

import random
import time
from typing import Final, Protocol


class Clock(Protocol):
    """The source of time; tests provide their own."""

    def wall(self) -> float:
        """Seconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds since a fixed moment; never decreases."""


class SystemClock:
    """The machine's clocks."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        """Seconds since boot, including sleep where the system counts it."""
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()


_MAX_DOUBLINGS: Final = 32  # every `longest` is reached before


def backoff(base: float, tried: int, longest: float) -> float:
    """Seconds: `base` doubled with each try, at most `longest`, of which a random half or more, so that clients that
    failed together do not return together.
    """
    doubled: float = base * 2.0 ** min(tried, _MAX_DOUBLINGS)
    return min(doubled, longest) * random.uniform(0.5, 1)  # noqa: S311 - spread, not secrecy
