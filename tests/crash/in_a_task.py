"""An agent in asyncio: its step runs in a task, which is cancelled where that was drawn, and says what it was told.

`slowly` makes a tool async. It lets the event loop go round before it acts and after, so a cancellation that was asked
for at one of the points (passing.py) comes before an act, amid it or after it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from countersign import (
    Abort,
    CountersignError,
    Retry,
    Runtime,
    Serialize,
    Transaction,
    run_transaction,
    transaction,
)
from countersign.live.isolation import Isolation
from tests.crash.passing import Points
from tests.crash.programs import Act, watching

BLOCK, FUNCTION = "async with", "run_transaction"
WAYS = [BLOCK, FUNCTION]
ISOLATIONS: dict[str, Isolation] = {"Abort": Abort(), "Retry": Retry(attempts=5), "Serialize": Serialize()}
Body = Callable[[], Coroutine[Any, Any, None]]


def slowly(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, async."""

    @functools.wraps(fn)
    async def slow(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        answer = fn(*args, **kwargs)
        await asyncio.sleep(0)
        return answer

    return slow


async def run_acts(acts: list[Act], one_of: Callable[[Act], Any]) -> None:
    """What programs.py does in a plain block, in an async one."""
    for one in acts:
        match one["do"]:
            case "parallel":
                with watching().parallel():
                    await asyncio.gather(*[run_acts([inner], one_of) for inner in one["acts"]])
            case "block":
                with suppress(LookupError):
                    async with transaction(runtime=watching()._runtime):
                        await run_acts(one["acts"], one_of)
                        if one["raises"]:
                            raise LookupError
            case "raise":
                raise ValueError("the body raised")
            case "interrupt":
                raise KeyboardInterrupt
            case _:
                answer = one_of(one)
                if inspect.isawaitable(answer):
                    await answer
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Run:
    """How a key is run."""

    key: str
    way: str = FUNCTION
    wait: float = 0.0
    isolation: str = "Abort"  # a name of ISOLATIONS


def told_in_tasks(body: Body, points: Points, runs: Sequence[Run], runtime: Runtime) -> list[dict[str, Any]]:
    """Run them at the same time, each to its end, or the first to where it is cancelled."""
    return asyncio.run(_told([functools.partial(_step, body, run, runtime) for run in runs], points))


async def _told(
    steps: Sequence[Callable[[], Coroutine[Any, Any, dict[str, Any]]]], points: Points
) -> list[dict[str, Any]]:
    tasks = [asyncio.create_task(step()) for step in steps]
    points.cancel = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, tasks[0].cancel)
    try:
        return await asyncio.gather(*tasks)
    finally:
        points.cancel = bool  # there is nothing left of it


async def _step(body: Body, run: Run, runtime: Runtime) -> dict[str, Any]:
    raised: str | None = None
    was_whole = False  # whether the body came to its end, and the block is left
    ran = [transaction(run.key, wait=run.wait, runtime=runtime)]

    async def step(txn: Transaction) -> None:
        nonlocal was_whole
        ran.append(txn)
        was_whole = False
        await body()
        was_whole = True

    isolation = ISOLATIONS[run.isolation]
    try:
        if run.way == FUNCTION:
            await run_transaction(step, key=run.key, wait=run.wait, isolation=isolation, runtime=runtime)
        else:
            async with ran[0] as txn:
                await step(txn)
    except (CountersignError, ValueError, KeyboardInterrupt, asyncio.CancelledError) as error:
        raised = type(error).__name__
    return {"key": run.key, "raised": raised, "was_whole": was_whole} | what_it_says(ran[-1])


def what_it_says(txn: Transaction) -> dict[str, Any]:
    """Of the step and of each call, once it is over."""
    return {
        "state": txn.state,
        "replayed": txn.replayed,
        "outcomes": [one.outcome for one in txn.effects],
        "told": {one.effect_id: one.outcome for one in txn.effects},
    }
