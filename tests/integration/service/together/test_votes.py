"""Reviews: votes that count, who may vote, comments, and questions to the agent."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from policy_service.errors import ForbiddenError
from policy_service.queries import repository, reviews
from policy_service.queries import vote_eligibility as openings
from policy_service.queries.review_models import VoteResult
from policy_service.queries.vote_eligibility import Voter
from policy_service.storage.core import find, update_rows
from policy_service.storage.tables import AgentRow, TransactionRow
from policy_service.workflow.edits import proposals as accepting
from policy_service.workflow.edits.proposals import accept
from policy_service.workflow.reviews import comment
from policy_service.workflow.reviews.vote import VoteInput, vote
from tests.fakes.payments import GROUPS, gate, person, plain_forbid
from tests.fakes.world import URL, Agent, Visitor, stamp
from tests.integration.service.effects import mail, pay, ship
from tests.integration.service.stepping_up import Holder, review_of
from tests.integration.service.together.bank import Bank, counting, refusal, voter
from tests.integration.service.together.test_revoking import Paused

PROMPT = 5.0  # seconds: far less than the wait asked for, far more than a busy machine needs


async def write(who: Visitor, review_id: str, text: str, **more: Any) -> httpx2.Response:
    """A comment over the API."""
    body = json.dumps({"text": text, **more}).encode()
    return await who.http.post(f"/v1/reviews/{review_id}/comments", content=body, headers=who.headers())


async def ask(who: Visitor, review_id: str, text: str = "which invoice?") -> Any:
    """A question; returns its id."""
    answer = await write(who, review_id, text, question=True)
    assert answer.status_code == 200, answer.text
    return answer.json()["comments"][-1]["comment_id"]


async def say(robot: Agent, review_id: str, question_id: str, text: str = "number 4711") -> httpx2.Response:
    """The agent's answer."""
    said = {"question_id": question_id, "text": text}
    return await robot.send("POST", f"/v1/reviews/{review_id}/answers", said)


# ------------------------------------------------------------------------------------------------------- comments


async def test_a_comment_is_visible_and_decides_nothing(bank: Bank) -> None:
    view = await bank.asks()
    answer = await write(bank.maya, review_of(view), "  the invoice\r\nis in the file ")
    (one,) = answer.json()["comments"]
    assert one == one | {
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
    events = await bank.service.feed.events_after(0, 10_000)
    (event,) = [one for one in events if (one.txn, one.kind) == (view["txn"], "question_asked")]
    assert (event.review_id, bank.robot.name in event.parties) == (review_of(view), True)


async def test_only_eligible_voters_and_the_owner_may_comment(bank: Bank) -> None:
    view = await bank.asks(robot=await bank.other_agent("mine", owner=person("jonas")))
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
    words = {"superseded": "revision 2 superseded", "met": "approved", "expired": "over"}
    states = {"superseded": "review", "met": "ready"}
    for how in ("denied", "withdrawn", "superseded", "met", "expired"):
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
            assert words.get(how, how) in refused.json()["detail"]
        assert (await bank.states(view))[0] == states.get(how, "ended")


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
    assert seen == seen | {
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
    assert await bank.counts(view, "question_answered") == [1]


async def test_only_the_asked_agent_answers(bank: Bank) -> None:
    await bank.rules(gate("ship-needs", "finance", action="ship"))
    view = (await bank.robot.submit(await pay(bank, 500), await pay(bank, 600))).json()
    question = await ask(bank.maya, review_of(view))
    stranger = await bank.other_agent("stranger")
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
        await say(await bank.warehouse(), review_of(shipped), where_to),  # the redeemer's
    ):
        assert refusal(no_answer) == (404, "not_found")
    await bank.operator("freeze", {"agent": bank.robot.name})
    assert refusal(await say(bank.robot, review_of(view), question)) == (403, "frozen")
    assert "answer" not in (await bank.robot.see(view["txn"]))["questions"][0]


# -- Votes: on exactly these bytes, by eligible people, counted once, and a denial is final


async def cast(bank: Bank, view: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """The votes on an effect, and whether they were late, in order."""
    return [(vote.sub, vote.verdict, vote.late) for vote in await bank.votes(view)]


async def refused(visitor: Visitor, view: dict[str, Any], *args: Any, **other: Any) -> tuple[int, str]:
    return refusal(await visitor.vote(view, *args, **other))


async def voted(visitor: Visitor, view: dict[str, Any], *args: Any, **other: Any) -> Any:
    """The review after a vote."""
    answer = await visitor.vote(view, *args, **other)
    assert answer.status_code == 200, answer.text
    return answer.json()["state"]


async def test_one_approval_meets_a_gate_of_one(bank: Bank) -> None:
    view = await bank.asks()
    shown = (await bank.maya.vote(view, reason="checked with the customer")).json()
    assert shown["state"] == "met"
    (vote,) = shown["votes"]
    assert (vote["person"], vote["counted"], vote["assurance"]) == (person("maya"), True, "dev")
    assert vote["reason"] == "checked with the customer"
    seen = (await bank.robot.see(view["txn"]))["effects"][0]
    assert (seen["state"], seen["decision"]["mode"]) == ("released", "review")
    decision = bank.release_of((await bank.tokens(view))[0]).decision
    assert (decision.mode, decision.assurance) == ("review", "dev")


async def test_a_vote_on_anything_else_is_not_counted(bank: Bank) -> None:
    view = await bank.asks()
    for other in (
        {"rev": 2},
        {"effect_digest": "0" * 64},
        {"txn_digest": "0" * 64},
        {"view_digest": "0" * 64},
    ):
        assert await refused(bank.maya, view, **other) == (409, "stale_review"), other
    strangers = bank.ingrid, bank.jonas, await bank.person("stranger")
    for late in (False, True):
        for visitor in strangers:
            assert await refused(visitor, view) == (403, "not_eligible")
            assert await refused(visitor, view, "deny", reason="no") == (403, "not_eligible")
        assert await cast(bank, view) == ([("maya", "approve", False)] if late else [])
        await bank.maya.vote(view)


async def test_a_stale_vote_gets_the_differences(bank: Bank) -> None:
    old = (await bank.robot.submit(await pay(bank, 500), await mail(bank))).json()
    new = (await bank.robot.submit(await pay(bank, 500), await pay(bank, 7_000))).json()
    answer = (await bank.maya.vote(old)).json()
    assert (answer["code"], answer["rev"], answer["changed"]) == ("stale_review", 2, [])
    assert answer["review_id"] == new["effects"][0]["review"]["review_id"]
    await bank.robot.submit(await mail(bank))
    changed = (await bank.maya.vote(old)).json()["changed"]
    assert {"name": "amount", "read": "500", "now": "(absent)"} in changed


async def test_the_owner_of_the_agent_may_never_vote(bank: Bank) -> None:
    view = await bank.asks(robot=await bank.other_agent("owned", owner=person("maya")))
    for verdict in ("approve", "deny"):
        assert await refused(bank.maya, view, verdict, reason="no") == (403, "not_eligible")
    assert await voted(bank.tomas, view) == "met"


async def test_cedar_narrows_who_may_approve(bank: Bank) -> None:
    await bank.rules(
        '@id("people-may") permit (principal, action == Action::"approve", resource);\n'
        '@id("not-maya") @doc("Maya is on leave")\n'
        f'forbid (principal == User::"{person("maya")}", action == Action::"approve", resource);\n'
    )
    view = await bank.asks()
    answer = await bank.maya.vote(view)
    assert refusal(answer) == (403, "not_eligible")
    assert "on leave" in answer.json()["detail"]
    assert await voted(bank.tomas, view) == "met"


async def test_a_quorum_of_two_needs_two_people(bank: Bank) -> None:
    """However often one of them approves, in several browsers and at the same time."""
    view = await bank.asks(5_000)
    answers = await asyncio.gather(*(bank.maya.vote(view) for _ in range(10)))
    assert {(answer.status_code, answer.json()["state"]) for answer in answers} == {(200, "open")}
    assert await voted(await bank.person("maya"), view) == "open"
    assert (await bank.states(view))[0] == "review"
    assert (await bank.robot.see(view["txn"]))["effects"][0]["review"]["needs"][0]["have"] == 1
    assert await voted(bank.tomas, view) == "met"
    assert await cast(bank, view) == [("maya", "approve", False), ("tomas", "approve", False)]


async def test_an_approve_may_become_a_deny_which_needs_a_reason_and_is_final(bank: Bank) -> None:
    view = await bank.asks(5_000)
    await bank.maya.vote(view)
    for reason in (None, "", "  \n"):
        assert await refused(bank.maya, view, "deny", reason=reason) == (400, "reason_required")
    assert (await bank.states(view))[0] == "review"
    assert await voted(bank.maya, view, "deny", reason="not ours") == "denied"
    assert await bank.states(view) == ["ended", "denied"]
    assert refusal(await bank.robot.release(view)) == (409, "not_ready")
    assert await cast(bank, view) == [("maya", "approve", False), ("maya", "deny", False)]
    for visitor in (bank.maya, bank.tomas):  # and a deny is never taken back
        assert await voted(visitor, view) == "denied"
    assert (await bank.states(view))[0] == "ended"


async def test_late_votes_are_recorded_and_change_nothing(bank: Bank) -> None:
    view = await bank.asks()
    await bank.maya.vote(view)
    shown = (await bank.tomas.vote(view, "deny", reason="too late")).json()
    assert shown["state"] == "met"
    counted = [(vote["person"], vote["counted"]) for vote in shown["votes"]]
    assert counted == [(person("maya"), True), (person("tomas"), False)]
    await bank.tomas.vote(view, "deny", reason="again")
    assert await cast(bank, view) == [("maya", "approve", False), ("tomas", "deny", True)]
    assert (await bank.robot.spend(await bank.robot.see(view["txn"])))["redeemed"] is True
    await bank.maya.vote(view, "deny", reason="after the fact")
    assert (await bank.states(view))[0] == "redeemed"


async def test_one_of_two_concurrent_votes_wins(bank: Bank) -> None:
    view = await bank.asks()
    answers = await asyncio.gather(bank.maya.vote(view), bank.tomas.vote(view, "deny", reason="no"))
    assert {answer.status_code for answer in answers} == {200}
    verdicts = {late: verdict for _, verdict, late in await cast(bank, view)}
    met = verdicts[False] == "approve"
    assert (len(verdicts), verdicts[True]) == (2, "deny" if met else "approve")
    assert await bank.states(view) == (["ready", "released"] if met else ["ended", "denied"])
    assert await bank.counts(view, "effect_released", "review_settled") == [int(met), 1]


async def test_a_gate_with_step_up_needs_a_passkey_to_approve_but_not_to_deny(bank: Bank) -> None:
    """A gate that requires reasons requires one for an approval too."""
    await bank.only(gate("careful", "finance", step_up="passkey"))
    view = await bank.asks(10)
    assert await refused(bank.maya, view) == (403, "step_up_required")
    assert await voted(bank.maya, view, "deny", reason="no") == "denied"
    await bank.only(gate("why", "finance", reason=""))
    view = await bank.asks(10, run_key="why")
    assert await refused(bank.maya, view) == (400, "reason_required")
    assert await voted(bank.maya, view, reason="seen the invoice") == "met"


async def test_unseen_arguments_are_reviewed_by_people(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank, items=["a", "a"]))).json()
    assert view["state"] == "review" and view["effects"][0]["decision"]["unseen"] == ["items"]
    assert view["effects"][0]["review"]["needs"][0]["groups"] == ["unseen"]
    assert await voted(bank.ingrid, view) == "met"


async def test_every_effect_of_a_transaction_has_its_own_review(bank: Bank) -> None:
    ends = {"approve": ["ready", "released", "released"], "deny": ["ended", "withdrawn", "denied"]}
    for verdict, ended in ends.items():
        view = (await bank.robot.submit(await pay(bank, 500), await pay(bank, 600), run_key=verdict)).json()
        await bank.maya.vote(view, effect=0)
        assert await bank.states(view) == ["review", "released", "review"]
        await bank.maya.vote(view, verdict, effect=1, reason="no")
        assert await bank.states(view) == ended


async def test_a_review_stays_open_without_voters_in_the_group(bank: Bank) -> None:
    await bank.people(GROUPS | {"finance": ()})
    view = await bank.asks()
    assert await refused(bank.maya, view) == (403, "not_eligible")
    assert (await bank.states(view))[0] == "review"


# -- Who may vote, redeem and see: which votes count, the requester's side, and other agents

STRONG = gate("strong", "finance", step_up="passkey")

WEAK = gate("weak", "finance|legal")


def ballot(view: dict[str, Any]) -> VoteInput:
    return VoteInput(review_of(view), "approve", **stamp(view), reason=None, channel="test")


async def approve(bank: Bank, view: dict[str, Any], name: str, step_up: str | None = None) -> VoteResult:
    return await vote(bank.service.ctx, voter(name, step_up), ballot(view))


async def kept(bank: Bank, view: dict[str, Any]) -> list[tuple[str, str | None]]:
    """The voters of a review and their step-up, in order."""
    return [(vote.sub, vote.step_up) for vote in await bank.votes(view)]


async def counted(bank: Bank, name: str, review_id: str) -> tuple[list[bool], list[bool]]:
    """Which votes count: in the API and on the page."""
    wire = (await (await bank.person(name)).get(f"/v1/reviews/{review_id}")).json()["votes"]
    page = await reviews.review_page(bank.service.ctx, voter(name), review_id)
    assert page is not None
    return [shown["counted"] for shown in wire], [shown.counted for shown in page.votes]


async def test_an_approval_must_count_toward_a_gate_of_its_person(bank: Bank) -> None:
    """A gate of other people without step-up must not help."""
    await bank.only(STRONG, gate("law", "legal"))
    view = await bank.asks(10)
    assert refusal(await bank.maya.vote(view)) == (403, "step_up_required")
    assert (await bank.ingrid.vote(view)).status_code == 200
    assert await kept(bank, view) == [("ingrid", None)]


async def test_an_approval_repeated_with_a_passkey_is_one_stronger_vote(bank: Bank) -> None:
    await bank.only(STRONG, WEAK)
    view = await bank.asks(10)
    assert (await approve(bank, view, "maya")).state == "open"
    assert (await approve(bank, view, "ingrid")).state == "open"
    assert (await approve(bank, view, "maya", "passkey")).state == "met"
    assert await kept(bank, view) == [("maya", "passkey"), ("ingrid", None)]
    lines = [body for kind, body in await bank.log(view["txn"]) if kind == "vote_strengthened"]
    strengthened = [(line["step_up"], line["was"], line["review_id"]) for line in lines]
    assert strengthened == [("passkey", None, review_of(view))]
    await bank.only(gate("strong", "finance", step_up="passkey", quorum="2"))
    view = await bank.asks(10, run_key="twice")  # repeated as strongly as before it is the same vote
    for _ in range(2):
        await approve(bank, view, "maya", "passkey")
    assert await kept(bank, view) == [("maya", "passkey")]
    assert await bank.counts(view, "vote_recorded", "vote_strengthened") == [1, 0]


async def test_a_denial_counts_the_same_in_every_view(bank: Bank) -> None:
    """It counts while its person is in the group, and never if it is late."""
    view = await bank.asks()
    review_id = view["effects"][0]["review"]["review_id"]
    await bank.maya.vote(view, "deny", reason="no")
    await bank.tomas.vote(view, "deny", reason="no, too")
    assert await counted(bank, "maya", review_id) == ([True, False], [True, False])
    await bank.people({**GROUPS, "finance": ("tomas",)})
    assert await counted(bank, "maya", review_id) == ([False, False], [False, False])


async def test_a_refusal_explains_missing_groups(bank: Bank) -> None:
    await bank.only(WEAK)
    view = await bank.asks(10)
    for problem, words in (
        (None, "ask your administrator to add you to the group"),
        ("Acme sent no claim 'groups'", "add you to the group (Acme sent no claim 'groups')"),
    ):
        stranger = Voter("https://login.example", "248", "Stranger", "oidc", groups_problem=problem)
        with pytest.raises(ForbiddenError) as refused:
            await vote(bank.service.ctx, stranger, ballot(view))
        assert refused.value.detail.endswith(words)


# -- whose side somebody is on is asked at every count ---------------------------------------------------------------

LESS = {"account": "acme", "amount": 300}


async def give(bank: Bank, robot: Agent, name: str) -> None:
    """Another person owns the agent from now on."""
    owner = {"owner": person(name)}
    await bank.service.db.write(lambda tx: update_rows(tx.conn, AgentRow, {"name": robot.name}, owner))


async def test_an_approval_by_a_new_owner_of_the_agent_stops_counting(bank: Bank) -> None:
    """So does their break-glass signature."""
    bank.folder.people(GROUPS | {"captain": ("jonas",)})
    alone = 'permit (principal in Group::"captain", action == Action::"break_glass_alone", resource);'
    await bank.rules(f'@id("alone") {alone}')
    view, glass = await bank.asks(), await bank.asks(run_key="emergency")
    assert (await bank.maya.vote(view)).json()["state"] == "met"
    assert (await Holder(bank.jonas).break_glass(review_of(glass))).status_code == 303
    for asked, owner in ((view, "maya"), (glass, "jonas")):
        tokens = await bank.tokens(asked)
        await give(bank, bank.robot, owner)
        assert (await bank.robot.redeem(tokens)).json().get("redeemed") is not True
        assert (await bank.states(asked))[0] == "review"
    assert (await bank.tomas.vote(view)).json()["state"] == "met"


async def test_an_owner_cannot_accept_their_own_proposal(bank: Bank) -> None:
    view = await bank.asks()
    proposal = await bank.maya.proposed(view, LESS)
    await give(bank, bank.robot, "maya")
    with pytest.raises(ForbiddenError, match="you proposed it yourself"):
        await accept(bank.service.ctx, voter("maya"), proposal)
    assert (await bank.robot.see(view["txn"]))["rev"] == 1


async def test_an_edited_list_keeps_the_weakest_authentication_method(bank: Bank) -> None:
    view = await bank.asks()
    weak = {"method": "api_key"}
    await bank.service.db.write(lambda tx: update_rows(tx.conn, TransactionRow, {"txn": view["txn"]}, weak))
    assert (await bank.robot.accept(await bank.maya.proposed(view, LESS))).json()["rev"] == 2
    rows = await bank.service.db.read(lambda conn: find(conn, TransactionRow, txn=view["txn"]))
    assert {row.rev: row.method for row in rows} == {1: "api_key", 2: "api_key"}


async def test_an_accepted_proposal_meets_the_active_bundle(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposal = await bank.maya.proposed(await bank.asks(), {"account": "acme", "amount": 5})
    bank.folder.rules(plain_forbid("never-small", "context.input.amount < 10"))
    answer = await Paused(accepting, monkeypatch).until(bank.robot.accept(proposal), bank.activate())
    assert (answer.json()["rev"], answer.json()["state"]) == (2, "ended")


# -- another party learns nothing ------------------------------------------------------------------------------------


def routes(view: dict[str, Any]) -> list[tuple[str, str, dict[str, Any] | None]]:
    """Every route that names a transaction of another agent."""
    txn, effect_id = f"/v1/transactions/{view['txn']}", view["effects"][0]["effect_id"]
    fired = [{"effect_id": effect_id, "outcome": "fired"}]
    return [
        ("GET", txn, None),
        ("POST", f"{txn}/withdraw", {}),
        ("POST", f"{txn}/release", {"rev": 1}),
        ("POST", f"{txn}/compensate", {"effect_id": effect_id}),
        ("POST", "/v1/redemptions/a1/renew", {"effect_ids": [effect_id]}),
        ("POST", "/v1/outcomes", {"attempt_id": "a1", "outcomes": fired}),
    ]


async def test_another_agent_gets_the_response_for_an_unknown_transaction(bank: Bank) -> None:
    stranger = await bank.other_agent("stranger")
    view = await bank.asks(10, attempt_id="a1")
    for theirs, absent in zip(routes(view), routes({**view, "txn": "0" * 64}), strict=True):
        answers = [await stranger.send(*theirs[:2], theirs[2]), await stranger.send(*absent[:2], absent[2])]
        assert [answer.status_code for answer in answers] == [404, 404]
        details = [one.json()["detail"].replace(view["txn"], "X").replace("0" * 64, "X") for one in answers]
        assert details[0] == details[1]
    for path, body in (("/v1/redemptions/none/renew", {"effect_ids": ["0" * 64]}), routes(view)[-1][1:]):
        assert refusal(await stranger.send("POST", path, body)) == (404, "unknown_attempt")
    await bank.service.sequencer.number()
    assert (await stranger.send("GET", "/v1/audit")).json()["rows"] == []
    assert (await bank.robot.send("GET", "/v1/audit")).json()["rows"] != []


async def test_an_agent_cannot_redeem_what_another_party_redeems(bank: Bank) -> None:
    """The redeemer cannot withdraw it either."""
    robot, warehouse = bank.robot, await bank.warehouse()
    view = (await robot.submit(await ship(bank), attempt_id="a1")).json()
    assert view["state"] == "ready" and view["releases"] == []
    txn = f"/v1/transactions/{view['txn']}"
    assert (await warehouse.see(view["txn"]))["state"] == "ready"
    assert refusal(await warehouse.send("POST", f"{txn}/withdraw", {})) == (403, "forbidden")
    assert refusal(await robot.release(view)) == (403, "not_redeemer")
    released = (await warehouse.release(view)).json()["releases"]
    assert refusal(await robot.redeem(released, "a2")) == (403, "not_redeemer")
    assert (await warehouse.redeem(released, "a3")).json()["redeemed"] is True
    fired = {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired"}
    assert refusal(await robot.report("a3", fired)) == (404, "unknown_attempt")  # not one of its own
    assert (await warehouse.report("a3", fired)).json()["state"] == "settled"
    renewed = await robot.send("POST", "/v1/redemptions/a3/renew", {"effect_ids": [fired["effect_id"]]})
    assert refusal(renewed) == (404, "unknown_attempt")
    undone = await robot.send("POST", f"{txn}/compensate", {"effect_id": fired["effect_id"]})
    assert refusal(undone) == (403, "not_redeemer")


# -- an agent that wants its own yes ---------------------------------------------------------------------------------

FORGED: dict[str, dict[str, str]] = {
    "with nothing else": {},
    "in the name of a person": {"X-Forwarded-User": "maya", "Remote-User": "maya", "X-User": "dev|maya"},
    "with a cookie it made up": {"Cookie": "session=maya; __Host-session=maya; cs_session=maya"},
    "with a bearer token it made up": {"Authorization": "Bearer maya"},
}


async def test_an_agent_cannot_answer_its_own_question(bank: Bank) -> None:
    view = await bank.asks()
    review = view["effects"][0]["review"]["review_id"]
    for path in (f"/v1/reviews/{review}/votes", f"/reviews/{review}/votes", f"/reviews/{review}"):
        for what, headers in FORGED.items():
            body = vote_body(view, reason="I have looked at it", view_digest="0" * 64, approver="maya")
            answer = await bank.robot.send("POST", path, body, headers=headers)
            assert answer.status_code in {401, 403, 404, 405}, (path, what)
    seen = await bank.robot.see(view["txn"])
    assert (seen["state"], seen["effects"][0]["state"]) == ("review", "review")
    assert [kind for kind, _ in await bank.log(view["txn"]) if "vote" in kind] == []
    assert refusal(await bank.robot.release(view)) == (409, "not_ready")
    assert (await bank.maya.vote(view)).json()["state"] == "met"  # the question was a good one all along


# -- One vote loads the transaction once and counts the votes once, and returns what a later read returns


CASES = {  # what happens before it: the verdict, and the state of the review afterwards
    "it settles": ("approve", "met"),
    "it is late": ("approve", "denied"),
    "the policy forbids it by now": ("approve", "denied"),
    "another gate asks by now": ("approve", "open"),
    "a change was proposed": ("deny", "denied"),
}


async def test_a_vote_loads_and_counts_once(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it names what was shown or not."""
    loads, tallies = counting(monkeypatch, repository, "load"), counting(monkeypatch, openings, "tally")
    one = gate("one", "finance")
    for case, named in itertools.product(CASES, (True, False)):
        await bank.fresh()
        await bank.only(one)
        view = await bank.asks(10)
        if case == "it is late":
            await bank.tomas.vote(view, "deny", reason="no")
        elif case == "the policy forbids it by now":
            await bank.only(one, plain_forbid("never"))
        elif case == "another gate asks by now":
            await bank.only(one, gate("law", "legal"))
        elif case == "a change was proposed":
            assert (await bank.tomas.propose(view, {"account": "acme", "amount": 5})).status_code == 201
        seen = {"view_digest": (await bank.review(view))["view_digest"]} if named else {}
        loads.clear()
        tallies.clear()
        verdict, state = CASES[case]
        answer = await bank.maya.vote(view, verdict, reason="because", **seen)
        assert (answer.status_code, answer.json()["state"]) == (200, state), case
        assert (len(loads), len(tallies)) == (1, 1), case
        assert answer.json() == await bank.review(view)


# -- The queue in the API, for people with a session who send what our own page would send


def vote_body(view: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {"verdict": "approve", **stamp(view), **other}


async def test_a_review_shows_its_gates_deadline_and_other_effects(bank: Bank) -> None:
    owned = await bank.other_agent("owned", owner=person("jonas"))
    view = await bank.asks(robot=owned, claimed={"purpose": "the invoice of May"})
    shown = await bank.review(view)
    need = {"gates": ["large"], "groups": ["finance"], "quorum": 1, "have": 0, "shared": False, "added": []}
    assert shown == shown | {
        "state": "open", "title": "Pay", "agent": owned.name, "owner": person("jonas"), "needs": [need], "votes": [],
        "claimed": {"purpose": "the invoice of May"}, "url": f"{URL}/reviews/{review_of(view)}",
    }  # fmt: skip
    assert shown["effect"]["args"] == {"account": "acme", "amount": 500}
    assert shown["answer_by"] > shown["opened_at"]
    view = (await bank.robot.submit(await pay(bank, 500), await mail(bank, "your refund"))).json()
    (sibling,), other = (await bank.review(view))["siblings"], view["effects"][1]
    members = ("effect_id", "seq", "tool", "effect_digest", "state")
    assert sibling == sibling | {name: other[name] for name in members} and "your refund" in str(
        sibling["args"]
    )


async def test_the_queue_is_paged_by_deadline(bank: Bank) -> None:
    await bank.rules(gate("hurry", "finance", 'context.input.account == "soon"', answer_within="5m"))
    views = [await bank.asks(run_key=f"r{n}") for n in range(5)]
    soon = (await bank.robot.submit(await pay(bank, 500, account="soon"), run_key="soon")).json()
    found: list[str] = []
    query: str | None = ""
    while query is not None:
        page = (await bank.maya.get(f"/v1/reviews?limit=2{query}")).json()
        found += [review["txn"] for review in page["reviews"]]
        assert len(page["reviews"]) <= 2
        query = f"&cursor={quote(page['next'])}" if "next" in page else None
    mine = [txn for txn in found if txn in bank.robot.txns]
    assert mine == [soon["txn"], *(view["txn"] for view in views)]


async def test_a_review_that_does_not_exist_is_not_found(bank: Bank) -> None:
    vote, headers = vote_body(await bank.asks()), bank.maya.headers()
    assert refusal(await bank.maya.get("/v1/reviews/rev_0")) == (404, "not_found")
    nowhere = await bank.maya.http.post("/v1/reviews/rev_0/votes", json=vote, headers=headers)
    assert refusal(nowhere) == (404, "not_found")
    for query in ("cursor=x", "cursor=~", "cursor=2026-01-01~r", "limit=0", "limit=x", "limit=9999"):
        assert refusal(await bank.maya.get(f"/v1/reviews?{query}")) == (400, "invalid_request"), query


async def sent(maya: Visitor, view: dict[str, Any], **headers: Any) -> tuple[int, str]:
    """A vote with some headers changed or missing; returns the refusal."""
    given = {name: value for name, value in (maya.headers() | headers).items() if value is not None}
    url, body = f"/v1/reviews/{review_of(view)}/votes", json.dumps(vote_body(view)).encode()
    answer = await maya.http.post(url, content=body, headers=given)
    code: str = answer.json().get("code", "")
    return answer.status_code, code


FORGED_HEADERS: list[tuple[dict[str, Any], int, str]] = [
    ({"Cookie": None}, 401, "unauthenticated"),
    ({"Cookie": "countersign_dev=made-up"}, 401, "unauthenticated"),
    ({"X-CSRF-Token": None}, 403, "csrf"),
    ({"X-CSRF-Token": "made-up"}, 403, "csrf"),
    ({"X-CSRF-Token": b"caf\xe9"}, 403, "csrf"),
    ({"Origin": None}, 403, "csrf"),
    ({"Origin": "https://evil.example"}, 403, "csrf"),
    ({"Origin": "null"}, 403, "csrf"),
    ({"Sec-Fetch-Site": "cross-site"}, 403, "csrf"),
    ({"Sec-Fetch-Mode": "cors"}, 403, "csrf"),
]

BALLOTS: list[tuple[dict[str, Any], str]] = [
    ({"verdict": "maybe"}, "invalid_request"),
    ({"reason": "r" * 4_001}, "invalid_request"),
    ({"person": "tomas"}, "unknown_field"),
]


async def test_a_vote_from_another_page_is_refused(bank: Bank) -> None:
    view = await bank.asks()
    assert await sent(bank.maya, view, **{"X-CSRF-Token": bank.tomas.csrf}) == (403, "csrf")
    for headers, status, code in FORGED_HEADERS:
        assert await sent(bank.maya, view, **headers) == (status, code), headers
    for other, code in BALLOTS:
        vote, own = vote_body(view, **other), bank.maya.headers()
        answer = await bank.maya.http.post(f"/v1/reviews/{review_of(view)}/votes", json=vote, headers=own)
        assert refusal(answer) == (400, code), other
    assert (await bank.states(view))[0] == "review"
    assert (await sent(bank.maya, view))[0] == 200
