"""Taking back what fired, by an effect of its own: built here, decided now, spent once."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from countersign.contract import ARGS_LIMITS, canonicalize, names
from policy_service.storage.core import table
from policy_service.storage.database import Tx
from policy_service.storage.tables import AgentRow, EffectRow
from tests.fakes.payments import PAY, Payments, gate, plain_forbid
from tests.fakes.world import Agent, World
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.test_outcomes import tasks

pytestmark = pytest.mark.anyio

UNDO_GATE = gate("undo-asks", "legal", action="unpay")


async def undone(robot: Agent, view: dict[str, Any], effect: int = 0) -> httpx2.Response:
    """Ask for the compensation of an effect."""
    body = {"effect_id": view["effects"][effect]["effect_id"]}
    return await robot.send("POST", f"/v1/transactions/{view['txn']}/compensate", body)


async def fired(
    bank: World, robot: Agent, *, amount: int = 10, result: Any = None, approve: bool = False
) -> dict[str, Any]:
    """A payment that fired beside a mail that failed."""
    view: dict[str, Any] = (await robot.submit(await pay(bank, amount), await mail(bank))).json()
    if approve:
        maya = await bank.person("maya")
        await maya.vote(view)
        view = await robot.see(view["txn"])
    await robot.spend(view, robot.attempt)
    one, two = (seen["effect_id"] for seen in view["effects"])
    told = {"effect_id": one, "outcome": "fired", "result": {"id": "p1"} if result is None else result}
    assert (
        await robot.report(robot.attempt, told, {"effect_id": two, "outcome": "failed"})
    ).status_code == 200
    return view


async def states(robot: Agent, view: dict[str, Any]) -> tuple[str, str, str | None]:
    """The transaction, the payment, and what takes it back."""
    seen = await robot.see(view["txn"])
    undo = seen["effects"][0].get("compensation")
    return seen["state"], seen["effects"][0]["state"], None if undo is None else undo["state"]


async def test_what_fired_is_taken_back_by_an_effect_the_service_builds(bank: World, robot: Agent) -> None:
    view = await fired(bank, robot)
    answer = (await undone(robot, view)).json()
    undo = answer["effect"]
    assert (undo["tool"], undo["args"], undo["state"]) == (
        "unpay",
        {"payment": "p1", "amount": 10},
        "released",
    )
    assert undo["resource"] == {"type": "Account", "id": "p1"}
    forward = view["effects"][0]["effect_id"]
    assert undo["call_key"] == names.compensation_call_key(effect_id=forward, tool="unpay")
    assert undo["effect_id"] == names.effect_id(txn=view["txn"], call_key=undo["call_key"])
    claims = bank.release_of(answer["release"])
    assert (claims.kind, claims.compensates, claims.txn_digest) == ("compensate", forward, view["txn_digest"])
    assert await states(robot, view) == ("redeemed", "compensating", "released")
    redeemed = (await robot.redeem([answer["release"]], robot.attempt + "-undo")).json()
    assert bank.receipt_of(redeemed).kind == "compensate"
    await robot.report(robot.attempt + "-undo", {"effect_id": undo["effect_id"], "outcome": "fired"})
    assert await states(robot, view) == ("settled", "compensated", "fired")
    assert await tasks(bank, robot) == []


async def test_asked_for_again_it_is_the_same_compensation_and_is_spent_once(
    bank: World, robot: Agent
) -> None:
    view = await fired(bank, robot)
    first, again = (await undone(robot, view)).json(), (await undone(robot, view)).json()
    assert again["effect"]["effect_id"] == first["effect"]["effect_id"]
    assert (await robot.redeem([first["release"]], robot.attempt + "-undo")).json()["redeemed"] is True
    other = await robot.redeem([again["release"]], robot.attempt + "-undo-2")
    assert (other.status_code, other.json()["code"]) == (409, "already_redeemed")
    late = (await undone(robot, view)).json()
    assert late["effect"]["state"] == "redeemed" and "release" not in late


async def test_only_one_compensation_is_spent_at_a_time(bank: World, robot: Agent) -> None:
    view = await fired(bank, robot)
    token = (await undone(robot, view)).json()["release"]
    answer = await robot.redeem([token, token], robot.attempt + "-undo")
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_token")
    assert (await robot.redeem([token], robot.attempt + "-undo")).json()["redeemed"] is True


async def test_the_attempt_of_a_compensation_says_nothing_about_its_transaction(
    bank: World, robot: Agent
) -> None:
    view = await fired(bank, robot)
    token = (await undone(robot, view)).json()["release"]
    await robot.redeem([token], robot.attempt + "-undo")
    again = await robot.submit(await pay(bank), await mail(bank), attempt_id=robot.attempt + "-undo")
    assert again.status_code == 200, again.text
    assert again.json()["releases"] == [] and "receipt" not in again.json()


@pytest.mark.parametrize("outcome", [None, "failed", "unused", "unknown"])
async def test_what_did_not_fire_is_not_taken_back(bank: World, robot: Agent, outcome: str | None) -> None:
    view = (await robot.submit(await pay(bank), attempt_id=robot.attempt)).json()
    if outcome is not None:
        await robot.report(robot.attempt, {"effect_id": view["effects"][0]["effect_id"], "outcome": outcome})
    answer = await undone(robot, view)
    assert (answer.status_code, answer.json()["code"]) == (409, "illegal_state")
    assert answer.json()["state"] == outcome or outcome is None


async def test_an_unknown_that_turns_out_to_have_fired_is_taken_back(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank), await mail(bank), attempt_id=robot.attempt)).json()
    one, two = (seen["effect_id"] for seen in view["effects"])
    await robot.report(
        robot.attempt, {"effect_id": one, "outcome": "unknown"}, {"effect_id": two, "outcome": "unused"}
    )
    await robot.report(robot.attempt, {"effect_id": one, "outcome": "fired", "result": {"id": "p1"}})
    assert (await undone(robot, view)).json()["release"]


async def test_what_has_no_compensation_stands(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await mail(bank), attempt_id=robot.attempt)).json()
    await robot.report(robot.attempt, {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired"})
    answer = await undone(robot, view)
    assert (answer.status_code, answer.json()["code"]) == (409, "illegal_state")
    assert "has no compensation" in answer.json()["detail"]


async def test_an_effect_of_another_transaction_is_not_found(bank: World, robot: Agent) -> None:
    view = await fired(bank, robot)
    body = {"effect_id": "0" * 64}
    answer = await robot.send("POST", f"/v1/transactions/{view['txn']}/compensate", body)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


UNBUILDABLE = {"no result": {}, "a result without the field": {"other": 1}, "a result that is text": "p1"}


@pytest.mark.parametrize("result", UNBUILDABLE.values(), ids=UNBUILDABLE)
async def test_a_compensation_that_cannot_be_built_is_a_task(bank: World, robot: Agent, result: Any) -> None:
    view = await fired(bank, robot, result=result)
    for _ in range(2):
        answer = await undone(robot, view)
        assert (answer.status_code, answer.json()["code"]) == (409, "illegal_state"), answer.text
    assert (await states(robot, view))[:2] == ("unsettled", "compensation_failed")
    assert await tasks(bank, robot) == [("compensation_failed", "open")]


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


WITHIN = {
    "text": {"id": "p1", "log": "x" * (ARGS_LIMITS.max_bytes - 100)},
    "nodes": {"id": "p1", "log": [1] * (ARGS_LIMITS.max_nodes - 10)},
    "depth": {"id": "p1", "log": nested(ARGS_LIMITS.max_depth - 1)},
}
BEYOND = {
    "text": {"id": "p1", "log": "x" * ARGS_LIMITS.max_bytes},
    "nodes": {"id": "p1", "log": [1] * ARGS_LIMITS.max_nodes},
    "depth": {"id": "p1", "log": nested(ARGS_LIMITS.max_depth)},
    "text beyond ASCII": {"id": "p1", "log": "\N{SNOWMAN}" * (ARGS_LIMITS.max_bytes // 3)},
}


@pytest.mark.parametrize("result", WITHIN.values(), ids=WITHIN)
async def test_whatever_result_is_admitted_can_be_taken_back(bank: World, robot: Agent, result: Any) -> None:
    view = await fired(bank, robot, result=result)
    answer = await undone(robot, view)
    assert answer.status_code == 200, answer.text
    assert answer.json()["effect"]["args"] == {"payment": "p1", "amount": 10}


@pytest.mark.parametrize("result", BEYOND.values(), ids=BEYOND)
async def test_a_result_beyond_the_limits_is_refused_and_the_outcome_without_it_is_not(
    bank: World, robot: Agent, result: Any
) -> None:
    view = (await robot.submit(await pay(bank), attempt_id=robot.attempt)).json()
    told = {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired"}
    refused = await robot.report(robot.attempt, told | {"result": result})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request"), refused.text
    assert "report a smaller part of it, or none" in refused.text
    assert (await robot.report(robot.attempt, told)).status_code == 200
    assert (await undone(robot, view)).json()["code"] == "illegal_state"


async def test_args_of_a_compensation_that_grow_beyond_the_limits_are_a_task(
    bank: World, robot: Agent
) -> None:
    fits = {"id": "x" * (ARGS_LIMITS.max_bytes - len('{"id":""}'))}
    view = await fired(bank, robot, result=fits)
    for _ in range(2):
        answer = await undone(robot, view)
        assert (answer.status_code, answer.json()["code"]) == (409, "illegal_state"), answer.text
    assert await tasks(bank, robot) == [("compensation_failed", "open")]


@pytest.mark.parametrize("result", BEYOND.values(), ids=BEYOND)
async def test_a_result_that_an_earlier_version_stored_beyond_the_limits_is_a_task(
    bank: World, robot: Agent, result: Any
) -> None:
    view = await fired(bank, robot)
    effects = table(EffectRow)
    mine = effects.c.effect_id == view["effects"][0]["effect_id"]

    def store(tx: Tx) -> None:
        tx.conn.execute(update(effects).where(mine).values(result=canonicalize(result)))

    await bank.service.db.write(store)
    for _ in range(2):
        answer = await undone(robot, view)
        assert (answer.status_code, answer.json()["code"]) == (409, "illegal_state"), answer.text
    assert await tasks(bank, robot) == [("compensation_failed", "open")]


@pytest.mark.parametrize("result", [{"id": 7}, {"id": ["p1"]}, {"id": ""}, {"id": "p" * 2_000}])
async def test_args_that_do_not_fit_the_compensating_tool_are_a_denial_and_a_task(
    bank: World, robot: Agent, result: Any
) -> None:
    view = await fired(bank, robot, result=result)
    answer = await undone(robot, view)
    assert answer.status_code == 200, answer.text
    assert answer.json()["effect"]["decision"]["reasons"][0]["code"] == "invalid_args"
    assert "release" not in answer.json()
    assert await states(robot, view) == ("unsettled", "compensation_failed", "denied")
    assert await tasks(bank, robot) == [("compensation_failed", "open")]


async def test_a_plain_forbid_makes_a_task(bank: World, folder: Payments, robot: Agent) -> None:
    view = await fired(bank, robot)
    folder.rules(plain_forbid("never-back", action="unpay"))
    await bank.activate()
    answer = (await undone(robot, view)).json()
    assert answer["effect"]["state"] == "denied" and "release" not in answer
    assert await states(robot, view) == ("unsettled", "compensation_failed", "denied")
    assert await tasks(bank, robot) == [("compensation_failed", "open")]


async def test_a_forbid_that_comes_before_the_redemption_makes_a_task_too(
    bank: World, folder: Payments, robot: Agent
) -> None:
    view = await fired(bank, robot)
    token = (await undone(robot, view)).json()["release"]
    folder.rules(plain_forbid("never-back", action="unpay"))
    await bank.service.active.reload()
    assert (await robot.redeem([token], robot.attempt + "-undo")).json()["redeemed"] is False
    assert await states(robot, view) == ("unsettled", "compensation_failed", "denied")
    assert await tasks(bank, robot) == [("compensation_failed", "open")]


async def test_its_gates_count_as_met_where_people_approved_the_forward_effect_and_saw_every_argument(
    bank: World, folder: Payments, robot: Agent
) -> None:
    seen = {"tool": "unpay", "map": {"payment": "args:/account", "amount": "args:/amount"}}
    folder.write("tools/pay.json", PAY | {"compensation": seen})
    folder.rules(UNDO_GATE)
    await bank.activate()
    view = await fired(bank, robot, amount=500, approve=True)
    answer = (await undone(robot, view)).json()
    assert answer["effect"]["state"] == "released" and answer["release"]
    await bank.activate()
    folder.rules(UNDO_GATE, gate("more", "cfo", action="unpay"))
    await bank.activate()
    assert (await states(robot, view))[2] == "released"
    assert (await robot.redeem([answer["release"]], robot.attempt + "-undo")).json()["redeemed"] is True


async def test_its_gates_ask_people_again_where_an_argument_comes_from_what_the_agent_reports(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.rules(UNDO_GATE)
    await bank.activate()
    view = await fired(bank, robot, amount=500, approve=True, result={"id": "an account nobody saw"})
    waiting = (await undone(robot, view)).json()
    assert waiting["effect"]["state"] == "review" and "release" not in waiting


async def test_its_gates_ask_people_where_nobody_saw_the_forward_effect(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.rules(UNDO_GATE)
    await bank.activate()
    view = await fired(bank, robot)
    waiting = (await undone(robot, view)).json()
    assert waiting["effect"]["state"] == "review" and "release" not in waiting
    ingrid = await bank.person("ingrid")
    ballot = view | {"effects": [waiting["effect"]]}
    assert (await ingrid.vote(ballot)).json()["state"] == "met"
    token = (await undone(robot, view)).json()["release"]
    assert (await robot.redeem([token], robot.attempt + "-undo")).json()["redeemed"] is True


async def test_a_person_who_denies_it_leaves_the_forward_effect_standing(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.rules(UNDO_GATE)
    await bank.activate()
    view = await fired(bank, robot)
    waiting = (await undone(robot, view)).json()
    ingrid = await bank.person("ingrid")
    ballot = view | {"effects": [waiting["effect"]]}
    assert (await ingrid.vote(ballot, "deny", reason="let it stand")).json()["state"] == "denied"
    assert await states(robot, view) == ("unsettled", "compensation_failed", "denied")
    assert await tasks(bank, robot) == [("compensation_failed", "open")]


async def test_a_question_about_it_nobody_answers_leaves_a_task(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.rules(UNDO_GATE)
    await bank.activate()
    view = await fired(bank, robot)
    await undone(robot, view)
    bank.clock.pass_(hours=25)
    await bank.sweep()
    assert await states(robot, view) == ("unsettled", "compensation_failed", "expired")


async def test_a_release_of_it_nobody_uses_leaves_a_task(bank: World, robot: Agent) -> None:
    view = await fired(bank, robot)
    await undone(robot, view)
    bank.clock.pass_(minutes=59)
    await bank.sweep()
    assert (await undone(robot, view)).json()["release"]
    bank.clock.pass_(minutes=1)
    assert (await undone(robot, view)).json()["effect"]["state"] == "expired"
    await bank.sweep()
    assert await states(robot, view) == ("unsettled", "compensation_failed", "expired")
    assert await tasks(bank, robot) == [("compensation_failed", "open")]


async def test_the_timer_ends_a_release_of_it_nobody_uses(bank: World, robot: Agent) -> None:
    view = await fired(bank, robot)
    await undone(robot, view)
    bank.clock.pass_(minutes=61)
    await bank.sweep()
    assert await states(robot, view) == ("unsettled", "compensation_failed", "expired")


async def test_a_release_of_it_ends_earlier_when_a_gate_gives_it_less_time(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.rules(UNDO_GATE)
    await bank.activate()
    view = await fired(bank, robot)
    waiting = (await undone(robot, view)).json()
    await (await bank.person("ingrid")).vote(view | {"effects": [waiting["effect"]]})
    folder.rules(UNDO_GATE, gate("hurry", "legal", action="unpay", valid_for="5m"))
    await bank.activate()
    bank.clock.pass_(minutes=4)
    await bank.sweep()
    assert await states(robot, view) == ("redeemed", "compensating", "released")
    bank.clock.pass_(minutes=1)
    await bank.sweep()
    assert await states(robot, view) == ("unsettled", "compensation_failed", "expired")


OUTCOMES = {
    "failed": ("unsettled", "compensation_failed", ["compensation_failed"]),
    "unused": ("unsettled", "compensation_failed", ["compensation_failed"]),
    "unknown": ("unsettled", "compensating", ["unknown"]),
}


@pytest.mark.parametrize(("outcome", "expected"), OUTCOMES.items(), ids=OUTCOMES)
async def test_what_became_of_it_is_what_became_of_the_forward_effect(
    bank: World, robot: Agent, outcome: str, expected: tuple[str, str, list[str]]
) -> None:
    view = await fired(bank, robot)
    answer = (await undone(robot, view)).json()
    await robot.redeem([answer["release"]], robot.attempt + "-undo")
    await robot.report(
        robot.attempt + "-undo", {"effect_id": answer["effect"]["effect_id"], "outcome": outcome}
    )
    assert (*(await states(robot, view))[:2], [kind for kind, _ in await tasks(bank, robot)]) == expected
    if outcome == "unknown":
        await robot.report(
            robot.attempt + "-undo", {"effect_id": answer["effect"]["effect_id"], "outcome": "fired"}
        )
        assert await states(robot, view) == ("settled", "compensated", "fired")
        assert await tasks(bank, robot) == []


async def test_a_compensation_settles_the_task_that_asked_for_it(bank: World, robot: Agent) -> None:
    view = await fired(bank, robot)
    bank.clock.pass_(minutes=10)
    await bank.sweep()
    assert await tasks(bank, robot) == [("compensation_due", "open")]
    answer = (await undone(robot, view)).json()
    await robot.redeem([answer["release"]], robot.attempt + "-undo")
    await robot.report(
        robot.attempt + "-undo", {"effect_id": answer["effect"]["effect_id"], "outcome": "fired"}
    )
    assert await tasks(bank, robot) == []


async def test_a_freeze_of_the_agent_does_not_stop_it(bank: World, robot: Agent) -> None:
    view = await fired(bank, robot)
    agents = table(AgentRow)
    await bank.service.db.write(lambda tx: tx.conn.execute(update(agents).values(frozen_at=tx.now)).rowcount)
    answer = (await undone(robot, view)).json()
    assert (await robot.redeem([answer["release"]], robot.attempt + "-undo")).json()["redeemed"] is True
    effect_id = answer["effect"]["effect_id"]
    renewed = await robot.send(
        "POST", f"/v1/redemptions/{robot.attempt}-undo/renew", {"effect_ids": [effect_id]}
    )
    assert renewed.json()["redeemed"] is True
    await robot.report(robot.attempt + "-undo", {"effect_id": effect_id, "outcome": "fired"})
    assert await states(robot, view) == ("settled", "compensated", "fired")


async def test_the_compensating_tool_is_the_version_people_saw(
    bank: World, folder: Payments, robot: Agent
) -> None:
    view = await fired(bank, robot)
    text = (folder.path / "tools/unpay.json").read_text()
    folder.write("tools/unpay.json", text.replace('"Unpay"', '"Unpay somebody else"'))
    await bank.activate()
    answer = (await undone(robot, view)).json()
    assert answer["effect"]["state"] == "denied"
    assert answer["effect"]["decision"]["reasons"][0]["code"] == "tool_changed"
    assert (await states(robot, view))[:2] == ("unsettled", "compensation_failed")
