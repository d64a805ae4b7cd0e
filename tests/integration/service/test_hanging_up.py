"""Clients that go away in the middle, and bodies without an end: the service finishes a unit whole or not at all, and
what is not wanted takes no memory.
"""

from __future__ import annotations

import asyncio
import json
import re
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.log_check import faults_of_log
from tests.fakes.payments import Payments
from tests.fakes.streaming import served
from tests.fakes.world import URL, Agent, World, running
from tests.integration.service.effects import mail, pay

pytestmark = pytest.mark.anyio

HOST = URL.removeprefix("http://")


@pytest.fixture(scope="module")
async def bank(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """One service for all; at the end its log is sound (I-8)."""
    folder = tmp_path_factory.mktemp("hanging-up")
    async with running(folder / "data", Payments(folder / "bundle").path) as started:
        yield started
        assert await started.service.db.read(faults_of_log) == []


@pytest.fixture(scope="module")
async def robot(bank: World) -> Agent:
    """The agent that hangs up; it knows a nonce."""
    agent = await bank.agent("robot")
    await agent.send("GET", "/v1/tools/pay")
    return agent


def request_of(robot: Agent, path: str, body: Any, **headers: str) -> bytes:
    """One request as bytes, with its proof."""
    raw = json.dumps(body).encode()
    sent = {
        "Host": HOST,
        "Agent-Proof": robot.proof("POST", path, raw),
        "Content-Type": "application/json",
        "Content-Length": str(len(raw)),
        **headers,
    }
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in sent.items())
    return head.encode() + b"\r\n" + raw


async def hang_up(port: int, request: bytes, *, after: float = 0.0, reset: bool = False) -> None:
    """Send this much, wait so long, and be gone, with a goodbye or without one."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await writer.drain()
    await asyncio.sleep(after)
    if reset:
        writer.transport.abort()
    else:
        writer.close()


# Where the line goes dead: how much of the request was sent, and how long the service had.
MOMENTS = {
    "in the headers": (0.3, 0.0),
    "a byte before the end": (0.999, 0.0),
    "as soon as it was sent": (1.0, 0.0),
    "a moment later": (1.0, 0.002),
    "while it may be committing": (1.0, 0.01),
    "when it was answered": (1.0, 0.3),
}


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize(("share", "after"), MOMENTS.values(), ids=MOMENTS)
async def test_who_hangs_up_while_redeeming_has_redeemed_everything_or_nothing(
    bank: World, robot: Agent, request: pytest.FixtureRequest, share: float, after: float, reset: bool
) -> None:
    run_key = re.sub(r"[^a-z]+", "-", request.node.name)
    view = (await robot.submit(await pay(bank), await mail(bank), run_key=run_key)).json()
    tokens = (await robot.release(view)).json()["releases"]
    raw = request_of(robot, "/v1/redemptions", {"tokens": tokens, "attempt_id": run_key})
    async with served(bank) as port:
        await hang_up(port, raw[: int(len(raw) * share)], after=after, reset=reset)
    states = {effect["state"] for effect in (await robot.see(view["txn"]))["effects"]}
    assert states in ({"released"}, {"redeemed"})
    if share < 1.0:
        assert states == {"released"}
    elif after >= 0.3:
        assert states == {"redeemed"}
    again = await robot.redeem(tokens, run_key)  # the same attempt, from a line that holds
    assert again.json()["redeemed"] is True
    assert [effect["state"] for effect in (await robot.see(view["txn"]))["effects"]] == ["redeemed"] * 2
    other = await robot.redeem(tokens, f"{run_key}-2")
    assert other.json()["code"] == "already_redeemed"


async def test_who_hangs_up_while_waiting_leaves_nobody_behind(bank: World, robot: Agent) -> None:
    effect = await pay(bank, 500)
    body = {"run_key": "waits", "effects": [effect]}
    raw = request_of(robot, "/v1/transactions", body, **{"Idempotency-Key": "waits", "Prefer": "wait=30"})
    async with served(bank) as port:
        await hang_up(port, raw, after=0.5)
    again = await robot.submit(effect, run_key="waits", idempotency_key="waits-2")
    assert (again.status_code, again.json()["rev"]) == (200, 1)


ENDLESS = {
    "in pieces": {"Transfer-Encoding": "chunked"},
    "with a length of a terabyte": {"Content-Length": str(2**40)},
    "with a length that is none": {"Content-Length": "many"},
    "with two lengths": {"Content-Length": "5\r\nContent-Length: 6"},
}


@pytest.mark.parametrize("lengths", ENDLESS.values(), ids=ENDLESS)
async def test_a_body_without_an_end_is_cut_off_and_takes_no_memory(
    bank: World, robot: Agent, lengths: dict[str, str]
) -> None:
    head = f"POST /v1/transactions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in lengths.items()) + "\r\n"
    piece = b'{"a":' * 13_107
    if "Transfer-Encoding" in lengths:
        piece = f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
    async with served(bank) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode())
        tracemalloc.start()
        try:
            status, sent = await _pour(reader, writer, piece, 1_600)  # 100 MB, were they taken
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            writer.close()
    assert status in {b"413", b"401", b"400", b""}
    assert sent < 8 * bank.settings.max_body_bytes
    assert peak < 4 * bank.settings.max_body_bytes
    assert (await robot.send("GET", "/v1/tools/pay")).status_code == 200


async def _pour(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, piece: bytes, times: int
) -> tuple[bytes, int]:
    """Send it again and again until the service has enough; its status, nothing if it only shut the door, and how
    much it let us send.
    """
    answer, sent = asyncio.ensure_future(reader.readline()), 0
    try:
        while not answer.done() and sent < times * len(piece):
            writer.write(piece)
            await asyncio.wait_for(writer.drain(), 20)
            sent += len(piece)
        line = await asyncio.wait_for(answer, 20)
    except OSError:
        line = b""
    return (line.split()[1] if line else b""), sent
