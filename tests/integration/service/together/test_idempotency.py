"""The same idempotency key: the same transaction, or an error (I-12)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import func, select

from policy_service.storage.core import table
from policy_service.storage.system_tables import IdempotencyRow
from policy_service.storage.tables import TransactionRow
from policy_service.workflow.expiry.sweep import delete_expired_rows
from tests.fakes.world import Agent
from tests.integration.service.effects import pay
from tests.integration.service.together.bank import Bank, refusal


async def revisions(bank: Bank, model: type[Any] = TransactionRow) -> int:
    """How many revisions (or keys) the agent of the test has."""
    query = select(func.count()).where(table(model).c.agent == bank.robot.name)
    return await bank.service.db.read(lambda conn: conn.execute(query).scalar_one())


async def test_the_same_key_and_body_answer_with_what_is_now(bank: Bank, robot: Agent) -> None:
    effect, maya = await pay(bank, 500), await bank.person("maya")
    first = await robot.submit(effect, idempotency_key="k")
    assert first.status_code == 201
    view = first.json()
    await maya.vote(view)
    again = await robot.submit(effect, idempotency_key="k")
    assert again.status_code == 200
    assert (again.json()["txn"], again.json()["rev"], again.json()["state"]) == (view["txn"], 1, "ready")
    assert again.headers["location"] == first.headers["location"] == f"/v1/transactions/{view['txn']}"
    await robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
    # only another key makes another one
    for key, made in (("k", (200, 1, "ended")), ("k2", (201, 2, "review"))):
        again = await robot.submit(effect, idempotency_key=key)
        assert (again.status_code, again.json()["rev"], again.json()["state"]) == made
        assert await revisions(bank) == made[1]
    small = await pay(bank)
    once = {"run_key": "lost", "idempotency_key": "k3", "attempt_id": robot.attempt}
    first, again = [(await robot.submit(small, **once)).json() for _ in range(2)]
    assert (again["state"], again["attempt_id"]) == ("redeemed", robot.attempt)
    assert (len(again["releases"]), bool(again["receipt"])) == (1, True)
    assert again["effects"] == first["effects"]


async def test_a_key_that_cannot_be_used_is_refused(bank: Bank, robot: Agent) -> None:
    effect = await pay(bank)
    body = {"run_key": "run-1", "effects": [effect]}
    for key in (None, b"", b"   ", b"k" * 256, b"caf\xe9"):
        headers = {} if key is None else {"Idempotency-Key": key}
        answer = await robot.send("POST", "/v1/transactions", body, headers=headers)
        assert refusal(answer) == (400, "idempotency_key_required"), key
    assert await revisions(bank) == 0
    wrong = effect | {"call_key": "0" * 64}
    assert (await robot.submit(wrong, idempotency_key="k")).status_code == 400
    assert await revisions(bank, IdempotencyRow) == 0, "what is refused uses no key up"
    assert (await robot.submit(effect, idempotency_key="k")).status_code == 201
    reordered = {"effects": [effect], "run_key": "run-1"}
    for other in ({"run_key": "run-1", "effects": [await pay(bank, 11)]}, reordered):
        answer = await robot.send("POST", "/v1/transactions", other, headers={"Idempotency-Key": "k"})
        assert refusal(answer) == (422, "idempotency_key_reused")
    assert await revisions(bank) == 1
    theirs = await (await bank.other_agent()).submit(effect, idempotency_key="k")
    assert theirs.status_code == 201, "a key belongs to one agent"
    assert await revisions(bank) == 1, "of this agent"


@pytest.mark.parametrize("key", ["k", None], ids=["one key", "keys of their own"])
async def test_sixteen_at_once_make_one_transaction(bank: Bank, robot: Agent, key: str | None) -> None:
    effect = await pay(bank, 500)
    await robot.send("GET", "/v1/tools/pay")  # a nonce first, so that all of them arrive together
    named = {} if key is None else {"idempotency_key": key}
    answers = await asyncio.gather(*(robot.submit(effect, **named) for _ in range(16)))
    assert sorted(answer.status_code for answer in answers) == [200] * 15 + [201]
    assert len({answer.json()["effects"][0]["review"]["review_id"] for answer in answers}) == 1
    assert await revisions(bank) == 1


async def test_a_key_is_forgotten_after_its_time(bank: Bank, robot: Agent) -> None:
    effect = await pay(bank, 500)
    made = (await robot.submit(effect, idempotency_key="k")).json()
    bank.clock.pass_(hours=71)
    await delete_expired_rows(bank.service.ctx)
    assert await revisions(bank, IdempotencyRow) == 1
    bank.clock.pass_(hours=2)
    assert await delete_expired_rows(bank.service.ctx) >= 1  # the message about the review goes too
    other = await robot.submit(await pay(bank, 7), run_key="another", idempotency_key="k")
    assert other.status_code == 201, "the key is free again"
    assert (await robot.submit(effect)).json()["txn"] == made["txn"]


async def test_a_second_contradiction_is_logged_and_asks_no_second_time(bank: Bank, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 10))).json()
    await robot.spend(view)
    for outcome in ("fired", "failed", "unused"):
        await robot.report(robot.attempt, {"effect_id": view["effects"][0]["effect_id"], "outcome": outcome})
    assert await bank.counts(view, "outcome_contradicted", "task_opened") == [2, 1]
