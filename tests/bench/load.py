"""A small HTTP client that is never the bottleneck: it sends bytes made before the clock starts.

Proofs are signed before the clock starts; while it runs, a client writes one request, waits for the whole answer and
writes the next. One process on uvloop plays all clients; how much of a core it took is part of every measurement.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import uvloop

from tests.bench.measuring import BenchError, without_collection

HOST = "127.0.0.1"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_PATIENCE_S = 60


def request(method: str, path: str, port: int, headers: dict[str, str], body: bytes = b"") -> bytes:
    """The bytes of one request on a connection that stays open."""
    sent = {"Host": f"{HOST}:{port}", **headers, "Content-Length": str(len(body))}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def drive(
    port: int,
    requests: Sequence[bytes],
    clients: int,
    *,
    holding: bytes,
    status: int = 201,
    took: list[float] | None = None,
) -> float:
    """Send all requests over so many connections; seconds from the first byte to the last answer.

    `took` gets the time of each response.

    Raises:
        BenchError: an answer had another status, or a body without these bytes: it was of something else.
    """
    with without_collection(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        times = [] if took is None else took
        return runner.run(_drive(port, requests, clients, status, holding, times))


async def _drive(
    port: int, requests: Sequence[bytes], clients: int, status: int, holding: bytes, took: list[float]
) -> float:
    waiting = iter(requests)
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: _Client(waiting, status, holding, took), HOST, port)
        for _ in range(clients)
    ]
    try:
        start = time.perf_counter()
        for _, client in made:
            client.send_next()
        async with asyncio.timeout(_PATIENCE_S):
            await asyncio.gather(*(client.done for _, client in made))
        return time.perf_counter() - start
    finally:
        for transport, _ in made:
            transport.close()
        await asyncio.sleep(0)  # a transport closes in the loop's next round


class _Client(asyncio.Protocol):
    def __init__(self, requests: Iterator[bytes], status: int, holding: bytes, took: list[float]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests = requests
        self._status = str(status).encode()
        self._holding = holding
        self._took = took
        self._sent = 0.0
        self._transport: asyncio.WriteTransport
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's inherits from nothing of asyncio

    def send_next(self) -> None:
        one = next(self._requests, None)
        if one is None:
            self.done.set_result(None)
        else:
            self._sent = time.perf_counter()
            self._transport.write(one)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, _, body = self._answer.partition(b"\r\n\r\n")
        length = _LENGTH.search(head + b"\r\n")
        if length is None or len(body) < int(length[1]):
            return
        self._answer = b""
        self._took.append(time.perf_counter() - self._sent)
        if head[9:12] == self._status and self._holding in body:
            self.send_next()
        elif not self.done.done():
            self.done.set_exception(BenchError(f"answered {head[9:12].decode()}: {body[:500]!r}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(BenchError(f"the server closed the connection ({exc})"))


# ------------------------------------------------------------------------------------------ who was busy

_TICKS = 100.0  # of /proc, on every Linux there is
_USER, _SYSTEM = 11, 12  # fields of /proc/PID/stat after the command's closing bracket


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS


def idle_seconds() -> float:
    """What all cores together have idled so far."""
    return int(Path("/proc/stat").read_text().split()[4]) / _TICKS


def resident_bytes(pid: int) -> int:
    """What a process keeps in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
