"""What a sender may have the service read before it is identified: the head of a request, and little more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx2
import pytest

from tests.fakes.payments import Payments
from tests.fakes.streaming import served
from tests.fakes.world import Agent, World, running
from tests.integration.service.effects import pay

pytestmark = pytest.mark.anyio

HOST = b"Host: 127.0.0.1:8420\r\n"
CLOSE = b"Connection: close\r\n"


@pytest.fixture(scope="module")
async def bank(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """One service for all."""
    folder = tmp_path_factory.mktemp("before-authentication")
    async with running(folder / "data", Payments(folder / "bundle").path) as started:
        yield started


@pytest.fixture(scope="module")
async def robot(bank: World) -> Agent:
    """An agent that knows a nonce."""
    agent = await bank.agent("robot")
    await agent.send("GET", "/v1/tools/pay")
    return agent


@pytest.fixture(scope="module")
async def port(bank: World) -> AsyncIterator[int]:
    """Where the service listens."""
    async with served(bank) as port:
        yield port


async def answered(port: int, sent: bytes) -> bytes:
    """What is answered until the service closes, although the client sends nothing more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        async with asyncio.timeout(5):
            return await reader.read()
    finally:
        writer.close()


JSON = b"Content-Type: application/json\r\n"
FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"
ORIGIN = b"Origin: http://127.0.0.1:8420\r\n"
LARGE = b"Content-Length: 1000000\r\n"
# The head of a request whose body of a megabyte is still to come, and the status that refuses it all the same.
STRANGERS = {
    "no proof": (b"POST /v1/transactions", JSON, b"401"),
    "a proof that is none": (b"POST /v1/transactions", JSON + b"Agent-Proof: e30.e30.AAAA\r\n", b"401"),
    "an API key that is none": (b"POST /v1/redemptions", JSON + b"Authorization: Bearer a\r\n", b"401"),
    "no proof, with GET": (b"GET /v1/tools/pay", b"", b"401"),
    "no session": (b"POST /v1/reviews/x/votes", JSON, b"401"),
    "a session that is none": (b"POST /v1/reviews/x/votes", JSON + b"Cookie: countersign_dev=a\r\n", b"401"),
    "a key of its own, and no issuer": (b"POST /v1/agent-keys", JSON + b"Agent-Proof: a\r\n", b"401"),
    "no route": (b"POST /nowhere", JSON, b"404"),
    "another method": (b"POST /healthz", JSON, b"405"),
}


CHUNKED = b"Transfer-Encoding: chunked\r\n"
TOO_LARGE = {
    "a form": (b"POST /sign-in/dev", FORM + ORIGIN + LARGE, b"413"),
    "a logout": (b"POST /sign-in/x/backchannel-logout", FORM + LARGE, b"400"),
    "a webhook": (b"POST /v1/policies/sync", b"X-Gitlab-Token: a\r\nContent-Length: 5000000\r\n", b"413"),
}
WAITING = {
    **{
        f"{name}, by length": (line, headers + LARGE, status)
        for name, (line, headers, status) in STRANGERS.items()
    },
    **{
        f"{name}, chunked": (line, headers + CHUNKED, status)
        for name, (line, headers, status) in STRANGERS.items()
    },
    **TOO_LARGE,
}


@pytest.mark.parametrize(("line", "headers", "status"), WAITING.values(), ids=WAITING)
async def test_a_large_body_of_a_stranger_is_not_waited_for(
    port: int, line: bytes, headers: bytes, status: bytes
) -> None:
    answer = await answered(port, line + b" HTTP/1.1\r\n" + HOST + headers + CLOSE + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 " + status)


async def test_an_agents_large_body_is_not_waited_for_without_the_nonce(robot: Agent, port: int) -> None:
    proof = (
        f"Agent-Proof: {replace(robot, nonce='old').proof('POST', '/v1/transactions', b'any')}\r\n".encode()
    )
    head = b"POST /v1/transactions HTTP/1.1\r\n" + HOST + JSON + LARGE + CLOSE
    answer = await answered(port, head + proof + b"\r\n")
    assert b'"use_nonce"' in answer


@pytest.mark.parametrize("size", [1_000, 100_000])
async def test_a_body_that_is_not_the_signed_one_is_refused(robot: Agent, size: int) -> None:
    signed, sent = b" " * size + b"{}", b" " * size + b"[]"
    proof = robot.proof("POST", "/v1/transactions", signed)
    headers = {"Agent-Proof": proof, "Content-Type": "application/json"}
    answer = await robot.http.post("/v1/transactions", content=sent, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "bad_proof")


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_agents_large_body_is_read(bank: World, robot: Agent, port: int, chunked: bool) -> None:
    raw = json.dumps({"run_key": f"large-{chunked}", "effects": [await pay(bank)]}).encode() + b" " * 100_000

    async def pieces() -> AsyncIterator[bytes]:
        yield raw[:50_000]
        yield raw[50_000:]

    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        newcomer = replace(robot, nonce="old")
        for expected in (401, 201):
            answer = await http.post(
                "/v1/transactions",
                content=pieces() if chunked else raw,
                headers={
                    "Host": "127.0.0.1:8420",
                    "Agent-Proof": newcomer.proof("POST", "/v1/transactions", raw),
                    "Content-Type": "application/json",
                    "Idempotency-Key": f"large-{chunked}",
                },
            )
            newcomer.nonce = answer.headers["agent-nonce"]
            assert answer.status_code == expected


TRAILING = {
    "Host": (b"", HOST, b"421"),
    "the proof": (HOST, b"Agent-Proof: PROOF\r\n", b"401"),
    "the media type": (HOST + b"Agent-Proof: PROOF\r\n", JSON, b"415"),
    "the key": (HOST + JSON + b"Agent-Proof: PROOF\r\n", b"Idempotency-Key: k\r\n", b"400"),
}


@pytest.mark.parametrize(("leading", "trailing", "status"), TRAILING.values(), ids=TRAILING)
async def test_a_header_that_arrives_as_a_trailer_is_absent(
    bank: World, robot: Agent, port: int, leading: bytes, trailing: bytes, status: bytes
) -> None:
    raw = json.dumps({"run_key": "trailers", "effects": [await pay(bank)]}).encode()
    proof = robot.proof("POST", "/v1/transactions", raw).encode()
    head = b"POST /v1/transactions HTTP/1.1\r\n" + CLOSE + CHUNKED + leading
    body = b"%x\r\n%s\r\n0\r\n" % (len(raw), raw) + trailing + b"\r\n"
    answer = await answered(port, (head + b"\r\n" + body).replace(b"PROOF", proof))
    assert answer.startswith(b"HTTP/1.1 " + status)
