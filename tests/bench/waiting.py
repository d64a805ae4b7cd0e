"""M1, M2: what the service keeps in memory: after one spend, and while thousands of agents wait for people.

Every wait is a connection of its own with a signed question about a transaction in review, `Prefer: wait`. So many as
this machine lets a process have open are opened; the row says how many, and scales their growth to 10,000.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import uvloop

from countersign.contract import txn_id
from tests.bench.load import HOST, cpu_seconds, drive, resident_bytes
from tests.bench.measuring import BYTES, BenchError, Case, Group, Row, Sample
from tests.bench.servers import AGENT, Signer, echo, service
from tests.bench.submitting import RECEIPT

WAITERS = 10_000
OTHER_FILES = 600  # what a process has open besides the waits, with a reserve
WAIT_S = 280
AT_ONCE = 200  # signed and sent together: no proof is old when it arrives
_PATIENCE_S = 150
MIB = 1 << 20
MOST = "\N{LESS-THAN OR EQUAL TO} "


def _per_hundred(one: Mapping[str, Sample]) -> float:
    waits = one["waits"]
    return waits[BYTES] / waits["waiters"] * WAITERS / (100 * MIB)


ROWS = (
    Row("M1", "memory of the service after one spend \N{DIVISION SIGN} of the echo", "idle", "idle echo", BYTES,
        MOST + "2.2"),
    Row("M2", "memory that 10,000 long polls add \N{DIVISION SIGN} 100 MiB", "waits", "waits", BYTES, MOST + "1",
        of=_per_hundred),
)  # fmt: skip


def waiters() -> int:
    """How many waits fit into the files a process may have open; the service's limit is ours."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(WAITERS, limit - OTHER_FILES)


def _in_review(signer: Signer, port: int) -> str:
    """A transaction that waits for people."""
    submission = signer.reviews(1)[0]
    drive(port, [submission], 1, holding=b'"state":"review"')
    name = json.loads(submission.partition(b"\r\n\r\n")[2])["run_key"]
    return txn_id(agent=AGENT, run_key=name)


_Ask = Callable[[int], list[bytes]]


async def _hold(pid: int, port: int, ask: _Ask, count: int) -> int:
    """Open so many waits, look at the memory when all of them wait, and leave."""
    loop = asyncio.get_running_loop()
    answered: list[bytes] = []
    open_: list[asyncio.Transport] = []

    class Wait(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            answered.append(data)

    try:
        while len(open_) < count:
            some = await loop.run_in_executor(None, ask, min(AT_ONCE, count - len(open_)))
            for question in some:
                transport, _ = await loop.create_connection(Wait, HOST, port)
                transport.write(question)
                open_.append(transport)
        await _settled(pid)
        if answered:
            raise BenchError(f"{len(answered)} of {count} waits were answered: {answered[0][:300]!r}")
        return resident_bytes(pid)
    finally:
        for transport in open_:
            transport.abort()


async def _settled(pid: int) -> None:
    """Until the process has nothing to do any more: every question has been read and waits."""
    before, until = cpu_seconds(pid), time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        await asyncio.sleep(2)
        now = cpu_seconds(pid)
        if now - before < 0.2:
            return
        before = now
    raise BenchError("the service was still busy with the waits after minutes")


def _grown(pid: int, port: int, ask: _Ask) -> Sample:
    """What so many waits add to a process that has seen some before."""
    asyncio.run(_hold(pid, port, ask, min(100, waiters())))  # what any first question loads
    before, count = resident_bytes(pid), waiters()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        during = runner.run(_hold(pid, port, ask, count))
    return {BYTES: float(during - before), "waiters": float(count)}


@contextmanager
def cases(folder: Path, wanted: frozenset[str]) -> Iterator[list[Case]]:
    """A service of its own, whose memory is read after one spend."""
    with (
        service(folder / "waiting", max_wait_s=str(WAIT_S)) as (running, signer),
        echo() as (echo_port, echo_pid),
    ):
        for port, holding in ((running.port, RECEIPT), (echo_port, b'"run_key":')):
            drive(port, signer.submissions(1, spend=True), 1, holding=holding)
        idle, idle_echo = resident_bytes(running.pid), resident_bytes(echo_pid)

        def hold(seconds: float) -> Sample:
            del seconds
            txn = _in_review(signer, running.port)
            return _grown(running.pid, running.port, lambda count: signer.looks(count, txn, WAIT_S))

        made = [
            Case("idle", lambda _: {BYTES: float(idle)}, once=True),
            Case("idle echo", lambda _: {BYTES: float(idle_echo)}, once=True, reference=True),
            Case("waits", hold, once=True),
        ]
        yield [case for case in made if case.name in wanted]


GROUP = Group(ROWS, cases)
