"""Equal calls of one transaction are one; `txn.repeat()` means one more, for the code inside it and for nobody else."""

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from countersign import transaction
from tests.fakes.desk import Desk, refund_tool
from tests.unit.sdk.transactions.test_parallel import in_block

SECONDS = 20.0  # that a test waits for what has to come, never for time to pass
TWICE = [("refund", "o-1", 100), ("refund", "o-1", 100)]
ONCE = TWICE[:1]


@pytest.fixture
def refund(desk: Desk) -> Any:
    return refund_tool(desk)


def test_scenario_44_equal_calls_are_one_and_inside_repeat_each_is_meant(desk: Desk, refund: Any) -> None:
    for _ in range(2):  # a rerun repeats neither
        with desk.step() as txn:
            first = refund("o-1", 100)
            assert refund(amount_cents=100, order_id="o-1") is first
            with txn.repeat():
                second = refund("o-1", 100)
            assert refund("o-1", 100) is first
            refund("o-0", 100)
        assert (first.effect_id == second.effect_id, first.result == second.result) == (False, True)
        assert desk.done == [*TWICE, ("refund", "o-0", 100)], "in the order they were staged"
        assert len(txn.effects) == len(set(desk.keys)) == 3


@pytest.mark.anyio
async def test_of_two_tasks_whose_blocks_overlap_neither_loses_or_leaves_a_repeat(
    desk: Desk, refund: Any
) -> None:
    async def pay(txn: Any, order: str, begun: asyncio.Event, go: asyncio.Event) -> None:
        with txn.repeat():
            refund(order, 100)
            begun.set()
            await go.wait()
            refund(order, 100)

    async with desk.step() as txn:
        begun, go = [asyncio.Event(), asyncio.Event()], [asyncio.Event(), asyncio.Event()]
        with txn.parallel():
            first = asyncio.create_task(pay(txn, "o-1", begun[0], go[0]))
            await begun[0].wait()
            second = asyncio.create_task(pay(txn, "o-2", begun[1], go[1]))
            await begun[1].wait()
            go[0].set()
            await first  # the block that was entered first is left first, inside the other
            go[1].set()
            await second
        refund("o-3", 100)
        refund("o-3", 100)
    assert sorted(desk.done) == [*TWICE, *(("refund", "o-2", 100),) * 2, ("refund", "o-3", 100)]


@pytest.mark.parametrize("where", ["thread", "task"])
def test_another_thread_or_task_that_never_said_repeat_repeats_nothing(
    desk: Desk, refund: Any, where: str
) -> None:
    def twice() -> None:
        refund("o-1", 100)
        refund("o-1", 100)

    async def body() -> None:
        async with desk.step() as txn:
            with txn.parallel():
                go, done = asyncio.Event(), asyncio.Event()

                async def other() -> None:
                    await go.wait()
                    twice()
                    done.set()

                task = asyncio.create_task(other())
                with txn.repeat():
                    go.set()
                    await done.wait()
                await task

    if where == "task":
        asyncio.run(body())
    else:
        with desk.step() as txn, txn.parallel():
            thread = threading.Thread(target=contextvars.copy_context().run, args=(twice,))
            with txn.repeat():
                thread.start()
                thread.join(SECONDS)
    assert desk.done == ONCE


def test_what_is_begun_inside_repeat_repeats_wherever_it_runs(desk: Desk, refund: Any) -> None:
    """As the order in which tasks run is not known, this is the same list in every run."""

    async def body(txn: Any) -> None:
        with txn.repeat():
            late = [asyncio.create_task(asyncio.to_thread(refund, "o-1", 100)) for _ in range(2)]
        await asyncio.gather(*late)

    in_block(desk, body)
    assert desk.done == TWICE


def test_a_block_that_is_left_by_an_exception_repeats_no_longer(desk: Desk, refund: Any) -> None:
    with desk.step() as txn:
        with pytest.raises(LookupError), transaction(runtime=desk.runtime), txn.repeat():
            refund("o-2", 100)
            raise LookupError
        refund("o-1", 100)
        refund("o-1", 100)
    assert desk.done == ONCE


def test_inside_a_nested_block_both_say_the_same_repeat(desk: Desk, refund: Any) -> None:
    with desk.step() as txn:
        refund("o-1", 100)
        with txn.repeat(), transaction(runtime=desk.runtime):
            refund("o-1", 100)
    assert desk.done == TWICE


def test_repeat_of_one_transaction_says_nothing_of_another(desk: Desk, refund: Any) -> None:
    before = desk.step("t-0")
    with before:
        refund("o-0", 100)
    with before.repeat(), desk.step():
        refund("o-1", 100)
        refund("o-1", 100)
    assert desk.done[1:] == ONCE
