"""The same idempotency key: the same transaction, or an error (I-12)."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import Connection, func, select

from policy_service.storage.plumbing import IdempotencyRow
from policy_service.storage.tables import TransactionRow
from policy_service.workflow.due.sweep import forget_what_is_over
from tests.fakes.world import Agent, World
from tests.integration.service.effects import pay
from tests.integration.service.engines import SQLITE_IN_SHORT

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("engine", SQLITE_IN_SHORT)]


def revisions(conn: Connection) -> int:
    return conn.execute(select(func.count()).select_from(TransactionRow)).scalar_one()


def keys(conn: Connection) -> int:
    return conn.execute(select(func.count()).select_from(IdempotencyRow)).scalar_one()


async def test_the_same_key_and_body_answer_with_the_transaction_as_it_is_now(
    bank: World, robot: Agent
) -> None:
    effect = await pay(bank, 500)
    first = await robot.submit(effect, idempotency_key="k")
    assert first.status_code == 201
    maya = await bank.person("maya")
    await maya.vote(first.json())
    again = await robot.submit(effect, idempotency_key="k")
    assert again.status_code == 200
    assert (again.json()["txn"], again.json()["rev"]) == (first.json()["txn"], 1)
    assert again.json()["state"] == "ready"
    assert again.headers["location"] == first.headers["location"] == f"/v1/transactions/{first.json()['txn']}"


async def test_only_another_key_makes_a_second_revision_after_the_first_has_ended(
    bank: World, robot: Agent
) -> None:
    effect = await pay(bank)
    view = (await robot.submit(effect, idempotency_key="k")).json()
    await robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
    for key, made in (("k", (200, 1, "ended")), ("k2", (201, 2, "ready"))):
        again = await robot.submit(effect, idempotency_key=key)
        assert (again.status_code, again.json()["rev"], again.json()["state"]) == made
        assert await bank.service.db.read(revisions) == made[1]


async def test_the_same_key_with_another_body_or_other_bytes_is_refused(bank: World, robot: Agent) -> None:
    effect = await pay(bank)
    await robot.submit(effect, idempotency_key="k")
    reordered = {"effects": [effect], "run_key": "run-1"}
    for body in ({"run_key": "run-1", "effects": [await pay(bank, 11)]}, reordered):
        answer = await robot.send("POST", "/v1/transactions", body, headers={"Idempotency-Key": "k"})
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")
    assert await bank.service.db.read(revisions) == 1


async def test_a_submission_without_a_usable_key_is_refused(bank: World, robot: Agent) -> None:
    body = {"run_key": "r", "effects": [await pay(bank)]}
    for key in (None, b"", b"   ", b"k" * 256, b"caf\xe9"):
        headers = {} if key is None else {"Idempotency-Key": key}
        answer = await robot.send("POST", "/v1/transactions", body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "idempotency_key_required"), key
    assert await bank.service.db.read(revisions) == 0


async def test_a_key_belongs_to_one_agent(bank: World, robot: Agent) -> None:
    other = await bank.agent("other")
    mine = (await robot.submit(await pay(bank), idempotency_key="k")).json()
    theirs = await other.submit(await pay(bank), idempotency_key="k")
    assert theirs.status_code == 201
    assert theirs.json()["txn"] != mine["txn"]


async def test_a_refused_submission_does_not_use_its_key_up(bank: World, robot: Agent) -> None:
    wrong = await pay(bank) | {"call_key": "0" * 64}
    assert (await robot.submit(wrong, idempotency_key="k")).status_code == 400
    assert await bank.service.db.read(keys) == 0
    assert (await robot.submit(await pay(bank), idempotency_key="k")).status_code == 201


@pytest.mark.parametrize("key", ["k", None], ids=["one key", "keys of their own"])
async def test_sixteen_at_once_make_one_transaction(bank: World, robot: Agent, key: str | None) -> None:
    effect = await pay(bank, 500)
    await robot.send("GET", "/v1/tools/pay")  # a nonce first, so that all of them arrive together
    named = {} if key is None else {"idempotency_key": key}
    answers = await asyncio.gather(*(robot.submit(effect, **named) for _ in range(16)))
    assert sorted(answer.status_code for answer in answers) == [200] * 15 + [201]
    assert len({answer.json()["effects"][0]["review"]["review_id"] for answer in answers}) == 1
    assert await bank.service.db.read(revisions) == 1


async def test_a_submission_with_an_attempt_that_was_lost_on_its_way_is_told_again(
    bank: World, robot: Agent
) -> None:
    effect = await pay(bank)
    first = (await robot.submit(effect, idempotency_key="k", attempt_id="a1")).json()
    again = (await robot.submit(effect, idempotency_key="k", attempt_id="a1")).json()
    assert again["state"] == "redeemed" and again["attempt_id"] == "a1"
    assert len(again["releases"]) == 1 and again["receipt"]
    assert again["effects"] == first["effects"]


async def test_a_key_is_forgotten_after_its_time_and_the_transaction_is_not(
    bank: World, robot: Agent
) -> None:
    effect = await pay(bank, 500)
    made = (await robot.submit(effect, idempotency_key="k")).json()
    bank.clock.pass_(hours=71)
    assert await forget_what_is_over(bank.service.ctx) == 0
    bank.clock.pass_(hours=2)
    # the message about the review goes too, once it has left
    assert await forget_what_is_over(bank.service.ctx) >= 1
    other = await robot.submit(await pay(bank, 7), run_key="another", idempotency_key="k")
    assert other.status_code == 201, "the key is free again"
    assert (await robot.submit(effect)).json()["txn"] == made["txn"]
