"""An async tool that will not be cancelled is waited for no longer than a thread is: what it still does is unknown."""

import asyncio
import contextlib
import gc
import time

import pytest

from countersign import NotDone, OutcomeUnknown, OutsideTransaction, current_effect
from countersign.async_executor import GRACE_SECONDS, AsyncExecutor
from countersign.concurrency import ToolTimeoutError
from tests.fakes.desk import Desk, states
from tests.fakes.running import order_tool, run_async

FOR_EVER = 60.0  # longer than any of these tests may take
SOON = 10.0  # a second of timeout, the grace, and a slow machine

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quickly", "hurried")]


class Stubborn:
    """A tool that goes on after it was cancelled, until the test lets it end."""

    def __init__(self, desk: Desk) -> None:
        self.begun, self.end, self.over = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.afterwards: object = None

        @order_tool(desk, timeout_seconds=1)
        async def mail(order_id: str) -> str:
            self.begun.set()
            while not self.end.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait_for(self.end.wait(), FOR_EVER)
            try:
                self.afterwards = current_effect()
            except OutsideTransaction as refused:
                self.afterwards = refused
            self.over.set()
            return "late"

        self.mail = mail

    async def ends(self) -> None:
        """Let it end, and see that it did."""
        self.end.set()
        await asyncio.wait_for(self.over.wait(), FOR_EVER)


@pytest.fixture
def quickly():
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SOON


async def test_after_its_timeout_the_outcome_is_unknown(desk: Desk) -> None:
    stubborn = Stubborn(desk)
    with pytest.raises(OutcomeUnknown, match="left running"):
        await run_async(desk, (stubborn.mail, "o-1"))
    assert states(desk) == {"mail#1": "unknown"}
    await stubborn.ends()
    assert isinstance(stubborn.afterwards, OutsideTransaction)
    assert states(desk) == {"mail#1": "unknown"}


async def cancel(task: asyncio.Task) -> None:
    """Cancel it, and check that the waiting task gets nothing else."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("neighbor", [False, True])
async def test_nor_after_the_waiting_task_was_cancelled(desk: Desk, neighbor: bool) -> None:
    @order_tool(desk)
    async def quick(order_id: str) -> str:
        return "done"

    stubborn = Stubborn(desk)
    calls = [[(stubborn.mail, "o-1"), (quick, "o-1")]] if neighbor else [(stubborn.mail, "o-1")]
    task = asyncio.create_task(run_async(desk, *calls))
    await asyncio.wait_for(stubborn.begun.wait(), SOON)
    await asyncio.sleep(0.01)
    await cancel(task)
    assert states(desk) == {"mail#1": "unknown"} | ({"quick#2": "fired"} if neighbor else {})
    await stubborn.ends()


# -------------------------------------------------------------------------------------- the wait by itself


async def call(fn, seconds: float = 0.2) -> object:
    return await AsyncExecutor(lambda: pytest.fail("nothing is sent")).call(fn, {}, seconds)


async def sleeps() -> None:
    await asyncio.sleep(FOR_EVER)


async def gives_up_politely() -> str:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(FOR_EVER)
    return "after all"


async def knows_better() -> None:
    try:
        await asyncio.sleep(FOR_EVER)
    except asyncio.CancelledError:
        raise NotDone("it had not left yet") from None


def raising(error: BaseException):
    async def raises() -> None:
        raise error

    return raises


ENDS = {
    "one that lets itself be cancelled": (sleeps, ToolTimeoutError, 0.2),
    "one that says that it has not happened, as it is cancelled": (knows_better, NotDone, 0.2),
    "one whose timeout is its own": (raising(TimeoutError("of its own")), TimeoutError, FOR_EVER),
    "one that ends by a cancellation": (raising(asyncio.CancelledError()), asyncio.CancelledError, FOR_EVER),
    "one that exits": (raising(SystemExit(3)), SystemExit, FOR_EVER),
}


@pytest.mark.parametrize(("fn", "reported", "seconds"), ENDS.values(), ids=ENDS)
def test_its_result_is_returned(fn, reported: type[BaseException], seconds: float) -> None:
    with pytest.raises(reported) as raised:
        asyncio.run(call(fn, seconds))
    assert raised.type is reported


def test_what_it_answers_within_the_grace_is_its_answer() -> None:
    assert asyncio.run(call(gives_up_politely)) == "after all"


async def test_a_cancelled_caller_stays_cancelled_for_any_tool_result() -> None:
    task = asyncio.create_task(call(gives_up_politely, FOR_EVER))
    await asyncio.sleep(0.01)
    await cancel(task)


async def test_a_second_cancellation_does_not_wait_for_the_grace(monkeypatch) -> None:
    monkeypatch.setattr("countersign.async_executor.GRACE_SECONDS", GRACE_SECONDS)
    end = asyncio.Event()

    async def stubborn() -> None:
        while not end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await end.wait()

    task = asyncio.create_task(call(stubborn, FOR_EVER))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.sleep(0.01)
    began = time.monotonic()
    await cancel(task)
    assert time.monotonic() - began < GRACE_SECONDS
    end.set()


async def test_a_tool_that_is_left_is_not_collected_before_it_ends() -> None:
    done: list[str] = []

    async def stubborn() -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # nothing else has it
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        again: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            await again
        finally:
            done.append("ended")

    with pytest.raises(ToolTimeoutError):
        await call(stubborn)
    gc.collect()
    assert done == []
