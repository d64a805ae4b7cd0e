"""Prefer: wait=N: an answer as soon as nobody is being asked any more, and no later than N seconds."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import quote

import pytest

from countersign.contract import names
from policy_service.audit.feed import of_transaction
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank, refusal
from tests.integration.service.together.test_outcomes import redeemed, told

pytestmark = pytest.mark.anyio

PROMPT = 5.0  # seconds: far less than the wait asked for, far more than a busy machine needs


async def test_a_wait_ends_promptly_however_the_question_does(bank: Bank) -> None:
    for how, ended in (
        ("approve", (1, "ready")),
        ("deny", (1, "ended")),
        ("withdraw", (1, "ended")),
        ("replace", (2, "ready")),
        ("expire", (1, "ended")),
    ):
        other = await bank.another_key(await bank.fresh())
        view = await bank.asks(5_000)
        waiting = asyncio.create_task(bank.robot.see(view["txn"], wait=30))
        await bank.maya.vote(view)  # news that settle nothing
        await asyncio.sleep(0.1)
        assert not waiting.done()
        if how in ("approve", "deny"):
            await bank.tomas.vote(view, how, reason="no")
        elif how == "withdraw":
            await other.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
        elif how == "replace":
            await other.submit(await pay(bank))
        else:
            bank.clock.pass_(hours=25)
            await bank.sweep()
        async with asyncio.timeout(PROMPT):
            seen = await waiting
        assert (seen["rev"], seen["state"]) == ended


async def test_a_submission_may_wait_too_and_its_repeat_joins_the_wait(bank: Bank) -> None:
    effect = await pay(bank, 500)
    await bank.robot.send("GET", "/v1/tools/pay")
    waits = [asyncio.create_task(bank.robot.submit(effect, wait=30, idempotency_key="k")) for _ in range(2)]
    txn = names.txn_id(agent=bank.robot.name, run_key="run-1")
    assert await bank.service.feed.wait_after(0, PROMPT, topic=of_transaction(txn))
    listed = (await bank.maya.get("/v1/reviews?limit=200")).json()["reviews"]
    (found,) = [one for one in listed if one["txn"] == txn]
    assert not any(wait.done() for wait in waits)
    await bank.maya.vote({"rev": 1, "txn_digest": found["txn_digest"], "effects": [found["effect"]]})
    async with asyncio.timeout(PROMPT):
        answers = [await wait for wait in waits]
    assert sorted(answer.status_code for answer in answers) == [200, 201]
    assert {answer.json()["state"] for answer in answers} == {"ready"}


async def test_who_does_not_ask_to_wait_does_not_and_a_wait_ends_when_its_time_is_up(bank: Bank) -> None:
    view = await bank.asks()
    path = f"/v1/transactions/{view['txn']}"
    async with asyncio.timeout(PROMPT):
        for prefer in ("", "wait=0", "wait", "wait=x", "respond-async", "wait=-5", "handling=strict"):
            answer = await bank.robot.send("GET", path, headers={"Prefer": prefer})
            assert answer.json()["state"] == "review"
        nobody = await bank.robot.submit(await pay(bank), await mail(bank), run_key="nobody", wait=30)
        assert nobody.json()["state"] == "ready", "what nobody is asked about is not waited for"
    begun = time.monotonic()
    assert (await bank.robot.see(view["txn"], wait=1))["state"] == "review"
    assert 0.9 < time.monotonic() - begun < PROMPT


# ---------------------------------------------------------------------------------- coming back after a lost process


async def test_whoever_looks_at_what_is_unsettled_waits_until_people_have_settled_more(bank: Bank) -> None:
    one, two = await redeemed(bank.robot, await pay(bank), await pay(bank, 20))
    await told(bank.robot, (one, "unknown"), (two, "unknown"))
    (txn,) = bank.robot.txns
    for effect_id, state in ((one, "unsettled"), (two, "settled")):
        waiting = asyncio.create_task(bank.robot.see(txn, wait=30))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        task = await bank.maya.task({"txn": txn}, "unknown", effect_id=effect_id)
        assert (await bank.maya.settle(task, "fired")).status_code == 200
        seen = await waiting
        assert seen["state"] == state
        (effect,) = [effect for effect in seen["effects"] if effect["effect_id"] == effect_id]
        assert (effect["state"], effect["settlements"][0]["name"]) == ("fired", "Maya")
    assert (await bank.robot.see(txn, wait=30))["state"] == "settled"  # nobody is left to wait for


async def test_an_agent_that_lost_its_names_finds_its_transactions_by_page(bank: Bank) -> None:
    views = [await bank.asks(10 + n, run_key=f"step {n}") for n in range(5)]
    # another list: its revision 2
    await bank.robot.submit(await pay(bank, 12), await pay(bank, 13), run_key="step 2")
    await bank.withdraw(views[0])

    async def listed(query: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = (await bank.robot.send("GET", f"/v1/transactions?limit=2{query}{cursor}")).json()
            found += page["transactions"]
            if "next" not in page:
                return found
            cursor = "&cursor=" + quote(page["next"])

    assert [one["run_key"] for one in await listed()] == ["step 2", "step 4", "step 3", "step 1", "step 0"]
    assert (await listed())[0]["rev"] == 2
    assert [one["txn"] for one in await listed("&state=ended")] == [views[0]["txn"]]
    assert {one["agent"] for one in await listed()} == {bank.robot.name}


async def test_a_party_sees_what_it_may_redeem_and_nobody_elses(bank: Bank) -> None:
    other = await bank.agent(f"{bank.robot.name}-other")
    await bank.asks(10)
    assert (await other.send("GET", "/v1/transactions")).json()["transactions"] == []
    for query in ("cursor=x", "cursor=2026-01-01~a", "cursor=0001-01-01T00:00:00%2B23:59~a", "state=odd"):
        answer = await other.send("GET", f"/v1/transactions?{query}")
        assert refusal(answer) == (400, "invalid_request"), query
