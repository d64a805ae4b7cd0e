"""The scheduler runs each sweep at its interval, one at a time, and survives failures."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from policy_service.health import Health
from policy_service.jobs.scheduler import Job, Scheduler
from policy_service.metrics import REGISTRY
from policy_service.storage.unit_of_work import utc_now


class Sweep:
    """Counts its ticks and runs a given action in each."""

    def __init__(self, then: Callable[[int], Awaitable[None]] | None = None) -> None:
        self.ticks = 0
        self._then = then
        self._ticked = asyncio.Condition()

    async def __call__(self) -> None:
        async with self._ticked:
            self.ticks += 1
            self._ticked.notify_all()
        if self._then is not None:
            await self._then(self.ticks)

    async def has_ticked(self, times: int) -> None:
        async with asyncio.timeout(10), self._ticked:
            await self._ticked.wait_for(lambda: self.ticks >= times)


@asynccontextmanager
async def ticking(*jobs: Job) -> AsyncIterator[None]:
    scheduler = Scheduler(jobs, Health(utc_now, patience_s=60))
    scheduler.start()
    try:
        yield
    finally:
        scheduler.stop()
        await asyncio.sleep(0)


def failures(job: str) -> float:
    return REGISTRY.get_sample_value("countersign_job_failures_total", {"job": job}) or 0


async def test_every_job_runs_again_and_failures_are_counted() -> None:
    async def fail(_tick: int) -> None:
        raise LookupError("one bad row")

    bad, good, before = Sweep(fail), Sweep(), failures("bad")
    async with ticking(Job("bad", 0.02, bad), Job("good", 0.02, good)):
        await bad.has_ticked(3)
        await good.has_ticked(3)
    assert failures("bad") - before >= 2
    assert failures("good") == 0
    assert REGISTRY.get_sample_value("countersign_job_last_success_timestamp_seconds", {"job": "good"})


async def test_a_slow_job_is_never_run_twice_at_once() -> None:
    """N10."""
    running = most = 0

    async def slow(_tick: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.1)
        running -= 1

    sweep = Sweep(slow)
    async with ticking(Job("slow", 0.01, sweep)):
        await sweep.has_ticked(3)
        await asyncio.sleep(0.15)
    assert most == 1
    ticks = sweep.ticks
    await asyncio.sleep(0.15)
    assert sweep.ticks == ticks, "stopping ends it"
