"""A tool's timeout ends the wait, and then nobody knows: the thread goes on, or the task was cancelled (W24)."""

import asyncio
import contextlib
import contextvars
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from countersign import (
    OutcomeUnknown,
    OutsideTransaction,
    Placeholder,
    RegistrationError,
    current_effect,
    tool,
    transaction,
)
from countersign.manifests.reviewed import require_fits
from countersign.threads import Threaded, ToolTimeoutError
from countersign.tools.tool import tool_of
from countersign.waiting import SyncWaits
from tests.fakes.desk import Desk, changed, failing_tool, refund_tool


def until_returned(name: str) -> None:
    """Wait for calls nobody waits for any more."""
    until = time.monotonic() + 20
    while any(one.name == f"countersign-{name}" for one in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)


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
    until_returned("hang")


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
    until_returned("hang")


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


def test_the_pauses_between_tries_grow_and_have_an_upper_end(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(_: object, seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(SyncWaits, "sleep", sleep)
    notify = failing_tool(desk, ConnectionError("away"), idempotent=True, tries=20)
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime):
        notify("o-1")
    assert len(pauses) == 19
    assert pauses[0] < pauses[5] < pauses[10] and max(pauses) <= 45


def test_tries_are_for_tools_whose_reviewed_manifest_says_idempotent(desk: Desk) -> None:
    notify = failing_tool(desk, ConnectionError("away"), tries=2)
    with pytest.raises(RegistrationError, match="tries=2"), transaction("t-1", runtime=desk.runtime):
        notify("o-1")
    assert desk.done == []
    mine = tool_of(notify)
    require_fits(mine, changed(mine.draft_manifest(), idempotent=True))


@pytest.mark.parametrize("tries", [0, -1, 21, "3", 2.0, True])
def test_what_is_no_sensible_number_of_tries_is_refused(desk: Desk, tries: Any) -> None:
    with pytest.raises(RegistrationError, match="write a number from 1 to 20"):
        failing_tool(desk, ValueError(), tries=tries)


def test_a_tool_that_goes_on_after_its_timeout_has_no_effect_to_act_for(desk: Desk) -> None:
    go_on, said = threading.Event(), []

    @tool("late", resource=("Order", "order_id"), registry=desk.registry, timeout_seconds=1)
    def late(order_id: str) -> None:
        """Ask for the effect before and after the timeout."""
        said.append(current_effect().tool)
        go_on.wait(20)
        try:
            current_effect()
        except OutsideTransaction as refused:
            said.append(str(refused))

    desk.publish(late)
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime):
        late("o-1")
    go_on.set()
    until_returned("late")
    assert said[0] == "late" and "nobody waits for it any more" in said[1]


def threads_of(desk: Desk) -> Callable[[str], Placeholder[None]]:
    """A tool that writes down the thread it runs in."""

    @tool("where", resource=("Order", "order_id"), registry=desk.registry)
    def where(order_id: str) -> None:
        """Say which thread this is."""
        desk.done.append(("where", threading.current_thread()))

    desk.publish(where)
    return where


def idle_threads() -> int:
    return sum(one.name == "countersign-idle" for one in threading.enumerate())


def test_calls_one_after_the_other_start_no_thread_each(desk: Desk) -> None:
    where = threads_of(desk)
    with transaction("t-1", runtime=desk.runtime):
        for number in range(40):
            where(f"o-{number}")
    assert len({thread for _, thread in desk.done}) <= 4  # as one says it is idle a moment after its answer


def test_a_call_that_hangs_keeps_its_thread_and_the_next_one_has_another(desk: Desk) -> None:
    go_on = threading.Event()
    hang, where = hanging_tool(desk, go_on), threads_of(desk)
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime):
        hang("o-1")
    (hanging,) = [one for one in threading.enumerate() if one.name == "countersign-hang"]
    with transaction("t-2", runtime=desk.runtime):
        where("o-2")
    go_on.set()
    until_returned("hang")
    assert [thread is hanging for _, thread in desk.done[:1]] == [False]


def test_a_call_sees_no_context_of_the_one_before_it_in_its_thread(desk: Desk) -> None:
    seen: list[str] = []

    @tool("feel", resource=("Order", "order_id"), registry=desk.registry)
    def feel(order_id: str) -> None:
        """Tell the mood and leave another behind."""
        seen.append(mood.get())
        mood.set("spoilt")

    desk.publish(feel)
    mood.set("calm")
    with transaction("t-1", runtime=desk.runtime):
        for number in range(12):
            feel(f"o-{number}")
    assert seen == ["calm"] * 12


def test_threads_of_a_large_group_end(desk: Desk) -> None:
    started = threading.Barrier(20)

    @tool("meet", resource=("Order", "order_id"), registry=desk.registry)
    def meet(order_id: str) -> None:
        """Return when all are there."""
        started.wait(20)

    desk.publish(meet)
    with transaction("t-1", runtime=desk.runtime) as txn, txn.parallel():
        for number in range(20):
            meet(f"o-{number}")
    until_returned("meet")
    until = time.monotonic() + 20
    while idle_threads() > 10:  # eight, and those that said so at the same moment
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_forked_child_calls_tools_in_threads_of_its_own(desk: Desk) -> None:
    where = threads_of(desk)
    with transaction("t-1", runtime=desk.runtime):
        where("o-1")
    until_returned("where")
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os._exit(0 if Threaded(lambda: 7, {}).result(10) == 7 else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_tools_own_timeout_error_is_not_taken_for_ours() -> None:
    def late() -> None:
        raise TimeoutError("the bank")

    with pytest.raises(TimeoutError, match="the bank") as raised:
        Threaded(late, {}).result(10)
    assert not isinstance(raised.value, ToolTimeoutError)
