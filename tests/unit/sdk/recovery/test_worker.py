"""`countersign worker`: real processes on one journal. However many there are and however they end, one firing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from countersign import ReviewPending, Runtime, Settings, transaction
from countersign.recovery.recovery import Resumed
from countersign.recovery.worker import Told, _Stop
from countersign.tools.registry import default_registry
from countersign.tools.tool import tool_of
from tests.fakes.desk import Desk, changed
from tests.fakes.operated import REPOSITORY
from tests.fakes.service_http import serving
from tests.unit.sdk.journals import BOTH, POSTGRES

# Each call appends a line, then waits until the test lets it end: no test here depends on how fast anything is.
MODULE = '''
import time
from pathlib import Path

from countersign import current_effect, tool

HERE = Path(__file__).parent


@tool("append", resource=("Order", "order_id"))
def append(order_id: str, amount_cents: int) -> str:
    """Append a line."""
    with (HERE / "done.txt").open("a") as file:
        file.write(f"{order_id} {current_effect().call_key}\\n")
    while not (HERE / "go").exists():
        time.sleep(0.01)
    return order_id
'''
_PATIENCE_S = 60.0  # only a test that fails takes so long


class Yard:
    """A journal with approved transactions, and workers on it."""

    def __init__(self, desk: Desk, folder: Path, url: str) -> None:
        self.desk, self.folder = desk, folder
        self.started: list[subprocess.Popen[str]] = []
        settings = desk.runtime.settings
        self.env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "sdk/python")]),
            "COUNTERSIGN_URL": url,
            "COUNTERSIGN_AGENT": settings.agent,
            "COUNTERSIGN_KEY": str(settings.key_path),
            "COUNTERSIGN_JOURNAL": getattr(settings.journal_path, "secret", str(settings.journal_path)),
        }

    def park(self, key: str, *orders: str, approve: bool = True, **changes: Any) -> str:
        """Stage a list that people are asked about, and have it approved; the transaction's id."""
        namespace: dict[str, Any] = {"__name__": "yard_tools", "__file__": str(self.folder / "yard_tools.py")}
        exec(compile(MODULE, "yard_tools.py", "exec"), namespace)
        append = namespace["append"]
        default_registry._tools.pop("append")
        self.desk.registry._tools["append"] = tool_of(append)
        self.desk.service.review([changed(tool_of(append).draft_manifest(), **changes)])
        with (
            Runtime(Settings.from_env(self.env), registry=self.desk.registry) as runtime,
            pytest.raises(ReviewPending) as pending,
            transaction(key, runtime=runtime),
        ):
            for order in orders:
                append(order, 90_000)
        if approve:
            self.desk.service.approve(pending.value.txn)
        return pending.value.txn

    def worker(self, *more: str, host: str | None = None) -> subprocess.Popen[str]:
        named = f"import socket; socket.gethostname = lambda: {host!r}; " if host else ""
        command = f"{named}from countersign.cli import app; app()"
        started = subprocess.Popen(
            [sys.executable, "-c", command, "worker", "--tools", str(self.folder / "yard_tools.py"), *more],
            env=self.env, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.started.append(started)
        return started

    def go(self) -> None:
        """Let every call end from now on."""
        (self.folder / "go").touch()

    def lines(self) -> list[str]:
        path = self.folder / "done.txt"
        return path.read_text().splitlines() if path.exists() else []

    def until(self, *orders: str) -> None:
        """Wait until these calls have begun."""
        end = time.monotonic() + _PATIENCE_S
        while [line.split()[0] for line in self.lines()] != list(orders):
            assert time.monotonic() < end, self.lines()
            time.sleep(0.01)

    def state(self, key: str) -> str:
        return self.desk.runtime.journal.transactions.find(key)[0].state.value


def said(worker: subprocess.Popen[str], code: int = 0) -> str:
    """What a worker said until its end."""
    out, err = worker.communicate(timeout=_PATIENCE_S)
    assert worker.returncode == code, (worker.returncode, out, err)
    return out


@pytest.fixture
def yard(desk: Desk, tmp_path: Path) -> Iterator[Yard]:
    (tmp_path / "yard_tools.py").write_text(MODULE)
    with serving(desk.face) as url:
        desk.service.iss = url
        desk.service._now = time.time
        made = Yard(desk, tmp_path, url)
        yield made
        for worker in made.started:
            worker.kill()
            worker.communicate()


def test_once_fires_what_was_approved_leaves_what_waits_and_ends(yard: Yard) -> None:
    yard.go()
    yard.park("t-1", "o-1")
    yard.park("t-2", "o-2", approve=False)
    told = [json.loads(line) for line in said(yard.worker("--once", "--json")).splitlines()]
    ends = [(one["run_key"], one["after"], one["waiting"]) for one in told]
    assert ends == [("t-1", "settled", False), ("t-2", "review", True)]
    yard.until("o-1")


def test_what_is_approved_while_it_runs_is_fired_and_each_change_is_told_once(yard: Yard) -> None:
    yard.go()
    txn = yard.park("t-1", "o-1", approve=False)
    worker = yard.worker("--every", "0.1")
    assert worker.stdout is not None
    assert "t-1: review -> review" in worker.stdout.readline()
    yard.desk.service.approve(txn)
    assert "t-1: review -> settled" in worker.stdout.readline()
    worker.send_signal(signal.SIGTERM)
    assert said(worker) == "stopped\n"
    yard.until("o-1")


@pytest.mark.parametrize("engine", [POSTGRES])
def test_workers_on_other_hosts_fire_what_was_parked_here(yard: Yard) -> None:
    """From the journal they share. Each waits for the lease of the other, of whom it sees nothing else."""
    yard.park("t-1", "o-1")
    first = yard.worker("--once", host="a.example")
    yard.until("o-1")
    assert re.search(r"owned by process \d+ on a\.example", said(yard.worker("--once", host="b.example")))
    yard.go()
    assert "t-1: review -> settled" in said(first)
    assert "nothing" not in said(yard.worker("--once", host="b.example"))
    assert (len(yard.lines()), yard.state("t-1")) == (1, "settled")


def test_a_second_worker_leaves_alone_what_the_first_is_firing(yard: Yard) -> None:
    yard.park("t-1", "o-1")
    first = yard.worker("--once")
    yard.until("o-1")
    assert "owned by" in said(yard.worker("--once"))
    yard.go()
    assert "settled" in said(first)
    assert len(yard.lines()) == 1


@pytest.mark.parametrize("engine", BOTH)
def test_workers_that_start_together_fire_everything_once(yard: Yard) -> None:
    yard.go()
    orders = [f"o-{n}" for n in range(6)]
    for order in orders:
        yard.park(f"t-{order}", order)
    for worker in [yard.worker("--once") for _ in range(2)]:
        said(worker)
    said(yard.worker("--once"))  # whatever one had to leave to the other
    assert sorted(line.split()[0] for line in yard.lines()) == orders
    assert {yard.state(f"t-{order}") for order in orders} == {"settled"}


@pytest.mark.parametrize(
    ("idempotent", "state", "calls"),
    [(False, "unsettled", 1), pytest.param(True, "settled", 2, marks=pytest.mark.long)],
    ids=["not", "idempotent"],
)
def test_what_a_killed_worker_was_firing_is_unknown_unless_it_is_idempotent(
    yard: Yard, idempotent: bool, state: str, calls: int
) -> None:
    yard.park("t-1", "o-1", idempotent=idempotent)
    killed = yard.worker()
    yard.until("o-1")
    killed.send_signal(signal.SIGKILL)
    said(killed, -signal.SIGKILL)
    yard.go()
    said(yard.worker("--once"), 3 if state == "unsettled" else 0)
    assert yard.state("t-1") == state
    # Again with the same call key, or not at all.
    assert (len(yard.lines()), len(set(yard.lines()))) == (calls, 1)


@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_stopped_worker_finishes_its_effect_and_the_next_one_goes_on_from_there(
    yard: Yard, how: signal.Signals
) -> None:
    yard.park("t-1", "o-1", "o-2")
    yard.park("t-2", "o-3")
    stopped = yard.worker()
    yard.until("o-1")
    stopped.send_signal(how)
    assert stopped.stderr is not None
    assert "finishing" in stopped.stderr.readline()
    yard.go()
    assert said(stopped).endswith("stopped\n")
    yard.until("o-1")
    assert (yard.state("t-1"), yard.state("t-2")) == ("redeemed", "review")
    assert "t-1: redeemed -> settled" in said(yard.worker("--once"))
    yard.until("o-1", "o-2", "o-3")


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


def test_a_worker_without_tools_is_refused(yard: Yard) -> None:
    (yard.folder / "yard_tools.py").write_text("")
    said(yard.worker("--once"), 1)


def found(n: int, note: str = "people are asked", after: str = "review") -> Resumed:
    return Resumed(f"txn-{n}", f"t-{n}", "review", after, note)


def test_a_worker_tells_of_a_change_once() -> None:
    told = Told()
    for one, new in ((found(1), True), (found(1), False), (found(1, "denied"), True), (found(1), True)):
        assert told.is_new(one) is new
        told.end_of_round()


def test_a_worker_keeps_nothing_of_what_is_finished_however_long_it_runs() -> None:
    told = Told()
    assert told.is_new(found(0))
    for n in range(1, 1000):
        told.end_of_round()
        assert not told.is_new(found(0))
        assert told.is_new(found(n, "fired", "settled"))
        assert len(told) <= 4
    told.end_of_round()
    assert told.is_new(found(998, "fired", "settled")), "it came back: that is news"
