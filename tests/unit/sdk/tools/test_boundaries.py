"""Where a gated tool refuses to run, and who may see which effect is firing."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from countersign import (
    MisuseError,
    NotStageable,
    OutcomeUnknown,
    OutsideTransaction,
    current_effect,
    tool,
    transaction,
)
from tests.fakes.desk import Desk, refund_tool


def outcome_in(
    run: Callable[[Callable[[], Any]], Any], call: Callable[[], Any]
) -> type[BaseException] | None:
    """What calling from elsewhere raises."""
    raised: list[type[BaseException]] = []

    def guarded() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is looked at
            raised.append(type(error))

    run(guarded)
    return raised[0] if raised else None


def test_a_tool_outside_a_transaction_refuses_and_does_nothing(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(OutsideTransaction, match="with transaction"):
        refund("o-1", 100)
    assert desk.done == []


def test_a_thread_started_inside_is_outside(desk: Desk) -> None:
    refund = refund_tool(desk)

    def in_thread(fn: Callable[[], Any]) -> None:
        thread = threading.Thread(target=fn)
        thread.start()
        thread.join()

    def in_pool(fn: Callable[[], Any]) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(fn).result()

    with transaction("t-1", runtime=desk.runtime) as txn:
        assert outcome_in(in_thread, lambda: refund("o-1", 100)) is OutsideTransaction
        assert outcome_in(in_pool, lambda: refund("o-1", 100)) is OutsideTransaction
    assert (txn.effects, desk.done) == ((), [])


@pytest.mark.anyio
async def test_a_task_or_worker_thread_the_transaction_does_not_know_refuses(desk: Desk) -> None:
    refund = refund_tool(desk)

    async def in_task() -> None:
        refund("o-1", 100)

    async with transaction("t-1", runtime=desk.runtime) as txn:
        with pytest.raises(OutsideTransaction, match="does not know"):
            await asyncio.create_task(in_task())
        with pytest.raises(OutsideTransaction, match="does not know"):
            await asyncio.to_thread(refund, "o-1", 100)
        with pytest.raises(OutsideTransaction, match="does not know"):
            await asyncio.gather(in_task())
    assert (txn.effects, desk.done) == ((), [])


@pytest.mark.anyio
async def test_a_task_that_outlives_the_transaction_refuses(desk: Desk) -> None:
    refund = refund_tool(desk)
    gone = asyncio.Event()

    async def later() -> None:
        await gone.wait()
        refund("o-1", 100)

    async with transaction("t-1", runtime=desk.runtime):
        task = asyncio.create_task(later())
        await asyncio.sleep(0)
    gone.set()
    with pytest.raises(OutsideTransaction, match="had ended"):
        await task


def test_a_tool_that_calls_another_gated_tool_while_it_fires_is_outside(desk: Desk) -> None:
    refund = refund_tool(desk)
    tried: list[type[BaseException] | None] = []

    @tool("outer", resource=("Order", "order_id"), registry=desk.registry)
    def outer(order_id: str) -> None:
        """Call another tool."""
        tried.append(outcome_in(lambda fn: fn(), lambda: refund(order_id, 100)))

    desk.publish(outer)
    with transaction("t-1", runtime=desk.runtime):
        outer("o-1")
    assert tried == [OutsideTransaction]
    assert desk.done == []


def test_a_transaction_inside_another_is_refused(desk: Desk) -> None:
    with (
        transaction("t-1", runtime=desk.runtime),
        pytest.raises(MisuseError, match="inside"),
        transaction("t-2", runtime=desk.runtime),
    ):
        raise AssertionError


def test_a_transaction_is_used_once(desk: Desk) -> None:
    txn = transaction("t-1", runtime=desk.runtime)
    with txn:
        pass
    with pytest.raises(MisuseError, match="used already"), txn:
        raise AssertionError


def test_current_effect_is_the_one_that_fires_and_nothing_outside(desk: Desk) -> None:
    seen: list[Any] = []

    @tool("look", resource=("Order", "order_id"), registry=desk.registry)
    def look(order_id: str) -> None:
        """Look."""
        seen.append(current_effect())

    desk.publish(look)
    with transaction("t-1", runtime=desk.runtime) as txn:
        placed = look("o-1")
        with pytest.raises(OutsideTransaction):
            current_effect()
    assert [(e.effect_id, e.call_key, e.txn, e.tool) for e in seen] == [
        (placed.effect_id, placed.call_key, txn.txn, "look")
    ]
    with pytest.raises(OutsideTransaction):
        current_effect()


@pytest.mark.anyio
async def test_an_async_tool_stages_and_is_awaited_at_commit(desk: Desk) -> None:
    @tool("send", resource=("Order", "order_id"), registry=desk.registry)
    async def send(order_id: str) -> str:
        """Send."""
        await asyncio.sleep(0)
        desk.act("send", order_id)
        return "sent"

    desk.publish(send)
    refund = refund_tool(desk)
    async with transaction("t-1", runtime=desk.runtime) as txn:
        placed = await send("o-1")
        refund("o-1", 100)
        assert desk.done == []
    assert desk.done == [("send", "o-1"), ("refund", "o-1", 100)]
    assert (placed.result, txn.state) == ("sent", "settled")


@pytest.mark.anyio
async def test_an_async_tool_in_a_blocking_transaction_is_refused_not_forgotten(desk: Desk) -> None:
    @tool("send", resource=("Order", "order_id"), registry=desk.registry)
    async def send(order_id: str) -> str:
        """Send."""
        return "sent"

    desk.publish(send)
    with transaction("t-1", runtime=desk.runtime), pytest.raises(NotStageable, match="async with"):
        await send("o-1")


@pytest.mark.anyio
@pytest.mark.parametrize("failure_means", ["unknown", "not_done"])
async def test_an_async_tool_that_takes_too_long_is_unknown(desk: Desk, failure_means: Any) -> None:
    """Our own timeout is no failure, whatever the tool says of those."""

    @tool("send", resource=("Order", "order_id"), timeout_seconds=1, failure_means=failure_means,
          registry=desk.registry)  # fmt: skip
    async def send(order_id: str) -> None:
        """Send."""
        desk.act("send", order_id)
        await asyncio.sleep(30)

    desk.publish(send)
    with pytest.raises(OutcomeUnknown, match="TimeoutError"):
        async with transaction("t-1", runtime=desk.runtime):
            await send("o-1")


@pytest.mark.anyio
async def test_cancelling_the_body_submits_nothing(desk: Desk) -> None:
    refund = refund_tool(desk)

    async def step() -> None:
        async with transaction("t-1", runtime=desk.runtime):
            refund("o-1", 100)
            await asyncio.sleep(30)

    task = asyncio.create_task(step())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert desk.done == []
    assert desk.runtime.journal.transactions.find("t-1")[0].state == "ended"


@pytest.mark.anyio
async def test_cancelling_while_an_effect_fires_writes_unknown_and_goes_on_cancelling(desk: Desk) -> None:
    started = asyncio.Event()

    @tool("send", resource=("Order", "order_id"), registry=desk.registry)
    async def send(order_id: str) -> None:
        """Send."""
        desk.act("send", order_id)
        started.set()
        await asyncio.sleep(30)

    desk.publish(send)
    refund = refund_tool(desk)

    async def step() -> None:
        async with transaction("t-1", runtime=desk.runtime):
            await send("o-1")
            refund("o-1", 100)

    task = asyncio.create_task(step())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (record,) = desk.runtime.journal.transactions.find("t-1")
    rows = desk.runtime.journal.transactions.effects(record)
    assert [row.state for row in rows] == ["unknown", "unused"]
    assert desk.done == [("send", "o-1")]


def test_ctrl_c_while_an_effect_fires_writes_unknown_and_a_rerun_does_not_fire_again(desk: Desk) -> None:
    @tool("send", resource=("Order", "order_id"), registry=desk.registry)
    def send(order_id: str) -> None:
        """Send."""
        desk.act("send", order_id)
        raise KeyboardInterrupt

    desk.publish(send)
    with pytest.raises(KeyboardInterrupt), transaction("t-1", runtime=desk.runtime):
        send("o-1")
    with pytest.raises(OutcomeUnknown, match="Do not repeat it"), transaction("t-1", runtime=desk.runtime):
        send("o-1")
    assert desk.done == [("send", "o-1")]


def test_a_tool_cannot_be_reached_around_the_gate_by_its_decorated_name(desk: Desk) -> None:
    refund = refund_tool(desk)
    assert refund.__name__ == "refund"
    assert refund.__doc__ == "Give money back for an order."
    with pytest.raises(OutsideTransaction):
        refund("o-1", 100)
