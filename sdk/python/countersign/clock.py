"""Time as the SDK uses it: wall time for names and leases, steady time for intervals, and pauses between retries.

Steady time does not jump with the wall clock and, where the system offers it, goes on counting while the machine sleeps
(CLOCK_BOOTTIME): a laptop that was shut for an hour must not believe that its permission is still fresh.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Final, Protocol


class Clock(Protocol):
    """What the SDK asks the time from; tests bring their own."""

    def wall(self) -> float:
        """Seconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""


class SystemClock:
    """The machine's clocks."""

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since boot, sleep included where the system counts it."""
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class ServerTime:
    """The service's time, carried on by our steady clock, always on the late side.

    The receipt was signed some time after we asked and its `iat` is cut to whole seconds: counting from the
    moment we asked, plus that second, can only make us stop early. The wall clock of this machine is not
    looked at.
    """

    iat: int
    asked_at: float  # steady

    def latest(self, clock: Clock) -> float:
        """The latest the service's clock can show now."""
        return self.iat + 1 + (clock.monotonic() - self.asked_at)


_MAX_DOUBLINGS: Final = 32  # beyond these every `longest` has been reached


def backoff(base: float, tried: int, longest: float) -> float:
    """Seconds: `base` doubled with each of the `tried` tries, `longest` at most, and of that a half or more, by chance,
    so that many who failed together do not come back together.
    """
    doubled: float = base * 2.0 ** min(tried, _MAX_DOUBLINGS)
    return min(doubled, longest) * random.uniform(0.5, 1)  # noqa: S311 - spread, not secrecy
