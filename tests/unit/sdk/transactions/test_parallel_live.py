"""Live effects in `txn.parallel()` take turns, and one that outlives its block is not kept."""

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest

from countersign import MemoryAdapter, SQLiteAdapter, errors, tool, transaction
from tests.fakes.desk import Desk, note_tool, notes_in, record_of, refund_tool
from tests.fakes.running import run
from tests.unit.sdk.transactions.test_parallel import SECONDS, in_block, inside


def test_scenario_51_live_effects_of_threads_take_turns(desk: Desk, notes: Any, note: Any) -> None:
    orders = [f"o-{n:02}" for n in range(20)]
    with desk.step() as txn, txn.parallel(), ThreadPoolExecutor(4) as pool:
        made = [inside(pool, note, order, "bad" if order[-1] == "3" else "good") for order in orders]
    assert [type(one.exception()) for one in made].count(ValueError) == 2
    assert [order for order, _ in notes_in(notes)] == [one for one in orders if one[-1] != "3"]


def test_async_live_effects_wait_for_each_other(desk: Desk, notes: Any, database: Any) -> None:
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

    async def body(_: object) -> None:
        await asyncio.gather(*(slow_note(f"o-{n}") for n in range(5)), return_exceptions=True)

    in_block(desk, body)
    assert ([one for one, _ in notes_in(notes)], inside[1]) == (["o-0", "o-2", "o-4"], 1)


def test_a_plain_live_tool_does_not_stop_the_loop(desk: Desk, notes: Any, database: Any, note: Any) -> None:
    @tool("think", lane="live", adapter=database, registry=desk.registry)
    async def think(go: str) -> None:
        await asyncio.sleep(0.02)

    async def blocking() -> None:
        await asyncio.sleep(0)
        with pytest.raises(errors.NotStageable, match="to_thread"):
            note("o-1", "hello")

    async def body(_: object) -> None:
        await asyncio.gather(think("on"), blocking())

    in_block(desk, body)
    assert notes_in(notes) == []


def test_a_live_tool_calls_another_in_its_task(desk: Desk, notes: Any, database: Any, note: Any) -> None:
    @tool("both", lane="live", adapter=database, registry=desk.registry)
    async def both(where: str) -> None:
        """Write by another tool."""
        if where == "here":
            note("o-1", "hello")
        else:
            await asyncio.to_thread(note, "o-2", "hello")

    async def body(_: object) -> None:
        await both("here")
        with pytest.raises(errors.NotStageable, match="forever"):
            await both("in a thread")

    in_block(desk, body)
    assert notes_in(notes) == [("o-1", "hello")]


def test_a_task_that_outlives_its_live_effect_is_refused(desk: Desk, notes: Any) -> None:
    """And not that it would wait for ever."""
    note, go_on = note_tool(desk, SQLiteAdapter(notes)), asyncio.Event()
    behind: list[asyncio.Task[None]] = []

    async def later() -> None:
        await go_on.wait()
        note("o-1", "late")

    @tool("begin", lane="live", adapter=MemoryAdapter(), registry=desk.registry)
    async def begin(what: str) -> None:
        """Leave a task behind."""
        behind.append(asyncio.create_task(later()))

    async def body(_: object) -> None:
        await begin("x")
        go_on.set()
        with pytest.raises(errors.NotStageable, match="started and that outlived it") as reported:
            await behind[0]
        assert "forever" not in str(reported.value)

    in_block(desk, body)
    assert notes_in(notes) == []


# ------------------------------------------------------------------------- a live effect that outlives its block


class Moving:
    """A live tool that stops in the middle of its work until somebody lets it go on."""

    def __init__(self, desk: Desk) -> None:
        self.memory, self.began, self.go_on = MemoryAdapter(), threading.Event(), threading.Event()

        @tool("move", lane="live", adapter=self.memory, registry=desk.registry)
        def move(amount: int) -> None:
            """Take from one and give to the other."""
            self.memory["from"] = -amount
            self.began.set()
            self.go_on.wait(SECONDS)
            self.memory["to"] = amount

        self.move = move

    def begin(self, pool: ThreadPoolExecutor) -> Future[Any]:
        moving = inside(pool, self.move, 100)
        assert self.began.wait(SECONDS)
        return moving


def test_who_waits_for_a_turn_when_the_block_ends_is_refused(desk: Desk, notes: Any) -> None:
    moving, note = Moving(desk), note_tool(desk, SQLiteAdapter(notes))
    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(errors.SavepointLost), desk.step() as txn, txn.parallel():
            under_way = moving.begin(pool)
            waiting = inside(pool, note, "o-1", "late")
            while len(desk.runtime.journal.database.rows("SELECT 1 FROM effects")) < 2:
                threading.Event().wait(0.001)  # until it is written down and waits
            threading.Event().wait(0.02)
        moving.go_on.set()
        with pytest.raises(errors.OutsideTransaction, match="waited for another live effect"):
            waiting.result(SECONDS)
        under_way.exception(SECONDS)
    assert notes_in(notes) == []
    run(desk, (note, "o-1", "free"), key="t-2")  # the database is not locked
    assert notes_in(notes) == [("o-1", "free")]


@pytest.mark.parametrize("nested", [False, True])
def test_a_live_effect_that_still_runs_when_its_block_ends_is_not_kept_half(desk: Desk, nested: bool) -> None:
    moving, refund = Moving(desk), refund_tool(desk)
    block = transaction(runtime=desk.runtime) if nested else nullcontext()
    lost = pytest.raises(errors.SavepointLost, match="still running")
    with ThreadPoolExecutor(1) as pool, ExitStack() as after_the_end, lost, desk.step() as txn:
        after_the_end.callback(moving.go_on.set)
        refund("o-1", 100)
        with block, txn.parallel():
            moving.begin(pool)
    assert (moving.memory.snapshot(), desk.done, record_of(desk).state) == ({}, [], "ended")
