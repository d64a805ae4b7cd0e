"""The clock's hand: APScheduler ticks idempotent sweeps, nothing more.

Truth about time is a column; a tick that is late, doubled or missed changes when people are told and never what is
allowed. Jobs live in memory (a shared job store would run each of them once per process). A tick that fails is logged
and counted and the next one comes; it never ends the scheduler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from prometheus_client import Counter, Gauge

log = structlog.get_logger(__name__)

FAILED_TICKS = Counter("countersign_job_failures_total", "Ticks of a job that raised.", ["job"])
LAST_SUCCESS = Gauge("countersign_job_last_success_seconds", "When a job last succeeded, Unix time.", ["job"])


@dataclass(frozen=True)
class Job:
    """A sweep and how often it is due."""

    name: str
    every_s: float
    sweep: Callable[[], Awaitable[object]]


class Scheduler:
    """Ticks jobs on the running event loop until it is stopped."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._scheduler = AsyncIOScheduler(timezone="UTC")
        for job in jobs:
            self._scheduler.add_job(
                _tick,
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
        """Whether it was started and not stopped."""
        return bool(self._scheduler.running)

    def start(self) -> None:
        """Begin ticking."""
        self._scheduler.start()

    def stop(self) -> None:
        """Stop ticking; a sweep that runs is left to its unit of work."""
        self._scheduler.shutdown(wait=False)


async def _tick(job: Job) -> None:
    try:
        await job.sweep()
    except asyncio.CancelledError:
        log.info("job_cut_short", job=job.name)  # the service stops; the sweep is due again when it starts
    except Exception:
        # The sweep is due again soon, and a scheduler that dies of one bad row helps nobody: count it and be loud.
        FAILED_TICKS.labels(job.name).inc()
        log.exception("job_failed", job=job.name)
    else:
        LAST_SUCCESS.labels(job.name).set_to_current_time()
