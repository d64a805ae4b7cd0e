"""What nobody else can tell, a person settles: who may, once, what follows, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from countersign.contract import ARGS_LIMITS, EffectState, ErrorCode, TaskKind
from policy_service.storage.alone import alone_with
from policy_service.storage.database import Tx
from policy_service.workflow import records
from policy_service.workflow.moves import Cause, follow_effects, move_effect, open_task
from tests.fakes.payments import Payments, gate, person
from tests.fakes.world import Agent, Visitor, World
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.test_compensation import fired, states, undone
from tests.integration.service.together.test_outcomes import redeemed, tasks, told

pytestmark = pytest.mark.anyio

WHO = 'permit (principal in Group::"legal", action == Action::"settle", resource)'


async def unknown(bank: World, robot: Agent, *, beside: str = "unused", amount: int = 10) -> dict[str, Any]:
    """A payment nobody knows about, beside a mail that ended as told."""
    view: dict[str, Any] = (await robot.submit(await pay(bank, amount), await mail(bank))).json()
    if view["state"] == "review":
        await (await bank.person("maya")).vote(view)
        view = await robot.see(view["txn"])
    await robot.spend(view, robot.attempt)
    one, two = (seen["effect_id"] for seen in view["effects"])
    await told(robot, (one, "unknown"), (two, beside))
    return view


def refusal(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


# ------------------------------------------------------------------------------------------------ what follows


AFTER_AN_UNKNOWN = {
    # what became of the mail, what the person says of the payment: the transaction, the payment, open tasks
    ("unused", "fired"): ("unsettled", "fired", []),
    ("unused", "not_fired"): ("ended", "failed", []),
    ("fired", "fired"): ("settled", "fired", []),
    ("fired", "not_fired"): ("unsettled", "failed", ["standing"]),
}


@pytest.mark.parametrize(("said", "then"), AFTER_AN_UNKNOWN.items(), ids=map("-".join, AFTER_AN_UNKNOWN))
async def test_a_word_on_an_unknown_moves_the_effect_and_its_transaction(
    bank: World, robot: Agent, said: tuple[str, str], then: tuple[str, str, list[str]]
) -> None:
    view, maya = await unknown(bank, robot, beside=said[0]), await bank.person("maya")
    answer = await maya.settle(await maya.task(view, "unknown"), said[1])
    assert answer.status_code == 200, answer.text
    assert answer.json()["task"]["settlement"]["answer"] == said[1]
    seen = await robot.see(view["txn"])
    assert (seen["state"], seen["effects"][0]["state"]) == then[:2]
    assert [kind for kind, _ in await tasks(bank, robot)] == then[2]


async def test_the_agent_reads_who_said_what_and_why(bank: World, robot: Agent) -> None:
    view, maya = await unknown(bank, robot), await bank.person("maya")
    await maya.settle(
        await maya.task(view, "unknown"), "fired", reason=" booked as b-7 ", result={"id": "p1"}
    )
    (said,) = (await robot.see(view["txn"]))["effects"][0]["settlements"]
    told_of = {name: said[name] for name in ("kind", "answer", "person", "name", "reason", "result")}
    assert told_of == {
        "kind": "unknown", "answer": "fired", "person": person("maya"), "name": "Maya", "reason": "booked as b-7",
        "result": {"id": "p1"},
    }  # fmt: skip
    task = await maya.get(f"/v1/tasks/{said['task_id']}")
    assert "p1" not in str(task.json()["task"])


async def test_what_a_person_says_fired_is_taken_back_with_the_result_they_told(
    bank: World, robot: Agent
) -> None:
    view, maya = await unknown(bank, robot), await bank.person("maya")
    await maya.settle(await maya.task(view, "unknown"), "fired", result={"id": "p-told"})
    undo = (await undone(robot, view)).json()
    assert undo["effect"]["args"] == {"payment": "p-told", "amount": 10}
    await robot.redeem([undo["release"]], robot.attempt + "-undo")
    await robot.report(
        robot.attempt + "-undo", {"effect_id": undo["effect"]["effect_id"], "outcome": "fired"}
    )
    assert await states(robot, view) == ("settled", "compensated", "fired")


async def test_a_result_that_came_later_than_the_word_completes_it_and_replaces_none(
    bank: World, robot: Agent
) -> None:
    view, maya = await unknown(bank, robot), await bank.person("maya")
    await maya.settle(await maya.task(view, "unknown"), "fired")
    effect_id = view["effects"][0]["effect_id"]
    for result in ({"id": "p1"}, {"id": "p2"}):
        await robot.report(robot.attempt, {"effect_id": effect_id, "outcome": "fired", "result": result})
    assert (await undone(robot, view)).json()["effect"]["args"]["payment"] == "p1"


async def test_what_is_to_be_taken_back_after_a_word_and_is_not_becomes_a_task(
    bank: World, robot: Agent
) -> None:
    view, maya = await unknown(bank, robot), await bank.person("maya")
    await maya.settle(await maya.task(view, "unknown"), "fired")
    bank.clock.pass_(minutes=10)
    await bank.sweep()
    await bank.sweep()
    assert await tasks(bank, robot) == [("compensation_due", "open")]


async def test_nothing_is_due_while_another_effect_is_unknown(bank: World, robot: Agent) -> None:
    one, two, three = await redeemed(robot, await pay(bank), await pay(bank, 20), await mail(bank))
    view = {"txn": (await robot.submit(await pay(bank), await pay(bank, 20), await mail(bank))).json()["txn"]}
    await told(robot, (one, "unknown"), (two, "unknown"), (three, "unused"))
    maya = await bank.person("maya")
    task = await maya.task(view, "unknown", effect_id=one)
    assert "not known yet" in task["choices"][0]["follows"]
    await maya.settle(task, "fired")
    bank.clock.pass_(minutes=10)
    await bank.sweep()
    assert await tasks(bank, robot) == [("unknown", "open")]
    task = await maya.task(view, "unknown", effect_id=two)
    assert "unpay is asked for, to take pay back" in task["choices"][1]["follows"]
    await maya.settle(task, "not_fired")
    bank.clock.pass_(minutes=10)
    await bank.sweep()
    assert await tasks(bank, robot) == [("compensation_due", "open")]


async def undo_unknown(bank: World, robot: Agent) -> dict[str, Any]:
    """A payment whose taking back nobody knows about."""
    view = await fired(bank, robot)
    undo = (await undone(robot, view)).json()
    await robot.redeem([undo["release"]], robot.attempt + "-undo")
    await robot.report(
        robot.attempt + "-undo", {"effect_id": undo["effect"]["effect_id"], "outcome": "unknown"}
    )
    assert await states(robot, view) == ("unsettled", "compensating", "unknown")
    return view


@pytest.mark.parametrize(
    ("answer", "then", "open_tasks"),
    [
        ("fired", ("settled", "compensated", "fired"), []),
        ("not_fired", ("unsettled", "compensation_failed", "failed"), ["compensation_failed"]),
    ],
)
async def test_a_word_on_an_unknown_compensation_settles_what_it_takes_back(
    bank: World, robot: Agent, answer: str, then: tuple[str, str, str], open_tasks: list[str]
) -> None:
    view, maya = await undo_unknown(bank, robot), await bank.person("maya")
    task = await maya.task(view, "unknown")
    assert task["choices"][0]["text"] == "It was taken back"
    assert (await maya.settle(task, answer)).status_code == 200
    assert await states(robot, view) == then
    assert [kind for kind, _ in await tasks(bank, robot)] == open_tasks


@pytest.mark.parametrize(
    ("answer", "then"),
    [("compensated", ("settled", "compensated")), ("left_standing", ("settled", "compensation_failed"))],
)
async def test_a_failed_compensation_is_done_by_hand_or_left(
    bank: World, robot: Agent, answer: str, then: tuple[str, str]
) -> None:
    view, maya = await undo_unknown(bank, robot), await bank.person("maya")
    await maya.settle(await maya.task(view, "unknown"), "not_fired")
    assert (await maya.settle(await maya.task(view, "compensation_failed"), answer)).status_code == 200
    assert (await states(robot, view))[:2] == then
    assert await tasks(bank, robot) == []
    assert (await undone(robot, view)).json()["effect"][
        "state"
    ] == "failed"  # and nothing is asked for any more


@pytest.mark.parametrize(("answer", "then"), [("compensated", "compensated"), ("left_standing", "fired")])
async def test_what_stands_alone_is_taken_back_by_hand_or_left(
    bank: World, robot: Agent, answer: str, then: str
) -> None:
    view, maya = await unknown(bank, robot, beside="fired"), await bank.person("maya")
    await maya.settle(await maya.task(view, "unknown"), "not_fired")
    assert (await maya.settle(await maya.task(view, "standing"), answer)).status_code == 200
    seen = await robot.see(view["txn"])
    assert (seen["state"], seen["effects"][1]["state"]) == ("settled", then)
    bank.clock.pass_(minutes=10)
    await bank.sweep()
    assert await tasks(bank, robot) == []


@pytest.mark.parametrize(("answer", "then"), [("compensated", "compensated"), ("left_standing", "fired")])
async def test_what_nobody_asked_to_take_back_is_done_by_hand_or_left_and_then_is_not_asked_for(
    bank: World, robot: Agent, answer: str, then: str
) -> None:
    view, maya = await fired(bank, robot), await bank.person("maya")
    bank.clock.pass_(minutes=10)
    await bank.sweep()
    assert (await maya.settle(await maya.task(view, "compensation_due"), answer)).status_code == 200
    assert await states(robot, view) == ("settled", then, None)
    assert refusal(await undone(robot, view)) == (409, "illegal_state")
    bank.clock.pass_(minutes=10)
    await bank.sweep()
    assert await tasks(bank, robot) == []


async def test_a_later_report_that_says_otherwise_is_a_task_and_the_word_stands(
    bank: World, robot: Agent
) -> None:
    view, maya = await unknown(bank, robot), await bank.person("maya")
    await maya.settle(await maya.task(view, "unknown"), "not_fired")
    await told(robot, (view["effects"][0]["effect_id"], "fired"))
    assert (await states(robot, view))[:2] == ("ended", "failed")
    task = await maya.task(view, "contradiction")
    assert "recorded as failed; a later report says fired" in task["task"]["text"]
    assert (await maya.settle(task, "report_holds")).status_code == 200
    seen = await robot.see(view["txn"])
    assert (seen["state"], seen["effects"][0]["state"]) == ("ended", "failed")
    assert [said["answer"] for said in seen["effects"][0]["settlements"]] == ["not_fired", "report_holds"]
    assert await tasks(bank, robot) == []


# ----------------------------------------------------------------------------------------------------- refusals


async def test_the_first_word_stands_and_the_same_again_is_the_same(bank: World, robot: Agent) -> None:
    view, maya, tomas = await unknown(bank, robot), await bank.person("maya"), await bank.person("tomas")
    task = await maya.task(view, "unknown")
    assert (await maya.settle(task, "fired")).status_code == 200
    before = await bank.log(view["txn"])
    assert (await maya.settle(task, "fired", reason="again")).status_code == 200
    for visitor, answer in ((tomas, "fired"), (tomas, "not_fired"), (maya, "not_fired")):
        refused = await visitor.settle(task, answer)
        assert refusal(refused) == (409, ErrorCode.TASK_SETTLED)
        assert refused.json()["settlement"] == {
            "answer": "fired", "person": person("maya"), "name": "Maya", "reason": "I asked the bank",
            "at": refused.json()["settlement"]["at"],
        }  # fmt: skip
    assert await bank.log(view["txn"]) == before
    assert (await states(robot, view))[1] == "fired"


async def test_a_task_that_settled_itself_says_so(bank: World, robot: Agent) -> None:
    view, maya = await unknown(bank, robot), await bank.person("maya")
    task = await maya.task(view, "unknown")
    await told(robot, (view["effects"][0]["effect_id"], "failed"))
    refused = await maya.settle(task, "fired")
    assert refusal(refused) == (409, ErrorCode.TASK_SETTLED)
    assert "settlement" not in refused.json() and refused.json()["effect_state"] == "failed"
    settled = (await maya.get(f"/v1/tasks/{task['task']['task_id']}")).json()
    assert settled["task"]["state"] == "settled" and settled["choices"] == []


@pytest.mark.parametrize("reason", [None, "", " \n"])
async def test_a_word_without_a_reason_settles_nothing(bank: World, robot: Agent, reason: str | None) -> None:
    view, maya = await unknown(bank, robot), await bank.person("maya")
    refused = await maya.settle(await maya.task(view, "unknown"), "fired", reason=reason)
    assert refusal(refused) == (400, ErrorCode.REASON_REQUIRED)
    assert (await states(robot, view))[1] == "unknown"


WRONG = ["compensated", "left_standing", "record_holds", "report_holds", "withdrawn", "left_waiting"]


@pytest.mark.parametrize("answer", WRONG)
async def test_an_answer_to_another_kind_of_task_is_none(bank: World, robot: Agent, answer: str) -> None:
    view, maya = await unknown(bank, robot), await bank.person("maya")
    refused = await maya.settle(await maya.task(view, "unknown"), answer)
    assert refusal(refused) == (400, ErrorCode.WRONG_ANSWER)
    assert refused.json()["answers"] == ["fired", "not_fired"]
    assert (await states(robot, view))[1] == "unknown"


async def test_a_result_beyond_the_limits_is_refused(bank: World, robot: Agent) -> None:
    view, maya = await unknown(bank, robot), await bank.person("maya")
    task = await maya.task(view, "unknown")
    refused = await maya.settle(task, "fired", result={"id": "x" * ARGS_LIMITS.max_bytes})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request"), refused.text
    assert (await maya.settle(task, "fired", result={"id": "x" * 1_000})).status_code == 200


async def test_what_did_not_happen_has_no_result(bank: World, robot: Agent) -> None:
    view, maya = await unknown(bank, robot), await bank.person("maya")
    refused = await maya.settle(await maya.task(view, "unknown"), "not_fired", result={"id": "p1"})
    assert refusal(refused) == (400, "invalid_request")


@pytest.mark.parametrize("other", [{"effect_digest": "0" * 64}, {"effect_state": "fired"}])
async def test_a_word_on_what_was_not_read_is_stale(bank: World, robot: Agent, other: dict[str, str]) -> None:
    view, maya = await unknown(bank, robot), await bank.person("maya")
    refused = await maya.settle(await maya.task(view, "unknown"), "fired", **other)
    assert refusal(refused) == (409, ErrorCode.STALE_TASK)
    assert refused.json()["effect_state"] == "unknown"


async def test_no_such_task(bank: World) -> None:
    maya = await bank.person("maya")
    task = {"task": {"task_id": "task_none"}, "effect": {"effect_digest": "0" * 64, "state": "unknown"}}
    assert refusal(await maya.settle(task, "fired")) == (404, "not_found")
    assert refusal(await maya.get("/v1/tasks/task_none")) == (404, "not_found")


async def settled_by(visitor: Visitor, view: dict[str, Any]) -> tuple[str | None, int]:
    task = await visitor.task(view, "unknown")
    return task.get("why_not"), (await visitor.settle(task, "fired")).status_code


async def test_nobody_settles_for_their_own_side(bank: World) -> None:
    mine = await bank.agent("mayas-robot", owner=person("maya"))
    view = await unknown(bank, mine)
    why, status = await settled_by(await bank.person("maya"), view)
    assert status == 403 and why is not None and "your" not in why and "own side" in why
    assert (await settled_by(await bank.person("tomas"), view)) == (None, 200)


async def test_without_a_rule_the_people_of_its_gates_settle_it(bank: World, robot: Agent) -> None:
    view = await unknown(bank, robot, amount=500)  # finance was asked
    why, status = await settled_by(await bank.person("ingrid"), view)
    assert status == 403
    assert why.startswith("only people in finance settle this, and you are not one of them; ask one of them")
    assert (await settled_by(await bank.person("tomas"), view)) == (None, 200)


async def test_what_no_gate_asked_about_is_for_whoever_some_gate_asks(bank: World, robot: Agent) -> None:
    view = await unknown(bank, robot)
    assert (await settled_by(await bank.person("jonas"), view))[1] == 403  # in no group
    assert (await settled_by(await bank.person("ingrid"), view)) == (None, 200)  # of `unseen`


async def test_a_rule_about_settling_alone_says_who(bank: World, robot: Agent, folder: Payments) -> None:
    folder.rules(
        f'@id("legal-settles") {WHO} when {{ resource.kind == "unknown" && resource.tool == "pay" }};'
    )
    await bank.activate()
    view = await unknown(bank, robot, amount=500)
    why, status = await settled_by(await bank.person("maya"), view)
    assert status == 403 and why is not None and "no policy permits you to settle this task" in why
    assert (await settled_by(await bank.person("ingrid"), view)) == (None, 200)


async def test_an_owner_is_refused_whatever_the_rule_says(bank: World, folder: Payments) -> None:
    folder.rules('@id("anybody-settles") permit (principal, action == Action::"settle", resource);')
    await bank.activate()
    mine = await bank.agent("ingrids-robot", owner=person("ingrid"))
    view = await unknown(bank, mine)
    assert (await settled_by(await bank.person("ingrid"), view))[1] == 403
    assert (await settled_by(await bank.person("jonas"), view)) == (None, 200)


async def test_a_rule_that_cannot_be_evaluated_lets_nobody(
    bank: World, robot: Agent, folder: Payments
) -> None:
    odd = "9223372036854775807 + (if resource.gates.isEmpty() then 1 else 2) == 1"
    folder.rules(
        '@id("anybody") permit (principal, action == Action::"settle", resource);',
        f'@id("odd") forbid (principal, action == Action::"settle", resource) when {{ {odd} }};',
    )
    await bank.activate()
    view = await unknown(bank, robot)
    why, status = await settled_by(await bank.person("maya"), view)
    assert status == 403 and why is not None and "doubt is a no" in why


async def test_a_form_from_elsewhere_settles_nothing(bank: World, robot: Agent) -> None:
    view, maya = await unknown(bank, robot), await bank.person("maya")
    task = await maya.task(view, "unknown")
    maya.csrf = "another"
    assert refusal(await maya.settle(task, "fired")) == (403, "csrf")
    assert (await states(robot, view))[1] == "unknown"


# --------------------------------------------------------------------------------------------------------- list


async def test_tasks_are_listed_by_state_and_kind_and_page(bank: World, robot: Agent) -> None:
    views = [await unknown(bank, await bank.agent(f"{robot.name}-{n}")) for n in range(3)]
    maya = await bank.person("maya")
    mine = {view["txn"] for view in views}

    async def listed(query: str) -> list[dict[str, Any]]:
        found, cursor = [], ""
        while True:
            page = (await maya.get(f"/v1/tasks?limit=2&{query}{cursor}")).json()
            found += page["tasks"]
            if "next" not in page:
                return [task for task in found if task["txn"] in mine]
            cursor = f"&cursor={page['next']}"

    assert [task["txn"] for task in await listed("kind=unknown")] == [view["txn"] for view in views]
    assert await listed("kind=standing") == [] and await listed("state=settled") == []
    await maya.settle(await maya.task(views[1], "unknown"), "fired")
    assert len(await listed("state=open")) == 2
    (settled,) = await listed("state=settled&kind=unknown")
    assert (settled["txn"], settled["settlement"]["name"]) == (views[1]["txn"], "Maya")
    assert refusal(await maya.get("/v1/tasks?kind=odd")) == (400, "invalid_request")


async def test_a_settlement_is_one_line_for_each_move_and_keeps_the_words_out_of_the_log(
    bank: World, robot: Agent
) -> None:
    view, maya = await unknown(bank, robot), await bank.person("maya")
    before = len(await bank.log(view["txn"]))
    await maya.settle(await maya.task(view, "unknown"), "not_fired", reason="the bank has no such payment")
    lines = (await bank.log(view["txn"]))[before:]
    assert [kind for kind, _ in lines] == ["effect_failed", "task_settled", "transaction_ended"]
    assert lines[1][1]["answer"] == "not_fired"
    assert "no such payment" not in str(lines)


# ----------------------------------------------------------------------------------- questions nobody can answer


async def asked(bank: World, robot: Agent, amount: int = 5_000) -> dict[str, Any]:
    """A payment two people of finance are asked about."""
    view: dict[str, Any] = (await robot.submit(await pay(bank, amount), await mail(bank))).json()
    assert view["effects"][0]["state"] == "review"
    await bank.sweep()
    return view


async def too_few(bank: World, folder: Payments, finance: tuple[str, ...] = ("maya",)) -> None:
    folder.people({"finance": finance, "cfo": ("tomas",), "legal": ("ingrid",), "unseen": ("ingrid",)})
    await bank.activate()


async def test_a_question_enough_people_can_answer_is_no_task(bank: World, robot: Agent) -> None:
    await asked(bank, robot)
    assert await tasks(bank, robot) == []


async def test_a_question_nobody_can_answer_is_one_task_and_closes_by_itself(
    bank: World, robot: Agent, folder: Payments
) -> None:
    await too_few(bank, folder)
    view, maya = await asked(bank, robot), await bank.person("maya")
    await bank.sweep()
    assert await tasks(bank, robot) == [("impossible_quorum", "open")]
    task = await maya.task(view, "impossible_quorum")
    assert task["task"]["text"] == "nobody can approve this as things stand: finance can give 1 of 2"
    await too_few(bank, folder, ("maya", "jonas"))
    await bank.sweep()
    assert await tasks(bank, robot) == []
    await too_few(bank, folder)
    await bank.sweep()
    assert await tasks(bank, robot) == [("impossible_quorum", "open")]
    await robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
    assert refusal(await maya.settle(task, "left_waiting")) == (409, ErrorCode.TASK_SETTLED)
    await bank.sweep()
    assert await tasks(bank, robot) == []


async def test_an_owner_is_not_counted_among_those_who_could_answer(bank: World, folder: Payments) -> None:
    mine = await bank.agent("robot-of-maya", owner=person("maya"))
    await asked(bank, mine)  # two of finance, and one of the two is its owner
    assert await tasks(bank, mine) == [("impossible_quorum", "open")]


async def test_votes_that_are_in_count_towards_what_is_possible(
    bank: World, robot: Agent, folder: Payments
) -> None:
    view = await asked(bank, robot)
    await (await bank.person("maya")).vote(view)
    await bank.person("tomas")
    await bank.operator("revoke-approver", {"person": person("tomas"), "reason": "left"})
    await bank.sweep()
    assert await tasks(bank, robot) == [("impossible_quorum", "open")]
    await bank.operator("reinstate-approver", {"person": person("tomas")})
    await bank.sweep()
    assert await tasks(bank, robot) == []


async def test_a_gate_that_wants_what_nobody_can_show_is_impossible(
    bank: World, robot: Agent, folder: Payments
) -> None:
    folder.rules(gate("strict", "legal", step_up="passkey"))
    await bank.activate()
    await asked(bank, robot, amount=10)
    assert await tasks(bank, robot) == [("impossible_quorum", "open")]


async def test_a_rule_about_approving_may_make_it_impossible(
    bank: World, robot: Agent, folder: Payments
) -> None:
    folder.rules('@id("only-cfo") permit (principal in Group::"cfo", action == Action::"approve", resource);')
    await bank.activate()
    await asked(bank, robot)
    assert await tasks(bank, robot) == [("impossible_quorum", "open")]


async def test_a_person_withdraws_what_nobody_can_answer(bank: World, robot: Agent, folder: Payments) -> None:
    await too_few(bank, folder, ())
    view, ingrid = await asked(bank, robot), await bank.person("ingrid")
    task = await ingrid.task(view, "impossible_quorum")
    assert task["choices"][0]["follows"].startswith("It and the one beside it are withdrawn. Nothing fires")
    assert (await ingrid.settle(task, "withdrawn", reason="ask again on Monday")).status_code == 200
    seen = await robot.see(view["txn"])
    assert (seen["state"], [one["state"] for one in seen["effects"]]) == ("ended", ["withdrawn", "withdrawn"])
    assert seen["effects"][0]["decision"]["reasons"][-1]["text"] == "it was taken back: ask again on Monday"
    await bank.sweep()
    assert await tasks(bank, robot) == []


async def test_what_a_person_leaves_waiting_is_not_asked_again(
    bank: World, robot: Agent, folder: Payments
) -> None:
    await too_few(bank, folder)
    view, maya = await asked(bank, robot), await bank.person("maya")
    await maya.settle(await maya.task(view, "impossible_quorum"), "left_waiting")
    await bank.sweep()
    assert await tasks(bank, robot) == []
    assert (await robot.see(view["txn"]))["effects"][0]["state"] == "review"


# ------------------------------------------------------------------------------------------------ a restored gap


async def restored(bank: World, robot: Agent) -> dict[str, Any]:
    """A transaction of which the service remembers nothing after it was put back to before its redemption."""
    view: dict[str, Any] = (await robot.submit(await pay(bank), await mail(bank))).json()

    def put_back(tx: Tx) -> None:
        alone, cause = alone_with(tx, view["txn"]), Cause("service", "restored")
        snapshot = records.require(alone.conn, view["txn"])
        for effect in snapshot.effects:
            move_effect(alone, effect, EffectState.UNKNOWN, cause)
            open_task(alone, effect, TaskKind.RESTORED, "what is remembered was put back", cause)
        follow_effects(alone, snapshot, cause)

    await bank.service.db.write(put_back)
    assert (await robot.see(view["txn"]))["state"] == "unsettled"
    return view


RESTORED = {
    ("fired", "fired"): ("settled", ["fired", "fired"]),
    ("not_fired", "not_fired"): ("ended", ["unused", "unused"]),
    ("fired", "not_fired"): ("unsettled", ["fired", "unused"]),
}


@pytest.mark.parametrize(("said", "then"), RESTORED.items(), ids=map("-".join, RESTORED))
async def test_a_restored_gap_is_settled_as_an_unknown(
    bank: World, robot: Agent, said: tuple[str, str], then: tuple[str, list[str]]
) -> None:
    view, maya = await restored(bank, robot), await bank.person("maya")
    for effect, answer in zip(view["effects"], said, strict=True):
        task = await maya.task(view, "restored", effect_id=effect["effect_id"])
        assert [choice["answer"] for choice in task["choices"]] == ["fired", "not_fired"]
        assert (await maya.settle(task, answer)).status_code == 200
    seen = await robot.see(view["txn"])
    assert (seen["state"], [effect["state"] for effect in seen["effects"]]) == then
    assert await tasks(bank, robot) == []
