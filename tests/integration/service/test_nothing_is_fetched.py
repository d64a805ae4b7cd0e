"""What arrives names addresses, and none of them is visited: not in a token's header, nor in its claims."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from countersign.contract import PrivateKey
from tests.fakes.payments import Payments
from tests.fakes.world import Agent, World, running
from tests.integration.service.effects import pay

pytestmark = pytest.mark.anyio


@pytest.fixture
def trap() -> Iterator[tuple[socket.socket, str]]:
    """A port that would notice a visitor, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


def visited(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[World]:
    """A service that trusts one issuer, elsewhere."""
    agents = [{"agent": "robot", "claims": {"sub": "robot"}}]
    issuers = [{"name": "platform", "issuer": "https://issuer.invalid", "agents": agents}]
    folder = Payments(tmp_path / "bundle")
    async with running(tmp_path / "data", folder.path, trusted_issuers=issuers) as started:
        yield started


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def with_header(token: str, **members: Any) -> str:
    head, payload, signature = token.split(".")
    header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    return ".".join([part(header | members), payload, signature])


async def test_no_release_and_no_proof_leads_anywhere(bank: World, trap: tuple[socket.socket, str]) -> None:
    listener, url = trap
    robot = await bank.agent("robot")
    view = (await robot.submit(await pay(bank))).json()
    (token,) = (await robot.release(view)).json()["releases"]
    for member in ("jku", "x5u", "kid", "iss"):
        answer = await robot.redeem([with_header(token, **{member: f"{url}/keys"})])
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_token")
        proof = with_header(robot.proof("GET", "/v1/tools/pay"), **{member: f"{url}/keys"})
        answer = await bank.http.get("/v1/tools/pay", headers={"Agent-Proof": proof})
        assert (answer.status_code, answer.json()["code"]) == (401, "bad_proof")
    assert not visited(listener)
    assert (await robot.redeem([token])).json()["redeemed"] is True


async def test_no_token_leads_to_its_own_keys(bank: World, trap: tuple[socket.socket, str]) -> None:
    listener, url = trap
    await bank.operator("agent-enroll", {"name": "robot", "roles": []})
    key, now = PrivateKey.generate(), int(bank.clock().timestamp())
    for issuer, more in ((url, {}), (f"{url}/x", {"jku": f"{url}/keys", "x5u": f"{url}/cert"})):
        nonce = (await bank.http.get("/v1/tools/pay")).headers["agent-nonce"]
        claims = {
            "iss": issuer, "sub": "robot", "aud": bank.settings.public_url, "iat": now, "exp": now + 600,
        }  # fmt: skip
        header = {"alg": "RS256", "kid": "k1", "typ": "JWT", **more}
        token = f"{part(header)}.{part(claims)}.{part('signature')}"
        raw = json.dumps({"token": token, "x": key.public.jwk()["x"]}).encode()
        proof = Agent("robot", key, bank.http, bank.clock, nonce).proof("POST", "/v1/agent-keys", raw)
        headers = {"Agent-Proof": proof, "Content-Type": "application/json"}
        answer = await bank.http.post("/v1/agent-keys", content=raw, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "bad_proof")
    assert not visited(listener)
