"""Prefer: wait=N: an answer as soon as nobody is being asked any more, and no later than N seconds."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import quote

import pytest

from countersign.contract import names
from policy_service.audit.feed import of_transaction
from tests.fakes.world import Agent, World
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.test_outcomes import redeemed, told

pytestmark = pytest.mark.anyio

PROMPT = 5.0  # seconds: far less than the wait asked for, far more than a busy machine needs


async def test_a_wait_ends_promptly_when_the_last_person_has_approved(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    maya = await bank.person("maya")
    waiting = asyncio.create_task(robot.see(view["txn"], wait=30))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    begun = time.monotonic()
    await maya.vote(view)
    assert (await waiting)["state"] == "ready"
    assert time.monotonic() - begun < PROMPT


@pytest.mark.parametrize("how", ["deny", "withdraw", "expire"])
async def test_a_wait_ends_however_the_question_does(bank: World, robot: Agent, how: str) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    maya = await bank.person("maya")
    waiting = asyncio.create_task(robot.see(view["txn"], wait=30))
    await asyncio.sleep(0.05)
    if how == "deny":
        await maya.vote(view, "deny", reason="no")
    elif how == "withdraw":
        other = await bank.another_key(robot)
        await other.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
    else:
        bank.clock.pass_(hours=25)
        await bank.sweep()
    async with asyncio.timeout(PROMPT):
        assert (await waiting)["state"] == "ended"


async def test_a_wait_goes_on_through_news_that_settle_nothing(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 5_000))).json()
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    waiting = asyncio.create_task(robot.see(view["txn"], wait=30))
    await maya.vote(view)
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await tomas.vote(view)
    async with asyncio.timeout(PROMPT):
        assert (await waiting)["state"] == "ready"


async def test_a_submission_may_wait_too_and_its_repeat_joins_the_wait(bank: World, robot: Agent) -> None:
    effect = await pay(bank, 500)
    await robot.send("GET", "/v1/tools/pay")
    waits = [asyncio.create_task(robot.submit(effect, wait=30, idempotency_key="k")) for _ in range(2)]
    maya = await bank.person("maya")
    txn = names.txn_id(agent=robot.name, run_key="run-1")
    assert await bank.service.feed.wait_after(0, PROMPT, topic=of_transaction(txn))
    found = [one for one in (await maya.get("/v1/reviews?limit=200")).json()["reviews"] if one["txn"] == txn]
    assert not any(wait.done() for wait in waits)
    ballot = {"rev": 1, "txn_digest": found[0]["txn_digest"], "effects": [found[0]["effect"]]}
    await maya.vote(ballot)
    async with asyncio.timeout(PROMPT):
        answers = [await wait for wait in waits]
    assert sorted(answer.status_code for answer in answers) == [200, 201]
    assert {answer.json()["state"] for answer in answers} == {"ready"}


async def test_a_wait_ends_when_its_time_is_up(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    begun = time.monotonic()
    assert (await robot.see(view["txn"], wait=1))["state"] == "review"
    assert 0.9 < time.monotonic() - begun < PROMPT


@pytest.mark.parametrize(
    "prefer", ["", "wait=0", "wait", "wait=x", "respond-async", "wait=-5", "handling=strict"]
)
async def test_who_does_not_ask_to_wait_does_not(bank: World, robot: Agent, prefer: str) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    async with asyncio.timeout(PROMPT):
        answer = await robot.send("GET", f"/v1/transactions/{view['txn']}", headers={"Prefer": prefer})
    assert answer.json()["state"] == "review"


async def test_what_nobody_is_asked_about_is_not_waited_for(bank: World, robot: Agent) -> None:
    async with asyncio.timeout(PROMPT):
        assert (await robot.submit(await pay(bank), await mail(bank), wait=30)).json()["state"] == "ready"


async def test_a_superseded_wait_answers_with_the_revision_in_force(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    other = await bank.another_key(robot)
    waiting = asyncio.create_task(robot.see(view["txn"], wait=30))
    await asyncio.sleep(0.05)
    await other.submit(await pay(bank))
    async with asyncio.timeout(PROMPT):
        seen = await waiting
    assert (seen["rev"], seen["state"]) == (2, "ready")


async def test_two_hundred_who_wait_are_all_told(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    maya = await bank.person("maya")
    waits = [asyncio.create_task(robot.see(view["txn"], wait=30)) for _ in range(200)]
    await asyncio.sleep(0.5)
    await maya.vote(view)
    async with asyncio.timeout(2 * PROMPT):
        assert {(await wait)["state"] for wait in waits} == {"ready"}


# ---------------------------------------------------------------------------------- coming back after a lost process


async def test_whoever_looks_at_what_is_unsettled_waits_until_people_have_settled_more(
    bank: World, robot: Agent
) -> None:
    one, two = await redeemed(robot, await pay(bank), await pay(bank, 20))
    await told(robot, (one, "unknown"), (two, "unknown"))
    (txn,) = robot.txns
    maya = await bank.person("maya")
    for effect_id, state in ((one, "unsettled"), (two, "settled")):
        waiting = asyncio.create_task(robot.see(txn, wait=30))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        task = await maya.task({"txn": txn}, "unknown", effect_id=effect_id)
        assert (await maya.settle(task, "fired")).status_code == 200
        seen = await waiting
        assert seen["state"] == state
        (effect,) = [effect for effect in seen["effects"] if effect["effect_id"] == effect_id]
        assert (effect["state"], effect["settlements"][0]["name"]) == ("fired", "Maya")
    assert (await robot.see(txn, wait=30))["state"] == "settled"  # nobody is left to wait for


async def test_an_agent_that_lost_its_names_finds_its_transactions_by_page(bank: World, robot: Agent) -> None:
    views = [(await robot.submit(await pay(bank, 10 + n), run_key=f"step {n}")).json() for n in range(5)]
    # another list: its revision 2
    await robot.submit(await pay(bank, 12), await pay(bank, 13), run_key="step 2")
    await robot.send("POST", f"/v1/transactions/{views[0]['txn']}/withdraw", {})

    async def listed(query: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = (await robot.send("GET", f"/v1/transactions?limit=2{query}{cursor}")).json()
            found += page["transactions"]
            if "next" not in page:
                return found
            cursor = "&cursor=" + quote(page["next"])

    assert [one["run_key"] for one in await listed()] == ["step 2", "step 4", "step 3", "step 1", "step 0"]
    assert (await listed())[0]["rev"] == 2
    assert [one["txn"] for one in await listed("&state=ended")] == [views[0]["txn"]]
    assert {one["agent"] for one in await listed()} == {robot.name}


async def test_a_party_sees_what_it_may_redeem_and_nobody_elses(bank: World, robot: Agent) -> None:
    other = await bank.agent(f"{robot.name}-other")
    await robot.submit(await pay(bank))
    assert (await other.send("GET", "/v1/transactions")).json()["transactions"] == []


@pytest.mark.parametrize(
    "query", ["cursor=x", "cursor=2026-01-01~a", "cursor=0001-01-01T00:00:00%2B23:59~a", "state=odd"]
)
async def test_a_list_is_refused_what_is_not_ours(bank: World, robot: Agent, query: str) -> None:
    answer = await robot.send("GET", f"/v1/transactions?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
