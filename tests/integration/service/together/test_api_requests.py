"""What a request of an agent may hold, strict I-JSON of fields we know, and whose it is: a proof covers all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from countersign.contract import TYP_RELEASE, PrivateKey, make_proof, open_token
from tests.fakes.payments import LARGE, Payments, plain_forbid
from tests.fakes.world import Agent, Visitor, running
from tests.integration.service.effects import pay
from tests.integration.service.together.bank import Bank, sizes


@pytest.fixture
async def robot(robot: Agent) -> Agent:
    """The agent knows a nonce."""
    assert (await robot.send("GET", "/v1/tools/pay")).status_code == 200
    return robot


async def refusal(robot: Agent, body: Any, path: str = "/v1/transactions", **headers: str) -> tuple[int, str]:
    """The status and code of a request with this body."""
    answer = await robot.send("POST", path, body, headers={"Idempotency-Key": "k", **headers})
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert problem["type"] == f"urn:countersign:problem:{problem['code']}"
    assert problem["status"] == answer.status_code and problem["detail"]
    return answer.status_code, problem["code"]


# More of them: tests/unit/contract/test_admission.py.
NOT_STRICT = [
    (b"", 415, "unsupported_media_type"),
    (b"{", 400, "not_json"),
    (b"[]", 400, "invalid_request"),
    (b'{"run_key":"a","run_key":"b","effects":[]}', 400, "duplicate_key"),
    (b'{"effects":[{"args":{"a":NaN}}]}', 400, "not_finite"),
    (b'{"claimed":{"__expr":"true"}}', 400, "reserved_key"),
    (b'{"effects":' + b"[" * 80 + b"]" * 80 + b"}", 400, "too_deep"),
    (b'{"run_key":"' + b"a" * 1_100_000 + b'"}', 413, "too_large"),
    (b'{"run_key":"' + b"a" * 4_300_000 + b'"}', 413, "too_large"),
]


async def test_what_is_not_strict_json_is_refused(bank: Bank, robot: Agent) -> None:
    before = (await bank.service.db.read(sizes))["audit"]
    for body, status, code in NOT_STRICT:
        assert await refusal(robot, body) == (status, code), body[:60]
    assert (await bank.service.db.read(sizes))["audit"] == before


async def test_what_does_not_say_it_is_json_is_refused(robot: Agent) -> None:
    for kind in ("text/plain", "application/jsonp", "application/json; charset=utf-16", ""):
        assert await refusal(robot, b"{}", **{"Content-Type": kind}) == (415, "unsupported_media_type")
    for kind in ("application/json", "Application/JSON; charset=UTF-8"):
        assert await refusal(robot, b"{}", **{"Content-Type": kind}) == (400, "invalid_request")


async def test_what_is_no_submission_is_refused(bank: Bank, robot: Agent) -> None:
    """One of each class; more of them: tests/unit/contract/test_wire.py."""
    effect = await pay(bank)
    for wrong, code in (
        ({"more": 1}, "unknown_field"),
        ({"effects": [effect | {"risk": "low"}]}, "unknown_field"),
        ({"effects": []}, "invalid_request"),
        ({"effects": [effect | {"tool_digest": "A" * 64}]}, "invalid_request"),
    ):
        assert await refusal(robot, {"run_key": "r", "effects": [effect]} | wrong) == (400, code), wrong


async def test_args_have_limits_of_their_own(bank: Bank, robot: Agent) -> None:
    args: list[tuple[dict[str, Any], int, str]] = [
        ({"account": "a" * 263_000, "amount": 1}, 413, "too_large"),
        ({"account": "a", "items": json.loads("[" * 65 + "]" * 65)}, 400, "too_deep"),
        ({"account": "a", "amount": 1, "items": ["x"] * 10_001}, 400, "too_many_nodes"),
    ]
    for route in ("/v1/transactions", "/v1/evaluations"):
        for given, status, code in args:
            body = {"run_key": "r", "effects": [await pay(bank) | {"args": given}]}
            assert await refusal(robot, body, route) == (status, code), route


async def test_a_word_in_place_of_a_value_is_denied(bank: Bank, robot: Agent) -> None:
    words: tuple[object, ...] = ("all", "tomorrow", "100", "", None, True, ["100"], {"at": 1}, 10.5)
    wrong = [{"account": "acme", "amount": word} for word in words]
    for n, args in enumerate([*wrong, {"account": "a" * 2_000, "amount": 1}]):  # no resource has such a name
        view = (await robot.submit(await pay(bank) | {"args": args}, run_key=f"word-{n}")).json()
        assert view["state"] == "ended"
        assert [one["code"] for one in view["effects"][0]["decision"]["reasons"]] == ["invalid_args"], args


ALIASES = [
    "Acme", "acme ", "x/../acme", "acme/", "%61cme", "xn--acme-", "\u0430cme", "ac\u200bme", "\uff41cme", "acme\u0301",
]  # fmt: skip


async def test_another_spelling_is_another_resource(bank: Bank, robot: Agent, maya: Visitor) -> None:
    """An approval of the one is none of the other, and a permit that names the one does not let the other through."""
    for alias in ALIASES:
        approved = (await robot.submit(await pay(bank, 500), run_key=f"one {alias}")).json()
        await maya.vote(approved)
        assert (await robot.see(approved["txn"]))["state"] == "ready"
        same_run = (await robot.submit(await pay(bank, 500, alias), run_key=f"one {alias}")).json()
        assert (same_run["state"], same_run["rev"]) == ("review", 2), alias
        first, second = approved["effects"][0], same_run["effects"][0]
        assert second["resource"]["id"] == alias
        assert first["effect_id"] != second["effect_id"]
        assert first["effect_digest"] != second["effect_digest"]
    await bank.policies('@id("only-acme") permit (principal, action, resource == Account::"acme");' + LARGE)
    assert (await robot.submit(await pay(bank), run_key="two")).json()["state"] == "ready"
    for alias in ALIASES:
        ended = await robot.submit(await pay(bank, 10, alias), run_key=f"three {alias}")
        assert ended.json()["state"] == "ended"
    await bank.rules()


async def test_a_path_or_a_cursor_that_cannot_be_is_refused(robot: Agent, maya: Visitor) -> None:
    for txn in ("0" * 63, "0" * 65, "A" * 64, "..", "%2e%2e"):
        answer = await robot.send("GET", f"/v1/transactions/{txn}")
        assert answer.status_code in {400, 401, 404}, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
    for moment in ("0001-01-01T00:00:00%2B23:59", "9999-12-31T23:59:59-23:59", "2026-01-01", "x"):
        assert (await maya.get(f"/v1/reviews?cursor={moment}~rev_1")).status_code == 400


BODY = b'{"run_key":"r","effects":[]}'


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
    made["method"] = made.pop("htm", method)
    headers = {"Agent-Proof": make_proof(made.pop("key"), **made), "Content-Type": "application/json"}
    return await robot.http.request(method, path, content=body, headers=headers)


def code_of(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def test_no_proof_or_an_agents_where_people_are_asked_is_refused(bank: Bank, robot: Agent) -> None:
    given: list[dict[str, str]] = [{}, {"Authorization": "Bearer csk_made-up"}]  # API keys are off
    for headers in given:
        answer = await bank.http.get("/v1/transactions/" + "0" * 64, headers=headers)
        assert code_of(answer) == (401, "unauthenticated")
        assert answer.headers["www-authenticate"] == "Agent-Proof"
        assert answer.headers["agent-nonce"]
    for path in ("/v1/reviews", "/v1/tasks"):
        assert code_of(await robot.send("GET", path)) == (401, "unauthenticated")


async def test_a_proof_of_something_else_is_refused(robot: Agent) -> None:
    """Every member that the service takes from the request; other values: tests/unit/identity/test_proofs.py."""
    others = ({"htm": "PUT"}, {"url_path": "/v1/outcomes"}, {"query": "a=1"}, {"body": BODY + b" "})
    for wrong in (*others, {"key": PrivateKey.generate()}):
        assert code_of(await sent(robot, **wrong)) == (401, "bad_proof"), wrong
    path = "/v1/audit?after=0&limit=5"
    assert (await sent(robot, method="GET", path=path)).status_code == 200
    assert code_of(await sent(robot, method="GET", path=path, query="")) == (401, "bad_proof")


async def test_a_proof_is_young(robot: Agent) -> None:
    for seconds, status in ((-1, 400), (-59, 400), (-62, 401), (4, 400), (8, 401)):
        answer = await sent(robot, now=int(robot.clock().timestamp()) + seconds)
        assert answer.status_code == status, seconds


async def test_a_nonce_that_is_not_ours_is_answered_with_one_that_is(robot: Agent) -> None:
    for nonce in ("none-yet", "x" * 24, "é"):
        answer = await sent(robot, nonce=nonce)
        assert code_of(answer) == (401, "use_nonce")
        assert (await sent(robot, nonce=answer.headers["agent-nonce"])).status_code == 400


async def test_a_replay_inside_the_window_changes_nothing(bank: Bank, robot: Agent) -> None:
    raw = json.dumps({"run_key": "replayed", "effects": [await pay(bank)]}).encode()
    proof = robot.proof("POST", "/v1/transactions", raw)
    headers = {"Agent-Proof": proof, "Content-Type": "application/json", "Idempotency-Key": "replayed"}
    answers = [await bank.http.post("/v1/transactions", content=raw, headers=headers) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 200, 200]
    views = [answer.json() for answer in answers]
    assert {(view["txn"], view["rev"]) for view in views} == {(views[0]["txn"], 1)}


async def test_api_keys_work_on_loopback_and_bind_releases_to_no_key(tmp_path: Path) -> None:
    forbidden = plain_forbid("no-api-keys", 'principal.proof == "api_key" && context.input.amount > 20')
    bundle = Payments(tmp_path / "bundle").rules(forbidden)
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
        # a rule about API keys holds for the redeemer
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
