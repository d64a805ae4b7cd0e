"""Who may speak for an agent: a proof covers the method, path, query and bytes of one request, made just now."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from countersign.contract import TYP_RELEASE, PrivateKey, make_proof, open_token, sign
from tests.fakes.payments import Payments
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


async def sent(robot: Agent, *, proof: dict[str, Any], **request: Any) -> httpx2.Response:
    """A request with a proof made for something else in one member."""
    asked = {"method": "POST", "path": "/v1/evaluations", "body": BODY, **request}
    made = {
        "key": robot.key,
        "agent": robot.name,
        "method": asked["method"],
        "url_path": asked["path"].partition("?")[0],
        "query": asked["path"].partition("?")[2],
        "body": asked["body"],
        "nonce": robot.nonce,
        "now": int(robot.clock().timestamp()),
    } | proof
    headers = {"Agent-Proof": make_proof(made.pop("key"), **made), "Content-Type": "application/json"}
    return await robot.http.request(asked["method"], asked["path"], content=asked["body"], headers=headers)


async def test_a_request_without_proof_is_asked_for_one(bank: World) -> None:
    answer = await bank.http.get("/v1/transactions/" + "0" * 64)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Agent-Proof"
    assert answer.headers["agent-nonce"]


WRONG = {
    "another agent's name": {"agent": "somebody"},
    "another method": {"method": "PUT"},
    "another path": {"url_path": "/v1/outcomes"},
    "the path with a slash more": {"url_path": "/v1/evaluations/"},
    "another query": {"query": "a=1"},
    "another body": {"body": BODY + b" "},
    "no body": {"body": b""},
    "a key nobody enrolled": {"key": PrivateKey.generate()},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_a_proof_of_something_else_is_refused(robot: Agent, wrong: dict[str, Any]) -> None:
    answer = await sent(robot, proof=wrong)
    assert (answer.status_code, answer.json()["code"]) == (401, "bad_proof")
    assert "releases" not in answer.text


@pytest.mark.parametrize("path", ["/v1/audit?after=1", "/v1/audit?after=0&limit=5"])
async def test_a_proof_covers_the_query(robot: Agent, path: str) -> None:
    request = {"method": "GET", "path": path, "body": b""}
    assert (await sent(robot, proof={}, **request)).status_code == 200
    assert (await sent(robot, proof={"query": ""}, **request)).json()["code"] == "bad_proof"
    assert (await sent(robot, proof={"query": "after=2"}, **request)).json()["code"] == "bad_proof"


AGES = {"a second ago": (-1, 400), "just young enough": (-59, 400), "a little too old": (-62, 401)}
AGES |= {"within the leeway of a fast clock": (4, 400), "too far ahead": (8, 401)}


@pytest.mark.parametrize(("seconds", "status"), AGES.values(), ids=AGES)
async def test_a_proof_is_young(robot: Agent, seconds: int, status: int) -> None:
    answer = await sent(robot, proof={"now": int(robot.clock().timestamp()) + seconds})
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize("nonce", ["none-yet", "x" * 24, "é"])
async def test_a_nonce_that_is_not_ours_is_answered_with_one_that_is(robot: Agent, nonce: str) -> None:
    answer = await sent(robot, proof={"nonce": nonce})
    assert (answer.status_code, answer.json()["code"]) == (401, "use_nonce")
    again = await sent(robot, proof={"nonce": answer.headers["agent-nonce"]})
    assert again.status_code == 400


GARBAGE = {
    "nothing": "",
    "no token": "abc",
    "three dots": "...",
    "a header that is no JSON": "e30x.e30.c2ln",
    "a header that is a list": "W10.e30.c2ln",
    "a kid that is a number": "eyJraWQiOjF9.e30.c2ln",
    "a very long header": "a" * 600 + ".e30.c2ln",
    "two proofs in one": "a.b.c, d.e.f",
}


@pytest.mark.parametrize("proof", GARBAGE.values(), ids=GARBAGE)
async def test_what_is_no_token_is_no_proof(bank: World, proof: str) -> None:
    answer = await bank.http.get("/v1/tools/pay", headers={"Agent-Proof": proof})
    assert answer.status_code == 401
    assert answer.json()["code"] in {"bad_proof", "unauthenticated"}


async def test_a_token_of_another_kind_is_no_proof(bank: World, robot: Agent) -> None:
    claims = {"sub": robot.name, "htm": "GET", "path": "/v1/tools/pay"}
    token = sign(claims, typ="effect-release+jwt", key=robot.key)
    answer = await bank.http.get("/v1/tools/pay", headers={"Agent-Proof": token})
    assert (answer.status_code, answer.json()["code"]) == (401, "bad_proof")


async def test_a_replay_inside_the_window_changes_nothing(bank: World, robot: Agent) -> None:
    raw = json.dumps({"run_key": "replayed", "effects": [await pay(bank)]}).encode()
    headers = {
        "Agent-Proof": robot.proof("POST", "/v1/transactions", raw),
        "Content-Type": "application/json",
        "Idempotency-Key": uuid4().hex,
    }
    answers = [await bank.http.post("/v1/transactions", content=raw, headers=headers) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 200, 200]
    assert {(answer.json()["txn"], answer.json()["rev"]) for answer in answers} == {
        (answers[0].json()["txn"], 1)
    }


@pytest.mark.parametrize("host", ["evil.example", "localhost:8420", "127.0.0.1:9999", ""])
async def test_a_request_for_another_host_is_misdirected(robot: Agent, host: str) -> None:
    answer = await robot.send("GET", "/v1/tools/pay", headers={"Host": host})
    assert (answer.status_code, answer.json()["code"]) == (421, "misdirected_host")


async def test_an_api_key_is_no_proof_where_they_are_switched_off(bank: World) -> None:
    headers = {"Authorization": "Bearer csk_whatever"}
    answer = await bank.http.get("/v1/tools/pay", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


async def test_an_agent_key_opens_no_door_for_people(robot: Agent) -> None:
    for path in ("/v1/reviews", "/v1/tasks"):
        answer = await robot.send("GET", path)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


async def test_api_keys_work_on_loopback_when_switched_on_and_their_releases_are_bound_to_no_key(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "data", Payments(tmp_path / "bundle").path, api_keys=True) as bank:
        await bank.agent("robot")
        secret = (await bank.operator("api-key", {"name": "robot"}))["api_key"]
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        body = {"run_key": "r", "effects": [await pay(bank)], "attempt_id": "a1"}
        answer = await bank.http.post(
            "/v1/transactions", json=body, headers={**headers, "Idempotency-Key": "k1"}
        )
        assert answer.status_code == 201 and answer.json()["state"] == "redeemed", answer.text
        release = open_token(
            answer.json()["releases"][0], typ=TYP_RELEASE, key_for=bank.service.ctx.signer.keys.get
        )
        assert release.claims["cnf"] == "none"
        await bank.agent("other")
        theirs = (await bank.operator("api-key", {"name": "other"}))["api_key"]
        body = {"tokens": answer.json()["releases"], "attempt_id": "a2"}
        stolen = await bank.http.post(
            "/v1/redemptions", json=body, headers={**headers, "Authorization": f"Bearer {theirs}"}
        )
        assert (stolen.status_code, stolen.json()["code"]) == (403, "not_redeemer")  # bound to its party
        wrong = await bank.http.get("/v1/tools/pay", headers={"Authorization": f"Bearer {secret[:-1]}x"})
        assert (wrong.status_code, wrong.json()["code"]) == (401, "unauthenticated")
        await bank.operator("revoke-agent", {"agent": "robot", "reason": "it was taken over"})
        assert (await bank.http.get("/v1/transactions", headers=headers)).status_code == 401
