"""M1, M2: what the service keeps in memory: just started, and while thousands of agents wait for people.

Every wait is a connection of its own with a signed question about a transaction in review, `Prefer: wait`. So many as
this machine lets a process have open are asked; the row says how many, and tells their growth as if 10,000 waited.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import uvloop

from countersign.contract import txn_id
from tests.bench.load import HOST, cpu_seconds, drive, resident_bytes
from tests.bench.measuring import BYTES, BenchError, Case, Group, Row, Sample
from tests.bench.servers import AGENT, Measured, Signer, echo, service

WAITERS = 10_000
FILES_BESIDE = 600  # what a process has open beside the waits, with room
WAIT_S = 280
AT_ONCE = 200  # signed and sent together: no proof is old when it arrives
_PATIENCE_S = 150
MIB = 1 << 20
MOST = "\N{LESS-THAN OR EQUAL TO} "


def _per_hundred(one: Mapping[str, Sample]) -> float:
    waits = one["waits"]
    return waits[BYTES] / waits["waiters"] * WAITERS / (100 * MIB)


ROWS = (
    Row("M1", "memory of the service, started \N{DIVISION SIGN} of the echo", "idle", "idle echo", BYTES, MOST + "1.6"),
    Row("M2", "memory that 10,000 long polls add \N{DIVISION SIGN} 100 MiB", "waits", "waits", BYTES, MOST + "1",
        of=_per_hundred),
)  # fmt: skip


def waiters() -> int:
    """How many waits fit into the files a process may have open; the service's limit is ours."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(WAITERS, limit - FILES_BESIDE)


def _in_review(signer: Signer, port: int) -> str:
    """A transaction that waits for people."""
    submission = signer.reviews(1)[0]
    drive(port, [submission], 1, holding=b'"state":"review"')
    name = json.loads(submission.partition(b"\r\n\r\n")[2])["run_key"]
    return txn_id(agent=AGENT, run_key=name)


async def _hold(running: Measured, signer: Signer, txn: str, count: int) -> int:
    """Open so many waits, look at the memory when all of them wait, and leave."""
    loop = asyncio.get_running_loop()
    answered: list[bytes] = []
    open_: list[asyncio.Transport] = []

    class Wait(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            answered.append(data)

    try:
        while len(open_) < count:
            some = await loop.run_in_executor(
                None, signer.looks, min(AT_ONCE, count - len(open_)), txn, WAIT_S
            )
            for question in some:
                transport, _ = await loop.create_connection(Wait, HOST, running.port)
                transport.write(question)
                open_.append(transport)
        await _settled(running.pid)
        if answered:
            raise BenchError(f"{len(answered)} of {count} waits were answered: {answered[0][:300]!r}")
        return resident_bytes(running.pid)
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


@contextmanager
def cases(folder: Path, wanted: frozenset[str]) -> Iterator[list[Case]]:
    """A service of its own, for its memory is looked at before anything is asked of it."""
    with service(folder / "waiting", max_wait_s=str(WAIT_S)) as (running, signer), echo() as (_, echo_pid):
        idle = resident_bytes(running.pid)

        def hold(seconds: float) -> Sample:
            del seconds
            txn = _in_review(signer, running.port)
            asyncio.run(_hold(running, signer, txn, min(100, waiters())))  # what any first question loads
            before, count = resident_bytes(running.pid), waiters()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                during = runner.run(_hold(running, signer, txn, count))
            return {BYTES: float(during - before), "waiters": float(count)}

        made = [
            Case("idle", lambda _: {BYTES: float(idle)}, once=True),
            Case("idle echo", lambda _: {BYTES: float(resident_bytes(echo_pid))}, once=True),
        ]
        yield [*made, Case("waits", hold, once=True)] if "waits" in wanted else made


GROUP = Group(ROWS, cases)
