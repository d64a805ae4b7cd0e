"""Where a gated tool refuses to run, in which thread it does, and who may see which effect is firing."""

import asyncio
import contextlib
import contextvars
import os
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from countersign import current_effect, errors
from countersign.concurrency import ThreadedCall, ToolTimeoutError
from countersign.manifests.reviewed import require_fits
from countersign.tools.tool import tool_of
from tests.fakes.desk import Desk, changed, failing_tool, refund_tool, states
from tests.fakes.running import fails, order_tool, run, run_async

pytestmark = pytest.mark.anyio


def refused(call: Any, match: str | None = None) -> None:
    """Calling this is refused as outside a transaction."""
    with pytest.raises(errors.OutsideTransaction, match=match):
        call()


def test_a_tool_outside_a_transaction_refuses_and_does_nothing(desk: Desk, refund: Any) -> None:
    """It cannot be reached around the gate by its decorated name."""
    assert (refund.__name__, refund.__doc__) == ("refund", "Give money back for an order.")
    refused(lambda: refund("o-1", 100), "with transaction")
    assert desk.done == []


def test_a_thread_started_inside_is_outside(desk: Desk, refund: Any) -> None:
    with desk.step() as txn, ThreadPoolExecutor(1) as pool:
        refused(pool.submit(refund, "o-1", 100).result, "outside a transaction")
        with txn.parallel():
            refused(pool.submit(refund, "o-1", 100).result, "outside a transaction")
    assert (txn.effects, desk.done) == ((), [])


def test_a_transaction_inside_another_is_refused_and_each_is_used_once(desk: Desk) -> None:
    with desk.step() as txn, pytest.raises(errors.MisuseError, match="inside"), desk.step("t-2"):
        raise AssertionError
    with pytest.raises(errors.MisuseError, match="used already"), txn:
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
    (effect,) = seen
    assert (effect.effect_id, effect.call_key) == (placed.effect_id, placed.call_key)
    assert (effect.txn, effect.tool, placed.outcome, desk.done) == (txn.txn, "look", "fired", [])
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
    with desk.step("t-0"), pytest.raises(errors.NotStageable, match="async with"):
        await send("o-1")  # refused, and not forgotten
    async with desk.step() as txn:
        placed = await send("o-1")
        refund("o-1", 100)
        assert desk.done == []
    assert desk.done == [("send", "o-1"), ("refund", "o-1", 100)]
    assert (placed.result, txn.state) == ("sent", "settled")


@pytest.mark.usefixtures("hurried")
def test_an_async_tool_that_takes_too_long_is_unknown(desk: Desk, send: Any) -> None:
    """Our own timeout is not a failure, even if the tool's failures mean not_done."""
    with pytest.raises(errors.OutcomeUnknown, match="TimeoutError"):
        asyncio.run(run_async(desk, (send, "o-2")))


async def test_cancelling_while_an_effect_fires_writes_unknown(desk: Desk, send: Any, refund: Any) -> None:
    task = asyncio.create_task(run_async(desk, (send, "o-2"), (refund, "o-1", 100)))
    while not desk.done:  # noqa: ASYNC110 - the tool is no event
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert states(desk) == {"send#1": "unknown", "refund#2": "unused"}
    assert desk.done == [("send", "o-2")]


# ---------------------------------------------- a tool's timeout ends the wait: outcome unknown (W24)

mood: contextvars.ContextVar[str] = contextvars.ContextVar("mood", default="none")


def until_returned(name: str, left: int = 0) -> None:
    """Wait for calls that were abandoned."""
    until = time.monotonic() + 20
    while sum(one.name == f"countersign-{name}" for one in threading.enumerate()) > left:
        assert time.monotonic() < until
        time.sleep(0.01)


class Hanging:
    """A tool that does not return before somebody says so, and then asks for its effect."""

    def __init__(self, desk: Desk, **options: Any) -> None:
        self.go_on, self.said = threading.Event(), list[str]()

        @order_tool(desk, timeout_seconds=1, **options)
        def hang(order_id: str) -> None:
            self.said.append(current_effect().tool)
            self.go_on.wait(20)
            with contextlib.suppress(errors.OutsideTransaction):
                desk.act("hang", order_id)
            try:
                current_effect()
            except errors.OutsideTransaction as refused:
                self.said.append(str(refused))

        self.call = hang, "o-1"

    def ends(self) -> None:
        self.go_on.set()
        until_returned("hang")


@pytest.fixture
def where(desk: Desk) -> Any:
    """A tool that writes down the thread it runs in."""

    @order_tool(desk)
    def where(order_id: str) -> None:
        desk.done.append(("where", threading.current_thread()))

    return where


def test_scenario_21_a_plain_tool_that_hangs_is_unknown_after_its_timeout(desk: Desk, where: Any) -> None:
    """Our own timeout is not a failure, even if the tool's failures mean not_done."""
    hang, refund = Hanging(desk, failure_means="not_done"), refund_tool(desk)
    unknown = fails(
        desk, errors.OutcomeUnknown, hang.call, (refund, "o-2", 100), match="no answer within 1 s"
    )
    assert (desk.done, unknown.txn.state) == ([], "unsettled")
    (left,) = (one for one in threading.enumerate() if one.name == "countersign-hang")
    assert left.daemon  # so that a program ends although its tool does not
    run(desk, (where, "o-2"), key="t-2")
    assert desk.done[0][1] is not left  # it keeps its thread, and the next one has another
    hang.ends()
    assert hang.said[0] == "hang" and "its caller stopped waiting" in hang.said[1]
    assert len(desk.done) == 1


def test_in_asyncio_a_hanging_plain_tool_blocks_neither_loop_nor_program(desk: Desk) -> None:
    hang, turns = Hanging(desk), []

    async def turning() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0.05)

    async def body() -> None:
        other = asyncio.create_task(turning())
        async with desk.step():
            hang.call[0]("o-1")
        other.cancel()

    with pytest.raises(errors.OutcomeUnknown, match="no answer within"):
        asyncio.run(body())  # returns although the thread still hangs
    assert len(turns) > 3
    hang.ends()


def test_each_call_sees_its_effect_and_its_callers_context_and_none_of_the_one_before(desk: Desk) -> None:
    seen: list[Any] = []

    @order_tool(desk)
    def look(order_id: str) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        seen.append((current_effect().tool, mood.get(), in_main))
        mood.set("spoilt")

    mood.set("calm")
    run(desk, *((look, f"o-{number}") for number in range(12)))
    assert seen == [("look", "calm", False)] * 12


def test_a_tool_may_run_in_its_callers_thread(desk: Desk) -> None:
    connection = sqlite3.connect(":memory:")  # refuses every other thread
    connection.execute("CREATE TABLE done (what TEXT)")

    @order_tool(desk, own_thread=False)
    def write(order_id: str) -> None:
        connection.execute("INSERT INTO done VALUES (?)", (order_id,))

    run(desk, (write, "o-1"))
    assert connection.execute("SELECT * FROM done").fetchall() == [("o-1",)]
    connection.close()


@pytest.mark.parametrize("tries", [1, 2, 4, None])
def test_a_tool_declares_its_tries(desk: Desk, tries: int | None) -> None:
    notify = failing_tool(desk, ConnectionError("away"), idempotent=True, tries=tries)
    fails(desk, errors.OutcomeUnknown, (notify, "o-1"))
    assert (len(desk.keys), len(set(desk.keys))) == (tries or desk.runtime.settings.idempotent_tries, 1)


def test_tries_need_an_idempotent_reviewed_manifest(desk: Desk) -> None:
    notify = failing_tool(desk, ConnectionError("away"), tries=2)
    fails(desk, errors.RegistrationError, (notify, "o-1"), match="tries=2")
    assert desk.done == []
    mine = tool_of(notify)
    require_fits(mine, changed(mine.draft_manifest(), idempotent=True))


@pytest.mark.parametrize("tries", [0, -1, 21, "3", 2.0, True])
def test_what_is_no_sensible_number_of_tries_is_refused(desk: Desk, tries: Any) -> None:
    with pytest.raises(errors.RegistrationError, match="write a number from 1 to 20"):
        failing_tool(desk, ValueError(), tries=tries)


def test_calls_one_after_the_other_start_no_thread_each(desk: Desk, where: Any) -> None:
    run(desk, *((where, f"o-{number}") for number in range(20)))
    assert len({thread for _, thread in desk.done}) <= 4  # as one says it is idle a moment after its answer


def test_threads_of_a_large_group_end(desk: Desk) -> None:
    started = threading.Barrier(20)

    @order_tool(desk)
    def meet(order_id: str) -> None:
        started.wait(20)

    run(desk, [(meet, f"o-{number}") for number in range(20)])
    until_returned("meet")
    until_returned("idle", left=10)  # eight, and those that said so at the same moment


def test_a_forked_child_calls_tools_in_threads_of_its_own(desk: Desk, where: Any) -> None:
    run(desk, (where, "o-1"))
    until_returned("where")
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os._exit(0 if ThreadedCall(lambda: 7, {}).result(10) == 7 else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_tools_own_timeout_error_is_not_mistaken_for_ours() -> None:
    def late() -> None:
        raise TimeoutError("the bank")

    with pytest.raises(TimeoutError, match="the bank") as raised:
        ThreadedCall(late, {}).result(10)
    assert not isinstance(raised.value, ToolTimeoutError)
