"""Prefer: wait=N: an answer as soon as nobody is being asked any more, and no later than N seconds."""

from __future__ import annotations

import asyncio
import time

import pytest

from countersign.contract import names
from tests.fakes.world import Agent, World
from tests.integration.service.effects import mail, pay

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
    assert await bank.service.feed.wait_after(0, PROMPT, txn=txn)
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
