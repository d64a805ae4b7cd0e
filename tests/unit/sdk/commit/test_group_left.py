"""A group that is left before all of it has ended: what is known is written as it is, the rest is unknown."""

import asyncio
import signal
import threading
import time

import pytest

from countersign import DidNotHappen, Happened, ProbeAnswer, current_effect, errors, probe, resume
from tests.fakes import running
from tests.fakes.desk import Desk, failing_tool, service_states, states
from tests.fakes.running import fails, order_tool, refusing_tool, run, run_async
from tests.unit.sdk.commit.probed import SECONDS


def acting_threads() -> int:
    """How many calls of a group have not ended."""
    return sum(one.name == "countersign-_in_thread" for one in threading.enumerate())


def pressing_tool(desk: Desk, go_on: threading.Event, neighbor: int, begun):
    """A tool that presses Ctrl-C once its siblings have begun and ended, but for so many, and goes on."""

    @order_tool(desk)
    def press(order_id: str) -> None:
        while not begun() or acting_threads() > 1 + neighbor:
            threading.Event().wait(0.002)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        go_on.wait(SECONDS)

    return press


def end(go_on: threading.Event) -> None:
    """Let what was left running end."""
    go_on.set()
    until = time.monotonic() + SECONDS
    names = {f"countersign-{name}" for name in ("_in_thread", "press", "late")}
    while names & {one.name for one in threading.enumerate()}:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_ctrl_c_in_a_group_writes_what_has_ended_as_it_ended(desk: Desk, charge, refund) -> None:
    go_on, refusing = threading.Event(), list[str]()

    @order_tool(desk)
    def refuse(order_id: str) -> None:
        refusing.append(order_id)
        raise errors.NotDone("no")

    press = pressing_tool(desk, go_on, 0, lambda: len(desk.done) == 2 and len(refusing) == 1)
    broken = failing_tool(desk, ValueError("odd"), "break")
    group = [(charge, "o-1", 10), (press, "o-1"), (refuse, "o-1"), (broken, "o-1")]
    left = fails(desk, KeyboardInterrupt, group, (refund, "o-2", 5))
    end(go_on)
    assert [*states(desk).values()] == ["fired", "unknown", "failed", "unknown", "unused"]
    assert left.placed[0].outcome == "fired"
    raised = running.errors(desk)
    assert raised["press"] == "left running (interrupted by KeyboardInterrupt)"
    assert raised["break"] == "ValueError: odd"
    (found,) = resume(desk.runtime)
    assert (found.after, service_states(desk, left.txn.txn)) == ("unsettled", [*states(desk).values()])
    assert sorted(one[0] for one in desk.done) == ["break", "charge"]


def test_what_was_left_running_has_no_effect_to_act_for(desk: Desk) -> None:
    go_on, begun, refused = threading.Event(), threading.Event(), list[str]()

    @order_tool(desk)
    def late(order_id: str) -> None:
        begun.set()
        go_on.wait(SECONDS)
        try:
            current_effect()
        except errors.OutsideTransaction as error:
            refused.append(str(error))

    press = pressing_tool(desk, go_on, 1, begun.is_set)
    fails(desk, KeyboardInterrupt, [(late, "o-1"), (press, "o-1")])
    end(go_on)
    assert ["its caller stopped waiting" in text for text in refused] == [True]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()], ids=repr)
@pytest.mark.parametrize("first", [True, False])
def test_a_tool_that_exits_ends_after_its_group(desk: Desk, charge, error, first: bool) -> None:
    waits = threading.Barrier(2, timeout=SECONDS)
    desk.before_fire = lambda _: waits.wait() and None  # both are under way
    group = [(failing_tool(desk, error), "o-1"), (charge, "o-1", 10)]
    left = fails(desk, type(error), group if first else group[::-1], (charge, "o-2", 20))
    assert sorted(states(desk).values()) == ["fired", "unknown", "unused"]
    assert (left.placed[first].outcome, len(desk.done)) == ("fired", 2)
    assert running.errors(desk)["notify"].startswith(type(error).__name__), "it has ended, by its own word"
    desk.before_fire = None
    assert [one.after for one in resume(desk.runtime)] == ["unsettled"]
    assert "void" not in [one[0] for one in desk.done]


def test_with_a_tool_that_exits_nothing_is_retried(desk: Desk) -> None:
    exits = failing_tool(desk, SystemExit(1))
    flaky = failing_tool(desk, ConnectionError("once"), "flaky", idempotent=True)
    fails(desk, SystemExit, [(flaky, "o-1"), (exits, "o-1")])
    assert states(desk) == {"flaky#1": "unknown", "notify#2": "unknown"}
    assert sorted(one[0] for one in desk.done) == ["flaky", "notify"]


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()], ids=repr)
def test_in_asyncio_a_tool_that_exits_ends_its_siblings_no_earlier(desk: Desk, error: BaseException) -> None:
    there, done = asyncio.Event(), []

    @order_tool(desk)
    async def leave(order_id: str) -> None:
        await there.wait()
        raise error

    @order_tool(desk)
    async def stay(order_id: str) -> str:
        there.set()
        for _ in range(5):
            await asyncio.sleep(0)
        done.append(order_id)
        return order_id

    with pytest.raises(type(error)):
        asyncio.run(run_async(desk, [(leave, "o-1"), (stay, "o-2")]))
    assert (done, states(desk)) == (["o-2"], {"leave#1": "unknown", "stay#2": "fired"})


# ------------------------------------------------------------------------------------------- next to a probe


def test_what_is_known_is_on_the_disk_before_a_probe_is_called(desk: Desk, refund) -> None:
    seen = []
    lost = failing_tool(desk, ConnectionError("lost"), "pay", probe="find_pay")
    probe("find_pay", registry=desk.registry)(lambda: seen.append(states(desk)) or Happened())
    run(desk, [(refund, "o-1", 1), (lost, "o-2")])
    assert seen == [{"refund#1": "fired", "pay#2": "firing"}]
    assert states(desk) == {"refund#1": "fired", "pay#2": "fired"}


def test_ctrl_c_in_a_probe_loses_nothing_that_is_known(desk: Desk) -> None:
    interrupts, refused = [KeyboardInterrupt()], refusing_tool(desk, name="refuse")
    lost = failing_tool(desk, ConnectionError("lost"), "pay", probe="find_pay")

    @probe("find_pay", registry=desk.registry)
    def find_pay() -> ProbeAnswer:
        if interrupts:
            raise interrupts.pop()
        return DidNotHappen(final=True)

    fails(desk, KeyboardInterrupt, [(lost, "o-1"), (refused, "o-2")])
    assert states(desk) == {"pay#1": "unknown", "refuse#2": "failed"}
    assert running.errors(desk)["pay"] == "ConnectionError: lost"  # it had ended, so its probe counts
    resume(desk.runtime)
    assert states(desk)["pay#1"] == "failed"


def test_a_cancelled_task_of_a_group_may_have_left_its_call_running(desk: Desk, refund) -> None:
    go_on, begun = threading.Event(), threading.Event()

    @order_tool(desk, probe="find_late")
    def late(order_id: str) -> None:
        begun.set()
        go_on.wait(SECONDS)

    probe("find_late", registry=desk.registry)(lambda: DidNotHappen(final=True))

    async def body() -> None:
        canceller = asyncio.create_task(cancel_the_child(asyncio.current_task()))
        await run_async(desk, [(late, "o-1"), (refund, "o-2", 1)])
        await canceller

    async def cancel_the_child(outer: asyncio.Task | None) -> None:
        while not begun.is_set():  # noqa: ASYNC110 - a thread says so
            await asyncio.sleep(0.005)
        for one in asyncio.all_tasks() - {outer, asyncio.current_task()}:
            one.cancel()

    with pytest.raises((errors.OutcomeUnknown, asyncio.CancelledError)):
        asyncio.run(body())
    for _ in range(3):
        assert states(desk)["late#1"] == "unknown"
        resume(desk.runtime)  # it may still act: no "no" counts
    end(go_on)
