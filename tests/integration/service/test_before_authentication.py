"""What a sender can cause before it is identified, and by disconnecting: little is read, and nothing is half done."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from structlog.testing import capture_logs

from policy_service.channels.http.middleware import SINGLE_VALUE_HEADERS
from tests.fakes.payments import Payments
from tests.fakes.streaming import served
from tests.fakes.world import Agent
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank, refusal, serving

HOST = b"Host: 127.0.0.1:8420\r\n"
CLOSE = b"Connection: close\r\n"


@pytest.fixture(scope="module")
async def bank(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bank]:
    """One service for all."""
    folder = tmp_path_factory.mktemp("before-authentication")
    async with serving(folder / "data", Payments(folder / "bundle")) as started:
        yield started


async def agent_of(bank: Bank) -> Agent:
    """An agent that knows a nonce."""
    agent = await bank.agent("robot")
    await agent.send("GET", "/v1/tools/pay")
    return agent


@pytest.fixture(scope="module")
async def robot(bank: Bank) -> Agent:
    """The agent of all."""
    return await agent_of(bank)


@pytest.fixture(scope="module")
async def port(bank: Bank) -> AsyncIterator[int]:
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
CHUNKED = b"Transfer-Encoding: chunked\r\n"
# The head of a request whose body of a megabyte is still to come, and the status that refuses it all the same.
STRANGERS = [
    (b"POST /v1/transactions", JSON, b"401"),
    (b"POST /v1/transactions", JSON + b"Agent-Proof: e30.e30.AAAA\r\n", b"401"),
    (b"POST /v1/redemptions", JSON + b"Authorization: Bearer a\r\n", b"401"),
    (b"POST /v1/reviews/x/votes", JSON, b"401"),
    (b"POST /v1/reviews/x/votes", JSON + b"Cookie: countersign_dev=a\r\n", b"401"),
    (b"POST /v1/agent-keys", JSON + b"Agent-Proof: a\r\n", b"401"),
    (b"POST /nowhere", JSON, b"404"),
    (b"POST /healthz", JSON, b"405"),
]
WAITING = [
    (b"POST /sign-in/dev", FORM + ORIGIN + LARGE, b"413"),
    (b"POST /sign-in/x/backchannel-logout", FORM + LARGE, b"400"),
    (b"POST /v1/policies/sync", b"X-Gitlab-Token: a\r\n" + LARGE, b"401"),
    *((line, headers + length, code) for line, headers, code in STRANGERS for length in (LARGE, CHUNKED)),
]


async def test_a_large_body_of_a_stranger_is_not_waited_for(port: int) -> None:
    for line, headers, status in WAITING:
        answer = await answered(port, line + b" HTTP/1.1\r\n" + HOST + headers + CLOSE + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 " + status), line


async def test_an_agents_large_body_is_not_waited_for_without_the_nonce(robot: Agent, port: int) -> None:
    proof = replace(robot, nonce="old").proof("POST", "/v1/transactions", b"any")
    head = b"POST /v1/transactions HTTP/1.1\r\n" + HOST + JSON + LARGE + CLOSE
    assert b'"use_nonce"' in await answered(port, head + f"Agent-Proof: {proof}\r\n\r\n".encode())


async def test_a_body_that_is_not_the_signed_one_is_refused(robot: Agent) -> None:
    for size in (1_000, 100_000):
        proof = robot.proof("POST", "/v1/transactions", b" " * size + b"{}")
        headers = {"Agent-Proof": proof, "Content-Type": "application/json"}
        answer = await robot.http.post("/v1/transactions", content=b" " * size + b"[]", headers=headers)
        assert refusal(answer) == (401, "bad_proof")


async def test_an_agents_large_body_is_read(bank: Bank, robot: Agent, port: int) -> None:
    raw = json.dumps({"run_key": "large", "effects": [await pay(bank)]}).encode() + b" " * 100_000

    async def pieces() -> AsyncIterator[bytes]:
        yield raw[:50_000]
        yield raw[50_000:]

    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        for chunked, statuses in ((False, (401, 201)), (True, (401, 200))):
            newcomer = replace(robot, nonce="old")
            for expected in statuses:
                proof = newcomer.proof("POST", "/v1/transactions", raw)
                headers = {"Host": "127.0.0.1:8420", "Agent-Proof": proof, "Idempotency-Key": "large"}
                answer = await http.post(
                    "/v1/transactions", content=pieces() if chunked else raw,
                    headers=headers | {"Content-Type": "application/json"},
                )  # fmt: skip
                newcomer.nonce = answer.headers["agent-nonce"]
                assert answer.status_code == expected


TRAILING = [
    (b"", HOST, b"421"),
    (HOST, b"Agent-Proof: PROOF\r\n", b"401"),
    (HOST + b"Agent-Proof: PROOF\r\n", JSON, b"415"),
    (HOST + JSON + b"Agent-Proof: PROOF\r\n", b"Idempotency-Key: k\r\n", b"400"),
]


async def test_a_header_that_arrives_as_a_trailer_is_absent(bank: Bank, robot: Agent, port: int) -> None:
    raw = json.dumps({"run_key": "trailers", "effects": [await pay(bank)]}).encode()
    proof = robot.proof("POST", "/v1/transactions", raw).encode()
    head = b"POST /v1/transactions HTTP/1.1\r\n" + CLOSE + CHUNKED
    body = b"%x\r\n%s\r\n0\r\n" % (len(raw), raw)
    for leading, trailing, status in TRAILING:
        sent = head + leading + b"\r\n" + body + trailing + b"\r\n"
        answer = await answered(port, sent.replace(b"PROOF", proof))
        assert answer.startswith(b"HTTP/1.1 " + status), trailing


# --- hanging up


BODIES = [
    (b"/v1/transactions", JSON + b"Agent-Proof: a\r\n"),
    (b"/v1/policies/sync", b"X-Gitlab-Token: a\r\n"),
    (b"/v1/reviews/x/votes", JSON),
    (b"/reviews/x/votes", FORM + ORIGIN),
    (b"/sign-in/dev", FORM + ORIGIN),
    (b"/sign-in/x/backchannel-logout", FORM),
    (b"/nowhere", JSON),
]
PARTS = [b"Content-Length: 100\r\n\r\n{", CHUNKED + b"\r\n1\r\n{\r\n"]


async def begun(port: int, sent: bytes) -> asyncio.StreamWriter:
    """A connection on which this much of a request was sent."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    await writer.drain()
    return writer


@contextmanager
def no_fault(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No error is logged meanwhile."""
    with capture_logs() as lines:
        yield
    assert [one for one in lines if one["log_level"] in {"error", "critical"}] == []
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []


async def test_hanging_up_in_mid_body_is_no_fault(port: int, caplog: pytest.LogCaptureFixture) -> None:
    heads = [b"POST " + path + b" HTTP/1.1\r\n" + HOST + headers for path, headers in BODIES]
    with no_fault(caplog):
        for reset in (False, True):
            writers = [await begun(port, head + part) for head in heads for part in PARTS]
            await asyncio.sleep(0.1)
            for writer in writers:
                writer.transport.abort() if reset else writer.close()
            await asyncio.sleep(0.1)


async def test_disconnecting_while_waiting_is_no_fault(
    bank: Bank, robot: Agent, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    txn = (await robot.submit(await pay(bank, 500), run_key="waiting")).json()["txn"]
    with no_fault(caplog):
        writers = []
        for path in ("/v1/events", f"/v1/transactions/{txn}"):
            own = f"Agent-Proof: {robot.proof('GET', path)}\r\nPrefer: wait=1\r\n\r\n".encode()
            writers.append(await begun(port, f"GET {path} HTTP/1.1\r\n".encode() + HOST + own))
        await asyncio.sleep(0.3)
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(1.0)


# --- every answer


ANSWERS = [
    ("GET", "/healthz", 200), ("GET", "/readyz", 200), ("GET", "/metrics", 200),
    ("GET", "/.well-known/jwks.json", 200), ("GET", "/v1/openapi.json", 200), ("GET", "/nowhere", 404),
    ("GET", "/v1/nowhere", 404), ("GET", "/static/x/y.js", 404), ("DELETE", "/healthz", 405),
    ("DELETE", "/sign-in", 405), ("GET", "/sign-in", 200), ("GET", "/", 303), ("POST", "/sign-in/dev", 403),
    ("POST", "/v1/transactions", 401), ("POST", "/sign-in/x/backchannel-logout", 400),
]  # fmt: skip


async def test_every_answer_says_that_its_type_is_not_to_be_guessed(bank: Bank) -> None:
    for method, path, status in ANSWERS:
        answer = await bank.http.request(method, path)
        assert answer.status_code == status, path
        assert answer.headers.get_list("x-content-type-options") == ["nosniff"], path
        assert ("agent-nonce" in answer.headers) == path.startswith("/v1/"), path
    for path in ("/", "/.well-known/jwks.json", "/v1/policies"):
        answer = await bank.http.get(path, headers={"Host": "evil.example"})
        assert (answer.status_code, answer.headers["x-content-type-options"]) == (421, "nosniff")


# --- ambiguous requests


async def test_a_header_that_is_read_once_is_refused_twice(bank: Bank) -> None:
    for name in SINGLE_VALUE_HEADERS - {"content-length", "transfer-encoding"}:
        twice = [(name, "127.0.0.1:8420"), (name.title(), "127.0.0.1:8420")]
        headers = twice if name == "host" else [("host", "127.0.0.1:8420"), *twice]
        for path in ("/v1/transactions", "/v1/policies/sync", "/sign-in/dev", "/healthz", "/nowhere"):
            request = httpx2.Request("POST", bank.settings.public_url + path, headers=headers, content=b"")
            answer = await bank.http.send(request)
            assert refusal(answer) == (400, "invalid_request"), (name, path)
            assert name in answer.json()["detail"]


async def test_a_form_in_another_encoding_is_refused(bank: Bank) -> None:
    for path in ("/sign-in/dev", "/reviews/x/votes", "/sign-in/x/backchannel-logout"):
        for charset in ("utf-16", "utf-7", "iso-8859-1", '"utf-16le"'):
            kind = f"application/x-www-form-urlencoded; charset={charset}"
            headers = {"Content-Type": kind, "Origin": bank.settings.public_url}
            answer = await bank.http.post(path, content=b"token=a", headers=headers)
            assert answer.status_code == 400, (path, charset)
            assert "UTF-8" in answer.text or path.endswith("logout")  # whose answer never says why


TARGETS = [
    (b"http://evil.example/v1/policies", HOST, b"421"),
    (b"http://127.0.0.1:8420/v1/policies", b"Host: evil.example\r\n", b"421"),
    (b"http://127.0.0.1:8420/v1/policies", HOST, b"401"),
    (b"http://evil.example/sign-in", HOST, b"421"),
]


async def test_a_target_of_another_host_is_misdirected(port: int) -> None:
    for target, host, status in TARGETS:
        answer = await answered(port, b"GET " + target + b" HTTP/1.1\r\n" + host + CLOSE + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 " + status), (target, host)


def request_of(robot: Agent, path: str, body: Any, **headers: str) -> bytes:
    """One request as bytes, with its proof."""
    raw = json.dumps(body).encode()
    sent = {"Agent-Proof": robot.proof("POST", path, raw), "Content-Length": str(len(raw)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items()).encode()
    return f"POST {path} HTTP/1.1\r\n".encode() + HOST + JSON + lines + b"\r\n" + raw


async def hang_up(port: int, request: bytes, *, after: float = 0.0, reset: bool = False) -> None:
    """Send this much, wait so long, and be gone, with a goodbye or without one."""
    writer = await begun(port, request)
    await asyncio.sleep(after)
    writer.transport.abort() if reset else writer.close()


# Where the line goes dead: how much of the request was sent, and how long the service had.
MOMENTS = [(0.3, 0.0), (0.999, 0.0), (1.0, 0.0), (1.0, 0.002), (1.0, 0.01), (1.0, 0.3)]


async def test_disconnecting_redeems_everything_or_nothing(own_bank: Bank) -> None:
    robot = await agent_of(own_bank)
    for n, (share, after) in enumerate(MOMENTS):
        view = (await robot.submit(await pay(own_bank), await mail(own_bank), run_key=f"run-{n}")).json()
        tokens = (await robot.release(view)).json()["releases"]
        raw = request_of(robot, "/v1/redemptions", {"tokens": tokens, "attempt_id": f"run-{n}"})
        async with served(own_bank) as port:
            await hang_up(port, raw[: int(len(raw) * share)], after=after, reset=n % 2 == 0)
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


async def test_disconnecting_while_waiting_leaves_no_waiter(own_bank: Bank) -> None:
    robot = await agent_of(own_bank)
    effect = await pay(own_bank, 500)
    body = {"run_key": "waits", "effects": [effect]}
    raw = request_of(robot, "/v1/transactions", body, **{"Idempotency-Key": "waits", "Prefer": "wait=30"})
    async with served(own_bank) as port:
        await hang_up(port, raw, after=0.5)
    again = await robot.submit(effect, run_key="waits", idempotency_key="waits-2")
    assert (again.status_code, again.json()["rev"]) == (200, 1)
