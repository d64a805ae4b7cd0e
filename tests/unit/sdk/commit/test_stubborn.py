"""An async tool that will not be cancelled is waited for no longer than a thread is: what it still does is unknown."""

import asyncio
import contextlib
import gc
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from countersign import NotDone, OutcomeUnknown, OutsideTransaction, current_effect, tool
from countersign.tasks import GRACE_SECONDS
from countersign.threads import ToolTimeoutError
from countersign.waiting import AsyncWaits
from tests.fakes.desk import Desk, states

FOR_EVER = 60.0  # longer than any of these tests may take
SOON = 10.0  # a second of timeout, the grace, and a slow machine


class Stubborn:
    """A tool that goes on after it was cancelled, until the test lets it end."""

    def __init__(self, desk: Desk) -> None:
        self.begun, self.end = asyncio.Event(), asyncio.Event()
        self.afterwards: list[object] = []
        self.over = asyncio.Event()

        @tool("mail", resource=("Order", "order_id"), timeout_seconds=1, registry=desk.registry)
        async def mail(order_id: str) -> str:
            """Tell the customer."""
            self.begun.set()
            while not self.end.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait_for(self.end.wait(), FOR_EVER)
            try:
                self.afterwards.append(current_effect())
            except OutsideTransaction as refused:
                self.afterwards.append(refused)
            self.over.set()
            return "late"

        desk.publish(mail)
        self.mail = mail


@pytest.fixture
def quickly() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SOON


async def ended(stubborn: Stubborn) -> None:
    """Let it end, and see that it did."""
    stubborn.end.set()
    await asyncio.wait_for(stubborn.over.wait(), FOR_EVER)


@pytest.mark.usefixtures("quickly")
async def test_after_its_timeout_nobody_waits_and_its_outcome_is_unknown(desk: Desk) -> None:
    stubborn = Stubborn(desk)
    with pytest.raises(OutcomeUnknown, match="left running"):
        async with desk.step():
            await stubborn.mail("o-1")
    assert states(desk) == {"mail#1": "unknown"}
    await ended(stubborn)
    assert [type(one) for one in stubborn.afterwards] == [OutsideTransaction]
    assert states(desk) == {"mail#1": "unknown"}


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("beside", [False, True])
async def test_nor_after_whoever_waits_was_cancelled(desk: Desk, beside: bool) -> None:
    @tool("quick", resource=("Order", "order_id"), registry=desk.registry)
    async def quick(order_id: str) -> str:
        """Do it at once."""
        return "done"

    desk.publish(quick)

    async def step(stubborn: Stubborn) -> None:
        async with desk.step() as txn:
            with txn.parallel() if beside else contextlib.nullcontext():
                await stubborn.mail("o-1")
                if beside:
                    await quick("o-1")
    stubborn = Stubborn(desk)
    task = asyncio.create_task(step(stubborn))
    await asyncio.wait_for(stubborn.begun.wait(), SOON)
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert states(desk) == {"mail#1": "unknown"} | ({"quick#2": "fired"} if beside else {})
    await ended(stubborn)


# -------------------------------------------------------------------------------------- the wait by itself


async def call(fn: Callable[[], Awaitable[object]], seconds: float = 0.02) -> object:
    return await AsyncWaits(lambda: pytest.fail("nothing is sent")).call(fn, {}, seconds)


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


def raising(error: BaseException) -> Callable[[], Awaitable[object]]:
    async def raises() -> None:
        raise error

    return raises


ENDS: dict[str, tuple[Callable[[], Awaitable[object]], type[BaseException], float]] = {
    "one that lets itself be cancelled": (sleeps, ToolTimeoutError, 0.02),
    "one that says that it has not happened, as it is cancelled": (knows_better, NotDone, 0.02),
    "one whose timeout is its own": (raising(TimeoutError("of its own")), TimeoutError, FOR_EVER),
    "one that ends by a cancellation": (raising(asyncio.CancelledError()), asyncio.CancelledError, FOR_EVER),
    "one that exits": (raising(SystemExit(3)), SystemExit, FOR_EVER),
}


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize(("fn", "told", "seconds"), ENDS.values(), ids=ENDS)
def test_how_it_ends_is_told(
    fn: Callable[[], Awaitable[object]], told: type[BaseException], seconds: float
) -> None:
    with pytest.raises(told) as raised:
        asyncio.run(call(fn, seconds))
    assert raised.type is told


@pytest.mark.usefixtures("quickly")
def test_what_it_answers_within_the_grace_is_its_answer() -> None:
    assert asyncio.run(call(gives_up_politely)) == "after all"


@pytest.mark.usefixtures("quickly")
async def test_whoever_is_cancelled_stays_so_whatever_the_tool_answers() -> None:
    task = asyncio.create_task(call(gives_up_politely, FOR_EVER))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.usefixtures("quickly")
async def test_a_second_cancellation_does_not_wait_for_the_grace() -> None:
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
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < GRACE_SECONDS
    end.set()


async def test_a_tool_that_is_left_is_not_collected_before_it_ends() -> None:
    done: list[str] = []

    async def stubborn() -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # nobody else has it
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
