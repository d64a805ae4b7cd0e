"""Votes: exactly these bytes, by people who may, counted once, final where they deny."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import select

from policy_service.storage.core import table
from policy_service.storage.tables import ReviewRow, VoteRow
from tests.fakes.payments import ANYBODY, GROUPS, Payments, gate, person
from tests.fakes.world import Agent, Visitor, World
from tests.integration.service.effects import mail, pay

pytestmark = pytest.mark.anyio


async def votes(bank: World, robot: Agent) -> list[tuple[str, str, bool]]:
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
    answer = await visitor.vote(view, *args, **other)
    code: str = answer.json()["code"]
    return answer.status_code, code


async def test_one_approval_meets_a_gate_of_one(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    maya = await bank.person("maya")
    answer = await maya.vote(view, reason="checked with the customer")
    shown = answer.json()
    assert (answer.status_code, shown["state"]) == (200, "met")
    assert shown["votes"][0]["person"] == person("maya")
    assert (shown["votes"][0]["counted"], shown["votes"][0]["assurance"]) == (True, "dev")
    assert shown["votes"][0]["reason"] == "checked with the customer"
    seen = (await robot.see(view["txn"]))["effects"][0]
    assert (seen["state"], seen["decision"]["mode"]) == ("released", "review")


STALE = {
    "another revision": {"rev": 2},
    "another effect": {"effect_digest": "0" * 64},
    "another transaction": {"txn_digest": "0" * 64},
}


@pytest.mark.parametrize("other", STALE.values(), ids=STALE)
async def test_a_vote_on_anything_else_is_not_counted(
    bank: World, robot: Agent, other: dict[str, Any]
) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    maya = await bank.person("maya")
    assert await refused(maya, view, **other) == (409, "stale_review")
    assert await votes(bank, robot) == []


async def test_a_stale_vote_is_told_what_has_changed(bank: World, robot: Agent) -> None:
    old = (await robot.submit(await pay(bank, 500), await mail(bank))).json()
    new = (await robot.submit(await pay(bank, 500), await pay(bank, 7_000))).json()
    maya = await bank.person("maya")
    answer = (await maya.vote(old)).json()
    assert (answer["code"], answer["rev"], answer["changed"]) == ("stale_review", 2, [])
    assert answer["review_id"] == new["effects"][0]["review"]["review_id"]


async def test_a_stale_vote_on_what_is_gone_is_told_so(bank: World, robot: Agent) -> None:
    old = (await robot.submit(await pay(bank, 500))).json()
    await robot.submit(await mail(bank))
    maya = await bank.person("maya")
    changed = (await maya.vote(old)).json()["changed"]
    assert {"name": "amount", "read": "500", "now": "(absent)"} in changed


async def test_somebody_in_none_of_the_groups_may_not_answer(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    for name in ("ingrid", "jonas", "nobody-we-know"):
        visitor = await bank.person(name)
        assert await refused(visitor, view) == (403, "not_eligible")
        assert await refused(visitor, view, "deny", reason="no") == (403, "not_eligible")
    assert await votes(bank, robot) == []


async def test_the_owner_of_the_agent_may_not_answer_whatever_the_bundle_says(bank: World) -> None:
    owned = await bank.agent("owned", owner=person("maya"))
    view = (await owned.submit(await pay(bank, 500))).json()
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    answer = await maya.vote(view)
    assert (answer.status_code, answer.json()["code"]) == (403, "not_eligible")
    assert "nobody approves their own side" in answer.json()["detail"]
    assert await refused(maya, view, "deny", reason="no") == (403, "not_eligible")
    assert (await tomas.vote(view)).json()["state"] == "met"


async def test_cedar_narrows_who_may_approve(bank: World, folder: Payments, robot: Agent) -> None:
    folder.rules(
        '@id("people-may") permit (principal, action == Action::"approve", resource);\n'
        '@id("not-maya") @doc("Maya is on leave")\n'
        f'forbid (principal == User::"{person("maya")}", action == Action::"approve", resource);\n'
    )
    await bank.activate()
    view = (await robot.submit(await pay(bank, 500))).json()
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    answer = await maya.vote(view)
    assert (answer.status_code, answer.json()["code"]) == (403, "not_eligible")
    assert "on leave" in answer.json()["detail"]
    assert (await tomas.vote(view)).json()["state"] == "met"


async def test_two_people_are_two_people(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 5_000))).json()
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    for _ in range(3):  # however often one of them says so, from however many browsers
        assert (await maya.vote(view)).json()["state"] == "open"
        maya = await bank.person("maya")
    assert (await robot.see(view["txn"]))["effects"][0]["review"]["needs"][0]["have"] == 1
    assert (await tomas.vote(view)).json()["state"] == "met"
    assert await votes(bank, robot) == [("maya", "approve", False), ("tomas", "approve", False)]


async def test_ten_browsers_of_one_person_at_once_are_one_person(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 5_000))).json()
    maya = await bank.person("maya")
    answers = await asyncio.gather(*(maya.vote(view) for _ in range(10)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(await votes(bank, robot)) == 1
    assert (await robot.see(view["txn"]))["state"] == "review"


async def test_a_deny_needs_a_reason_and_is_final(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 5_000))).json()
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    await tomas.vote(view)
    for reason in (None, "", "  \n"):
        assert await refused(maya, view, "deny", reason=reason) == (400, "reason_required")
    assert (await robot.see(view["txn"]))["state"] == "review"
    assert (await maya.vote(view, "deny", reason="not ours")).json()["state"] == "denied"
    ended = await robot.see(view["txn"])
    assert ended["state"] == "ended" and ended["effects"][0]["state"] == "denied"
    assert (await robot.release(view)).json()["code"] == "not_ready"


async def test_an_approve_may_become_a_deny_until_the_review_settles(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 5_000))).json()
    maya = await bank.person("maya")
    await maya.vote(view)
    assert (await maya.vote(view, "deny", reason="on second thoughts")).json()["state"] == "denied"
    assert await votes(bank, robot) == [("maya", "approve", False), ("maya", "deny", False)]


async def test_a_deny_is_never_taken_back(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    await maya.vote(view, "deny", reason="no")
    for visitor in (maya, tomas):
        assert (await visitor.vote(view)).json()["state"] == "denied"
    assert (await robot.see(view["txn"]))["state"] == "ended"


async def test_late_votes_are_recorded_and_change_nothing(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    await maya.vote(view)
    late = await tomas.vote(view, "deny", reason="too late")
    shown = late.json()
    assert (late.status_code, shown["state"]) == (200, "met")
    assert [(vote["person"], vote["counted"]) for vote in shown["votes"]] == [
        (person("maya"), True),
        (person("tomas"), False),
    ]
    await tomas.vote(view, "deny", reason="again")
    assert await votes(bank, robot) == [("maya", "approve", False), ("tomas", "deny", True)]
    assert (await robot.spend(await robot.see(view["txn"])))["redeemed"] is True
    await maya.vote(view, "deny", reason="after the fact")
    assert (await robot.see(view["txn"]))["state"] == "redeemed"


async def test_the_winner_of_two_answers_at_once_is_one_of_them(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    answers = await asyncio.gather(maya.vote(view), tomas.vote(view, "deny", reason="no"))
    assert {answer.status_code for answer in answers} == {200}
    late = [late for _, _, late in await votes(bank, robot)]
    assert sorted(late) == [False, True]
    assert (await robot.see(view["txn"]))["state"] in {"ready", "ended"}


async def test_a_gate_that_asks_for_reasons_wants_one_for_approving_too(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.policies(ANYBODY + gate("why", "finance", reason=""))
    await bank.activate()
    view = (await robot.submit(await pay(bank))).json()
    maya = await bank.person("maya")
    assert await refused(maya, view) == (400, "reason_required")
    assert (await maya.vote(view, reason="seen the invoice")).json()["state"] == "met"


async def test_a_gate_that_asks_for_a_passkey_cannot_be_met_without_one_but_denied(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.policies(ANYBODY + gate("careful", "finance", step_up="passkey"))
    await bank.activate()
    view = (await robot.submit(await pay(bank))).json()
    maya = await bank.person("maya")
    assert await refused(maya, view) == (403, "step_up_required")
    assert (await maya.vote(view, "deny", reason="no")).json()["state"] == "denied"


async def test_gates_of_other_groups_each_want_their_own_people(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.policies(ANYBODY + gate("money", "finance") + gate("either", "finance|cfo"))
    await bank.activate()
    view = (await robot.submit(await pay(bank))).json()
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    assert (await tomas.vote(view)).json()["state"] == "open"  # he may serve either, but only one of them
    assert (await maya.vote(view)).json()["state"] == "met"


async def test_a_shared_gate_is_met_by_votes_that_serve_others(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.policies(ANYBODY + gate("money", "finance") + gate("look", "cfo|finance", shared=""))
    await bank.activate()
    view = (await robot.submit(await pay(bank))).json()
    maya = await bank.person("maya")
    assert (await maya.vote(view)).json()["state"] == "met"


async def test_what_policy_cannot_weigh_is_looked_at_by_people(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, items=["a", "a"]))).json()
    assert view["state"] == "review" and view["effects"][0]["decision"]["unseen"] == ["items"]
    assert view["effects"][0]["review"]["needs"][0]["groups"] == ["unseen"]
    ingrid = await bank.person("ingrid")
    assert (await ingrid.vote(view)).json()["state"] == "met"


async def test_every_effect_of_a_transaction_is_answered_by_itself(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500), await pay(bank, 600))).json()
    maya = await bank.person("maya")
    await maya.vote(view, effect=0)
    half = await robot.see(view["txn"])
    assert (half["state"], [seen["state"] for seen in half["effects"]]) == ("review", ["released", "review"])
    await maya.vote(view, effect=1)
    assert (await robot.see(view["txn"]))["state"] == "ready"


async def test_a_deny_of_one_effect_withdraws_the_released_one_beside_it(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500), await pay(bank, 600))).json()
    maya = await bank.person("maya")
    await maya.vote(view, effect=0)
    await maya.vote(view, "deny", effect=1, reason="no")
    ended = await robot.see(view["txn"])
    assert (ended["state"], [seen["state"] for seen in ended["effects"]]) == (
        "ended",
        ["withdrawn", "denied"],
    )


async def test_nobody_in_the_group_leaves_the_question_open(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.people(GROUPS | {"finance": ()})
    await bank.activate()
    view = (await robot.submit(await pay(bank, 500))).json()
    maya = await bank.person("maya")
    assert await refused(maya, view) == (403, "not_eligible")
    assert (await robot.see(view["txn"]))["state"] == "review"
