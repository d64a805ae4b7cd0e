"""Comments on a review and questions to its agent: who may, how much, who reads what, and what they never do."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from policy_service.workflow.reviews import comment
from tests.fakes.payments import Payments, gate, person
from tests.fakes.world import Agent, Visitor, World
from tests.integration.service.effects import mail, pay

pytestmark = pytest.mark.anyio

PROMPT = 5.0  # seconds: far less than the wait asked for, far more than a busy machine needs


async def asked(robot: Agent, bank: World, amount: int = 500) -> dict[str, Any]:
    """A payment that waits for finance."""
    view: dict[str, Any] = (await robot.submit(await pay(bank, amount))).json()
    return view


def review_of(view: dict[str, Any], effect: int = 0) -> str:
    review: str = view["effects"][effect]["review"]["review_id"]
    return review


async def write(who: Visitor, review_id: str, text: str, **more: Any) -> httpx2.Response:
    """A comment over the API."""
    body = json.dumps({"text": text, **more}).encode()
    return await who.http.post(f"/v1/reviews/{review_id}/comments", content=body, headers=who.headers())


async def ask(who: Visitor, review_id: str, text: str) -> str:
    """A question; its id."""
    answer = await write(who, review_id, text, question=True)
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["comments"][-1]["comment_id"]
    return found


async def say(robot: Agent, review_id: str, question_id: str, text: str) -> httpx2.Response:
    """The agent's answer."""
    return await robot.send(
        "POST", f"/v1/reviews/{review_id}/answers", {"question_id": question_id, "text": text}
    )


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


# ------------------------------------------------------------------------------------------------------- comments


async def test_a_comment_is_read_by_the_others_and_decides_nothing(bank: World, robot: Agent) -> None:
    view, maya = await asked(robot, bank), await bank.person("maya")
    answer = await write(maya, review_of(view), "  the invoice\r\nis in the file ")
    (one,) = answer.json()["comments"]
    told = {
        name: one[name]
        for name in ("kind", "person", "name", "text", "channel", "for_requester", "assurance")
    }
    assert told == {
        "kind": "comment", "person": person("maya"), "name": "Maya", "text": "the invoice\nis in the file",
        "channel": "api", "for_requester": False, "assurance": "dev",
    }  # fmt: skip
    tomas = await bank.person("tomas")
    assert (await tomas.get(f"/v1/reviews/{review_of(view)}")).json()["comments"] == [one]
    seen = await robot.see(view["txn"])
    assert (seen["state"], seen["questions"], answer.json()["votes"]) == ("review", [], [])


async def test_the_log_tells_who_and_when_and_not_what(bank: World, robot: Agent) -> None:
    view, maya = await asked(robot, bank), await bank.person("maya")
    await write(maya, review_of(view), "the customer is my neighbour")
    question = await ask(maya, review_of(view), "which invoice?")
    await say(robot, review_of(view), question, "number 4711")
    log = [
        (kind, body) for kind, body in await bank.log(view["txn"]) if kind.startswith(("comment", "question"))
    ]
    assert [kind for kind, _ in log] == ["comment_written", "question_asked", "question_answered"]
    assert log[1][1]["comment_id"] == log[2][1]["comment_id"] == question
    assert log[0][1]["channel"] == "api"
    for words in ("neighbour", "which invoice", "4711"):
        assert words not in str(log)


async def test_the_owner_of_the_agent_may_write_marked_as_such_and_not_ask_it(
    bank: World, robot: Agent
) -> None:
    mine = await bank.agent(f"{robot.name}-mine", owner=person("jonas"))
    view, jonas = await asked(mine, bank), await bank.person("jonas")
    answer = await write(jonas, review_of(view), "I asked for this")
    assert [one["for_requester"] for one in answer.json()["comments"]] == [True]
    assert refusal(await write(jonas, review_of(view), "is it so?", question=True)) == (403, "not_eligible")
    assert refusal(await jonas.vote(view)) == (403, "not_eligible")


async def test_who_may_not_vote_may_not_write(bank: World, robot: Agent) -> None:
    view, ingrid = await asked(robot, bank), await bank.person("ingrid")
    for question in (False, True):
        refused = await write(ingrid, review_of(view), "let me in", question=question)
        assert refusal(refused) == (403, "not_eligible")
    assert "only people in finance decide this" in refused.json()["detail"]


async def test_a_person_taken_out_of_the_decisions_writes_nothing_more(bank: World, robot: Agent) -> None:
    view, maya = await asked(robot, bank), await bank.person("maya")
    await bank.operator("revoke-approver", {"person": person("maya"), "reason": "left"})
    refused = await write(maya, review_of(view), "one more thing")
    await bank.operator("reinstate-approver", {"person": person("maya")})
    assert refused.status_code in {401, 403}
    assert (await (await bank.person("tomas")).get(f"/v1/reviews/{review_of(view)}")).json()["comments"] == []


ENDS = {
    "denied": "denied",
    "expired": "over",
    "withdrawn": "withdrawn",
    "superseded": "replaced by revision 2",
    "met": "approved",
}


@pytest.mark.parametrize("how", ENDS)
async def test_nothing_is_added_to_what_nobody_decides_any_more(bank: World, robot: Agent, how: str) -> None:
    view, maya = await asked(robot, bank), await bank.person("maya")
    question = await ask(maya, review_of(view), "which invoice?")
    match how:
        case "denied":
            await maya.vote(view, "deny", reason="no")
        case "met":
            await maya.vote(view)
        case "expired":
            bank.clock.pass_(hours=25)  # and nobody sweeps
            maya = await bank.person("maya")
        case "withdrawn":
            await robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
        case "superseded":
            await robot.submit(await pay(bank, 600))
    for refused in (
        await write(maya, review_of(view), "too late?"),
        await say(robot, review_of(view), question, "number 4711"),
    ):
        assert refusal(refused) == (409, "review_closed")
        assert ENDS[how] in refused.json()["detail"]
    assert (await robot.see(view["txn"]))["state"] == {"met": "ready", "superseded": "review"}.get(
        how, "ended"
    )


async def test_the_same_words_again_are_the_same_comment(bank: World, robot: Agent) -> None:
    view, maya, tomas = await asked(robot, bank), await bank.person("maya"), await bank.person("tomas")
    for who in (maya, maya, tomas):
        await write(who, review_of(view), "look twice")
    for _ in range(2):
        answer = await write(maya, review_of(view), "why so much?", question=True)
    kinds = [(one["kind"], one["name"]) for one in answer.json()["comments"]]
    assert kinds == [("comment", "Maya"), ("comment", "Tomas"), ("question", "Maya")]
    await say(robot, review_of(view), answer.json()["comments"][-1]["comment_id"], "because")
    again = await write(maya, review_of(view), "why so much?", question=True)
    assert len(again.json()["comments"]) == 4, "what was answered may be asked anew"


@pytest.mark.parametrize(
    "text", ["", " \n\t ", "x" * 4_001, "x" * 300_000], ids=["none", "space", "long", "300 KB"]
)
async def test_words_are_bounded(bank: World, robot: Agent, text: str) -> None:
    view, maya = await asked(robot, bank), await bank.person("maya")
    assert refusal(await write(maya, review_of(view), text)) == (400, "invalid_request")
    question = await ask(maya, review_of(view), "why?")
    assert refusal(await say(robot, review_of(view), question, text)) == (400, "invalid_request")
    assert (await robot.see(view["txn"]))["questions"][0].get("answer") is None


async def test_one_person_and_one_review_hold_so_many(
    bank: World, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comment, "MAX_OF_A_PERSON", 2)
    monkeypatch.setattr(comment, "MAX_ON_A_REVIEW", 3)
    view, maya, tomas = await asked(robot, bank), await bank.person("maya"), await bank.person("tomas")
    codes = [(await write(maya, review_of(view), f"word {n}")).status_code for n in range(3)]
    codes += [(await write(tomas, review_of(view), f"word {n}")).status_code for n in range(2)]
    assert codes == [200, 200, 429, 200, 429]
    assert (await maya.vote(view)).status_code == 200


# ------------------------------------------------------------------------------------------------------ questions


async def test_a_question_reaches_the_agent_and_its_answer_the_people(bank: World, robot: Agent) -> None:
    view, maya = await asked(robot, bank), await bank.person("maya")
    question = await ask(maya, review_of(view), "which invoice?")
    (seen,) = (await robot.see(view["txn"]))["questions"]
    told = {name: seen[name] for name in ("question_id", "review_id", "effect_id", "text", "asked_by")}
    assert told == {
        "question_id": question, "review_id": review_of(view), "effect_id": view["effects"][0]["effect_id"],
        "text": "which invoice?", "asked_by": "Maya",
    }  # fmt: skip
    assert "answer" not in seen
    answered = await say(robot, review_of(view), question, "number 4711")
    assert [one["answer"] for one in answered.json()["questions"]] == ["number 4711"]
    (one,) = (await maya.get(f"/v1/reviews/{review_of(view)}")).json()["comments"]
    assert (one["answer"], "answered_at" in one) == ("number 4711", True)
    assert answered.json()["state"] == "review"


async def test_a_waiting_agent_is_woken_by_a_question_and_not_by_a_comment(bank: World, robot: Agent) -> None:
    view, maya = await asked(robot, bank), await bank.person("maya")
    waiting = asyncio.create_task(robot.see(view["txn"], wait=30))
    await asyncio.sleep(0.1)
    await write(maya, review_of(view), "let us see")
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await ask(maya, review_of(view), "which invoice?")
    async with asyncio.timeout(PROMPT):
        seen = await waiting
    assert (seen["state"], [one["text"] for one in seen["questions"]]) == ("review", ["which invoice?"])


async def test_a_question_asked_between_two_waits_is_not_slept_through(bank: World, robot: Agent) -> None:
    view, maya = await asked(robot, bank), await bank.person("maya")
    question = await ask(maya, review_of(view), "which invoice?")
    path = f"/v1/transactions/{view['txn']}?asked_after="
    begun = time.monotonic()
    async with asyncio.timeout(PROMPT):
        await robot.send("GET", path, headers={"Prefer": "wait=30"})
    seen = await robot.send("GET", path + quote(question), headers={"Prefer": "wait=1"})
    assert 0.9 < time.monotonic() - begun < 2 * PROMPT, "the one that was seen ends no wait"
    assert seen.json()["questions"][0]["question_id"] == question


async def test_an_answer_stands_and_may_be_repeated(bank: World, robot: Agent) -> None:
    view, maya = await asked(robot, bank), await bank.person("maya")
    question = await ask(maya, review_of(view), "which invoice?")
    codes = [(await say(robot, review_of(view), question, text)).status_code for text in ("a", " a ", "b")]
    assert codes == [200, 200, 409]
    assert refusal(await say(robot, review_of(view), question, "b")) == (409, "already_answered")
    await maya.vote(view, "deny", reason="no")
    assert (await say(robot, review_of(view), question, "a")).status_code == 200, (
        "a lost answer is told again"
    )
    log = [kind for kind, _ in await bank.log(view["txn"])]
    assert log.count("question_answered") == 1


async def test_nobody_else_answers(bank: World, robot: Agent) -> None:
    view, maya = await asked(robot, bank), await bank.person("maya")
    question = await ask(maya, review_of(view), "which invoice?")
    stranger = await bank.agent(f"{robot.name}-stranger")
    foreign = await say(stranger, review_of(view), question, "4711")
    nowhere = await say(stranger, "rev_none", question, "4711")
    assert refusal(foreign) == refusal(nowhere) == (404, "not_found")
    assert foreign.json()["detail"].replace(review_of(view), "rev_none") == nowhere.json()["detail"]
    path = f"/v1/reviews/{review_of(view)}/answers"
    body = json.dumps({"question_id": question, "text": "4711"}).encode()
    as_person = await maya.http.post(path, content=body, headers=maya.headers())
    assert as_person.status_code == 401
    assert "answer" not in (await robot.see(view["txn"]))["questions"][0]


async def test_the_redeemer_of_an_effect_does_not_answer_for_its_agent(
    bank: World, robot: Agent, folder: Payments
) -> None:
    folder.rules(gate("ship-needs", "finance", action="ship"))
    await bank.activate()
    warehouse = await bank.agent("warehouse")
    ship = {"tool": "ship", "tool_digest": await bank.manifest_digest("ship"), "args": {"order": "o-1"}}
    view, maya = (await robot.submit(ship)).json(), await bank.person("maya")
    question = await ask(maya, review_of(view), "where to?")
    assert refusal(await say(warehouse, review_of(view), question, "home")) == (404, "not_found")


async def test_a_frozen_agent_says_nothing(bank: World, robot: Agent) -> None:
    view, maya = await asked(robot, bank), await bank.person("maya")
    question = await ask(maya, review_of(view), "which invoice?")
    await bank.operator("freeze", {"agent": robot.name})
    assert refusal(await say(robot, review_of(view), question, "4711")) == (403, "frozen")


async def test_a_question_of_another_review_is_not_answered_here(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500), await pay(bank, 600))).json()
    maya = await bank.person("maya")
    question = await ask(maya, review_of(view), "which invoice?")
    assert refusal(await say(robot, review_of(view, 1), question, "4711")) == (404, "not_found")
    comment_id = (await write(maya, review_of(view), "hm")).json()["comments"][-1]["comment_id"]
    assert refusal(await say(robot, review_of(view), comment_id, "4711")) == (404, "not_found")


async def test_an_open_question_stops_no_clock_and_no_vote(bank: World, robot: Agent) -> None:
    view, maya = await asked(robot, bank), await bank.person("maya")
    await ask(maya, review_of(view), "which invoice?")
    seen = await robot.see(view["txn"])
    assert seen["effects"][0]["review"]["answer_by"] == view["effects"][0]["review"]["answer_by"]
    await maya.vote(view)
    assert (await robot.see(view["txn"]))["state"] == "ready"


async def test_events_tell_that_something_was_asked_and_not_what(bank: World, robot: Agent) -> None:
    view, maya = await asked(robot, bank), await bank.person("maya")
    await ask(maya, review_of(view), "which invoice?")
    await bank.service.sequencer.number()
    await bank.service.feed.refresh()
    events = [e for e in await bank.service.feed.events_after(0, 10_000) if e.txn == view["txn"]]
    assert [(e.kind, e.review_id, robot.name in e.parties) for e in events if e.kind == "question_asked"] == [
        ("question_asked", review_of(view), True)
    ]


# ------------------------------------------------------------------------------------------ a transaction as a whole


async def test_people_read_the_other_effects_whole(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500), await mail(bank, "your refund"))).json()
    maya = await bank.person("maya")
    review = (await maya.get(f"/v1/reviews/{review_of(view)}")).json()
    (sibling,) = review["siblings"]
    other = view["effects"][1]
    assert sibling["args"]["text"] == "your refund"
    told = {name: sibling[name] for name in ("effect_id", "seq", "tool", "effect_digest", "state")}
    assert told == {name: other[name] for name in told}
