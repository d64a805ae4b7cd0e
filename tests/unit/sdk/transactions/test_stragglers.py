"""A task or thread that outlives the block it was begun in is refused, whatever block is open when it calls."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from countersign import (
    MemoryAdapter,
    MisuseError,
    OutsideTransaction,
    Transaction,
    run_transaction,
    tool,
    transaction,
)
from tests.fakes.desk import Desk, refund_tool

pytestmark = pytest.mark.anyio

SECONDS = 20.0  # that a test waits for what has to come, never for time to pass
REFUSED = r"(?s)begun .*`with txn\.parallel\(\):`"


@pytest.fixture
def refund(desk: Desk) -> Any:
    return refund_tool(desk)


def adding_tool(desk: Desk) -> tuple[Callable[[int], Awaitable[int]], MemoryAdapter]:
    memory = MemoryAdapter({"n": 0})

    @tool("add", lane="live", adapter=memory, registry=desk.registry)
    async def add(amount: int) -> int:
        """Add to the number."""
        memory["n"] = memory["n"] + amount
        return int(memory["n"])

    return add, memory


async def later(go: asyncio.Event, call: Callable[[], Any]) -> None:
    await go.wait()
    answer = call()
    if asyncio.iscoroutine(answer):
        await answer


async def fails() -> None:
    raise LookupError("no")


async def begun_in_a_block_taken_back(desk: Desk, txn: Transaction, late: Any) -> asyncio.Task[None]:
    with pytest.raises(LookupError):
        async with transaction(runtime=desk.runtime):
            with txn.parallel():
                task = asyncio.create_task(late)
                await asyncio.gather(task, fails())  # which cancels nobody
    return task


async def begun_in_a_block_that_ended(desk: Desk, txn: Transaction, late: Any) -> asyncio.Task[None]:
    with txn.parallel():
        return asyncio.create_task(late)


async def begun_in_a_nested_one(desk: Desk, txn: Transaction, late: Any) -> asyncio.Task[None]:
    with pytest.raises(LookupError):
        async with transaction(runtime=desk.runtime):
            task = asyncio.create_task(late)
            await fails()
    return task


BEGUN = [begun_in_a_block_taken_back, begun_in_a_block_that_ended, begun_in_a_nested_one]


@pytest.mark.parametrize("lane", ["staged", "live"])
@pytest.mark.parametrize("begun", BEGUN)
async def test_a_straggler_does_not_land_in_the_next_block(
    desk: Desk, refund: Any, begun: Any, lane: str
) -> None:
    add, memory = adding_tool(desk)
    async with desk.step() as txn:
        go = asyncio.Event()
        call = (lambda: refund("late", 999)) if lane == "staged" else (lambda: add(999))
        task = await begun(desk, txn, later(go, call))
        with txn.parallel():
            go.set()
            with pytest.raises(OutsideTransaction, match=REFUSED):
                await task
            await asyncio.gather(*(asyncio.to_thread(refund, f"o-{n}", 100) for n in range(2)), add(1))
    assert (sorted(one[1] for one in desk.done), memory.snapshot()["n"]) == (["o-0", "o-1"], 1)


def test_a_thread_that_goes_on_after_its_block_does_not_land_in_the_next(desk: Desk, refund: Any) -> None:
    with desk.step() as txn, ThreadPoolExecutor(1) as pool:
        with txn.parallel():
            kept = contextvars.copy_context()
        with txn.parallel():
            with pytest.raises(OutsideTransaction, match=REFUSED):
                pool.submit(kept.run, refund, "late", 999).result(SECONDS)
            pool.submit(contextvars.copy_context().run, refund, "o-1", 100).result(SECONDS)
    assert desk.done == [("refund", "o-1", 100)]


def test_the_block_itself_calls_after_a_straggler_as_before(desk: Desk) -> None:
    """What runs where the transaction was opened stands in the order of the program, whatever context it has."""
    refund = refund_tool(desk)
    with desk.step() as txn:
        with txn.parallel():
            kept = contextvars.copy_context()
            refund("o-1", 100)
        kept.run(refund, "o-2", 100)
    assert sorted(desk.done) == [("refund", "o-1", 100), ("refund", "o-2", 100)]


# ------------------------------------------------------------------------------ after the whole transaction


@pytest.mark.parametrize("way", ["a block", "a function", "a dry run"])
async def test_a_task_begun_inside_a_transaction_opens_its_own_once_that_has_ended(
    desk: Desk, refund: Any, way: str
) -> None:

    async def step(txn: Transaction) -> None:
        refund("later", 100)

    async def own() -> None:
        if way == "a block":
            async with desk.step("t-2"):
                refund("later", 100)
        else:
            dry = {"dry_run": True} if way == "a dry run" else {}
            await run_transaction(step, key="t-2", runtime=desk.runtime, **dry)  # type: ignore[call-overload]

    go = asyncio.Event()
    async with desk.step():
        task = asyncio.create_task(later(go, own))
        refund("o-1", 100)
    go.set()
    await task
    fired = [] if way == "a dry run" else [("refund", "later", 100)]
    assert desk.done == [("refund", "o-1", 100), *fired]


async def test_it_is_no_part_of_the_one_that_has_ended_and_opens_none_while_that_is_open(
    desk: Desk, refund: Any
) -> None:
    async def own() -> None:
        async with desk.step("t-2"):
            pytest.fail("it was entered")

    go = asyncio.Event()
    async with desk.step():
        task = asyncio.create_task(later(go, lambda: refund("late", 999)))
        with pytest.raises(MisuseError, match="close the outer one first"):
            await asyncio.create_task(own())
    go.set()
    with pytest.raises(OutsideTransaction, match="after transaction 't-1' had ended"):
        await task
    assert desk.done == []
