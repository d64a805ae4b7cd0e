"""An agent in asyncio: its steps run in tasks, the first of which is cancelled where that was drawn, and return their
results.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from countersign import CountersignError, Runtime, Transaction, run_transaction, transaction
from countersign.live.isolation import Abort, Isolation, Retry, Serialize
from tests.crash.passing import Points

ISOLATIONS: dict[str, Isolation] = {"Abort": Abort(), "Retry": Retry(attempts=5), "Serialize": Serialize()}
Body = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Run:
    """How a key is run."""

    key: str
    isolation: str = "Abort"  # a name of ISOLATIONS


def run_in_tasks(body: Body, points: Points, runs: Sequence[Run], runtime: Runtime) -> list[dict[str, Any]]:
    """Run them at the same time, each to its end, or the first to where it is cancelled."""

    async def together() -> list[dict[str, Any]]:
        tasks = [asyncio.create_task(_step(body, run, runtime)) for run in runs]
        points.cancel = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, tasks[0].cancel)
        try:
            return await asyncio.gather(*tasks)
        finally:
            points.cancel = bool  # there is nothing left of it

    return asyncio.run(together())


async def _step(body: Body, run: Run, runtime: Runtime) -> dict[str, Any]:
    raised: str | None = None
    ran = [transaction(run.key, runtime=runtime)]

    async def step(txn: Transaction) -> None:
        ran.append(txn)
        await body()

    try:
        await run_transaction(step, key=run.key, isolation=ISOLATIONS[run.isolation], runtime=runtime)
    except (CountersignError, asyncio.CancelledError) as error:
        raised = type(error).__name__
    return {"key": run.key, "raised": raised} | what_it_says(ran[-1])


def what_it_says(txn: Transaction) -> dict[str, Any]:
    """Of the step and of each call, once it is over."""
    return {"replayed": txn.replayed, "outcomes": [one.outcome for one in txn.effects]}
