"""`txn.parallel()`: calls from any thread or task, one order in the list, fired at the same time."""

import asyncio
import contextvars
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from countersign import current_effect, errors, transaction
from tests.fakes.desk import Desk, refund_tool
from tests.fakes.running import order_tool, run, run_async
from tests.unit.sdk.full_disk import full

SECONDS = 20.0  # that a test waits for what has to come, never for time to pass


def meeting_tool(desk: Desk, parties: int, name: str = "meet") -> Any:
    """A tool that returns only once so many calls of it are under way at the same time."""
    barrier = threading.Barrier(parties, timeout=SECONDS)

    @order_tool(desk, name)
    def meet(order_id: str) -> str:
        barrier.wait()
        desk.done.append((name, order_id, current_effect().call_key))
        return order_id

    return meet


def inside(pool: ThreadPoolExecutor, fn: Any, *args: Any) -> Future[Any]:
    """Call it in a thread of the pool that has a copy of this one's context."""
    return pool.submit(contextvars.copy_context().run, fn, *args)


def in_block(desk: Desk, body: Any, key: str = "t-1") -> Any:
    """Run this in an event loop, in a parallel block of a transaction, which it gets."""

    async def main() -> Any:
        async with desk.step(key) as txn:
            with txn.parallel():
                await body(txn)
        return txn

    return asyncio.run(main())


def test_staged_calls_of_the_block_fire_at_the_same_time_and_keep_their_order(desk: Desk) -> None:
    meet, refund = meeting_tool(desk, 6), refund_tool(desk)
    orders = [f"o-{n}" for n in range(6)]
    left = run(desk, (refund, "before", 1), [(meet, order) for order in orders], (refund, "after", 1))
    met = left.placed[1:-1]
    assert [one.effect_id for one in left.txn.effects][1:-1] == [one.effect_id for one in met]
    assert ([one.result for one in met], left.txn.state) == (orders, "settled")
    assert [one[1] for one in desk.done[:1] + desk.done[-1:]] == ["before", "after"]
    assert {one[2] for one in desk.done[1:-1]} == {one.call_key for one in met}


def test_async_tools_of_the_block_fire_at_the_same_time(desk: Desk) -> None:
    began, all_there = list[str](), asyncio.Event()

    @order_tool(desk)
    async def meet(order_id: str) -> str:
        began.append(current_effect().call_key)
        if len(began) == 3:
            all_there.set()
        await asyncio.wait_for(all_there.wait(), SECONDS)
        return order_id

    met = asyncio.run(run_async(desk, [(meet, f"o-{n}") for n in range(3)])).placed
    assert ([one.result for one in met], set(began)) == (["o-0", "o-1", "o-2"], {one.call_key for one in met})


def test_of_neighbouring_blocks_the_first_ends_before_the_second_begins(desk: Desk) -> None:
    tools = meeting_tool(desk, 2, "first"), meeting_tool(desk, 2, "second")
    run(desk, *([(meet, "o-1"), (meet, "o-2")] for meet in tools))
    assert [one[0] for one in desk.done] == ["first", "first", "second", "second"]


# ------------------------------------------------------------------------------- where calls come from


async def from_tasks(refund: Any, orders: list[str]) -> None:
    async def one(order: str) -> None:
        refund(order, 100)

    async with asyncio.TaskGroup() as group:
        for order in orders:
            group.create_task(one(order))


def test_calls_of_tasks_and_threads_have_one_order(desk: Desk, refund: Any) -> None:
    orders = [f"o-{n}" for n in range(6)]

    def called(key: str, order: list[str]) -> list[str]:
        async def body(_: object) -> None:
            await from_tasks(refund, order[:3])
            for one in order[3:]:
                await asyncio.to_thread(refund, one, 100)

        return [one.call_key for one in in_block(desk, body, key).effects]

    first = called("t-1", orders)
    assert first == sorted(first)
    desk.done.clear()
    assert (called("t-1", orders[::-1]), desk.done) == (first, [])  # the same list: nothing fires again


def test_threads_join_with_a_copy_of_the_context(desk: Desk, refund: Any) -> None:
    with desk.step() as txn, txn.parallel(), ThreadPoolExecutor(4) as pool:
        calls = [inside(pool, refund, f"o-{n % 4}", 100) for n in range(16)]
        made = {id(call.result(SECONDS)): call.result() for call in calls}
    assert ({one.outcome for one in made.values()}, len(made)) == ({"fired"}, 4)
    assert len(txn.effects) == len(desk.done) == 4


@pytest.mark.anyio
async def test_scenario_13_outside_the_block_a_task_and_a_thread_are_refused(desk: Desk, refund: Any) -> None:

    async def late(go: asyncio.Event) -> None:
        await go.wait()
        refund("o-1", 100)

    go, ended = asyncio.Event(), asyncio.Event()
    async with desk.step() as txn:
        with pytest.raises(ExceptionGroup) as reported:
            await from_tasks(refund, ["o-1"])
        assert reported.group_contains(errors.OutsideTransaction, match=r"txn\.parallel")
        with pytest.raises(errors.OutsideTransaction, match=r"txn\.parallel"):
            await asyncio.to_thread(refund, "o-1", 100)
        with txn.parallel():
            outlives, outlives_all = (asyncio.create_task(late(one)) for one in (go, ended))
            await from_tasks(refund, ["o-2"])
        go.set()
        for afterwards in (outlives, asyncio.to_thread(refund, "o-1", 100)):
            with pytest.raises(errors.OutsideTransaction):
                await afterwards
    ended.set()
    with pytest.raises(errors.OutsideTransaction, match="had ended"):
        await outlives_all
    assert desk.done == [("refund", "o-2", 100)]


def test_blocks_inside_the_block_are_refused(desk: Desk) -> None:
    with desk.step() as txn, txn.parallel():
        with pytest.raises(errors.MisuseError, match="parallel"), txn.parallel():
            pytest.fail("it was entered")
        with pytest.raises(errors.MisuseError, match="nested transaction"), transaction(runtime=desk.runtime):
            pytest.fail("it was entered")
    independent = pytest.raises(errors.MisuseError, match="independent")
    with desk.step("t-2", independent=True) as alone, independent, alone.parallel():
        pytest.fail("it was entered")


def test_a_tool_bound_to_one_thread_is_refused_in_a_parallel_block(desk: Desk) -> None:
    refund = refund_tool(desk, own_thread=False)
    with desk.step() as txn:
        refund("o-1", 100)
        with pytest.raises(errors.NotStageable, match="own_thread=False"), txn.parallel():
            refund("o-2", 100)
    assert desk.done == [("refund", "o-1", 100)]


def test_unordered_calls_are_not_committed(desk: Desk, monkeypatch: Any, refund: Any) -> None:

    async def body(_: object) -> None:
        monkeypatch.setattr(desk.runtime.journal.transactions, "relist", full)
        await from_tasks(refund, [f"o-{n}" for n in range(6)])

    with pytest.raises(errors.SavepointLost, match="disk is full"):
        in_block(desk, body)
    assert desk.done == []
