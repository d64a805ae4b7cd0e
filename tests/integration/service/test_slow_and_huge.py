"""Strangers that are slow, or long, on purpose: they get no more than a connection and a moment, and hold up nobody."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn

from policy_service.channels.http.connections import MAX_HEAD_BYTES, BoundedConnection
from policy_service.cli import _uvicorn_config
from tests.fakes.operated import free_port
from tests.fakes.world import Agent, World
from tests.integration.service.effects import pay

pytestmark = pytest.mark.anyio

SOON = 0.3

HOST = b"Host: 127.0.0.1:8420\r\n"
GET, BODY = b"GET /healthz HTTP/1.1\r\n", b"POST /v1/transactions HTTP/1.1\r\n"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedConnection, "head_s", SOON)
    monkeypatch.setattr(BoundedConnection, "body_s", SOON)


@asynccontextmanager
async def door(world: World) -> AsyncIterator[int]:
    """The public door as `serve` opens it."""
    port = free_port()
    settings = world.settings.model_copy(update={"port": port})
    server = uvicorn.Server(_uvicorn_config(world.app, settings))
    serving = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110  uvicorn tells it by nothing else
        await asyncio.sleep(0.01)
    try:
        yield port
    finally:
        server.should_exit = True
        await serving


async def spoken(port: int, *parts: bytes, every: float = 0.0) -> tuple[bytes, float]:
    """What is answered until the connection ends, and how long that took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = time.monotonic()

    async def speak() -> None:
        for part in parts:
            try:
                writer.write(part)
                await writer.drain()
            except ConnectionError:
                return
            await asyncio.sleep(every)

    speaking = asyncio.create_task(speak())
    try:
        async with asyncio.timeout(10):
            answer = await reader.read()
    except ConnectionError:
        answer = b""
    took = time.monotonic() - begun
    speaking.cancel()
    writer.close()
    return answer, took


SLOW = {
    "says nothing": (),
    "a head that never ends": (b"GET /healthz HTTP/1.1\r\n", *[b"X-A: b\r\n"] * 100),
    "a body that never ends": (BODY + HOST + b"Content-Length: 1000\r\n\r\n", *[b"{"] * 100),
    "a second head that never ends": (GET + HOST + b"\r\n", GET, *[b"X-A: b\r\n"] * 100),
}


@pytest.mark.usefixtures("impatient")
async def test_who_is_slow_on_purpose_is_let_go(bank: World) -> None:
    async with door(bank) as port:
        for name, parts in SLOW.items():
            _, took = await spoken(port, *parts, every=0.1)
            assert SOON * 0.9 <= took < 5, name
            answer, _ = await spoken(port, GET + b"Connection: close\r\n" + HOST + b"\r\n")
            assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.usefixtures("impatient")
async def test_an_answer_may_take_its_time_and_so_may_the_pause_between_two(
    bank: World, robot: Agent
) -> None:
    path = f"/v1/transactions/{(await robot.submit(await pay(bank, 500))).json()['txn']}"
    wait = f"Prefer: wait=1\r\nAgent-Proof: {robot.proof('GET', path)}\r\nConnection: close\r\n"
    async with door(bank) as port:
        answer, took = await spoken(port, f"GET {path} HTTP/1.1\r\n{wait}".encode() + HOST + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert took > SOON * 2


HUGE = {
    "one header": GET + b"X-A: " + b"a" * 4 * MAX_HEAD_BYTES,
    "many headers": GET + b"X-A: b\r\n" * MAX_HEAD_BYTES,
    "an address": b"GET /" + b"a" * 4 * MAX_HEAD_BYTES,
    "a head that is whole": GET + HOST + b"X-A: " + b"a" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n",
}


async def test_a_head_that_is_too_long_is_refused_before_it_ends(bank: World) -> None:
    body = b" " * (3 * MAX_HEAD_BYTES)
    head = f"Content-Length: {len(body)}\r\nConnection: close\r\nContent-Type: application/json\r\n".encode()
    async with door(bank) as port:
        for name, long_head in HUGE.items():
            answer, took = await spoken(port, long_head)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400"), name
            assert took < 5
        answer, _ = await spoken(port, BODY + head + HOST + b"\r\n" + body)
    assert answer.startswith(b"HTTP/1.1 401"), "a large body in the same breath is no long head"


async def test_nothing_packed_is_unpacked(bank: World, robot: Agent) -> None:
    body = json.dumps({"run_key": "x", "effects": []}).encode()
    bomb = gzip.compress(b" " * 50_000_000 + body, compresslevel=1)
    headers = {"Content-Encoding": "gzip", "Idempotency-Key": "k"}
    for path in ("/v1/transactions", "/v1/evaluations"):
        answer = await robot.send("POST", path, bomb, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    as_it_is = headers | {"Content-Encoding": "identity"}
    sent = {"run_key": "x", "effects": [await pay(bank)]}
    assert (await robot.send("POST", "/v1/transactions", sent, headers=as_it_is)).status_code == 201
