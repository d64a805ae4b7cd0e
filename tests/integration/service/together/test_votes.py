"""Votes: exactly these bytes, by people who may, counted once, final where they deny."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import select

from policy_service.storage.core import table
from policy_service.storage.tables import ReviewRow, VoteRow
from tests.fakes.payments import GROUPS, gate, person
from tests.fakes.world import Agent, Visitor
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank, refusal

pytestmark = pytest.mark.anyio


async def votes(bank: Bank, robot: Agent) -> list[tuple[str, str, bool]]:
    """Who voted what on an agent's effects, and whether too late, in the order they did."""
    rows, reviews = table(VoteRow).c, table(ReviewRow).c
    query = (
        select(rows.sub, rows.verdict, rows.late)
        .join(table(ReviewRow), reviews.review_id == rows.review_id)
        .where(reviews.agent == robot.name)
        .order_by(rows.vote_id)
    )
    found = await bank.service.db.read(lambda conn: [tuple(row) for row in conn.execute(query)])
    return [(sub, verdict, late) for sub, verdict, late in found]


async def refused(visitor: Visitor, view: dict[str, Any], *args: Any, **other: Any) -> tuple[int, str]:
    return refusal(await visitor.vote(view, *args, **other))


async def test_one_approval_meets_a_gate_of_one(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank, 500))).json()
    answer = await bank.maya.vote(view, reason="checked with the customer")
    shown = answer.json()
    assert (answer.status_code, shown["state"]) == (200, "met")
    assert shown["votes"][0]["person"] == person("maya")
    assert (shown["votes"][0]["counted"], shown["votes"][0]["assurance"]) == (True, "dev")
    assert shown["votes"][0]["reason"] == "checked with the customer"
    seen = (await bank.robot.see(view["txn"]))["effects"][0]
    assert (seen["state"], seen["decision"]["mode"]) == ("released", "review")


async def test_a_vote_on_anything_else_is_not_counted(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank, 500))).json()
    for other in ({"rev": 2}, {"effect_digest": "0" * 64}, {"txn_digest": "0" * 64}):
        assert await refused(bank.maya, view, **other) == (409, "stale_review"), other
    for name in ("ingrid", "jonas", "nobody-we-know"):
        visitor = await bank.person(name)
        assert await refused(visitor, view) == (403, "not_eligible")
        assert await refused(visitor, view, "deny", reason="no") == (403, "not_eligible")
    assert await votes(bank, bank.robot) == []


async def test_a_stale_vote_is_told_what_has_changed(bank: Bank) -> None:
    old = (await bank.robot.submit(await pay(bank, 500), await mail(bank))).json()
    new = (await bank.robot.submit(await pay(bank, 500), await pay(bank, 7_000))).json()
    answer = (await bank.maya.vote(old)).json()
    assert (answer["code"], answer["rev"], answer["changed"]) == ("stale_review", 2, [])
    assert answer["review_id"] == new["effects"][0]["review"]["review_id"]
    await bank.robot.submit(await mail(bank))
    changed = (await bank.maya.vote(old)).json()["changed"]
    assert {"name": "amount", "read": "500", "now": "(absent)"} in changed


async def test_the_owner_of_the_agent_may_not_answer_whatever_the_bundle_says(bank: Bank) -> None:
    owned = await bank.agent("owned", owner=person("maya"))
    view = (await owned.submit(await pay(bank, 500))).json()
    for verdict in ("approve", "deny"):
        answer = await bank.maya.vote(view, verdict, reason="no")
        assert refusal(answer) == (403, "not_eligible")
        assert "nobody approves their own side" in answer.json()["detail"]
    assert (await bank.tomas.vote(view)).json()["state"] == "met"


async def test_cedar_narrows_who_may_approve(bank: Bank) -> None:
    await bank.rules(
        '@id("people-may") permit (principal, action == Action::"approve", resource);\n'
        '@id("not-maya") @doc("Maya is on leave")\n'
        f'forbid (principal == User::"{person("maya")}", action == Action::"approve", resource);\n'
    )
    view = (await bank.robot.submit(await pay(bank, 500))).json()
    answer = await bank.maya.vote(view)
    assert (answer.status_code, answer.json()["code"]) == (403, "not_eligible")
    assert "on leave" in answer.json()["detail"]
    assert (await bank.tomas.vote(view)).json()["state"] == "met"


async def test_two_people_are_two_people(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank, 5_000))).json()
    for _ in range(3):  # however often one of them says so, from however many browsers
        assert (await bank.maya.vote(view)).json()["state"] == "open"
        bank.maya = await bank.person("maya")
    assert (await bank.robot.see(view["txn"]))["effects"][0]["review"]["needs"][0]["have"] == 1
    assert (await bank.tomas.vote(view)).json()["state"] == "met"
    assert await votes(bank, bank.robot) == [("maya", "approve", False), ("tomas", "approve", False)]


async def test_ten_browsers_of_one_person_at_once_are_one_person(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank, 5_000))).json()
    answers = await asyncio.gather(*(bank.maya.vote(view) for _ in range(10)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(await votes(bank, bank.robot)) == 1
    assert (await bank.robot.see(view["txn"]))["state"] == "review"


async def test_a_deny_needs_a_reason_and_is_final(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank, 5_000))).json()
    await bank.tomas.vote(view)
    for reason in (None, "", "  \n"):
        assert await refused(bank.maya, view, "deny", reason=reason) == (400, "reason_required")
    assert (await bank.robot.see(view["txn"]))["state"] == "review"
    assert (await bank.maya.vote(view, "deny", reason="not ours")).json()["state"] == "denied"
    ended = await bank.robot.see(view["txn"])
    assert ended["state"] == "ended" and ended["effects"][0]["state"] == "denied"
    assert (await bank.robot.release(view)).json()["code"] == "not_ready"


async def test_an_approve_may_become_a_deny_until_the_review_settles(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank, 5_000))).json()
    await bank.maya.vote(view)
    assert (await bank.maya.vote(view, "deny", reason="on second thoughts")).json()["state"] == "denied"
    assert await votes(bank, bank.robot) == [("maya", "approve", False), ("maya", "deny", False)]
    for visitor in (bank.maya, bank.tomas):  # and a deny is never taken back
        assert (await visitor.vote(view)).json()["state"] == "denied"
    assert (await bank.robot.see(view["txn"]))["state"] == "ended"


async def test_late_votes_are_recorded_and_change_nothing(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank, 500))).json()
    await bank.maya.vote(view)
    late = await bank.tomas.vote(view, "deny", reason="too late")
    shown = late.json()
    assert (late.status_code, shown["state"]) == (200, "met")
    assert [(vote["person"], vote["counted"]) for vote in shown["votes"]] == [
        (person("maya"), True),
        (person("tomas"), False),
    ]
    await bank.tomas.vote(view, "deny", reason="again")
    assert await votes(bank, bank.robot) == [("maya", "approve", False), ("tomas", "deny", True)]
    assert (await bank.robot.spend(await bank.robot.see(view["txn"])))["redeemed"] is True
    await bank.maya.vote(view, "deny", reason="after the fact")
    assert (await bank.robot.see(view["txn"]))["state"] == "redeemed"


async def test_the_winner_of_two_answers_at_once_is_one_of_them(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank, 500))).json()
    answers = await asyncio.gather(bank.maya.vote(view), bank.tomas.vote(view, "deny", reason="no"))
    assert {answer.status_code for answer in answers} == {200}
    late = [late for _, _, late in await votes(bank, bank.robot)]
    assert sorted(late) == [False, True]
    assert (await bank.robot.see(view["txn"]))["state"] in {"ready", "ended"}


async def test_a_gate_that_asks_for_reasons_wants_one_for_approving_too(bank: Bank) -> None:
    await bank.only(gate("why", "finance", reason=""))
    view = (await bank.robot.submit(await pay(bank))).json()
    assert await refused(bank.maya, view) == (400, "reason_required")
    assert (await bank.maya.vote(view, reason="seen the invoice")).json()["state"] == "met"


async def test_a_gate_that_asks_for_a_passkey_cannot_be_met_without_one_but_denied(bank: Bank) -> None:
    await bank.only(gate("careful", "finance", step_up="passkey"))
    view = (await bank.robot.submit(await pay(bank))).json()
    assert await refused(bank.maya, view) == (403, "step_up_required")
    assert (await bank.maya.vote(view, "deny", reason="no")).json()["state"] == "denied"


async def test_gates_of_other_groups_each_want_their_own_people_unless_shared(bank: Bank) -> None:
    await bank.only(gate("money", "finance"), gate("either", "finance|cfo"))
    view = (await bank.robot.submit(await pay(bank))).json()
    # he may serve either, but only one of them
    assert (await bank.tomas.vote(view)).json()["state"] == "open"
    assert (await bank.maya.vote(view)).json()["state"] == "met"
    await bank.only(gate("money", "finance"), gate("look", "cfo|finance", shared=""))
    view = (await bank.robot.submit(await pay(bank), run_key="shared")).json()
    assert (await bank.maya.vote(view)).json()["state"] == "met"


async def test_what_policy_cannot_weigh_is_looked_at_by_people(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank, items=["a", "a"]))).json()
    assert view["state"] == "review" and view["effects"][0]["decision"]["unseen"] == ["items"]
    assert view["effects"][0]["review"]["needs"][0]["groups"] == ["unseen"]
    assert (await bank.ingrid.vote(view)).json()["state"] == "met"


@pytest.mark.parametrize(
    ("verdict", "ended"),
    [("approve", ["ready", "released", "released"]), ("deny", ["ended", "withdrawn", "denied"])],
)
async def test_every_effect_of_a_transaction_is_answered_by_itself(
    bank: Bank, verdict: str, ended: list[str]
) -> None:
    view = (await bank.robot.submit(await pay(bank, 500), await pay(bank, 600))).json()
    await bank.maya.vote(view, effect=0)
    half = await bank.robot.see(view["txn"])
    assert (half["state"], [seen["state"] for seen in half["effects"]]) == ("review", ["released", "review"])
    await bank.maya.vote(view, verdict, effect=1, reason="no")
    whole = await bank.robot.see(view["txn"])
    assert [whole["state"], *(seen["state"] for seen in whole["effects"])] == ended


async def test_nobody_in_the_group_leaves_the_question_open(bank: Bank) -> None:
    await bank.people(GROUPS | {"finance": ()})
    view = (await bank.robot.submit(await pay(bank, 500))).json()
    assert await refused(bank.maya, view) == (403, "not_eligible")
    assert (await bank.robot.see(view["txn"]))["state"] == "review"
