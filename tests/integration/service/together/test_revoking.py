"""Revoked: what was allowed may not happen any more. Frozen: for a while."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update
from sqlmodel import col

from policy_service.errors import ConflictError, NotFoundError, ServiceError
from policy_service.storage.core import table
from policy_service.storage.tables import DecisionRow
from tests.fakes.payments import Payments, person
from tests.fakes.world import Agent, World
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.test_compensation import fired, undone

pytestmark = pytest.mark.anyio
WHY = {"reason": "the card was stolen"}


async def states(robot: Agent, txn: str) -> tuple[str, ...]:
    view = await robot.see(txn)
    return (view["state"], *(effect["state"] for effect in view["effects"]))


async def ready(bank: World, robot: Agent, **members: Any) -> dict[str, Any]:
    view: dict[str, Any] = (await robot.submit(await pay(bank), await mail(bank), **members)).json()
    assert view["state"] == "ready"
    return view


async def waiting(bank: World, robot: Agent, amount: int = 500, **members: Any) -> dict[str, Any]:
    view: dict[str, Any] = (await robot.submit(await pay(bank, amount), **members)).json()
    assert view["state"] == "review"
    return view


async def test_a_released_effect_is_revoked_with_its_transaction(bank: World, robot: Agent) -> None:
    view = await ready(bank, robot)
    tokens = (await robot.release(view)).json()["releases"]
    done = await bank.operator("revoke-effect", {"effect_id": view["effects"][1]["effect_id"], **WHY})
    assert done == {"txn": view["txn"]}
    assert await states(robot, view["txn"]) == ("ended", "withdrawn", "revoked")
    refused = await robot.redeem(tokens)
    assert (refused.status_code, refused.json()["code"]) == (409, "not_ready")
    assert (await robot.release(view)).status_code == 409
    log = [body for kind, body in await bank.log(view["txn"]) if kind == "effect_revoked"]
    assert [(body["from"], body["reason"]) for body in log] == [("released", WHY["reason"])]


async def test_a_waiting_effect_is_revoked_and_its_review_with_it(bank: World, robot: Agent) -> None:
    view = await waiting(bank, robot)
    await bank.operator("revoke-transaction", {"txn": view["txn"], **WHY})
    assert await states(robot, view["txn"]) == ("ended", "revoked")
    late = (await (await bank.person("maya")).vote(view)).json()
    assert (late["state"], [vote["counted"] for vote in late["votes"]]) == ("revoked", [False])
    assert await states(robot, view["txn"]) == ("ended", "revoked")


async def test_what_was_redeemed_is_past_stopping_and_told_so(bank: World, robot: Agent) -> None:
    view = await ready(bank, robot)
    await robot.spend(view)
    for verb, args in (
        ("revoke-effect", {"effect_id": view["effects"][0]["effect_id"]}),
        ("revoke-transaction", {"txn": view["txn"]}),
    ):
        with pytest.raises(ConflictError, match="redeemed"):
            await bank.operator(verb, args | WHY)
    assert not (await bank.operator("revoke-transaction-if-open", {"txn": view["txn"], **WHY}))["ended"]
    assert (await states(robot, view["txn"]))[0] == "redeemed"


@pytest.mark.parametrize(
    ("verb", "args"),
    [
        ("revoke-effect", {"effect_id": "0" * 64}),
        ("revoke-transaction", {"txn": "0" * 64}),
        ("revoke-transaction-if-open", {"txn": "0" * 64}),
        ("revoke-effect-if-open", {"effect_id": "0" * 64}),
        ("revoke-agent", {"agent": "nobody"}),
        ("revoke-commit", {"commit": "never"}),
        ("reinstate-approver", {"person": person("jonas")}),
    ],
)
async def test_what_is_not_there_cannot_be_revoked(bank: World, verb: str, args: dict[str, str]) -> None:
    with pytest.raises(NotFoundError):
        await bank.operator(verb, args | WHY)


async def test_a_revoked_agent_proves_nothing_and_leaves_nothing_open(bank: World, robot: Agent) -> None:
    other = await bank.agent(f"{robot.name}-friend")
    gone, stays = await ready(bank, robot), await ready(bank, other)
    spent = (await robot.submit(await mail(bank), run_key="spent", attempt_id="spent")).json()
    done = await bank.operator("revoke-agent", {"agent": robot.name, **WHY})
    assert done["open"] == [gone["txn"]]
    assert (await robot.submit(await mail(bank), run_key="next")).status_code == 401
    for txn in done["open"]:
        assert (await bank.operator("revoke-transaction-if-open", {"txn": txn, **WHY}))["ended"]
    back = await bank.another_key(robot)
    assert await states(back, gone["txn"]) == ("ended", "revoked", "withdrawn")
    assert (await states(back, spent["txn"]))[0] == "redeemed"
    assert (await back.submit(await mail(bank), run_key="next")).json()["code"] == "frozen"
    assert (await states(other, stays["txn"]))[0] == "ready"


async def test_a_revoked_approver_is_out_of_every_decision(bank: World, robot: Agent) -> None:
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    by_maya, by_both = await waiting(bank, robot, run_key="a"), await waiting(bank, robot, 5_000, run_key="b")
    for view in (by_maya, by_both):
        assert (await maya.vote(view)).json()["votes"][0]["counted"]
    tokens = (await robot.release(by_maya)).json()["releases"]
    done = await bank.operator("revoke-approver", {"person": person("maya"), **WHY})
    try:
        assert done["votes"] >= 2
        refused = (await robot.redeem(tokens)).json()
        assert refused["redeemed"] is False
        assert await states(robot, by_maya["txn"]) == ("review", "review")
        assert (await maya.vote(by_maya)).status_code == 401, "her session ended"
        with pytest.raises(AssertionError, match="taken you out"):
            await bank.person("maya")
        assert (await tomas.vote(by_both)).json()["state"] == "open", "hers was one of the two"
        assert (await tomas.vote(by_maya)).json()["state"] == "met", "others decide as before"
    finally:
        await bank.operator("reinstate-approver", {"person": person("maya")})
    again = await bank.person("maya")
    answer = (await again.vote(by_both)).json()
    assert answer["state"] == "met", "a new word of hers counts"
    assert [vote["counted"] for vote in answer["votes"]] == [False, True, True], (
        "what left the count stays out"
    )


async def test_a_person_who_never_signed_in_is_refused_when_they_come(bank: World) -> None:
    """A revocation lost in a restore is done again before they come back; and somebody can be barred in advance."""
    who = {"person": person("never-here")}
    for known in (False, True):  # safe to repeat
        done = await bank.operator("revoke-approver", {**who, **WHY})
        assert (done["votes"], done["known"]) == (0, known)
    with pytest.raises(AssertionError, match="taken you out"):
        await bank.person("never-here")
    listed = {one["person"]: one["revoked"] for one in await bank.operator("people-list", {})}
    assert listed[who["person"]] is True
    await bank.operator("reinstate-approver", who)
    await bank.person("never-here")


@pytest.mark.parametrize("slip", ["maya", "|maya", "https://idp.example|", ""])
async def test_who_can_be_no_person_is_not_barred(bank: World, slip: str) -> None:
    with pytest.raises(ServiceError, match="is not a person"):
        await bank.operator("revoke-approver", {"person": slip, **WHY})


async def test_a_person_whose_subject_holds_a_bar_is_taken_out_too(bank: World) -> None:
    await bank.person("auth0|5f7c")
    await bank.operator("revoke-approver", {"person": person("auth0|5f7c"), **WHY})
    with pytest.raises(AssertionError, match="taken you out"):
        await bank.person("auth0|5f7c")
    await bank.operator("reinstate-approver", {"person": person("auth0|5f7c")})
    await bank.person("auth0|5f7c")


async def test_a_compensation_only_a_revoked_person_approved_is_asked_about_again(
    bank: World, folder: Payments, robot: Agent
) -> None:
    text = (folder.path / "tools/pay.json").read_text()
    folder.write("tools/pay.json", text.replace("result:/id", "args:/account"))
    folder.rules('@id("u") @approval("finance") forbid (principal, action == Action::"unpay", resource);')
    await bank.activate()
    view = await waiting(bank, robot)
    await (await bank.person("maya")).vote(view)
    await robot.spend(view)
    effect_id = view["effects"][0]["effect_id"]
    await robot.report(robot.attempt, {"effect_id": effect_id, "outcome": "fired", "result": {"id": "p"}})
    await bank.operator("revoke-approver", {"person": person("maya"), **WHY})
    await bank.operator("reinstate-approver", {"person": person("maya")})
    undo = await robot.send("POST", f"/v1/transactions/{view['txn']}/compensate", {"effect_id": effect_id})
    assert undo.json()["effect"]["state"] == "review"


async def test_an_unknown_commit_is_answered_with_those_that_decided_lately(
    bank: World, robot: Agent
) -> None:
    """git's name is unknown where the bundle's folder is no repository, as in a container."""
    commit = (await ready(bank, robot))["effects"][0]["decision"]["commit"]
    assert commit.startswith("dir-")
    with pytest.raises(NotFoundError, match=rf"lately decided: .*{commit}"):
        await bank.operator("revoke-commit", {"commit": "8e1f" * 10, **WHY})


async def test_a_revoked_commit_ends_what_it_decided_last(bank: World, robot: Agent) -> None:
    before, other = await ready(bank, robot, run_key="before"), await ready(bank, robot, run_key="other")
    commit = (await robot.see(before["txn"]))["effects"][0]["decision"]["commit"]
    decided = [effect["decision"]["decision_id"] for effect in other["effects"]]
    rows = update(table(DecisionRow)).where(col(DecisionRow.decision_id).in_(decided))
    await bank.service.db.write(lambda tx: tx.conn.execute(rows.values(commit="another")).rowcount)
    open_ones = (await bank.operator("revoke-commit", {"commit": commit, **WHY}))["open"]
    assert {effect["effect_id"] for effect in before["effects"]} <= set(open_ones)
    assert not {effect["effect_id"] for effect in other["effects"]} & set(open_ones)
    ended = [await if_open(bank, effect["effect_id"]) for effect in before["effects"]]
    assert ended == [True, False], "the second ended with the first"
    for effect_id in open_ones:
        await if_open(bank, effect_id)
    assert (await states(robot, before["txn"]))[0] == "ended"
    assert (await bank.operator("revoke-commit", {"commit": commit, **WHY}))["open"] == []


async def if_open(bank: World, effect_id: str) -> bool:
    done: dict[str, bool] = await bank.operator("revoke-effect-if-open", {"effect_id": effect_id, **WHY})
    return done["ended"]


async def test_a_revoked_commit_ends_the_compensations_it_decided(bank: World, robot: Agent) -> None:
    view = await fired(bank, robot)
    undo = (await undone(robot, view)).json()
    assert undo["effect"]["state"] == "released"
    commit = undo["effect"]["decision"]["commit"]
    open_ones = (await bank.operator("revoke-commit", {"commit": commit, **WHY}))["open"]
    assert undo["effect"]["effect_id"] in open_ones
    assert await if_open(bank, undo["effect"]["effect_id"])
    assert (await robot.redeem([undo["release"]], f"{robot.name}-undo")).status_code == 409
    assert await (await bank.person("maya")).task(view, "compensation_failed")


STOPPED = [("pay", "tool pay"), (None, "everything")]


@pytest.mark.parametrize(("tool", "named"), STOPPED)
async def test_what_is_stopped_neither_begins_nor_goes_on_until_it_is_unfrozen(
    bank: World, robot: Agent, tool: str | None, named: str
) -> None:
    fresh, tokens_view = await waiting(bank, robot, run_key="a"), await ready(bank, robot, run_key="b")
    tokens = (await robot.release(tokens_view)).json()["releases"]
    spent = (
        await robot.submit(await pay(bank), await mail(bank), run_key="c", attempt_id=robot.attempt)
    ).json()
    effect_ids = [effect["effect_id"] for effect in spent["effects"]]
    await robot.report(robot.attempt, {"effect_id": effect_ids[1], "outcome": "unused"})

    async def asked() -> list[Any]:
        renew = f"/v1/redemptions/{robot.attempt}/renew"
        return [
            await robot.submit(await pay(bank), run_key="d"),
            await robot.release(tokens_view),
            await robot.redeem(tokens, robot.attempt + "-2"),
            await robot.send("POST", renew, {"effect_ids": effect_ids[:1]}),
        ]

    assert (await bank.operator("stop", {"tool": tool, **WHY}))["began"]
    try:
        answers = await asked()
        assert [(one.status_code, one.json()["code"]) for one in answers] == [(403, "frozen")] * 4
        assert all(f"policy-service unfreeze {named}" in one.json()["detail"] for one in answers)
        told = f"the tool {tool!r} is frozen" if tool else "everything is frozen"
        assert all(one.json()["detail"].startswith(told) for one in answers)
        voted = await (await bank.person("tomas")).vote(fresh)
        assert voted.json()["state"] == "met", "people may go on deciding"
        mailed = await robot.submit(await mail(bank), run_key="e")
        assert mailed.status_code == (201 if tool else 403), "another tool goes on, unless everything stops"
        assert not (await bank.operator("stop", {"tool": tool, **WHY}))["began"], "it is stopped already"
    finally:
        assert (await bank.operator("go-on", {"tool": tool}))["ended"]
    assert all(one.is_success for one in await asked())
    assert not (await bank.operator("go-on", {"tool": tool}))["ended"]


@pytest.mark.parametrize("tool", ["unpay", None])
async def test_a_stop_holds_compensations_too(bank: World, robot: Agent, tool: str | None) -> None:
    view = (await robot.submit(await pay(bank), await mail(bank), attempt_id=robot.attempt)).json()
    paid, mailed = (effect["effect_id"] for effect in view["effects"])
    await robot.report(
        robot.attempt,
        {"effect_id": paid, "outcome": "fired", "result": {"id": "p"}},
        {"effect_id": mailed, "outcome": "failed"},
    )
    path = f"/v1/transactions/{view['txn']}/compensate"
    await bank.operator("stop", {"tool": tool, **WHY})
    try:
        assert (await robot.send("POST", path, {"effect_id": paid})).json()["code"] == "frozen"
        assert (await states(robot, view["txn"]))[1] == "fired"
    finally:
        await bank.operator("go-on", {"tool": tool})
    assert (await robot.send("POST", path, {"effect_id": paid})).json()["release"] is not None


@pytest.mark.parametrize("tool", ["", "two words", "x" * 201, "a\nb"])
async def test_what_can_be_no_tool_is_not_stopped(bank: World, tool: str) -> None:
    with pytest.raises(ServiceError, match="cannot be a tool"):
        await bank.operator("stop", {"tool": tool, **WHY})
