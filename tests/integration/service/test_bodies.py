"""What a body may be: strict I-JSON of exactly the fields we know, and no larger than a person can be shown."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import Connection, func, select

from policy_service.storage.plumbing import AuditRow
from tests.fakes.payments import Payments
from tests.fakes.world import Agent, World, running
from tests.integration.service.effects import pay

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def bank(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """One service for all: what is refused changes nothing."""
    folder = tmp_path_factory.mktemp("bodies")
    async with running(folder / "data", Payments(folder / "bundle").path) as started:
        yield started


@pytest.fixture(scope="module")
async def robot(bank: World) -> Agent:
    """The agent that sends them."""
    return await bank.agent("robot")


async def refusal(robot: Agent, body: bytes, **headers: str) -> tuple[int, str]:
    """The status and code of a submission with this body."""
    answer = await robot.send("POST", "/v1/transactions", body, headers={"Idempotency-Key": "k", **headers})
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert problem["type"] == f"urn:countersign:problem:{problem['code']}"
    assert problem["status"] == answer.status_code and problem["detail"]
    return answer.status_code, problem["code"]


NOT_STRICT = {
    "nothing at all": (b"", 415, "unsupported_media_type"),
    "no JSON": (b"{", 400, "not_json"),
    "a list": (b"[]", 400, "invalid_request"),
    "null": (b"null", 400, "invalid_request"),
    "two values": (b"{}{}", 400, "not_json"),
    "a comment": (b'{"run_key":"r"/* */}', 400, "not_json"),
    "a byte order mark": (b"\xef\xbb\xbf{}", 400, "bom"),
    "Latin-1": ('{"run_key":"é"}'.encode("latin-1"), 400, "not_utf8"),
    "a key twice": (b'{"run_key":"a","run_key":"b","effects":[]}', 400, "duplicate_key"),
    "a key twice, deep inside": (b'{"effects":[{"args":{"a":1,"a":2}}]}', 400, "duplicate_key"),
    "a key twice, once escaped": (b'{"effects":[{"args":{"a":1,"\\u0061":2}}]}', 400, "duplicate_key"),
    "NaN": (b'{"effects":[{"args":{"a":NaN}}]}', 400, "not_finite"),
    "Infinity": (b'{"effects":[{"args":{"a":-Infinity}}]}', 400, "not_finite"),
    "a number beyond all": (b'{"effects":[{"args":{"a":1e999}}]}', 400, "not_finite"),
    "an integer that loses digits": (b'{"effects":[{"args":{"a":9007199254740992}}]}', 400, "integer_out_of_range"),
    "such an integer with an exponent": (b'{"effects":[{"args":{"a":1e21}}]}', 400, "integer_out_of_range"),
    "a number that would be zero": (b'{"effects":[{"args":{"a":1e-400}}]}', 400, "number_not_exact"),
    "a number that would be another": (b'{"effects":[{"args":{"a":9007199254740990.6}}]}', 400, "number_not_exact"),
    "half a surrogate pair": (b'{"run_key":"\\ud800"}', 400, "lone_surrogate"),
    "a typed value in the args": (
        b'{"effects":[{"args":{"a":{"__extn":{"fn":"unknown","arg":"x"}}}}]}', 400, "reserved_key",
    ),
    "an entity in the args": (b'{"effects":[{"args":{"a":{"__entity":{"type":"T","id":"1"}}}}]}', 400, "reserved_key"),
    "an expression in the claim": (b'{"claimed":{"__expr":"true"}}', 400, "reserved_key"),
    "too deep": (b'{"effects":' + b"[" * 80 + b"]" * 80 + b"}", 400, "too_deep"),
    "too many values": (b'{"effects":[' + b"0," * 40_001 + b"0]}", 400, "too_many_nodes"),
    "more than a megabyte": (b'{"run_key":"' + b"a" * 1_100_000 + b'"}', 413, "too_large"),
    "more than the door lets in": (b'{"run_key":"' + b"a" * 4_300_000 + b'"}', 413, "too_large"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "status", "code"), NOT_STRICT.values(), ids=NOT_STRICT)
async def test_what_is_not_strict_json_is_refused(robot: Agent, body: bytes, status: int, code: str) -> None:
    assert await refusal(robot, body) == (status, code)


TYPES = [
    "text/plain",
    "application/x-www-form-urlencoded",
    "application/json; charset=latin-1",
    "application/json; charset=utf-16",
    "application/json; charset=utf-7",
    "application/jsonp",
    "",
]


@pytest.mark.parametrize("kind", TYPES)
async def test_what_does_not_say_it_is_json_is_refused(robot: Agent, kind: str) -> None:
    assert await refusal(robot, b"{}", **{"Content-Type": kind}) == (415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=UTF-8"])
async def test_json_may_say_its_charset(robot: Agent, kind: str) -> None:
    assert await refusal(robot, b"{}", **{"Content-Type": kind}) == (400, "invalid_request")


def changed(body: dict[str, Any], *path: str | int, value: Any) -> dict[str, Any]:
    """A deep copy with one member another."""
    copy: Any = json.loads(json.dumps(body))
    inner = copy
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    result: dict[str, Any] = copy
    return result


WRONG: dict[str, tuple[tuple[str | int, ...], Any, str]] = {
    "an unknown member": (("more",), 1, "unknown_field"),
    "an unknown member of an effect": (("effects", 0, "risk"), "low", "unknown_field"),
    "an unknown member of the claim": (("claimed",), {"role": "admin"}, "unknown_field"),
    "an unknown member of the resource": (("effects", 0, "resource"), {"type": "A", "i": "b"}, "unknown_field"),
    "no effects": (("effects",), [], "invalid_request"),
    "effects that are no list": (("effects",), {}, "invalid_request"),
    "a hundred and one effects": (("effects",), [{}] * 101, "invalid_request"),
    "args that are no object": (("effects", 0, "args"), [1], "invalid_request"),
    "an empty run key": (("run_key",), "", "invalid_request"),
    "a run key that is a number": (("run_key",), 1, "invalid_request"),
    "a very long run key": (("run_key",), "r" * 201, "invalid_request"),
    "a digest in capitals": (("effects", 0, "tool_digest"), "A" * 64, "invalid_request"),
    "a short digest": (("effects", 0, "tool_digest"), "0" * 63, "invalid_request"),
    "an n that is text": (("effects", 0, "n"), "0", "invalid_request"),
    "an n below zero": (("effects", 0, "n"), -1, "invalid_request"),
    "an n that is a truth": (("effects", 0, "n"), True, "invalid_request"),
    "independent as text": (("independent",), "yes", "invalid_request"),
    "an empty attempt": (("attempt_id",), "", "invalid_request"),
    "a resource without id": (("effects", 0, "resource"), {"type": "A", "id": ""}, "invalid_request"),
}  # fmt: skip


@pytest.mark.parametrize(("path", "value", "code"), WRONG.values(), ids=WRONG)
async def test_what_is_no_submission_is_refused(
    bank: World, robot: Agent, path: tuple[str | int, ...], value: Any, code: str
) -> None:
    body = changed({"run_key": "r", "effects": [await pay(bank)]}, *path, value=value)
    assert await refusal(robot, json.dumps(body).encode()) == (400, code)


async def test_two_effects_are_not_independent(bank: World, robot: Agent) -> None:
    body = {"run_key": "r", "independent": True, "effects": [await pay(bank), await pay(bank, 11)]}
    assert await refusal(robot, json.dumps(body).encode()) == (400, "invalid_request")


BEYOND_ARGS = {
    "more than a person can be shown": ({"account": "a" * 263_000, "amount": 1}, 413, "too_large"),
    "deeper than args may be": ({"account": "a", "items": json.loads("[" * 65 + "]" * 65)}, 400, "too_deep"),
    "more values than args may hold": ({"account": "a", "amount": 1, "items": ["x"] * 10_001}, 400, "too_many_nodes"),
}  # fmt: skip


@pytest.mark.parametrize("route", ["/v1/transactions", "/v1/evaluations"])
@pytest.mark.parametrize(("args", "status", "code"), BEYOND_ARGS.values(), ids=BEYOND_ARGS)
async def test_args_have_limits_of_their_own(
    bank: World, robot: Agent, args: dict[str, Any], status: int, code: str, route: str
) -> None:
    effect = await pay(bank) | {"args": args}
    answer = await robot.send(
        "POST", route, {"run_key": "r", "effects": [effect]}, headers={"Idempotency-Key": "k"}
    )
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


async def test_a_resource_that_cannot_be_named_is_a_denial_that_says_so(bank: World, robot: Agent) -> None:
    effect = await pay(bank) | {"args": {"account": "a" * 2_000, "amount": 1}}
    view = (await robot.submit(effect, run_key="unnamed")).json()
    assert view["state"] == "ended"
    assert view["effects"][0]["decision"]["reasons"][0]["code"] == "invalid_args"


OTHER_BODIES = {
    "/v1/redemptions": {"tokens": [], "attempt_id": "a"},
    "/v1/redemptions/a1/renew": {"effect_ids": ["nonsense"]},
    "/v1/outcomes": {"attempt_id": "a", "outcomes": [{"effect_id": "0" * 64, "outcome": "perhaps"}]},
    f"/v1/transactions/{'0' * 64}/release": {"rev": 0},
    f"/v1/transactions/{'0' * 64}/withdraw": {"reason": 1},
    f"/v1/transactions/{'0' * 64}/compensate": {"effect_id": "x"},
    "/v1/evaluations": {"run_key": "r", "effects": []},
}


@pytest.mark.parametrize(("path", "body"), OTHER_BODIES.items(), ids=OTHER_BODIES)
async def test_every_route_refuses_what_it_cannot_read(robot: Agent, path: str, body: dict[str, Any]) -> None:
    answer = await robot.send("POST", path, body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), answer.text
    more = await robot.send("POST", path, body | {"more": 1})
    assert (more.status_code, more.json()["code"]) == (400, "unknown_field")
    twice = await robot.send("POST", path, b'{"a":1,"a":2}')
    assert (twice.status_code, twice.json()["code"]) == (400, "duplicate_key")


async def test_a_refused_body_stores_nothing(bank: World, robot: Agent) -> None:
    before = await bank.service.db.read(_lines)
    await refusal(robot, b'{"run_key":"r","effects":[],"more":1}')
    assert await bank.service.db.read(_lines) == before


def _lines(conn: Connection) -> int:
    return conn.execute(select(func.count()).select_from(AuditRow)).scalar_one()


@pytest.mark.parametrize("txn", ["0" * 63, "0" * 65, "A" * 64, "..", "%2e%2e"])
async def test_a_path_that_names_no_transaction_is_refused(robot: Agent, txn: str) -> None:
    answer = await robot.send("GET", f"/v1/transactions/{txn}")
    assert answer.status_code in {400, 401, 404}, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
