"""Scheduler: APScheduler runs idempotent sweeps at intervals.

Deadlines are columns: a late, doubled or missed tick changes when people are notified, never what is permitted. Jobs
are kept in memory, because a shared job store would run each once per process. A failed tick is logged and counted,
and the next one runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from policy_service import metrics
from policy_service.health import Health

log = structlog.get_logger(__name__)

_LATE_FACTOR = 3  # intervals, plus a margin: a slow sweep is not a hanging one
_LATE_MARGIN_S = 60.0


@dataclass(frozen=True)
class Job:
    """A sweep and its interval."""

    name: str
    every_s: float
    sweep: Callable[[], Awaitable[object]]


class Scheduler:
    """Runs jobs on the event loop until stopped."""

    def __init__(self, jobs: Sequence[Job], health: Health) -> None:
        self._jobs, self._health = jobs, health
        self._scheduler = AsyncIOScheduler(timezone="UTC")
        self._succeeded: dict[str, tuple[float, datetime]] = {}
        for job in jobs:
            self._scheduler.add_job(
                self._tick,
                "interval",
                seconds=job.every_s,
                args=[job],
                id=job.name,
                coalesce=True,
                max_instances=1,
                misfire_grace_time=None,
            )

    @property
    def ticking(self) -> bool:
        """Whether it is running."""
        return bool(self._scheduler.running)

    def start(self) -> None:
        """Begin ticking."""
        for job in self._jobs:
            self._succeeded[job.name] = (time.monotonic(), self._health.now())
        self._scheduler.start()

    def stop(self) -> None:
        """Stop; a running sweep finishes its unit of work."""
        self._scheduler.shutdown(wait=False)

    def look(self) -> None:
        """Report jobs without success for too long; a hanging job raises no error itself."""
        for job in self._jobs:
            at, when = self._succeeded[job.name]
            if time.monotonic() - at > _LATE_FACTOR * job.every_s + _LATE_MARGIN_S:
                self._health.bad("sweeps", f"the job {job.name} has not succeeded", job.name, when)

    async def _tick(self, job: Job) -> None:
        try:
            await job.sweep()
        except asyncio.CancelledError:
            # the service stops; the sweep runs again after the restart
            log.info("job_cut_short", job=job.name)
        except Exception:
            # The sweep runs again soon, and one bad row must not end the scheduler.
            metrics.JOB_FAILURES.labels(job.name).inc()
            self._health.bad("sweeps", f"the job {job.name} fails", job.name)
            log.exception("job_failed", job=job.name)
        else:
            metrics.JOB_SUCCESS.labels(job.name).set_to_current_time()
            self._succeeded[job.name] = (time.monotonic(), self._health.now())
            self._health.good("sweeps", job.name)
