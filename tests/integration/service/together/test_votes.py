"""Votes: on exactly these bytes, by eligible people, counted once, and a denial is final."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import select

from policy_service.storage.core import table
from policy_service.storage.tables import ReviewRow, VoteRow
from tests.fakes.payments import GROUPS, gate, person
from tests.fakes.world import Visitor
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank, refusal

pytestmark = pytest.mark.anyio


async def votes(bank: Bank) -> list[tuple[str, str, bool]]:
    """The votes on the agent's effects, and whether they were late, in order."""
    rows, reviews = table(VoteRow).c, table(ReviewRow).c
    query = (
        select(rows.sub, rows.verdict, rows.late)
        .join(table(ReviewRow), reviews.review_id == rows.review_id)
        .where(reviews.agent == bank.robot.name)
        .order_by(rows.vote_id)
    )
    found = await bank.service.db.read(lambda conn: [tuple(row) for row in conn.execute(query)])
    return [(sub, verdict, late) for sub, verdict, late in found]


async def refused(visitor: Visitor, view: dict[str, Any], *args: Any, **other: Any) -> tuple[int, str]:
    return refusal(await visitor.vote(view, *args, **other))


async def voted(visitor: Visitor, view: dict[str, Any], *args: Any, **other: Any) -> str:
    """The review after a vote."""
    answer = await visitor.vote(view, *args, **other)
    assert answer.status_code == 200, answer.text
    state: str = answer.json()["state"]
    return state


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
    for other in ({"rev": 2}, {"effect_digest": "0" * 64}, {"txn_digest": "0" * 64}):
        assert await refused(bank.maya, view, **other) == (409, "stale_review"), other
    strangers = bank.ingrid, bank.jonas, await bank.person("stranger")
    for late in (False, True):
        for visitor in strangers:
            assert await refused(visitor, view) == (403, "not_eligible")
            assert await refused(visitor, view, "deny", reason="no") == (403, "not_eligible")
        assert await votes(bank) == ([("maya", "approve", False)] if late else [])
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
    view = await bank.asks(robot=await bank.agent("owned", owner=person("maya")))
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
    assert await votes(bank) == [("maya", "approve", False), ("tomas", "approve", False)]


async def test_an_approve_may_become_a_deny_which_needs_a_reason_and_is_final(bank: Bank) -> None:
    view = await bank.asks(5_000)
    await bank.maya.vote(view)
    for reason in (None, "", "  \n"):
        assert await refused(bank.maya, view, "deny", reason=reason) == (400, "reason_required")
    assert (await bank.states(view))[0] == "review"
    assert await voted(bank.maya, view, "deny", reason="not ours") == "denied"
    assert await bank.states(view) == ["ended", "denied"]
    assert refusal(await bank.robot.release(view)) == (409, "not_ready")
    assert await votes(bank) == [("maya", "approve", False), ("maya", "deny", False)]
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
    assert await votes(bank) == [("maya", "approve", False), ("tomas", "deny", True)]
    assert (await bank.robot.spend(await bank.robot.see(view["txn"])))["redeemed"] is True
    await bank.maya.vote(view, "deny", reason="after the fact")
    assert (await bank.states(view))[0] == "redeemed"


async def test_one_of_two_concurrent_votes_wins(bank: Bank) -> None:
    view = await bank.asks()
    answers = await asyncio.gather(bank.maya.vote(view), bank.tomas.vote(view, "deny", reason="no"))
    assert {answer.status_code for answer in answers} == {200}
    cast = {late: verdict for _, verdict, late in await votes(bank)}
    met = cast[False] == "approve"
    assert (len(cast), cast[True]) == (2, "deny" if met else "approve")
    assert await bank.states(view) == (["ready", "released"] if met else ["ended", "denied"])
    kinds = [kind for kind, _ in await bank.log(view["txn"])]
    assert (kinds.count("effect_released"), kinds.count("review_settled")) == (int(met), 1)


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
    for verdict, ended in (
        ("approve", ["ready", "released", "released"]),
        ("deny", ["ended", "withdrawn", "denied"]),
    ):
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
