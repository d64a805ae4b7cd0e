"""Time as the SDK uses it: wall time for names and leases, steady time for "how long ago".

Steady time does not jump with the wall clock and, where the system offers it, goes on counting while the
machine sleeps (CLOCK_BOOTTIME): a laptop that was shut for an hour must not believe that its permission is
still fresh.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """What the SDK asks the time from; tests bring their own."""

    def wall(self) -> float:
        """Seconds since the epoch, UTC."""
        ...

    def steady(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def steady(self) -> float:
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
        return self.iat + 1 + (clock.steady() - self.asked_at)
