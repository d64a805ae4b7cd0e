"""`txn.parallel()`: calls from any thread or task, one order in the list, fired at the same time."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest

from countersign import (
    EffectFailed,
    JournalError,
    MemoryAdapter,
    MisuseError,
    NotDone,
    NotStageable,
    OutcomeUnknown,
    OutsideTransaction,
    Placeholder,
    SavepointLost,
    SQLiteAdapter,
    current_effect,
    tool,
    transaction,
)
from tests.fakes.desk import (
    Desk,
    asked_of_policy,
    charge_tools,
    failing_tool,
    note_tool,
    notes_database,
    notes_in,
    refund_tool,
    states,
)

SECONDS = 20.0  # that a test waits for what has to come, never for time to pass


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return notes_database(tmp_path)


def meeting_tool(desk: Desk, parties: int, name: str = "meet") -> Callable[[str], Placeholder[str]]:
    """A tool that returns only once so many calls of it are under way at the same time."""
    barrier = threading.Barrier(parties, timeout=SECONDS)

    @tool(name, resource=("Order", "order_id"), registry=desk.registry)
    def meet(order_id: str) -> str:
        """Wait for the others."""
        barrier.wait()
        desk.done.append((name, order_id, current_effect().call_key))
        return order_id

    desk.publish(meet)
    return meet


def test_staged_calls_of_the_block_fire_at_the_same_time_and_keep_their_order(desk: Desk) -> None:
    meet, refund = meeting_tool(desk, 6), refund_tool(desk)
    orders = [f"o-{n}" for n in range(6)]
    with desk.step() as txn:
        refund("before", 1)
        with txn.parallel():
            met = [meet(order) for order in orders]
        assert [one.effect_id for one in txn.effects][1:] == [one.effect_id for one in met]
        refund("after", 1)
    assert ([one.result for one in met], txn.state) == (orders, "settled")
    assert [one[1] for one in desk.done[:1] + desk.done[-1:]] == ["before", "after"]
    assert {one[2] for one in desk.done[1:-1]} == {one.call_key for one in met}


def test_async_tools_of_the_block_fire_at_the_same_time(desk: Desk) -> None:
    began: list[str] = []
    all_there = asyncio.Event()

    @tool("meet", resource=("Order", "order_id"), registry=desk.registry)
    async def meet(order_id: str) -> str:
        """Wait for the others."""
        began.append(current_effect().call_key)
        if len(began) == 3:
            all_there.set()
        await asyncio.wait_for(all_there.wait(), SECONDS)
        return order_id

    desk.publish(meet)

    async def body() -> list[Placeholder[str]]:
        async with desk.step() as txn:
            with txn.parallel():
                return [await meet(f"o-{n}") for n in range(3)]

    met = asyncio.run(body())
    assert [one.result for one in met] == ["o-0", "o-1", "o-2"]
    assert set(began) == {one.call_key for one in met}


def test_of_neighbouring_blocks_the_first_ends_before_the_second_begins(desk: Desk) -> None:
    first, second = meeting_tool(desk, 2, "first"), meeting_tool(desk, 2, "second")
    with desk.step() as txn:
        for meet in (first, second):
            with txn.parallel():
                meet("o-1")
                meet("o-2")
    assert [one[0] for one in desk.done] == ["first", "first", "second", "second"]


@pytest.mark.parametrize("told", ["not done", "unknown"])
def test_scenario_38_one_fails_its_siblings_are_taken_back_or_wait(desk: Desk, told: str) -> None:
    charge = charge_tools(desk)
    error: Exception = NotDone("no") if told == "not done" else ValueError("it broke")
    notify = failing_tool(desk, error, acts=False)
    with pytest.raises(EffectFailed if told == "not done" else OutcomeUnknown), desk.step() as txn:
        charge("o-0", 10)
        with txn.parallel():
            notify("o-1")
            charge("o-2", 20)
            charge("o-3", 30)
        charge("o-4", 40)
    voided = [one[1] for one in desk.done if one[0] == "void"]
    if told == "unknown":
        assert [*states(desk).values()] == ["fired", "unknown", "fired", "fired", "unused"]
        assert voided == []
        return
    assert [*states(desk).values()] == ["compensated", "failed", "compensated", "compensated", "unused"]
    assert voided == ["c-o-3", "c-o-2", "c-o-0"]


def test_one_unknown_beside_one_failed_takes_nothing_back(desk: Desk) -> None:
    charge, refused = charge_tools(desk), failing_tool(desk, NotDone("no"), "refuse")
    broken = failing_tool(desk, ValueError("x"), "break")
    with pytest.raises(OutcomeUnknown, match="break"), desk.step() as txn:
        charge("o-0", 10)
        with txn.parallel():
            refused("o-1")
            broken("o-2")
    assert [*states(desk).values()] == ["fired", "failed", "unknown"]
    assert "void" not in [one[0] for one in desk.done]


def test_only_the_idempotent_ones_that_failed_are_called_again_with_their_keys(desk: Desk) -> None:
    calls: list[tuple[str, str]] = []

    @tool("flaky", resource=("Order", "order_id"), idempotent=True, registry=desk.registry)
    def flaky(order_id: str) -> str:
        """Fail the first time, but for one order."""
        calls.append((order_id, current_effect().call_key))
        if order_id != "o-1" and len([one for one in calls if one[0] == order_id]) == 1:
            raise ConnectionError("once")
        return order_id

    desk.publish(flaky)
    with desk.step() as txn, txn.parallel():
        done = [flaky(f"o-{n}") for n in range(3)]
    assert ([one.result for one in done], txn.state) == (["o-0", "o-1", "o-2"], "settled")
    assert sorted(one[0] for one in calls) == ["o-0", "o-0", "o-1", "o-2", "o-2"]
    assert len({key for _, key in calls}) == 3


# ------------------------------------------------------------------------------- where calls come from


async def from_tasks(refund: Callable[..., Any], orders: list[str]) -> None:
    async def one(order: str) -> None:
        refund(order, 100)

    async with asyncio.TaskGroup() as group:
        for order in orders:
            group.create_task(one(order))


def test_calls_of_tasks_and_threads_stand_in_one_order_whoever_came_first(desk: Desk) -> None:
    refund = refund_tool(desk)
    orders = [f"o-{n}" for n in range(6)]

    async def body(key: str, order: list[str]) -> list[str]:
        async with desk.step(key) as txn:
            with txn.parallel():
                await from_tasks(refund, order[:3])
                for one in order[3:]:
                    await asyncio.to_thread(refund, one, 100)
        return [one.call_key for one in txn.effects]

    first = asyncio.run(body("t-1", orders))
    assert first == sorted(first)
    desk.done.clear()
    # the same list: nothing fires again
    assert (asyncio.run(body("t-1", orders[::-1])), desk.done) == (first, [])


def test_threads_of_a_pool_join_with_a_copy_of_the_context(desk: Desk) -> None:
    refund = refund_tool(desk)
    with desk.step() as txn, txn.parallel(), ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(contextvars.copy_context().run, refund, f"o-{n}", 100) for n in range(8)]
        made = [one.result(SECONDS) for one in calls]
    assert ({one.outcome for one in made}, len(desk.done)) == ({"fired"}, 8)


def test_equal_calls_of_many_threads_are_one(desk: Desk) -> None:
    refund = refund_tool(desk)
    with desk.step() as txn, txn.parallel(), ThreadPoolExecutor(4) as pool:
        contexts = [contextvars.copy_context() for _ in range(16)]
        made = [pool.submit(one.run, refund, "o-1", 100) for one in contexts]
    assert (len({id(one.result()) for one in made}), len(txn.effects), len(desk.done)) == (1, 1, 1)


async def test_scenario_13_outside_the_block_a_task_and_a_thread_are_refused(desk: Desk) -> None:
    refund = refund_tool(desk)

    async def late(go: asyncio.Event) -> None:
        await go.wait()
        refund("o-1", 100)
    go = asyncio.Event()
    async with desk.step() as txn:
        with pytest.raises(ExceptionGroup) as told:
            await from_tasks(refund, ["o-1"])
        assert told.group_contains(OutsideTransaction, match=r"txn\.parallel")
        with pytest.raises(OutsideTransaction, match=r"txn\.parallel"):
            await asyncio.to_thread(refund, "o-1", 100)
        with txn.parallel():
            outlives = asyncio.create_task(late(go))
            await from_tasks(refund, ["o-2"])
        go.set()
        for afterwards in (outlives, asyncio.to_thread(refund, "o-1", 100)):
            with pytest.raises(OutsideTransaction):
                await afterwards
    assert desk.done == [("refund", "o-2", 100)]


def test_a_thread_with_no_context_is_outside(desk: Desk) -> None:
    refund = refund_tool(desk)
    outside = pytest.raises(OutsideTransaction, match="outside a transaction")
    with desk.step() as txn, txn.parallel(), ThreadPoolExecutor(1) as pool, outside:
        pool.submit(refund, "o-1", 100).result(SECONDS)
    assert desk.done == []


def test_blocks_inside_the_block_are_refused(desk: Desk) -> None:
    with desk.step() as txn, txn.parallel():
        with pytest.raises(MisuseError, match="parallel"), txn.parallel():
            pytest.fail("it was entered")
        with pytest.raises(MisuseError, match="nested transaction"), transaction(runtime=desk.runtime):
            pytest.fail("it was entered")
    independent = pytest.raises(MisuseError, match="independent")
    with desk.step("t-2", independent=True) as alone, independent, alone.parallel():
        pytest.fail("it was entered")


def test_a_block_inside_a_nested_transaction_is_taken_back_with_it(desk: Desk) -> None:
    refund = refund_tool(desk)
    with desk.step() as txn:
        with pytest.raises(ValueError), transaction(runtime=desk.runtime), txn.parallel():
            refund("o-1", 100)
            raise ValueError
        refund("o-2", 100)
    assert desk.done == [("refund", "o-2", 100)]


def test_a_failing_task_cancels_its_group_and_undoes_the_transaction(desk: Desk, notes: Path) -> None:
    note, refund = note_tool(desk, SQLiteAdapter(notes)), refund_tool(desk)

    async def sleeper() -> None:
        refund("o-1", 100)
        await asyncio.sleep(SECONDS)

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError

    async def body() -> None:
        async with desk.step() as txn:
            note("o-1", "hello")
            with txn.parallel():
                async with asyncio.TaskGroup() as group:
                    group.create_task(sleeper())
                    group.create_task(failing())

    with pytest.raises(ExceptionGroup):
        asyncio.run(body())
    assert (desk.done, notes_in(notes), asked_of_policy(desk)) == ([], [], [])


# ----------------------------------------------------------------------------------- live effects take turns


def test_scenario_51_live_effects_of_many_threads_do_not_disturb_each_other(desk: Desk, notes: Path) -> None:
    note = note_tool(desk, SQLiteAdapter(notes))

    def write(order: str) -> bool:
        try:
            note(order, "bad" if order.endswith("3") else "good")
        except ValueError:
            return False
        return True

    with desk.step() as txn, txn.parallel(), ThreadPoolExecutor(4) as pool:
        contexts = [contextvars.copy_context() for _ in range(20)]
        kept = [pool.submit(one.run, write, f"o-{n:02}") for n, one in enumerate(contexts)]
    assert [one.result() for one in kept].count(False) == 2
    assert [order for order, _ in notes_in(notes)] == [f"o-{n:02}" for n in range(20) if n not in {3, 13}]


async def test_async_live_effects_wait_for_each_other(desk: Desk, notes: Path) -> None:
    database = SQLiteAdapter(notes)
    inside = [0, 0]

    @tool("slow_note", lane="live", adapter=database, registry=desk.registry)
    async def slow_note(order_id: str) -> None:
        """Write a note and think; every other one fails after writing."""
        inside[0] += 1
        inside[1] = max(inside)
        database.connection.execute("INSERT INTO notes VALUES (?, 'x')", (order_id,))
        await asyncio.sleep(0.005)
        inside[0] -= 1
        if order_id in {"o-1", "o-3"}:
            raise ValueError
    async with desk.step() as txn:
        with txn.parallel():
            await asyncio.gather(*(slow_note(f"o-{n}") for n in range(5)), return_exceptions=True)
    assert ([one for one, _ in notes_in(notes)], inside[1]) == (["o-0", "o-2", "o-4"], 1)


async def test_a_plain_live_tool_does_not_stop_the_loop_for_an_effect_that_runs_in_it(
    desk: Desk, notes: Path
) -> None:
    database = SQLiteAdapter(notes)
    note = note_tool(desk, database)

    @tool("think", lane="live", adapter=database, registry=desk.registry)
    async def think(go: str) -> None:
        """Think."""
        await asyncio.sleep(0.02)

    async def blocking() -> None:
        await asyncio.sleep(0)
        note("o-1", "hello")
    async with desk.step() as txn:
        with txn.parallel():
            answers = await asyncio.gather(think("on"), blocking(), return_exceptions=True)
        assert isinstance(answers[1], NotStageable)
        assert "to_thread" in str(answers[1])
    assert notes_in(notes) == []


async def test_a_live_tool_may_call_another_but_not_from_a_task_it_waits_for(desk: Desk, notes: Path) -> None:
    database = SQLiteAdapter(notes)
    note = note_tool(desk, database)

    @tool("both", lane="live", adapter=database, registry=desk.registry)
    async def both(where: str) -> None:
        """Write by another tool."""
        if where == "here":
            note("o-1", "hello")
        else:
            await asyncio.to_thread(note, "o-2", "hello")
    async with desk.step() as txn:
        with txn.parallel():
            await both("here")
            with pytest.raises(NotStageable, match="for ever"):
                await both("in a thread")
    assert notes_in(notes) == [("o-1", "hello")]


async def test_a_task_that_goes_on_after_its_live_effect_is_told_so_and_not_that_it_would_wait(
    desk: Desk, notes: Path
) -> None:
    note = note_tool(desk, SQLiteAdapter(notes))
    memory = MemoryAdapter()
    go_on = asyncio.Event()
    behind: list[asyncio.Task[None]] = []

    async def later() -> None:
        await go_on.wait()
        note("o-1", "late")

    @tool("begin", lane="live", adapter=memory, registry=desk.registry)
    async def begin(what: str) -> None:
        """Leave a task behind."""
        behind.append(asyncio.create_task(later()))
    async with desk.step() as txn:
        with txn.parallel():
            await begin("x")
            go_on.set()
            with pytest.raises(NotStageable, match="has started and that goes on after it") as told:
                await behind[0]
    assert "for ever" not in str(told.value)
    assert notes_in(notes) == []


# ------------------------------------------------------------------------- a live effect that outlives its block


def holding_tool(
    desk: Desk, memory: MemoryAdapter
) -> tuple[Callable[..., Any], threading.Event, threading.Event]:
    """A live tool that stops in the middle of its work until somebody lets it go on."""
    began, go_on = threading.Event(), threading.Event()

    @tool("move", lane="live", adapter=memory, registry=desk.registry)
    def move(amount: int) -> None:
        """Take from one and give to the other."""
        memory["from"] = -amount
        began.set()
        go_on.wait(SECONDS)
        memory["to"] = amount

    return move, began, go_on


def test_who_waits_for_a_turn_when_the_block_ends_is_refused_and_opens_nothing(
    desk: Desk, notes: Path
) -> None:
    memory = MemoryAdapter()
    move, began, go_on = holding_tool(desk, memory)
    note = note_tool(desk, SQLiteAdapter(notes))
    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(SavepointLost), desk.step() as txn, txn.parallel():
            contexts = [contextvars.copy_context() for _ in range(2)]
            moving = pool.submit(contexts[0].run, move, 100)
            assert began.wait(SECONDS)
            waiting = pool.submit(contexts[1].run, note, "o-1", "late")
            while len(desk.runtime.journal.database.rows("SELECT 1 FROM effects")) < 2:
                threading.Event().wait(0.001)  # until it is written down and waits
            threading.Event().wait(0.02)
        go_on.set()
        with pytest.raises(OutsideTransaction, match="waited for its turn"):
            waiting.result(SECONDS)
        moving.exception(SECONDS)
    assert notes_in(notes) == []
    with desk.step("t-2"):
        note("o-1", "free")  # nobody holds the database
    assert notes_in(notes) == [("o-1", "free")]


def test_a_tool_bound_to_one_thread_stands_in_no_parallel_block(desk: Desk) -> None:
    refund = refund_tool(desk, own_thread=False)
    with desk.step() as txn:
        refund("o-1", 100)
        with pytest.raises(NotStageable, match="own_thread=False"), txn.parallel():
            refund("o-2", 100)
    assert desk.done == [("refund", "o-1", 100)]


@pytest.mark.parametrize("how", ["a thread", "a nested block", "a task"])
def test_a_live_effect_that_still_runs_when_its_block_ends_is_not_kept_half(desk: Desk, how: str) -> None:
    memory, refund = MemoryAdapter(), refund_tool(desk)
    move, began, go_on = holding_tool(desk, memory)

    @tool("move_later", lane="live", adapter=memory, registry=desk.registry)
    async def move_later(amount: int) -> None:
        """Take from one, think, and give to the other."""
        memory["from"] = -amount
        await asyncio.shield(asyncio.sleep(0.05))
        memory["to"] = amount

    async def given_up() -> None:
        async with desk.step() as txn:
            with txn.parallel():
                asyncio.create_task(move_later(100))  # noqa: RUF006 - it is given up
                await asyncio.sleep(0.01)

    def in_a_thread() -> None:
        block = transaction(runtime=desk.runtime) if how == "a nested block" else nullcontext()
        with ThreadPoolExecutor(1) as pool, ExitStack() as after_the_end, desk.step() as txn:
            refund("o-1", 100)
            with block, txn.parallel():
                pool.submit(contextvars.copy_context().run, move, 100)
                assert began.wait(SECONDS)
            after_the_end.callback(go_on.set)

    with pytest.raises(SavepointLost, match="still running"):
        asyncio.run(given_up()) if how == "a task" else in_a_thread()
    record = desk.runtime.journal.transactions.find("t-1")[0]
    assert (memory.snapshot(), desk.done, record.state) == ({}, [], "ended")


def test_calls_that_could_not_be_put_in_their_order_are_not_committed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    refund = refund_tool(desk)

    def lost(*_: Any, **__: Any) -> int:
        raise JournalError("the disk is full")

    async def body() -> None:
        async with desk.step() as txn:
            monkeypatch.setattr(desk.runtime.journal.transactions, "relist", lost)
            with txn.parallel():
                await from_tasks(refund, [f"o-{n}" for n in range(6)])

    with pytest.raises(SavepointLost, match="disk is full"):
        asyncio.run(body())
    assert desk.done == []
