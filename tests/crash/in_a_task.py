"""An agent in asyncio: its step runs in a task, which is cancelled where that was drawn, and says what it was told.

`slowly` makes a tool async. It lets the event loop go round before it acts and after, so a cancellation that was asked
for at one of the points (passing.py) comes before an act, amid it or after it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from countersign import CountersignError, Runtime, Transaction, run_transaction, transaction
from tests.crash.passing import Points
from tests.crash.programs import Act, watching

BLOCK, FUNCTION = "async with", "run_transaction"
WAYS = [BLOCK, FUNCTION]
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


def told_in_a_task(
    body: Body, points: Points, *, key: str, way: str, wait: float, runtime: Runtime
) -> dict[str, Any]:
    """Run it to its end, or to where it is cancelled."""
    return asyncio.run(_told(lambda: _step(body, key=key, way=way, wait=wait, runtime=runtime), points))


async def _told(step: Callable[[], Coroutine[Any, Any, dict[str, Any]]], points: Points) -> dict[str, Any]:
    task = asyncio.create_task(step())
    points.cancel = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
    try:
        return await task
    finally:
        points.cancel = bool  # there is nothing left of it


async def _step(body: Body, *, key: str, way: str, wait: float, runtime: Runtime) -> dict[str, Any]:
    raised: str | None = None
    ran = [transaction(key, wait=wait, runtime=runtime)]

    async def step(txn: Transaction) -> None:
        ran.append(txn)
        await body()

    try:
        if way == FUNCTION:
            await run_transaction(step, key=key, wait=wait, runtime=runtime)
        else:
            async with ran[0]:
                await body()
    except (CountersignError, ValueError, KeyboardInterrupt, asyncio.CancelledError) as error:
        raised = type(error).__name__
    return {"raised": raised} | what_it_says(ran[-1])


def what_it_says(txn: Transaction) -> dict[str, Any]:
    """Of the step and of each call, once it is over."""
    return {
        "state": txn.state,
        "replayed": txn.replayed,
        "outcomes": [one.outcome for one in txn.effects],
        "told": {one.effect_id: one.outcome for one in txn.effects},
    }
