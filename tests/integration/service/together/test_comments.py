"""Comments on a review and questions to its agent: who may write, limits, visibility, and what they never affect."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from policy_service.workflow.reviews import comment
from tests.fakes.payments import gate, person
from tests.fakes.world import Agent, Visitor
from tests.integration.service.effects import mail, pay, ship
from tests.integration.service.together.bank import Bank, refusal

pytestmark = pytest.mark.anyio


def review_of(view: dict[str, Any], effect: int = 0) -> str:
    review: str = view["effects"][effect]["review"]["review_id"]
    return review


PROMPT = 5.0  # seconds: far less than the wait asked for, far more than a busy machine needs


async def write(who: Visitor, review_id: str, text: str, **more: Any) -> httpx2.Response:
    """A comment over the API."""
    body = json.dumps({"text": text, **more}).encode()
    return await who.http.post(f"/v1/reviews/{review_id}/comments", content=body, headers=who.headers())


async def ask(who: Visitor, review_id: str, text: str = "which invoice?") -> str:
    """A question; returns its id."""
    answer = await write(who, review_id, text, question=True)
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["comments"][-1]["comment_id"]
    return found


async def say(robot: Agent, review_id: str, question_id: str, text: str = "number 4711") -> httpx2.Response:
    """The agent's answer."""
    said = {"question_id": question_id, "text": text}
    return await robot.send("POST", f"/v1/reviews/{review_id}/answers", said)


# ------------------------------------------------------------------------------------------------------- comments


async def test_a_comment_is_visible_and_decides_nothing(bank: Bank) -> None:
    view = await bank.asks()
    answer = await write(bank.maya, review_of(view), "  the invoice\r\nis in the file ")
    (one,) = answer.json()["comments"]
    shown = {name: value for name, value in one.items() if name not in ("comment_id", "at")}
    assert shown == {
        "kind": "comment", "person": person("maya"), "name": "Maya", "text": "the invoice\nis in the file",
        "channel": "api", "for_requester": False, "assurance": "dev",
    }  # fmt: skip
    assert (await bank.tomas.get(f"/v1/reviews/{review_of(view)}")).json()["comments"] == [one]
    seen = await bank.robot.see(view["txn"])
    assert (seen["state"], seen["questions"], answer.json()["votes"]) == ("review", [], [])


async def test_the_log_records_the_writer_and_time_but_not_the_text(bank: Bank) -> None:
    view = await bank.asks()
    await write(bank.maya, review_of(view), "the customer is my brother")
    question = await ask(bank.maya, review_of(view))
    await say(bank.robot, review_of(view), question)
    log = [line for line in await bank.log(view["txn"]) if line[0].startswith(("comment", "question"))]
    assert [kind for kind, _ in log] == ["comment_written", "question_asked", "question_answered"]
    assert log[1][1]["comment_id"] == log[2][1]["comment_id"] == question
    assert log[0][1]["channel"] == "api"
    for words in ("brother", "which invoice", "4711"):
        assert words not in str(log)
    await bank.service.sequencer.number()
    await bank.service.feed.refresh()
    (event,) = [
        one
        for one in await bank.service.feed.events_after(0, 10_000)
        if (one.txn, one.kind) == (view["txn"], "question_asked")
    ]
    assert (event.review_id, bank.robot.name in event.parties) == (review_of(view), True)


async def test_only_eligible_voters_and_the_owner_may_comment(bank: Bank) -> None:
    view = await bank.asks(robot=await bank.agent(f"{bank.robot.name}-mine", owner=person("jonas")))
    for question in (False, True):
        refused = await write(bank.ingrid, review_of(view), "let me in", question=question)
        assert refusal(refused) == (403, "not_eligible")
    async with bank.revoked("maya"):
        assert (await write(bank.maya, review_of(view), "one more thing")).status_code in {401, 403}
    answer = await write(bank.jonas, review_of(view), "I asked for this")
    assert [one["for_requester"] for one in answer.json()["comments"]] == [True]
    to_it = await write(bank.jonas, review_of(view), "is it so?", question=True)
    assert refusal(to_it) == (403, "not_eligible")
    assert refusal(await bank.jonas.vote(view)) == (403, "not_eligible")


async def test_a_comment_on_a_closed_review_is_refused(bank: Bank) -> None:
    for how, words, state in (
        ("denied", "denied", "ended"),
        ("withdrawn", "withdrawn", "ended"),
        ("superseded", "revision 2 superseded", "review"),
        ("met", "approved", "ready"),
        ("expired", "over", "ended"),
    ):
        await bank.fresh()
        view = await bank.asks()
        question = await ask(bank.maya, review_of(view))
        if how == "expired":
            bank.clock.pass_(hours=25)  # and no sweep runs
            await bank.sign_in()
        elif how == "withdrawn":
            await bank.withdraw(view)
        elif how == "superseded":
            await bank.asks(600)
        else:
            await bank.maya.vote(view, "deny" if how == "denied" else "approve", reason="so be it")
        late = await write(bank.maya, review_of(view), "too late?")
        for refused in (late, await say(bank.robot, review_of(view), question)):
            assert refusal(refused) == (409, "review_closed")
            assert words in refused.json()["detail"]
        assert (await bank.states(view))[0] == state


async def test_a_repeated_text_is_one_comment(bank: Bank) -> None:
    view = await bank.asks()
    for who in (bank.maya, bank.maya, bank.tomas):
        await write(who, review_of(view), "look twice")
    for _ in range(2):
        answer = await write(bank.maya, review_of(view), "why so much?", question=True)
    kinds = [(one["kind"], one["name"]) for one in answer.json()["comments"]]
    assert kinds == [("comment", "Maya"), ("comment", "Tomas"), ("question", "Maya")]
    await say(bank.robot, review_of(view), answer.json()["comments"][-1]["comment_id"])
    again = await write(bank.maya, review_of(view), "why so much?", question=True)
    assert len(again.json()["comments"]) == 4, "what was answered may be asked anew"


async def test_comments_are_limited(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    view = await bank.asks()
    question = await ask(bank.maya, review_of(view))
    for text in ("", " \n\t ", "x" * 4_001, "x" * 300_000):
        assert refusal(await write(bank.maya, review_of(view), text)) == (400, "invalid_request")
        assert refusal(await say(bank.robot, review_of(view), question, text)) == (400, "invalid_request")
    assert (await bank.robot.see(view["txn"]))["questions"][0].get("answer") is None
    monkeypatch.setattr(comment, "MAX_OF_A_PERSON", 2)
    monkeypatch.setattr(comment, "MAX_ON_A_REVIEW", 3)
    view = await bank.asks(run_key="so many")
    codes = [(await write(bank.maya, review_of(view), f"word {n}")).status_code for n in range(3)]
    codes += [(await write(bank.tomas, review_of(view), f"word {n}")).status_code for n in range(2)]
    assert codes == [200, 200, 429, 200, 429]
    assert (await bank.maya.vote(view)).status_code == 200


# ------------------------------------------------------------------------------------------------------ questions


async def test_a_question_reaches_the_agent_and_its_answer_the_reviewers(bank: Bank) -> None:
    view = await bank.asks()
    question = await ask(bank.maya, review_of(view))
    asked = await bank.robot.see(view["txn"])
    (seen,) = asked["questions"]
    shown = {name: seen[name] for name in ("question_id", "review_id", "effect_id", "text", "asked_by")}
    assert shown == {
        "question_id": question, "review_id": review_of(view), "effect_id": view["effects"][0]["effect_id"],
        "text": "which invoice?", "asked_by": "Maya",
    }  # fmt: skip
    assert "answer" not in seen
    assert asked["effects"][0]["review"]["answer_by"] == view["effects"][0]["review"]["answer_by"]
    answered = await say(bank.robot, review_of(view), question)
    assert [one["answer"] for one in answered.json()["questions"]] == ["number 4711"]
    (one,) = (await bank.maya.get(f"/v1/reviews/{review_of(view)}")).json()["comments"]
    assert (one["answer"], "answered_at" in one) == ("number 4711", True)
    assert answered.json()["state"] == "review"
    await ask(bank.maya, review_of(view), "and which customer?")  # an open question stops no vote
    assert (await bank.maya.vote(view)).json()["state"] == "met"


async def test_a_question_ends_the_agents_wait_and_a_comment_does_not(bank: Bank) -> None:
    view = await bank.asks()
    waiting = asyncio.create_task(bank.robot.see(view["txn"], wait=30))
    await asyncio.sleep(0.1)
    await write(bank.maya, review_of(view), "let us see")
    await asyncio.sleep(0.3)
    assert not waiting.done()
    question = await ask(bank.maya, review_of(view))
    async with asyncio.timeout(PROMPT):
        seen = await waiting
    assert (seen["state"], [one["text"] for one in seen["questions"]]) == ("review", ["which invoice?"])
    # one that was asked between two waits is not slept through
    path, begun = f"/v1/transactions/{view['txn']}?asked_after=", time.monotonic()
    async with asyncio.timeout(PROMPT):
        await bank.robot.send("GET", path, headers={"Prefer": "wait=30"})
    again = await bank.robot.send("GET", path + quote(question), headers={"Prefer": "wait=1"})
    assert 0.9 < time.monotonic() - begun < 2 * PROMPT, "the one that was seen ends no wait"
    assert again.json()["questions"][0]["question_id"] == question


async def test_an_answer_is_final_and_may_be_repeated(bank: Bank) -> None:
    view = await bank.asks()
    question = await ask(bank.maya, review_of(view))
    for text in ("a", " a "):
        assert (await say(bank.robot, review_of(view), question, text)).status_code == 200
    assert refusal(await say(bank.robot, review_of(view), question, "b")) == (409, "already_answered")
    await bank.maya.vote(view, "deny", reason="no")
    lost = await say(bank.robot, review_of(view), question, "a")
    assert lost.status_code == 200, "a lost response is repeated"
    assert [kind for kind, _ in await bank.log(view["txn"])].count("question_answered") == 1


async def test_nobody_else_answers(bank: Bank) -> None:
    await bank.rules(gate("ship-needs", "finance", action="ship"))
    view = (await bank.robot.submit(await pay(bank, 500), await pay(bank, 600))).json()
    question = await ask(bank.maya, review_of(view))
    stranger = await bank.agent(f"{bank.robot.name}-stranger")
    foreign = await say(stranger, review_of(view), question)
    nowhere = await say(stranger, "rev_none", question)
    assert refusal(foreign) == refusal(nowhere) == (404, "not_found")
    assert foreign.json()["detail"].replace(review_of(view), "rev_none") == nowhere.json()["detail"]
    path = f"/v1/reviews/{review_of(view)}/answers"
    body = json.dumps({"question_id": question, "text": "4711"}).encode()
    assert (await bank.maya.http.post(path, content=body, headers=bank.maya.headers())).status_code == 401
    comment_id = (await write(bank.maya, review_of(view), "hm")).json()["comments"][-1]["comment_id"]
    shipped = (await bank.robot.submit(await ship(bank), run_key="shipped")).json()
    where_to = await ask(bank.maya, review_of(shipped), "where to?")
    for no_answer in (
        await say(bank.robot, review_of(view, 1), question),  # another review's
        await say(bank.robot, review_of(view), comment_id),  # no question
        await say(await bank.agent("warehouse"), review_of(shipped), where_to),  # the redeemer's
    ):
        assert refusal(no_answer) == (404, "not_found")
    await bank.operator("freeze", {"agent": bank.robot.name})
    assert refusal(await say(bank.robot, review_of(view), question)) == (403, "frozen")
    assert "answer" not in (await bank.robot.see(view["txn"]))["questions"][0]


# ------------------------------------------------------------------------------------------ a transaction as a whole


async def test_reviewers_see_the_other_effects_in_full(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank, 500), await mail(bank, "your refund"))).json()
    review = (await bank.maya.get(f"/v1/reviews/{review_of(view)}")).json()
    (sibling,) = review["siblings"]
    other = view["effects"][1]
    assert sibling["args"]["text"] == "your refund"
    shown = {name: sibling[name] for name in ("effect_id", "seq", "tool", "effect_digest", "state")}
    assert shown == {name: other[name] for name in shown}
