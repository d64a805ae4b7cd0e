"""Where a gated tool refuses to run, and who may see which effect is firing."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from countersign import MisuseError, NotStageable, OutcomeUnknown, OutsideTransaction, current_effect
from tests.fakes.desk import Desk, refund_tool, states
from tests.fakes.running import fails, order_tool, run_async

pytestmark = pytest.mark.anyio


@pytest.fixture
def refund(desk: Desk) -> Any:
    return refund_tool(desk)


def refused(call: Callable[[], Any], match: str | None = None) -> None:
    """Calling this is refused as outside a transaction."""
    with pytest.raises(OutsideTransaction, match=match):
        call()


def test_a_tool_outside_a_transaction_refuses_and_does_nothing(desk: Desk, refund: Any) -> None:
    """It cannot be reached around the gate by its decorated name."""
    assert (refund.__name__, refund.__doc__) == ("refund", "Give money back for an order.")
    refused(lambda: refund("o-1", 100), "with transaction")
    assert desk.done == []


def test_a_thread_started_inside_is_outside(desk: Desk, refund: Any) -> None:
    heard: list[BaseException] = []

    def call() -> None:
        try:
            refund("o-1", 100)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is looked at
            heard.append(error)

    with desk.step() as txn:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(call).result()
    assert [type(one) for one in heard] == [OutsideTransaction] * 2
    assert (txn.effects, desk.done) == ((), [])


async def test_a_task_or_worker_thread_the_transaction_does_not_know_refuses(desk: Desk, refund: Any) -> None:
    gone = asyncio.Event()

    async def in_task() -> None:
        refund("o-1", 100)

    async def later() -> None:
        await gone.wait()
        refund("o-1", 100)

    async with desk.step() as txn:
        for made in (
            asyncio.create_task(in_task()),
            asyncio.to_thread(refund, "o-1", 100),
            asyncio.gather(in_task()),
        ):
            with pytest.raises(OutsideTransaction, match="does not know"):
                await made
        outlives = asyncio.create_task(later())
        await asyncio.sleep(0)
    gone.set()
    with pytest.raises(OutsideTransaction, match="had ended"):
        await outlives
    assert (txn.effects, desk.done) == ((), [])


def test_a_transaction_inside_another_is_refused_and_each_is_used_once(desk: Desk) -> None:
    with desk.step() as txn, pytest.raises(MisuseError, match="inside"), desk.step("t-2"):
        raise AssertionError
    with pytest.raises(MisuseError, match="used already"), txn:
        raise AssertionError


def test_current_effect_is_the_one_that_fires_and_nothing_outside(desk: Desk, refund: Any) -> None:
    seen: list[Any] = []

    @order_tool(desk)
    def look(order_id: str) -> None:
        seen.append(current_effect())
        refused(lambda: refund(order_id, 100))  # a tool that calls another gated one is outside

    with desk.step() as txn:
        placed = look("o-1")
        refused(current_effect)
    assert [(e.effect_id, e.call_key, e.txn, e.tool) for e in seen] == [
        (placed.effect_id, placed.call_key, txn.txn, "look")
    ]
    assert (placed.outcome, desk.done) == ("fired", [])
    refused(current_effect)


@pytest.fixture
def send(desk: Desk) -> Any:
    """An async tool that takes longer than anybody waits, but for the order `o-1`."""

    @order_tool(desk, timeout_seconds=1, failure_means="not_done")
    async def send(order_id: str) -> str:
        desk.act("send", order_id)
        await asyncio.sleep(0 if order_id == "o-1" else 30)
        return "sent"

    return send


async def test_an_async_tool_stages_and_is_awaited_at_commit(desk: Desk, send: Any, refund: Any) -> None:
    with desk.step("t-0"), pytest.raises(NotStageable, match="async with"):
        await send("o-1")  # refused, and not forgotten
    async with desk.step() as txn:
        placed = await send("o-1")
        refund("o-1", 100)
        assert desk.done == []
    assert desk.done == [("send", "o-1"), ("refund", "o-1", 100)]
    assert (placed.result, txn.state) == ("sent", "settled")


@pytest.mark.usefixtures("hurried")
def test_an_async_tool_that_takes_too_long_is_unknown(desk: Desk, send: Any) -> None:
    """Our own timeout is no failure, whatever the tool says of those."""
    with pytest.raises(OutcomeUnknown, match="TimeoutError"):
        asyncio.run(run_async(desk, (send, "o-2")))


async def cancelled(work: Any, until: Callable[[], Any]) -> None:
    task = asyncio.create_task(work)
    while not until():  # noqa: ASYNC110 - what it waits for is no event
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelling_the_body_submits_nothing(desk: Desk, refund: Any) -> None:
    staged: list[Any] = []

    async def step() -> None:
        async with desk.step():
            staged.append(refund("o-1", 100))
            await asyncio.sleep(30)

    await cancelled(step(), lambda: staged)
    assert desk.done == []
    assert desk.runtime.journal.transactions.find("t-1")[0].state == "ended"


async def test_cancelling_while_an_effect_fires_writes_unknown_and_goes_on_cancelling(
    desk: Desk, send: Any, refund: Any
) -> None:
    await cancelled(run_async(desk, (send, "o-2"), (refund, "o-1", 100)), lambda: desk.done)
    assert states(desk) == {"send#1": "unknown", "refund#2": "unused"}
    assert desk.done == [("send", "o-2")]


def test_ctrl_c_while_an_effect_fires_writes_unknown_and_a_rerun_does_not_fire_again(desk: Desk) -> None:
    @order_tool(desk)
    def send(order_id: str) -> None:
        desk.act("send", order_id)
        raise KeyboardInterrupt

    fails(desk, KeyboardInterrupt, (send, "o-1"))
    fails(desk, OutcomeUnknown, (send, "o-1"), match="Do not repeat it")
    assert desk.done == [("send", "o-1")]
