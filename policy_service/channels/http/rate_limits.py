"""Rate limits of one agent in this process: submissions per minute, and requests that wait at the same time.

Without them one agent in a loop would delay all others. Both count authenticated agents, so no agent uses up another's
limit. They hold per process: each replica allows as much again. The number of open reviews of an agent is counted in
the database instead (`workflow/effects/review_quota.py`).
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
    """For each agent a token bucket that holds one minute's submissions, and the number of its waiting requests."""

    def __init__(self, settings: Settings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = settings.submissions_per_minute
        self._max_waits = settings.waits_per_agent
        self._monotonic = monotonic
        self._spent: dict[
            str, tuple[float, float]
        ] = {}  # by agent: how much of the bucket was spent, and when
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
                f"{agent!r} submits more than {self._per_minute} times a minute; retry in {seconds} s",
                setting="submissions_per_minute",
                limit=self._per_minute,
                retry_after_seconds=seconds,
            )
        self._spent[agent] = (spent, now)

    @contextmanager
    def wait(self, agent: str, seconds: int) -> Iterator[None]:
        """Count one waiting request for the duration of the block. Zero seconds count nothing.

        Raises:
            QuotaError: rate_limited, the agent has reached its limit.
        """
        if not seconds:
            yield
            return
        if not self.can_wait(agent):
            raise QuotaError(
                f"{agent!r} already has {self._max_waits} waiting requests; retry without `Prefer: wait`, or later",
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
        """Whether the agent is below its limit of waiting requests."""
        return self._waits[agent] < self._max_waits

    def _current_spend(self, agent: str, now: float) -> float:
        """How much of the bucket is spent and not yet refilled."""
        spent, then = self._spent.get(agent, (0.0, now))
        return max(0.0, spent - (now - then) * self._per_minute / _MINUTE_S)
