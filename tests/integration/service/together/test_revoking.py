"""Revocations end what was permitted; freezes block it for a while."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlmodel import col

from policy_service.errors import ConflictError, NotFoundError, ServiceError
from policy_service.storage.core import table
from policy_service.storage.system_tables import AuditRow
from policy_service.storage.tables import DecisionRow
from tests.fakes.payments import gate, person
from tests.fakes.world import Agent
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank, refusal
from tests.integration.service.together.test_compensation import fired, undone
from tests.integration.service.together.test_outcomes import redeemed, report_outcomes

pytestmark = pytest.mark.anyio

WHY = {"reason": "the card was stolen"}


async def ready(bank: Bank, robot: Agent | None = None, **members: Any) -> dict[str, Any]:
    robot = robot or bank.robot
    view: dict[str, Any] = (await robot.submit(await pay(bank), await mail(bank), **members)).json()
    assert view["state"] == "ready"
    return view


async def test_a_released_effect_is_revoked_with_its_transaction(bank: Bank) -> None:
    view = await ready(bank)
    tokens = await bank.tokens(view)
    done = await bank.operator("revoke-effect", {"effect_id": view["effects"][1]["effect_id"], **WHY})
    assert done == {"txn": view["txn"]}
    assert await bank.states(view) == ["ended", "withdrawn", "revoked"]
    assert refusal(await bank.robot.redeem(tokens)) == (409, "not_ready")
    assert (await bank.robot.release(view)).status_code == 409
    log = [body for kind, body in await bank.log(view["txn"]) if kind == "effect_revoked"]
    assert [(body["from"], body["reason"]) for body in log] == [("released", WHY["reason"])]


async def test_a_waiting_effect_is_revoked_and_its_review_with_it(bank: Bank) -> None:
    view = await bank.asks()
    await bank.operator("revoke-transaction", {"txn": view["txn"], **WHY})
    assert await bank.states(view) == ["ended", "revoked"]
    late = (await bank.maya.vote(view)).json()
    assert (late["state"], [vote["counted"] for vote in late["votes"]]) == ("revoked", [False])
    assert await bank.states(view) == ["ended", "revoked"]


async def test_a_redeemed_effect_cannot_be_revoked(bank: Bank) -> None:
    view = await ready(bank)
    await bank.robot.spend(view)
    effect, txn = {"effect_id": view["effects"][0]["effect_id"]}, {"txn": view["txn"]}
    for verb, args in (("revoke-effect", effect), ("revoke-transaction", txn)):
        with pytest.raises(ConflictError, match="redeemed"):
            await bank.operator(verb, args | WHY)
    assert not (await bank.operator("revoke-transaction-if-open", txn | WHY))["ended"]
    assert (await bank.states(view))[0] == "redeemed"


async def test_revoking_an_unknown_target_is_refused(bank: Bank) -> None:
    for verb, args in (
        ("revoke-effect", {"effect_id": "0" * 64}),
        ("revoke-transaction", {"txn": "0" * 64}),
        ("revoke-transaction-if-open", {"txn": "0" * 64}),
        ("revoke-effect-if-open", {"effect_id": "0" * 64}),
        ("revoke-agent", {"agent": "unknown"}),
        ("revoke-commit", {"commit": "never"}),
        ("reinstate-approver", {"person": person("jonas")}),
    ):
        with pytest.raises(NotFoundError):
            await bank.operator(verb, args | WHY)
    for slip in ("maya", "|maya", "https://idp.example|", ""):
        with pytest.raises(ServiceError, match="is not a person"):
            await bank.operator("revoke-approver", {"person": slip, **WHY})
    for tool in ("", "two words", "x" * 201, "a\nb"):
        with pytest.raises(ServiceError, match="cannot be a tool"):
            await bank.operator("stop", {"tool": tool, **WHY})


async def test_revoking_an_agent_ends_its_keys_and_open_transactions(bank: Bank) -> None:
    other = await bank.agent(f"{bank.robot.name}-friend")
    gone, stays = await ready(bank), await ready(bank, other)
    spent = (await bank.robot.submit(await mail(bank), run_key="spent", attempt_id="spent")).json()
    done = await bank.operator("revoke-agent", {"agent": bank.robot.name, **WHY})
    assert done["open"] == [gone["txn"]]
    assert (await bank.robot.submit(await mail(bank), run_key="next")).status_code == 401
    for txn in done["open"]:
        assert (await bank.operator("revoke-transaction-if-open", {"txn": txn, **WHY}))["ended"]
    back = await bank.another_key(bank.robot)
    assert await bank.states(gone, back) == ["ended", "revoked", "withdrawn"]
    assert (await bank.states(spent, back))[0] == "redeemed"
    assert (await back.submit(await mail(bank), run_key="next")).json()["code"] == "frozen"
    assert (await bank.states(stays, other))[0] == "ready"


async def test_a_revoked_approver_decides_nothing(bank: Bank) -> None:
    by_maya, by_both = await bank.asks(run_key="a"), await bank.asks(5_000, run_key="b")
    for view in (by_maya, by_both):
        assert (await bank.maya.vote(view)).json()["votes"][0]["counted"]
    tokens = await bank.tokens(by_maya)
    done = await bank.operator("revoke-approver", {"person": person("maya"), **WHY})
    try:
        assert done["votes"] >= 2
        assert (await bank.robot.redeem(tokens)).json()["redeemed"] is False
        assert await bank.states(by_maya) == ["review", "review"]
        assert (await bank.maya.vote(by_maya)).status_code == 401, "her session ended"
        with pytest.raises(AssertionError, match="taken you out"):
            await bank.person("maya")
        assert (await bank.tomas.vote(by_both)).json()["state"] == "open", "hers was one of the two"
        assert (await bank.tomas.vote(by_maya)).json()["state"] == "met", "others decide as before"
    finally:
        await bank.operator("reinstate-approver", {"person": person("maya")})
    again = await bank.person("maya")
    answer = (await again.vote(by_both)).json()
    assert answer["state"] == "met", "a new word of hers counts"
    assert [vote["counted"] for vote in answer["votes"]] == [False, True, True], "the old one stays out"


async def test_a_revoked_person_is_refused_at_their_first_sign_in(bank: Bank) -> None:
    """A revocation lost in a restore is repeated before they return, and a person can be barred in advance."""
    for name in ("never-here", "auth0|5f7c"):
        who = {"person": person(name)}
        for known in (False, True):  # safe to repeat
            done = await bank.operator("revoke-approver", {**who, **WHY})
            assert (done["votes"], done["known"]) == (0, known)
        with pytest.raises(AssertionError, match="taken you out"):
            await bank.person(name)
        listed = {one["person"]: one["revoked"] for one in await bank.operator("people-list", {})}
        assert listed[who["person"]] is True
        await bank.operator("reinstate-approver", who)
        await bank.person(name)


async def test_a_compensation_approved_only_by_a_revoked_person_returns_to_review(bank: Bank) -> None:
    text = (bank.folder.path / "tools/pay.json").read_text()
    bank.folder.write("tools/pay.json", text.replace("result:/id", "args:/account"))
    await bank.rules(gate("u", "finance", action="unpay"))
    view = await fired(bank, bank.robot, amount=500, approve=True)
    async with bank.revoked("maya"):
        pass
    assert (await undone(bank.robot, view)).json()["effect"]["state"] == "review"


async def test_revoking_a_commit_ends_the_effects_it_decided(bank: Bank) -> None:
    before, other = await ready(bank, run_key="before"), await ready(bank, run_key="other")
    view = await fired(bank, bank.robot)
    undo = (await undone(bank.robot, view)).json()
    commit = before["effects"][0]["decision"]["commit"]
    decided = [effect["decision"]["decision_id"] for effect in other["effects"]]
    rows = update(table(DecisionRow)).where(col(DecisionRow.decision_id).in_(decided))
    await bank.service.db.write(lambda tx: tx.conn.execute(rows.values(commit="another")).rowcount)
    open_ones = (await bank.operator("revoke-commit", {"commit": commit, **WHY}))["open"]
    assert {effect["effect_id"] for effect in [*before["effects"], undo["effect"]]} <= set(open_ones)
    assert not {effect["effect_id"] for effect in other["effects"]} & set(open_ones)
    ended = [await if_open(bank, effect["effect_id"]) for effect in before["effects"]]
    assert ended == [True, False], "the second ended with the first"
    for effect_id in open_ones:
        await if_open(bank, effect_id)
    assert (await bank.states(before))[0] == "ended"
    assert (await bank.robot.redeem([undo["release"]], f"{bank.robot.name}-undo")).status_code == 409
    assert await bank.maya.task(view, "compensation_failed")
    assert (await bank.operator("revoke-commit", {"commit": commit, **WHY}))["open"] == []
    # git's name is unknown where the bundle's folder is no repository, as in a container
    with pytest.raises(NotFoundError, match=rf"Recent commits: .*{commit}"):
        await bank.operator("revoke-commit", {"commit": "8e1f" * 10, **WHY})


async def if_open(bank: Bank, effect_id: str) -> bool:
    done: dict[str, bool] = await bank.operator("revoke-effect-if-open", {"effect_id": effect_id, **WHY})
    return done["ended"]


async def test_an_emergency_stop_blocks_compensations(bank: Bank) -> None:
    view = await fired(bank, bank.robot)
    for tool in ("unpay", None):
        await bank.operator("stop", {"tool": tool, **WHY})
        refused = await undone(bank.robot, view)
        await bank.operator("go-on", {"tool": tool})
        assert refusal(refused) == (403, "frozen")
        assert (await bank.states(view))[1] == "fired"
    assert (await undone(bank.robot, view)).json()["release"] is not None


@pytest.mark.parametrize("what", ["tool pay", "everything", "agent"])
async def test_a_stop_or_freeze_blocks_every_step_until_it_ends(bank: Bank, what: str) -> None:
    robot, named = bank.robot, f"agent {bank.robot.name}" if what == "agent" else what
    args: dict[str, Any] = {"tool": "pay" if what == "tool pay" else None}
    verb, end = ("stop", "go-on")
    if what == "agent":
        verb, end, args = "freeze", "unfreeze", {"agent": robot.name}
    waits, held = await bank.asks(run_key="a"), await ready(bank, run_key="b")
    tokens = await bank.tokens(held)
    effect_ids = await redeemed(robot, await pay(bank), await mail(bank), run_key="c")
    await report_outcomes(robot, (effect_ids[1], "unused"))

    async def asked() -> list[Any]:
        renew = f"/v1/redemptions/{robot.attempt}/renew"
        return [
            await robot.submit(await pay(bank), run_key="d"),
            await robot.release(held),
            await robot.redeem(tokens, robot.attempt + "-2"),
            await robot.send("POST", renew, {"effect_ids": effect_ids[:1]}),
        ]

    began = [await bank.operator(verb, args | WHY) for _ in range(2)]
    try:
        answers = await asked()
        assert [refusal(one) for one in answers] == [(403, "frozen")] * 4
        assert all(f"policy-service unfreeze {named}" in one.json()["detail"] for one in answers)
        assert (await bank.tomas.vote(waits)).json()["state"] == "met", "people may go on deciding"
        mailed = await robot.submit(await mail(bank), run_key="e")
        assert mailed.status_code == (201 if what == "tool pay" else 403), "another tool goes on"
        if what != "everything":
            other = await bank.agent(f"{robot.name}-other")
            paid = await other.submit(await pay(bank))
            assert paid.status_code == (201 if what == "agent" else 403), "another agent goes on"
    finally:
        ended = [await bank.operator(end, args) for _ in range(2)]
    assert all(one.is_success for one in await asked())
    if what == "agent":
        log = table(AuditRow).c
        query = select(log.kind, log.actor, log.body).where(log.kind.like("agent_%frozen"))
        lines = await bank.service.db.read(lambda conn: conn.execute(query.order_by(log.audit_id)).all())
        said = [(kind, actor, json.loads(body)) for kind, actor, body in lines]
        lines = [line for line in said if line[2]["agent"] == robot.name]
        assert lines == [
            ("agent_frozen", "operator", args | WHY),
            ("agent_unfrozen", "operator", args),
        ]
    else:
        assert [one["began"] for one in began] == [one["ended"] for one in ended] == [True, False]
