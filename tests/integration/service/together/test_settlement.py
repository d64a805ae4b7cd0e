"""Settling tasks: who may, once, with which consequences."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from countersign.contract import ARGS_LIMITS, EffectState, ErrorCode, TaskKind
from policy_service.queries import repository
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.workflow.effects.outcomes import sync_transaction_state
from policy_service.workflow.transitions import TransitionReason, open_task, transition_effect
from tests.fakes.payments import person
from tests.fakes.world import Agent
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank, refusal
from tests.integration.service.together.test_outcomes import (
    fired,
    report_outcomes,
    states,
    undo_ended,
    undone,
)


async def unknown(
    bank: Bank, robot: Agent | None = None, *, other: str = "unused", amount: int = 10
) -> dict[str, Any]:
    """A payment with an unknown outcome, next to a mail with a reported one."""
    robot = robot or await bank.fresh()
    view: dict[str, Any] = (await robot.submit(await pay(bank, amount), await mail(bank))).json()
    if view["state"] == "review":
        await bank.maya.vote(view)
        view = await robot.see(view["txn"])
    await robot.spend(view, robot.attempt)
    one, two = (seen["effect_id"] for seen in view["effects"])
    await report_outcomes(robot, (one, "unknown"), (two, other))
    return view


async def settled(bank: Bank, view: dict[str, Any], answer: str, kind: str = "unknown", **said: Any) -> None:
    """Maya answers the open task of that kind."""
    given = await bank.maya.settle(await bank.maya.task(view, kind), answer, **said)
    assert given.status_code == 200, given.text


async def ten_minutes(bank: Bank) -> list[str]:
    """The open tasks after the sweeps have run twice, ten minutes later."""
    bank.clock.pass_(minutes=10)
    await bank.sweep()
    await bank.sweep()
    return await bank.tasks()


# ------------------------------------------------------------------------------------------------ what follows


AFTER_AN_UNKNOWN = [
    # what became of the mail, what the person says of the payment: the transaction, the payment, open tasks
    ("unused", "fired", ["unsettled", "fired", "unused"], []),
    ("unused", "not_fired", ["ended", "failed", "unused"], []),
    ("fired", "fired", ["settled", "fired", "fired"], []),
    ("fired", "not_fired", ["unsettled", "failed", "fired"], ["standing"]),
]


async def test_settling_an_unknown_moves_the_effect_and_its_transaction(bank: Bank) -> None:
    for other, answer, then, tasks in AFTER_AN_UNKNOWN:
        view = await unknown(bank, other=other)
        said = await bank.maya.settle(await bank.maya.task(view, "unknown"), answer)
        assert said.json()["task"]["settlement"]["answer"] == answer
        assert (await bank.states(view), await bank.tasks()) == (then, tasks)


async def test_the_agent_sees_the_settlement_and_compensates_with_its_result(bank: Bank) -> None:
    view = await unknown(bank)
    await settled(bank, view, "fired", reason=" booked as b-7 ", result={"id": "p-9"})
    (said,) = (await bank.robot.see(view["txn"]))["effects"][0]["settlements"]
    assert said == said | {
        "kind": "unknown", "answer": "fired", "person": person("maya"), "name": "Maya", "reason": "booked as b-7",
        "result": {"id": "p-9"},
    }  # fmt: skip
    assert "p-9" not in str((await bank.maya.get(f"/v1/tasks/{said['task_id']}")).json()["task"])
    undo = (await undone(bank.robot, view)).json()
    assert undo["effect"]["args"] == {"payment": "p-9", "amount": 10}
    await undo_ended(bank.robot, undo, "fired")
    assert await states(bank.robot, view) == ("settled", "compensated", "fired")


async def test_a_later_result_completes_a_settlement_without_one(bank: Bank) -> None:
    view = await unknown(bank)
    await settled(bank, view, "fired")
    repeated = {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired"}
    for payment in ("p1", "p2"):
        await bank.robot.report(bank.robot.attempt, repeated | {"result": {"id": payment}})
    assert await ten_minutes(bank) == ["compensation_due"]
    assert (await undone(bank.robot, view)).json()["effect"]["args"]["payment"] == "p1"


async def test_no_compensation_is_due_while_another_effect_is_unknown(bank: Bank) -> None:
    calls = [await pay(bank), await pay(bank, 20), await mail(bank)]
    view = (await bank.robot.submit(*calls, attempt_id=bank.robot.attempt)).json()
    one, two, three = (seen["effect_id"] for seen in view["effects"])
    await report_outcomes(bank.robot, (one, "unknown"), (two, "unknown"), (three, "unused"))
    task = await bank.maya.task(view, "unknown", effect_id=one)
    assert "is unknown" in task["choices"][0]["follows"]
    await bank.maya.settle(task, "fired")
    assert await ten_minutes(bank) == ["unknown"]
    task = await bank.maya.task(view, "unknown", effect_id=two)
    assert "unpay is requested to undo pay" in task["choices"][1]["follows"]
    await bank.maya.settle(task, "not_fired")
    assert await ten_minutes(bank) == ["compensation_due"]


async def undo_unknown(bank: Bank) -> dict[str, Any]:
    """A payment whose compensation has an unknown outcome."""
    view = await fired(bank, await bank.fresh())
    await undo_ended(bank.robot, (await undone(bank.robot, view)).json(), "unknown")
    assert await states(bank.robot, view) == ("unsettled", "compensating", "unknown")
    return view


async def test_settling_an_unknown_compensation_moves_the_forward_effect(bank: Bank) -> None:
    for answer, then, tasks in (
        ("fired", ("settled", "compensated", "fired"), []),
        ("not_fired", ("unsettled", "compensation_failed", "failed"), ["compensation_failed"]),
    ):
        view = await undo_unknown(bank)
        assert (await bank.maya.task(view, "unknown"))["choices"][0]["text"] == "It was undone"
        await settled(bank, view, answer)
        assert (await states(bank.robot, view), await bank.tasks()) == (then, tasks)


async def compensation_failed(bank: Bank) -> dict[str, Any]:
    view = await undo_unknown(bank)
    await settled(bank, view, "not_fired")
    return view


async def standing(bank: Bank) -> dict[str, Any]:
    view = await unknown(bank, other="fired")
    await settled(bank, view, "not_fired")
    return view


async def compensation_due(bank: Bank) -> dict[str, Any]:
    view = await fired(bank, await bank.fresh())
    await ten_minutes(bank)
    return view


BY_HAND: list[tuple[Callable[[Bank], Awaitable[dict[str, Any]]], str, list[str]]] = [
    # how it comes to the task, the answer, and the states of the payment and the mail
    (compensation_failed, "compensated", ["compensated", "failed"]),
    (compensation_failed, "left_standing", ["compensation_failed", "failed"]),
    (standing, "compensated", ["failed", "compensated"]),
    (standing, "left_standing", ["failed", "fired"]),
    (compensation_due, "compensated", ["compensated", "failed"]),
    (compensation_due, "left_standing", ["fired", "failed"]),
]


async def test_a_manually_compensated_or_kept_effect_needs_no_compensation(bank: Bank) -> None:
    for begun, answer, then in BY_HAND:
        view = await begun(bank)
        await settled(bank, view, answer, begun.__name__)
        assert await bank.states(view) == ["settled", *then]
        again = await undone(bank.robot, view)
        if begun is compensation_failed:
            assert again.json()["effect"]["state"] == "failed"
        else:
            assert refusal(again) == (409, "illegal_state")
        assert await ten_minutes(bank) == []


async def test_a_report_that_contradicts_a_settlement_is_a_task(bank: Bank) -> None:
    view = await unknown(bank)
    await settled(bank, view, "not_fired")
    await report_outcomes(bank.robot, (view["effects"][0]["effect_id"], "fired"))
    task = await bank.maya.task(view, "contradiction")
    assert "recorded as failed; a later report says fired" in task["task"]["text"]
    await settled(bank, view, "report_holds", "contradiction")
    assert (await states(bank.robot, view))[:2] == ("ended", "failed")
    seen = await bank.robot.see(view["txn"])
    assert [said["answer"] for said in seen["effects"][0]["settlements"]] == ["not_fired", "report_holds"]
    assert await bank.tasks() == []


# ----------------------------------------------------------------------------------------------------- refusals


REFUSED: list[tuple[str, dict[str, Any], int, ErrorCode]] = [
    ("fired", {"reason": None}, 400, ErrorCode.REASON_REQUIRED),
    ("fired", {"reason": " \n"}, 400, ErrorCode.REASON_REQUIRED),
    ("not_fired", {"result": {"id": "p1"}}, 400, ErrorCode.INVALID_REQUEST),  # of what did not happen
    ("fired", {"effect_digest": "0" * 64}, 409, ErrorCode.STALE_TASK),  # another effect was read
    ("fired", {"effect_state": "fired"}, 409, ErrorCode.STALE_TASK),  # it stood elsewhere
    ("compensated", {}, 400, ErrorCode.WRONG_ANSWER),
]


async def test_an_invalid_settlement_is_refused(bank: Bank) -> None:
    view = await unknown(bank)
    task = await bank.maya.task(view, "unknown")
    for answer, said, status, code in REFUSED:
        refused = await bank.maya.settle(task, answer, **said)
        assert refusal(refused) == (status, code)
        if code is ErrorCode.STALE_TASK:
            assert refused.json()["effect_state"] == "unknown"
    assert refused.json()["answers"] == ["fired", "not_fired"]
    bank.maya.csrf = "another"
    assert refusal(await bank.maya.settle(task, "fired")) == (403, "csrf")
    assert (await bank.states(view))[1] == "unknown"
    nowhere = {"task": {"task_id": "task_none"}, "effect": task["effect"]}
    assert refusal(await bank.tomas.settle(nowhere, "fired")) == (404, "not_found")
    assert refusal(await bank.tomas.get("/v1/tasks/task_none")) == (404, "not_found")


async def test_a_result_beyond_the_limits_is_refused(bank: Bank) -> None:
    task = await bank.maya.task(await unknown(bank), "unknown")
    refused = await bank.maya.settle(task, "fired", result={"id": "x" * ARGS_LIMITS.max_bytes})
    assert refusal(refused) == (400, "invalid_request")
    assert (await bank.maya.settle(task, "fired", result={"id": "x" * 1_000})).status_code == 200


async def test_the_first_settlement_is_kept_and_a_repeat_is_accepted(bank: Bank) -> None:
    view = await unknown(bank)
    task = await bank.maya.task(view, "unknown")
    assert (await bank.maya.settle(task, "fired")).status_code == 200
    before = await bank.log(view["txn"])
    assert (await bank.maya.settle(task, "fired", reason="again")).status_code == 200
    for visitor, answer in ((bank.tomas, "fired"), (bank.tomas, "not_fired"), (bank.maya, "not_fired")):
        refused = await visitor.settle(task, answer)
        assert refusal(refused) == (409, ErrorCode.TASK_SETTLED)
        first, by_maya = refused.json()["settlement"], {"person": person("maya"), "name": "Maya"}
        assert first == first | {"answer": "fired", "reason": "I asked the bank", **by_maya}
    assert await bank.log(view["txn"]) == before
    view = await unknown(bank)  # and one that closed automatically
    task = await bank.maya.task(view, "unknown")
    await report_outcomes(bank.robot, (view["effects"][0]["effect_id"], "failed"))
    refused = await bank.maya.settle(task, "fired")
    assert refusal(refused) == (409, ErrorCode.TASK_SETTLED)
    assert "settlement" not in refused.json() and refused.json()["effect_state"] == "failed"
    late = (await bank.maya.get(f"/v1/tasks/{task['task']['task_id']}")).json()
    assert late["task"]["state"] == "settled" and late["choices"] == []


LEGAL = (
    '@id("legal") permit (principal in Group::"legal", action == Action::"settle", resource) '
    'when { resource.kind == "unknown" && resource.tool == "pay" };'
)
ANYBODY = '@id("anybody") permit (principal, action == Action::"settle", resource);'
NEVER_EVALUATED = (
    '@id("odd") forbid (principal, action == Action::"settle", resource) '
    "when { 9223372036854775807 + (if resource.gates.isEmpty() then 1 else 2) == 1 };"
)
OF_FINANCE = "only people in finance settle this, and you are not one of them; ask one of them"
NO_POLICY = "no policy permits you to settle this task"
SETTLERS: list[tuple[list[str], str | None, int, str, str, str | None]] = [
    # the rules, whose agent it is, the amount; who may not settle it and why; who may
    ([], "maya", 10, "maya", "you own", "tomas"),  # not the own side
    ([], None, 500, "ingrid", OF_FINANCE, "tomas"),  # the people of its gates
    ([], None, 10, "jonas", "", "ingrid"),  # anyone some gate asks
    ([LEGAL], None, 500, "maya", NO_POLICY, "ingrid"),  # named by a rule
    ([ANYBODY], "ingrid", 10, "ingrid", "you own", "jonas"),  # not the owner, despite the rule
    ([ANYBODY, NEVER_EVALUATED], None, 10, "maya", "doubt is a no", None),  # no one if a rule fails
]


async def test_who_may_settle_a_task(bank: Bank) -> None:
    for row, (rules, owner, amount, refused, why, may) in enumerate(SETTLERS):
        await bank.rules(*rules)
        robot = await bank.agent(f"{bank.robot.name}-{row}", owner=owner and person(owner))
        view = await unknown(bank, robot, amount=amount)
        visitor = getattr(bank, refused)
        task = await visitor.task(view, "unknown")
        assert why in task["why_not"]
        assert refusal(await visitor.settle(task, "fired")) == (403, ErrorCode.NOT_ELIGIBLE)
        if may is not None:
            visitor = getattr(bank, may)
            task = await visitor.task(view, "unknown")
            assert "why_not" not in task
            assert (await visitor.settle(task, "fired")).status_code == 200


# --------------------------------------------------------------------------------------------------------- list


async def test_tasks_are_listed_by_state_kind_and_page(bank: Bank) -> None:
    views = [await unknown(bank) for _ in range(3)]
    mine = {view["txn"] for view in views}

    async def listed(query: str) -> list[dict[str, Any]]:
        found, cursor = [], ""
        while True:
            page = (await bank.maya.get(f"/v1/tasks?limit=2&{query}{cursor}")).json()
            found += page["tasks"]
            if "next" not in page:
                return [task for task in found if task["txn"] in mine]
            cursor = f"&cursor={page['next']}"

    assert [task["txn"] for task in await listed("kind=unknown")] == [view["txn"] for view in views]
    assert await listed("kind=standing") == [] and await listed("state=settled") == []
    await settled(bank, views[1], "fired")
    assert len(await listed("state=open")) == len(await listed("")) == 2
    (done,) = await listed("state=settled&kind=unknown")
    assert (done["txn"], done["settlement"]["name"]) == (views[1]["txn"], "Maya")
    assert refusal(await bank.maya.get("/v1/tasks?kind=odd")) == (400, "invalid_request")


async def test_a_settlement_is_audited_without_the_persons_text(bank: Bank) -> None:
    view = await unknown(bank)
    before = len(await bank.log(view["txn"]))
    await settled(bank, view, "not_fired", reason="the bank has no such payment")
    lines = (await bank.log(view["txn"]))[before:]
    assert [kind for kind, _ in lines] == ["effect_failed", "task_settled", "transaction_ended"]
    assert lines[1][1]["answer"] == "not_fired"
    assert "no such payment" not in str(lines)


# ------------------------------------------------------------------------------------------------ a restored gap


async def restored(bank: Bank, robot: Agent) -> dict[str, Any]:
    """A transaction that the service lost with a restore to before its redemption."""
    view: dict[str, Any] = (await robot.submit(await pay(bank), await mail(bank))).json()

    def put_back(tx: Tx) -> None:
        alone, cause = lock_transaction(tx, view["txn"]), TransitionReason("service", "restored")
        snapshot = repository.require_transaction(alone.conn, view["txn"])
        for effect in snapshot.effects:
            transition_effect(alone, effect, EffectState.UNKNOWN, cause)
            open_task(alone, effect, TaskKind.RESTORED, "what is remembered was put back", cause)
        sync_transaction_state(alone, snapshot, cause)

    await bank.service.db.write(put_back)
    return view


RESTORED = {
    ("fired", "fired"): ["settled", "fired", "fired"],
    ("not_fired", "not_fired"): ["ended", "unused", "unused"],
    ("fired", "not_fired"): ["unsettled", "fired", "unused"],
}


async def test_a_restored_effect_is_settled_like_an_unknown(bank: Bank) -> None:
    for said, then in RESTORED.items():
        view = await restored(bank, await bank.fresh())
        for effect, answer in zip(view["effects"], said, strict=True):
            task = await bank.maya.task(view, "restored", effect_id=effect["effect_id"])
            assert [choice["answer"] for choice in task["choices"]] == ["fired", "not_fired"]
            assert (await bank.maya.settle(task, answer)).status_code == 200
        assert (await bank.states(view), await bank.tasks()) == (then, [])
