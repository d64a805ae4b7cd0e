"""Requests name addresses in headers, claims and args, and the service visits none of them."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from countersign.contract import PrivateKey
from tests.fakes.world import Agent
from tests.integration.service.effects import pay
from tests.integration.service.together.bank import Bank, refusal


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


def test_a_visit_would_be_noticed(trap: tuple[socket.socket, str]) -> None:
    listener, url = trap
    assert not visited(listener)
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))):
        assert visited(listener)


@pytest.fixture
def settings() -> dict[str, Any]:
    """It trusts one issuer, elsewhere."""
    agents = [{"agent": "robot", "claims": {"sub": "robot"}}]
    return {"trusted_issuers": [{"name": "platform", "issuer": "https://issuer.invalid", "agents": agents}]}


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def with_header(token: str, **members: Any) -> str:
    head, payload, signature = token.split(".")
    header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    return ".".join([part(header | members), payload, signature])


async def test_no_release_and_no_proof_leads_anywhere(bank: Bank, trap: tuple[socket.socket, str]) -> None:
    listener, url = trap
    robot = await bank.agent("robot")
    (token,) = (await robot.release((await robot.submit(await pay(bank))).json())).json()["releases"]
    for member in ("jku", "x5u", "kid", "iss"):
        answer = await robot.redeem([with_header(token, **{member: f"{url}/keys"})])
        assert refusal(answer) == (400, "bad_token")
        proof = with_header(robot.proof("GET", "/v1/tools/pay"), **{member: f"{url}/keys"})
        answer = await bank.http.get("/v1/tools/pay", headers={"Agent-Proof": proof})
        assert refusal(answer) == (401, "bad_proof")
    assert not visited(listener)
    assert (await robot.redeem([token])).json()["redeemed"] is True


async def test_no_token_leads_to_its_own_keys(bank: Bank, trap: tuple[socket.socket, str]) -> None:
    listener, url = trap
    await bank.operator("agent-enroll", {"name": "robot", "roles": []})
    key, now = PrivateKey.generate(), int(bank.clock().timestamp())
    more: dict[str, str] = {}
    for issuer in (url, f"{url}/x"):
        nonce = (await bank.http.get("/v1/tools/pay")).headers["agent-nonce"]
        times = {"iat": now, "exp": now + 600}
        claims = {"iss": issuer, "sub": "robot", "aud": bank.settings.public_url, **times}
        header = {"alg": "RS256", "kid": "k1", "typ": "JWT", **more}
        token = f"{part(header)}.{part(claims)}.{part('signature')}"
        raw = json.dumps({"token": token, "x": key.public.jwk()["x"]}).encode()
        proof = Agent("robot", key, bank.http, bank.clock, nonce).proof("POST", "/v1/agent-keys", raw)
        headers = {"Agent-Proof": proof, "Content-Type": "application/json"}
        answer = await bank.http.post("/v1/agent-keys", content=raw, headers=headers)
        assert refusal(answer) == (401, "bad_proof")
        more = {"jku": f"{url}/keys", "x5u": f"{url}/cert"}
    assert not visited(listener)


async def test_addresses_in_args_and_claims_are_text(bank: Bank, trap: tuple[socket.socket, str]) -> None:
    listener, url = trap
    robot, maya = await bank.agent("robot"), await bank.person("maya")
    effect = await pay(bank, 500, account=f"{url}/account")
    view = (await robot.submit(effect, claimed={"purpose": f"see {url}/why"})).json()
    review = view["effects"][0]["review"]["review_id"]
    for path in (f"/v1/reviews/{review}", f"/reviews/{review}", "/", "/v1/reviews"):
        assert (await maya.get(path)).status_code == 200
    await maya.vote(view)
    assert (await robot.spend(view))["redeemed"] is True
    assert not visited(listener)
