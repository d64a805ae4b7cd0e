"""Who may speak for an agent: a proof covers the method, path, query and bytes of one request, made just now."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from countersign.contract import TYP_RELEASE, PrivateKey, make_proof, open_token, sign
from tests.fakes.payments import Payments, plain_forbid
from tests.fakes.world import Agent, World, running
from tests.integration.service.effects import pay

pytestmark = pytest.mark.anyio

BODY = b'{"run_key":"r","effects":[]}'


@pytest.fixture(scope="module")
async def bank(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """One service for all: nothing here changes anything."""
    folder = tmp_path_factory.mktemp("proofs")
    async with running(folder / "data", Payments(folder / "bundle").path) as started:
        yield started


@pytest.fixture(scope="module")
async def robot(bank: World) -> Agent:
    """An enrolled agent that has a nonce."""
    agent = await bank.agent("robot")
    assert (await agent.send("GET", "/v1/tools/pay")).status_code == 200
    return agent


async def sent(
    robot: Agent, *, method: str = "POST", path: str = "/v1/evaluations", **proof: Any
) -> httpx2.Response:
    """A request with a proof made for something else in one member."""
    body = BODY if method == "POST" else b""
    url_path, _, query = path.partition("?")
    made = {
        "key": robot.key, "agent": robot.name, "method": method, "url_path": url_path, "query": query, "body": body,
        "nonce": robot.nonce, "now": int(robot.clock().timestamp()),
    } | proof  # fmt: skip
    headers = {"Agent-Proof": make_proof(made.pop("key"), **made), "Content-Type": "application/json"}
    return await robot.http.request(method, path, content=body, headers=headers)


def code_of(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def test_a_request_without_proof_is_asked_for_one(bank: World) -> None:
    for headers in ({}, {"Authorization": "Bearer csk_whatever"}):  # API keys are off
        answer = await bank.http.get("/v1/transactions/" + "0" * 64, headers=headers)
        assert code_of(answer) == (401, "unauthenticated")
        assert answer.headers["www-authenticate"] == "Agent-Proof"
        assert answer.headers["agent-nonce"]


async def test_a_proof_of_something_else_is_refused(robot: Agent) -> None:
    for wrong in (
        {"agent": "somebody"},
        {"url_path": "/v1/outcomes"},
        {"url_path": "/v1/evaluations/"},
        {"query": "a=1"},
        {"body": BODY + b" "},
        {"body": b""},
        {"key": PrivateKey.generate()},
    ):
        assert code_of(await sent(robot, **wrong)) == (401, "bad_proof"), wrong
    put = make_proof(
        robot.key, agent=robot.name, method="PUT", url_path="/v1/evaluations", query="", body=BODY,
        nonce=robot.nonce, now=int(robot.clock().timestamp()),
    )  # fmt: skip
    headers = {"Agent-Proof": put, "Content-Type": "application/json"}
    answer = await robot.http.post("/v1/evaluations", content=BODY, headers=headers)
    assert code_of(answer) == (401, "bad_proof")


async def test_a_proof_covers_the_query(robot: Agent) -> None:
    for path in ("/v1/audit?after=1", "/v1/audit?after=0&limit=5"):
        assert (await sent(robot, method="GET", path=path)).status_code == 200
        for query in ("", "after=2"):
            answer = await sent(robot, method="GET", path=path, query=query)
            assert code_of(answer) == (401, "bad_proof")


async def test_a_proof_is_young(robot: Agent) -> None:
    for seconds, status in ((-1, 400), (-59, 400), (-62, 401), (4, 400), (8, 401)):
        answer = await sent(robot, now=int(robot.clock().timestamp()) + seconds)
        assert answer.status_code == status, seconds


async def test_a_nonce_that_is_not_ours_is_answered_with_one_that_is(robot: Agent) -> None:
    for nonce in ("none-yet", "x" * 24, "é"):
        answer = await sent(robot, nonce=nonce)
        assert code_of(answer) == (401, "use_nonce")
        assert (await sent(robot, nonce=answer.headers["agent-nonce"])).status_code == 400


GARBAGE = [
    "",
    "abc",
    "...",
    "e30x.e30.c2ln",
    "W10.e30.c2ln",
    "eyJraWQiOjF9.e30.c2ln",
    "a" * 600 + ".e30.c2ln",
]


async def test_what_is_no_token_or_one_of_another_kind_is_no_proof(bank: World, robot: Agent) -> None:
    claims = {"sub": robot.name, "htm": "GET", "path": "/v1/tools/pay"}
    another_kind = sign(claims, typ="effect-release+jwt", key=robot.key)
    for proof in (*GARBAGE, "a.b.c, d.e.f", another_kind):
        answer = await bank.http.get("/v1/tools/pay", headers={"Agent-Proof": proof})
        assert code_of(answer) == (401, "bad_proof"), proof


async def test_a_replay_inside_the_window_changes_nothing(bank: World, robot: Agent) -> None:
    raw = json.dumps({"run_key": "replayed", "effects": [await pay(bank)]}).encode()
    proof = robot.proof("POST", "/v1/transactions", raw)
    headers = {"Agent-Proof": proof, "Content-Type": "application/json", "Idempotency-Key": "replayed"}
    answers = [await bank.http.post("/v1/transactions", content=raw, headers=headers) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 200, 200]
    assert {(answer.json()["txn"], answer.json()["rev"]) for answer in answers} == {
        (answers[0].json()["txn"], 1)
    }


async def test_a_request_for_another_host_is_misdirected(robot: Agent) -> None:
    for host in ("evil.example", "localhost:8420", "127.0.0.1:9999", ""):
        answer = await robot.send("GET", "/v1/tools/pay", headers={"Host": host})
        assert code_of(answer) == (421, "misdirected_host"), host


async def test_an_agent_key_opens_no_door_for_people(robot: Agent) -> None:
    for path in ("/v1/reviews", "/v1/tasks"):
        assert code_of(await robot.send("GET", path)) == (401, "unauthenticated")


async def test_api_keys_work_on_loopback_and_bind_releases_to_no_key(tmp_path: Path) -> None:
    bundle = Payments(tmp_path / "bundle").rules(
        plain_forbid("no-api-keys", 'principal.proof == "api_key" && context.input.amount > 20')
    )
    async with running(tmp_path / "data", bundle.path, api_keys=True) as bank:

        async def bearer(name: str) -> dict[str, str]:
            secret = (await bank.operator("api-key", {"name": name}))["api_key"]
            return {"Authorization": f"Bearer {secret}", "Idempotency-Key": "k1"}

        robot, _ = await bank.agent("robot"), await bank.agent("other")
        headers = await bearer("robot")
        body = {"run_key": "r", "effects": [await pay(bank)], "attempt_id": "a1"}
        answer = await bank.http.post("/v1/transactions", json=body, headers=headers)
        assert answer.status_code == 201 and answer.json()["state"] == "redeemed", answer.text
        tokens = answer.json()["releases"]
        release = open_token(tokens[0], typ=TYP_RELEASE, key_for=bank.service.ctx.signer.keys.get)
        assert release.claims["cnf"] == "none"
        body = {"tokens": tokens, "attempt_id": "a2"}
        stolen = await bank.http.post("/v1/redemptions", json=body, headers=await bearer("other"))
        assert code_of(stolen) == (403, "not_redeemer")  # bound to its party
        # a rule about API keys holds for whoever redeems
        view = (await robot.submit(await pay(bank, 30), run_key="by key")).json()
        path = f"/v1/transactions/{view['txn']}/release"
        released = await bank.http.post(path, json={"rev": view["rev"]}, headers=headers)
        body = {"tokens": released.json()["releases"], "attempt_id": "a3"}
        answer = await bank.http.post("/v1/redemptions", json=body, headers=headers)
        assert answer.json()["redeemed"] is False
        assert (await robot.see(view["txn"]))["state"] == "ended"
        wrong = {"Authorization": f"{headers['Authorization'][:-1]}x"}
        assert code_of(await bank.http.get("/v1/tools/pay", headers=wrong)) == (401, "unauthenticated")
        await bank.operator("revoke-agent", {"agent": "robot", "reason": "it was taken over"})
        assert (await bank.http.get("/v1/transactions", headers=headers)).status_code == 401
