"""`countersign worker`: real processes on one journal. However many there are and however they end, one firing."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from countersign import ReviewPending, Runtime, Settings, resume
from countersign.recovery.recovery import RecoveryResult
from countersign.recovery.worker import ReportedResults, _Stop, run_worker
from countersign.tools.registry import default_registry
from countersign.tools.tool import tool_of
from tests.fakes.desk import Desk, operators_environment, refund_tool
from tests.fakes.operated import REPOSITORY
from tests.fakes.service_http import serving
from tests.unit.sdk.journals import BOTH

# Each call appends a line.
MODULE = '''
from pathlib import Path

from countersign import current_effect, tool

HERE = Path(__file__).parent


@tool("append", resource=("Order", "order_id"))
def append(order_id: str, amount_cents: int) -> str:
    """Append a line."""
    with (HERE / "done.txt").open("a") as file:
        file.write(f"{order_id} {current_effect().call_key}\\n")
    return order_id
'''
_PATIENCE_S = 60.0  # only a test that fails takes so long


class Yard:
    """A journal with approved transactions, and workers on it."""

    def __init__(self, desk: Desk, folder: Any, url: str) -> None:
        self.desk, self.folder = desk, folder
        self.started: list[subprocess.Popen[bytes]] = []
        path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "sdk/python")])
        self.env = {**os.environ, "PYTHONPATH": path, **operators_environment(desk, url)}

    def park(self, key: str, order: str, *, approve: bool = True) -> None:
        """Stage a call that people are asked about, and have it approved."""
        namespace: dict[str, Any] = {"__name__": "yard_tools", "__file__": str(self.folder / "yard_tools.py")}
        exec(compile(MODULE, "yard_tools.py", "exec"), namespace)
        append = namespace["append"]
        default_registry._tools.pop("append")
        self.desk.registry._tools["append"] = tool_of(append)
        self.desk.service.review([tool_of(append).draft_manifest()])
        with self.runtime() as runtime:
            parked = replace(self.desk, runtime=runtime)
            txn = parked.run((append, order, 90_000), key=key, raises=ReviewPending)
        if approve:
            self.desk.service.approve(txn.txn)

    def worker(self) -> subprocess.Popen[bytes]:
        """Start one that goes through the journal once."""
        command = [sys.executable, "-m", "countersign.cli", "worker", "--once", "--tools", "yard_tools.py"]
        started = subprocess.Popen(command, env=self.env, cwd=self.folder)
        self.started.append(started)
        return started

    def resume(self) -> list[RecoveryResult]:
        """Go through the journal once, in this process."""
        with self.runtime() as runtime:
            return resume(runtime)

    def runtime(self) -> Runtime:
        return Runtime(Settings.from_env(self.env), registry=self.desk.registry)

    def lines(self) -> list[str]:
        path = self.folder / "done.txt"
        return path.read_text().splitlines() if path.exists() else []

    def state(self, key: str) -> str:
        return self.desk.runtime.journal.transactions.find(key)[0].state.value


@pytest.fixture
def yard(desk: Desk, tmp_path: Any) -> Any:
    (tmp_path / "yard_tools.py").write_text(MODULE)
    with serving(desk.face) as url:
        desk.service.iss = url
        desk.service._now = time.time
        made = Yard(desk, tmp_path, url)
        yield made
        for worker in made.started:
            worker.kill()
            worker.wait()


@pytest.mark.parametrize("engine", BOTH)
def test_workers_that_start_together_fire_everything_once(yard: Yard) -> None:
    orders = [f"o-{n}" for n in range(6)]
    for order in orders:
        yard.park(f"t-{order}", order)
    for worker in [yard.worker() for _ in range(2)]:
        assert worker.wait(_PATIENCE_S) == 0
    yard.resume()  # what one had to leave to the other
    assert sorted(line.split()[0] for line in yard.lines()) == orders
    assert {yard.state(f"t-{order}") for order in orders} == {"settled"}


# ------------------------------------------------------------------------------------------------ in this process


def test_approvals_while_it_runs_are_fired_and_reported_once(desk: Desk) -> None:
    desk.run((refund_tool(desk), "o-1", 90_000), raises=ReviewPending)
    reported: list[tuple[Any, Any]] = []

    def report(one: RecoveryResult) -> None:
        reported.append((one.before, one.after))
        if one.after == "review":
            desk.service.approve(one.txn)
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    asyncio.run(run_worker(desk.runtime, report, every_seconds=0.001))
    assert reported == [("review", "review"), ("review", "settled")] and len(desk.done) == 1


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_stopped_it_ends_its_effect(desk: Desk, refund: Any, capfd: Any, how: Any) -> None:
    desk.service.approve(desk.run((refund, "o-1", 90_000), (refund, "o-2", 1), raises=ReviewPending).txn)
    desk.approved("t-2")
    desk.before_fire = lambda _: os.kill(os.getpid(), how)
    asyncio.run(run_worker(desk.runtime, lambda _: None, every_seconds=60))
    assert "finishing" in capfd.readouterr().err
    assert desk.done == [("refund", "o-1", 90_000)]
    found = {key: desk.runtime.journal.transactions.find(key)[0].state for key in ("t-1", "t-2")}
    assert found == {"t-1": "redeemed", "t-2": "review"}
    desk.before_fire = None
    first, _ = resume(desk.runtime)
    assert (first.before, first.after) == ("redeemed", "settled")
    assert [order for _, order, _ in desk.done] == ["o-1", "o-2", "o-t-2"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_on_another_thread_is_heard_while_the_loop_waits(how: signal.Signals) -> None:
    """The kernel may choose any thread; and one that comes just before the wait begins does not end it either."""
    was, ended_the_wait = signal.getsignal(how), list[str]()

    async def waiting() -> None:
        stop = _Stop(asyncio.get_running_loop())

        def on_a_thread() -> None:
            time.sleep(0.1)
            signal.pthread_kill(threading.get_ident(), how)

        with stop.on_signals():
            threading.Thread(target=on_a_thread).start()
            late = asyncio.get_running_loop().call_later(_PATIENCE_S / 6, ended_the_wait.append, "a timer")
            await stop.wait(_PATIENCE_S)
            late.cancel()
        assert (stop.asked, ended_the_wait) == (True, [])

    asyncio.run(waiting())
    assert signal.getsignal(how) is was


def test_a_wake_up_by_no_signal_of_ours_ends_one_wait_and_stops_nothing() -> None:
    """A process that a tool forked inherits what the interpreter writes its signals to: on Python 3.11, our loop."""

    async def woken() -> None:
        stop = _Stop(asyncio.get_running_loop())
        stop._wake.set()
        await stop.wait(_PATIENCE_S)
        assert not stop._wake.is_set()
        assert not stop.asked

    asyncio.run(woken())


def found(n: int, note: str = "people are asked", after: str = "review") -> RecoveryResult:
    return RecoveryResult(f"txn-{n}", f"t-{n}", "review", after, note)


def test_a_worker_reports_a_change_once_and_drops_finished_transactions() -> None:
    reported = ReportedResults()
    for one, new in ((found(1), True), (found(1), False), (found(1, "denied"), True), (found(1), True)):
        assert reported.is_new(one) is new
        reported.end_of_round()
    reported.is_new(found(0))
    for n in range(1, 100):
        reported.end_of_round()
        assert not reported.is_new(found(0)) and reported.is_new(found(n, "fired", "settled"))
        assert len(reported) <= 4
    reported.end_of_round()
    assert reported.is_new(found(98, "fired", "settled")), "it came back: that is news"
