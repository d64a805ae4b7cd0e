"""A tool's timeout ends the wait, and then nobody knows: the thread goes on, or the task was cancelled (W24)."""

import asyncio
import contextvars
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import pytest

from countersign import OutcomeUnknown, Placeholder, RegistrationError, current_effect, tool, transaction
from countersign.manifests import require_fits
from countersign.tool import tool_of
from tests.fakes.desk import Desk, changed, failing_tool, refund_tool

mood: contextvars.ContextVar[str] = contextvars.ContextVar("mood", default="none")


def hanging_tool(desk: Desk, go_on: threading.Event, **options: Any) -> Callable[[str], Placeholder[None]]:
    @tool("hang", resource=("Order", "order_id"), registry=desk.registry, timeout_seconds=1, **options)
    def hang(order_id: str) -> None:
        """Do not return before somebody says so."""
        go_on.wait(20)
        desk.done.append(("hang", order_id))

    desk.publish(hang)
    return hang


@pytest.mark.parametrize("failure_means", ["unknown", "not_done"])
def test_scenario_21_a_plain_tool_that_hangs_is_unknown_after_its_timeout(
    desk: Desk, failure_means: Any
) -> None:
    go_on = threading.Event()
    hang, refund = hanging_tool(desk, go_on, failure_means=failure_means), refund_tool(desk)
    with (
        pytest.raises(OutcomeUnknown, match="no answer within 1 s"),
        transaction("t-1", runtime=desk.runtime) as txn,
    ):
        hang("o-1")
        refund("o-2", 100)
    assert (desk.done, txn.state) == ([], "unsettled")
    left = [one for one in threading.enumerate() if one.name == "countersign-hang"]
    assert [one.daemon for one in left] == [True]  # so that a program ends although its tool does not
    go_on.set()
    left[0].join(20)


def test_in_asyncio_a_plain_tool_that_hangs_stops_neither_the_loop_nor_the_program(desk: Desk) -> None:
    go_on, turns = threading.Event(), []
    hang = hanging_tool(desk, go_on)

    async def turning() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0.05)

    async def body() -> None:
        other = asyncio.create_task(turning())
        async with transaction("t-1", runtime=desk.runtime):
            hang("o-1")
        other.cancel()

    with pytest.raises(OutcomeUnknown, match="no answer within 1 s"):
        asyncio.run(body())  # returns although the thread still hangs
    assert len(turns) > 3
    go_on.set()
    for left in [one for one in threading.enumerate() if one.name == "countersign-hang"]:
        left.join(20)


def test_the_thread_sees_the_effect_and_the_callers_context(desk: Desk) -> None:
    seen: list[Any] = []

    @tool("look", resource=("Order", "order_id"), registry=desk.registry)
    def look(order_id: str) -> None:
        """Look around."""
        seen.extend(
            [current_effect().tool, mood.get(), threading.current_thread() is threading.main_thread()]
        )

    desk.publish(look)
    mood.set("calm")
    with transaction("t-1", runtime=desk.runtime):
        look("o-1")
    assert seen == ["look", "calm", False]


def test_a_tool_bound_to_its_callers_thread_says_so(desk: Desk) -> None:
    connection = sqlite3.connect(":memory:")  # refuses every other thread
    connection.execute("CREATE TABLE done (what TEXT)")

    @tool("write", resource=("Order", "order_id"), own_thread=False, registry=desk.registry)
    def write(order_id: str) -> None:
        """Write where only this thread can."""
        connection.execute("INSERT INTO done VALUES (?)", (order_id,))

    desk.publish(write)
    with transaction("t-1", runtime=desk.runtime):
        write("o-1")
    assert connection.execute("SELECT * FROM done").fetchall() == [("o-1",)]
    connection.close()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration("x")])
def test_whatever_a_tool_raises_in_its_thread_reaches_the_caller(desk: Desk, error: BaseException) -> None:
    notify = failing_tool(desk, error)
    expected = OutcomeUnknown if isinstance(error, StopIteration) else type(error)
    with pytest.raises(expected), transaction("t-1", runtime=desk.runtime) as txn:
        notify("o-1")
    record = desk.runtime.journal.transactions.require(txn.txn)
    assert [one.state.value for one in desk.runtime.journal.transactions.effects(record)] == ["unknown"]


@pytest.mark.parametrize("tries", [1, 2, 4])
def test_a_tool_says_how_often_it_is_tried(desk: Desk, tries: int) -> None:
    notify = failing_tool(desk, ConnectionError("away"), idempotent=True, tries=tries)
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime):
        notify("o-1")
    assert (len(desk.keys), len(set(desk.keys))) == (tries, 1)


def test_tries_are_for_tools_whose_reviewed_manifest_says_idempotent(desk: Desk) -> None:
    notify = failing_tool(desk, ConnectionError("away"), tries=2)
    with pytest.raises(RegistrationError, match="tries=2"), transaction("t-1", runtime=desk.runtime):
        notify("o-1")
    assert desk.done == []
    mine = tool_of(notify)
    require_fits(mine, changed(mine.draft_manifest(), idempotent=True))


@pytest.mark.parametrize("tries", [0, -1])
def test_no_tries_at_all_are_refused(desk: Desk, tries: int) -> None:
    with pytest.raises(RegistrationError, match="at least once"):
        failing_tool(desk, ValueError(), tries=tries)
