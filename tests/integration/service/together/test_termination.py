"""How a transaction ends unfired, and how waiting requests learn of it."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import text

from countersign.contract import names
from policy_service.audit.feed import transaction_topic
from tests.fakes.payments import gate
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank, refusal
from tests.integration.service.together.test_outcomes import redeemed, report_outcomes

pytestmark = pytest.mark.anyio


async def test_a_review_is_open_until_its_deadline(bank: Bank) -> None:
    await bank.only(gate("quick", "finance", answer_within="10m"), gate("slow", "legal", answer_within="1h"))
    view = await bank.asks(10)
    answer_by = moment(view["effects"][0]["review"]["answer_by"])
    assert answer_by - moment(view["submitted_at"]) == timedelta(minutes=10), "the shortest time of all gates"
    for milliseconds, state in ((-1, "review"), (0, "ended"), (1, "ended")):
        bank.clock.stop_at(answer_by + timedelta(milliseconds=milliseconds))
        assert (await ends(bank, view))[0] == state


async def test_an_expired_review_refuses_votes_before_any_sweep(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank, 500), await pay(bank))).json()
    bank.clock.pass_(hours=24)
    answer = (await (await bank.person("maya")).vote(view)).json()
    assert answer["state"] == "expired" and answer["votes"][0]["counted"] is False
    assert await ends(bank, view) == ["ended", "expired", "withdrawn"]
    first, second = await reasons(bank, view)
    assert first[-1][0] == "expired"
    assert second == [("sibling", "another effect of its transaction expired")]
    denied = (await bank.robot.submit(await pay(bank, 500), await mail(bank), run_key="r2")).json()
    await (await bank.person("maya")).vote(denied, "deny", reason="no")
    sibling = [("sibling", "another effect of its transaction was denied")]
    assert (await reasons(bank, denied))[1] == sibling


async def test_releases_are_valid_for_an_hour_unless_a_gate_shortens_it(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank), await mail(bank))).json()
    valid_until = moment(view["valid_until"])
    assert valid_until - moment(view["submitted_at"]) == timedelta(hours=1)
    for milliseconds, state in ((-1, "ready"), (0, "ended")):
        bank.clock.stop_at(valid_until + timedelta(milliseconds=milliseconds))
        assert (await ends(bank, view))[0] == state


async def test_the_validity_of_releases_starts_when_all_are_ready(bank: Bank) -> None:
    await bank.only(gate("slow", "finance", valid_for="5m"))
    view = (await bank.robot.submit(await mail(bank), await pay(bank))).json()
    bank.clock.pass_(hours=3)
    await (await bank.person("maya")).vote(view, effect=1)
    ready = await bank.robot.see(view["txn"])
    assert ready["state"] == "ready"
    assert moment(ready["valid_until"]) - bank.clock() < timedelta(minutes=5)
    bank.clock.pass_(minutes=5)
    for answer in (await bank.robot.release(ready), await bank.robot.release(ready)):
        assert answer.json().get("releases", []) == []
    assert await ends(bank, ready) == ["ended", "expired", "withdrawn"]


async def test_expired_releases_are_refused_before_any_sweep(bank: Bank) -> None:
    await bank.only(gate("slow", "finance", valid_for="1m"))
    view = await bank.asks(10)
    await bank.maya.vote(view)
    bank.clock.stop_at(bank.clock())
    ready, tokens = await bank.robot.see(view["txn"]), await bank.tokens(view)
    bank.clock.stop_at(moment(ready["valid_until"]))
    assert (await bank.robot.redeem(tokens)).json().get("redeemed") is not True
    assert await ends(bank, ready) == ["ended", "expired"]


async def test_the_agent_withdraws_an_open_transaction(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank), await pay(bank, 500))).json()
    for _ in range(2):
        answer = await bank.withdraw(view, reason="the customer called")
        assert (answer.status_code, answer.json()["state"]) == (200, "ended")
    assert await ends(bank, view) == ["ended", "withdrawn", "withdrawn"]
    assert (await bank.maya.vote(view, effect=1)).json()["state"] == "withdrawn"
    why = [each[-1] for each in await reasons(bank, view)]
    assert why == [("withdrawn", "it was taken back: the customer called")] * 2
    assert "called" not in str(await bank.log(view["txn"]))
    query = text("SELECT error, taken_back FROM effects WHERE txn = :txn AND taken_back IS NOT NULL")
    found = await bank.service.db.read(lambda conn: conn.execute(query, {"txn": view["txn"]}).all())
    assert {tuple(row) for row in found} == {(None, "the customer called")}, "no error of the tool"
    silent = (await bank.robot.submit(await pay(bank), await mail(bank), run_key="r2")).json()
    await bank.withdraw(silent)
    assert await reasons(bank, silent) == [[("withdrawn", "it was taken back")]] * 2
    denied = await bank.asks(run_key="denied")
    await bank.maya.vote(denied, "deny", reason="no")
    assert (await bank.withdraw(denied)).json()["effects"][0]["state"] == "denied"


async def test_sweeps_are_idempotent(bank: Bank) -> None:
    view = await bank.asks()
    await bank.sweep()
    bank.clock.pass_(hours=25)
    for _ in range(2):
        assert await ends(bank, view) == ["ended", "expired"]
    kinds = [kind for kind, _ in await bank.log(view["txn"])]
    assert kinds.count("effect_expired") == kinds.count("transaction_ended") == 1


async def test_an_agent_cannot_shorten_a_deadline(bank: Bank) -> None:
    asked = await pay(bank, 500)
    for more in ({"answer_within": "1s"}, {"answer_by": "2026-01-01T00:00:00Z"}, {"deadline": 1}):
        assert refusal(await bank.robot.submit(asked, run_key="hurry", **more)) == (400, "unknown_field")
        assert refusal(await bank.robot.submit({**asked, **more}, run_key="hurry")) == (400, "unknown_field")
    claimed = {"purpose": "answer within one second", "reasoning": "@answer_within(1s)"}
    view = (await bank.robot.submit(asked, run_key="hurry", claimed=claimed)).json()
    review = view["effects"][0]["review"]
    assert datetime.fromisoformat(review["answer_by"]) - bank.clock() > timedelta(hours=23)


async def ends(bank: Bank, view: dict[str, Any]) -> list[str]:
    """The states of a transaction and its effects after the sweeps have run."""
    await bank.sweep()
    return await bank.states(view)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def reasons(bank: Bank, view: dict[str, Any]) -> list[list[tuple[str, str]]]:
    """Why each effect ended, as the agent sees it."""
    seen = await bank.robot.see(view["txn"])
    found = [effect["decision"]["reasons"] for effect in seen["effects"]]
    return [[(reason["code"], reason["text"]) for reason in each] for each in found]


# -- waiting requests: `Prefer: wait=N` --------------------------------------------------------------------------------


PROMPT = 5.0  # seconds: far less than the wait asked for, far more than a busy machine needs


async def test_a_wait_ends_promptly_with_the_review(bank: Bank) -> None:
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
    assert await bank.service.feed.wait_after(0, PROMPT, topic=transaction_topic(txn))
    listed = (await bank.maya.get("/v1/reviews?limit=200")).json()["reviews"]
    (found,) = [one for one in listed if one["txn"] == txn]
    assert not any(wait.done() for wait in waits)
    await bank.maya.vote({"rev": 1, "txn_digest": found["txn_digest"], "effects": [found["effect"]]})
    async with asyncio.timeout(PROMPT):
        answers = [await wait for wait in waits]
    assert sorted(answer.status_code for answer in answers) == [200, 201]
    assert {answer.json()["state"] for answer in answers} == {"ready"}


async def test_a_wait_is_optional_and_limited(bank: Bank) -> None:
    view = await bank.asks()
    path = f"/v1/transactions/{view['txn']}"
    async with asyncio.timeout(PROMPT):
        for prefer in ("", "wait=0", "wait", "wait=x", "respond-async", "wait=-5", "handling=strict"):
            answer = await bank.robot.send("GET", path, headers={"Prefer": prefer})
            assert answer.json()["state"] == "review"
        released = await bank.robot.submit(await pay(bank), await mail(bank), run_key="released", wait=30)
        assert released.json()["state"] == "ready", "a transaction without a review does not wait"
    begun = time.monotonic()
    assert (await bank.robot.see(view["txn"], wait=1))["state"] == "review"
    assert 0.9 < time.monotonic() - begun < PROMPT


# ---------------------------------------------------------------------------------- coming back after a lost process


async def test_a_read_of_an_unsettled_transaction_can_wait_for_a_settlement(bank: Bank) -> None:
    one, two = await redeemed(bank.robot, await pay(bank), await pay(bank, 20))
    await report_outcomes(bank.robot, (one, "unknown"), (two, "unknown"))
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
    assert (await bank.robot.see(txn, wait=30))["state"] == "settled"  # nothing is left to wait for


async def test_an_agent_lists_its_transactions_by_page(bank: Bank) -> None:
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


async def test_a_party_lists_only_what_it_may_redeem(bank: Bank) -> None:
    other = await bank.agent(f"{bank.robot.name}-other")
    await bank.asks(10)
    assert (await other.send("GET", "/v1/transactions")).json()["transactions"] == []
    for query in ("cursor=x", "cursor=2026-01-01~a", "cursor=0001-01-01T00:00:00%2B23:59~a", "state=odd"):
        answer = await other.send("GET", f"/v1/transactions?{query}")
        assert refusal(answer) == (400, "invalid_request"), query
