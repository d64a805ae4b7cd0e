"""What one agent may ask of this process: submissions by the minute, and waits at the same time.

An agent in a loop would otherwise have everybody else wait behind it. Both are counted by the agent that proved itself,
so nobody uses up another's, and both in this process alone: with several replicas an agent has as much on each. What an
agent may have people asked about is counted in the database instead (`workflow.asked`).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from policy_service.errors import RETRY_AFTER_S, QuotaError
from policy_service.settings import Settings

_MINUTE_S = 60.0


class RateLimits:
    """A token bucket for each agent, which holds a minute's worth, and the number of its waits."""

    def __init__(self, settings: Settings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = settings.submissions_per_minute
        self._max_waits = settings.waits_per_agent
        self._monotonic = monotonic
        self._spent: dict[
            str, tuple[float, float]
        ] = {}  # by agent: how much of a bucket, and when that was so
        self._waits: Counter[str] = Counter()

    def submit(self, agent: str) -> None:
        """Count one submission or dry run.

        Raises:
            QuotaError: rate_limited, with the seconds until the next one fits.
        """
        now = self._monotonic()
        spent = self._current_spend(agent, now) + 1
        if spent > self._per_minute:
            seconds = math.ceil((spent - self._per_minute) * _MINUTE_S / self._per_minute)
            raise QuotaError(
                f"{agent!r} submits more than {self._per_minute} times a minute; ask again in {seconds} s",
                setting="submissions_per_minute",
                limit=self._per_minute,
                retry_after_seconds=seconds,
            )
        self._spent[agent] = (spent, now)

    @contextmanager
    def wait(self, agent: str, seconds: int) -> Iterator[None]:
        """One of the agent's places to wait, for the block; looking without waiting takes none.

        Raises:
            QuotaError: rate_limited, the agent waits as often as one may.
        """
        if not seconds:
            yield
            return
        if not self.can_wait(agent):
            raise QuotaError(
                f"{agent!r} waits {self._max_waits} times already; ask without `Prefer: wait`, or later",
                setting="waits_per_agent",
                limit=self._max_waits,
                retry_after_seconds=RETRY_AFTER_S,
            )
        self._waits[agent] += 1
        try:
            yield
        finally:
            self._waits[agent] -= 1
            if not self._waits[agent]:
                del self._waits[agent]

    def can_wait(self, agent: str) -> bool:
        """Whether the agent has a place left to wait."""
        return self._waits[agent] < self._max_waits

    def _current_spend(self, agent: str, now: float) -> float:
        """What of its bucket is spent and has not come back."""
        spent, then = self._spent.get(agent, (0.0, now))
        return max(0.0, spent - (now - then) * self._per_minute / _MINUTE_S)
