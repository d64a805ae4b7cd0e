"""Clients that go away in the middle: the service finishes a unit whole or not at all."""

from __future__ import annotations

import asyncio
import json
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
MOMENTS = [(0.3, 0.0), (0.999, 0.0), (1.0, 0.0), (1.0, 0.002), (1.0, 0.01), (1.0, 0.3)]


async def test_who_hangs_up_has_redeemed_everything_or_nothing(bank: World, robot: Agent) -> None:
    for n, (share, after) in enumerate(MOMENTS * 2):
        view = (await robot.submit(await pay(bank), await mail(bank), run_key=f"run-{n}")).json()
        tokens = (await robot.release(view)).json()["releases"]
        raw = request_of(robot, "/v1/redemptions", {"tokens": tokens, "attempt_id": f"run-{n}"})
        async with served(bank) as port:
            await hang_up(port, raw[: int(len(raw) * share)], after=after, reset=n < len(MOMENTS))
        states = {effect["state"] for effect in (await robot.see(view["txn"]))["effects"]}
        assert states in ({"released"}, {"redeemed"})
        if share < 1.0:
            assert states == {"released"}
        elif after >= 0.3:
            assert states == {"redeemed"}
        again = await robot.redeem(tokens, f"run-{n}")  # the same attempt, from a line that holds
        assert again.json()["redeemed"] is True
        assert [effect["state"] for effect in (await robot.see(view["txn"]))["effects"]] == ["redeemed"] * 2
        assert (await robot.redeem(tokens, f"other-{n}")).json()["code"] == "already_redeemed"


async def test_who_hangs_up_while_waiting_leaves_nobody_behind(bank: World, robot: Agent) -> None:
    effect = await pay(bank, 500)
    body = {"run_key": "waits", "effects": [effect]}
    raw = request_of(robot, "/v1/transactions", body, **{"Idempotency-Key": "waits", "Prefer": "wait=30"})
    async with served(bank) as port:
        await hang_up(port, raw, after=0.5)
    again = await robot.submit(effect, run_key="waits", idempotency_key="waits-2")
    assert (again.status_code, again.json()["rev"]) == (200, 1)
