"""What nobody else can tell, a person settles: who may, once, what follows, and what does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from countersign.contract import ARGS_LIMITS, EffectState, ErrorCode, TaskKind
from policy_service.storage.alone import alone_with
from policy_service.storage.database import Tx
from policy_service.workflow import records
from policy_service.workflow.moves import Cause, follow_effects, move_effect, open_task
from tests.fakes.payments import gate, person
from tests.fakes.world import Agent
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank, refusal
from tests.integration.service.together.test_compensation import fired, states, undo_ended, undone
from tests.integration.service.together.test_outcomes import redeemed, tasks, told

pytestmark = pytest.mark.anyio


async def unknown(bank: Bank, robot: Agent, *, beside: str = "unused", amount: int = 10) -> dict[str, Any]:
    """A payment nobody knows about, beside a mail that ended as told."""
    view: dict[str, Any] = (await robot.submit(await pay(bank, amount), await mail(bank))).json()
    if view["state"] == "review":
        await bank.maya.vote(view)
        view = await robot.see(view["txn"])
    await robot.spend(view, robot.attempt)
    one, two = (seen["effect_id"] for seen in view["effects"])
    await told(robot, (one, "unknown"), (two, beside))
    return view


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
    bank: Bank, said: tuple[str, str], then: tuple[str, str, list[str]]
) -> None:
    view = await unknown(bank, bank.robot, beside=said[0])
    answer = await bank.maya.settle(await bank.maya.task(view, "unknown"), said[1])
    assert answer.status_code == 200, answer.text
    assert answer.json()["task"]["settlement"]["answer"] == said[1]
    seen = await bank.robot.see(view["txn"])
    assert (seen["state"], seen["effects"][0]["state"]) == then[:2]
    assert [kind for kind, _ in await tasks(bank, bank.robot)] == then[2]


async def test_the_agent_reads_who_said_what_and_why(bank: Bank) -> None:
    view = await unknown(bank, bank.robot)
    await bank.maya.settle(
        await bank.maya.task(view, "unknown"), "fired", reason=" booked as b-7 ", result={"id": "p1"}
    )
    (said,) = (await bank.robot.see(view["txn"]))["effects"][0]["settlements"]
    told_of = {name: said[name] for name in ("kind", "answer", "person", "name", "reason", "result")}
    assert told_of == {
        "kind": "unknown", "answer": "fired", "person": person("maya"), "name": "Maya", "reason": "booked as b-7",
        "result": {"id": "p1"},
    }  # fmt: skip
    task = await bank.maya.get(f"/v1/tasks/{said['task_id']}")
    assert "p1" not in str(task.json()["task"])


async def test_what_a_person_says_fired_is_taken_back_with_the_result_they_told(bank: Bank) -> None:
    view = await unknown(bank, bank.robot)
    await bank.maya.settle(await bank.maya.task(view, "unknown"), "fired", result={"id": "p-told"})
    undo = (await undone(bank.robot, view)).json()
    assert undo["effect"]["args"] == {"payment": "p-told", "amount": 10}
    await bank.robot.redeem([undo["release"]], bank.robot.attempt + "-undo")
    await bank.robot.report(
        bank.robot.attempt + "-undo", {"effect_id": undo["effect"]["effect_id"], "outcome": "fired"}
    )
    assert await states(bank.robot, view) == ("settled", "compensated", "fired")


async def test_a_later_result_completes_the_word_and_replaces_none(bank: Bank) -> None:
    view = await unknown(bank, bank.robot)
    await bank.maya.settle(await bank.maya.task(view, "unknown"), "fired")
    effect_id = view["effects"][0]["effect_id"]
    for result in ({"id": "p1"}, {"id": "p2"}):
        await bank.robot.report(
            bank.robot.attempt, {"effect_id": effect_id, "outcome": "fired", "result": result}
        )
    assert (await undone(bank.robot, view)).json()["effect"]["args"]["payment"] == "p1"


async def test_what_is_to_be_taken_back_after_a_word_and_is_not_becomes_a_task(bank: Bank) -> None:
    view = await unknown(bank, bank.robot)
    await bank.maya.settle(await bank.maya.task(view, "unknown"), "fired")
    bank.clock.pass_(minutes=10)
    await bank.sweep()
    await bank.sweep()
    assert await tasks(bank, bank.robot) == [("compensation_due", "open")]


async def test_nothing_is_due_while_another_effect_is_unknown(bank: Bank) -> None:
    one, two, three = await redeemed(bank.robot, await pay(bank), await pay(bank, 20), await mail(bank))
    view = {
        "txn": (await bank.robot.submit(await pay(bank), await pay(bank, 20), await mail(bank))).json()["txn"]
    }
    await told(bank.robot, (one, "unknown"), (two, "unknown"), (three, "unused"))
    task = await bank.maya.task(view, "unknown", effect_id=one)
    assert "not known yet" in task["choices"][0]["follows"]
    await bank.maya.settle(task, "fired")
    bank.clock.pass_(minutes=10)
    await bank.sweep()
    assert await tasks(bank, bank.robot) == [("unknown", "open")]
    task = await bank.maya.task(view, "unknown", effect_id=two)
    assert "unpay is asked for, to take pay back" in task["choices"][1]["follows"]
    await bank.maya.settle(task, "not_fired")
    bank.clock.pass_(minutes=10)
    await bank.sweep()
    assert await tasks(bank, bank.robot) == [("compensation_due", "open")]


async def undo_unknown(bank: Bank, robot: Agent) -> dict[str, Any]:
    """A payment whose taking back nobody knows about."""
    view = await fired(bank, robot)
    await undo_ended(robot, (await undone(robot, view)).json(), "unknown")
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
    bank: Bank, answer: str, then: tuple[str, str, str], open_tasks: list[str]
) -> None:
    view = await undo_unknown(bank, bank.robot)
    task = await bank.maya.task(view, "unknown")
    assert task["choices"][0]["text"] == "It was taken back"
    assert (await bank.maya.settle(task, answer)).status_code == 200
    assert await states(bank.robot, view) == then
    assert [kind for kind, _ in await tasks(bank, bank.robot)] == open_tasks


async def compensation_failed(bank: Bank) -> dict[str, Any]:
    view = await undo_unknown(bank, bank.robot)
    await bank.maya.settle(await bank.maya.task(view, "unknown"), "not_fired")
    return view


async def standing(bank: Bank) -> dict[str, Any]:
    view = await unknown(bank, bank.robot, beside="fired")
    await bank.maya.settle(await bank.maya.task(view, "unknown"), "not_fired")
    return view


async def compensation_due(bank: Bank) -> dict[str, Any]:
    view = await fired(bank, bank.robot)
    bank.clock.pass_(minutes=10)
    await bank.sweep()
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


@pytest.mark.parametrize(("begun", "answer", "then"), BY_HAND)
async def test_what_is_done_by_hand_or_left_is_asked_for_no_more(
    bank: Bank, begun: Callable[[Bank], Awaitable[dict[str, Any]]], answer: str, then: list[str]
) -> None:
    view = await begun(bank)
    assert (await bank.maya.settle(await bank.maya.task(view, begun.__name__), answer)).status_code == 200
    seen = await bank.robot.see(view["txn"])
    assert (seen["state"], [effect["state"] for effect in seen["effects"]]) == ("settled", then)
    again = await undone(bank.robot, view)
    if begun is compensation_failed:
        assert again.json()["effect"]["state"] == "failed"
    else:
        assert refusal(again) == (409, "illegal_state")
    bank.clock.pass_(minutes=10)
    await bank.sweep()
    assert await tasks(bank, bank.robot) == []


async def test_a_later_report_that_says_otherwise_is_a_task_and_the_word_stands(bank: Bank) -> None:
    view = await unknown(bank, bank.robot)
    await bank.maya.settle(await bank.maya.task(view, "unknown"), "not_fired")
    await told(bank.robot, (view["effects"][0]["effect_id"], "fired"))
    assert (await states(bank.robot, view))[:2] == ("ended", "failed")
    task = await bank.maya.task(view, "contradiction")
    assert "recorded as failed; a later report says fired" in task["task"]["text"]
    assert (await bank.maya.settle(task, "report_holds")).status_code == 200
    seen = await bank.robot.see(view["txn"])
    assert (seen["state"], seen["effects"][0]["state"]) == ("ended", "failed")
    assert [said["answer"] for said in seen["effects"][0]["settlements"]] == ["not_fired", "report_holds"]
    assert await tasks(bank, bank.robot) == []


# ----------------------------------------------------------------------------------------------------- refusals


async def test_the_first_word_stands_and_the_same_again_is_the_same(bank: Bank) -> None:
    view = await unknown(bank, bank.robot)
    task = await bank.maya.task(view, "unknown")
    assert (await bank.maya.settle(task, "fired")).status_code == 200
    before = await bank.log(view["txn"])
    assert (await bank.maya.settle(task, "fired", reason="again")).status_code == 200
    for visitor, answer in ((bank.tomas, "fired"), (bank.tomas, "not_fired"), (bank.maya, "not_fired")):
        refused = await visitor.settle(task, answer)
        assert refusal(refused) == (409, ErrorCode.TASK_SETTLED)
        assert refused.json()["settlement"] == {
            "answer": "fired", "person": person("maya"), "name": "Maya", "reason": "I asked the bank",
            "at": refused.json()["settlement"]["at"],
        }  # fmt: skip
    assert await bank.log(view["txn"]) == before
    assert (await states(bank.robot, view))[1] == "fired"


async def test_a_task_that_settled_itself_says_so(bank: Bank) -> None:
    view = await unknown(bank, bank.robot)
    task = await bank.maya.task(view, "unknown")
    await told(bank.robot, (view["effects"][0]["effect_id"], "failed"))
    refused = await bank.maya.settle(task, "fired")
    assert refusal(refused) == (409, ErrorCode.TASK_SETTLED)
    assert "settlement" not in refused.json() and refused.json()["effect_state"] == "failed"
    settled = (await bank.maya.get(f"/v1/tasks/{task['task']['task_id']}")).json()
    assert settled["task"]["state"] == "settled" and settled["choices"] == []


REFUSED: dict[str, tuple[str, dict[str, Any], int, ErrorCode]] = {
    "no reason": ("fired", {"reason": None}, 400, ErrorCode.REASON_REQUIRED),
    "a reason of spaces": ("fired", {"reason": " \n"}, 400, ErrorCode.REASON_REQUIRED),
    "a result of what did not happen": (
        "not_fired",
        {"result": {"id": "p1"}},
        400,
        ErrorCode.INVALID_REQUEST,
    ),
    "another effect was read": ("fired", {"effect_digest": "0" * 64}, 409, ErrorCode.STALE_TASK),
    "it stood elsewhere": ("fired", {"effect_state": "fired"}, 409, ErrorCode.STALE_TASK),
    "the answer to another kind of task": ("compensated", {}, 400, ErrorCode.WRONG_ANSWER),
}


@pytest.mark.parametrize(("answer", "said", "status", "code"), REFUSED.values(), ids=REFUSED)
async def test_a_word_that_settles_nothing(
    bank: Bank, answer: str, said: dict[str, Any], status: int, code: ErrorCode
) -> None:
    view = await unknown(bank, bank.robot)
    task = await bank.maya.task(view, "unknown")
    refused = await bank.maya.settle(task, answer, **said)
    assert refusal(refused) == (status, code)
    if code is ErrorCode.STALE_TASK:
        assert refused.json()["effect_state"] == "unknown"
    if code is ErrorCode.WRONG_ANSWER:
        assert refused.json()["answers"] == ["fired", "not_fired"]
    bank.maya.csrf = "another"
    assert refusal(await bank.maya.settle(task, "fired")) == (403, "csrf")
    assert (await states(bank.robot, view))[1] == "unknown"


async def test_a_result_beyond_the_limits_is_refused(bank: Bank) -> None:
    view = await unknown(bank, bank.robot)
    task = await bank.maya.task(view, "unknown")
    assert refusal(await bank.maya.settle(task, "fired", result={"id": "x" * ARGS_LIMITS.max_bytes})) == (
        400,
        "invalid_request",
    )
    assert (await bank.maya.settle(task, "fired", result={"id": "x" * 1_000})).status_code == 200


async def test_no_such_task(bank: Bank) -> None:
    task = {"task": {"task_id": "task_none"}, "effect": {"effect_digest": "0" * 64, "state": "unknown"}}
    assert refusal(await bank.maya.settle(task, "fired")) == (404, "not_found")
    assert refusal(await bank.maya.get("/v1/tasks/task_none")) == (404, "not_found")


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
SETTLERS: dict[str, tuple[list[str], str | None, int, str, str, str | None]] = {
    # the rules, whose agent it is, the amount; who may not settle it and why; who may
    "nobody for their own side": ([], "maya", 10, "maya", "own side", "tomas"),
    "the people of its gates": ([], None, 500, "ingrid", OF_FINANCE, "tomas"),
    "whoever some gate asks": ([], None, 10, "jonas", "", "ingrid"),
    "whom a rule names": ([LEGAL], None, 500, "maya", "no policy permits you to settle this task", "ingrid"),
    "no owner, whatever the rule": ([ANYBODY], "ingrid", 10, "ingrid", "own side", "jonas"),
    "nobody where a rule errs": ([ANYBODY, NEVER_EVALUATED], None, 10, "maya", "doubt is a no", None),
}


@pytest.mark.parametrize(
    ("rules", "owner", "amount", "refused", "why", "may"), SETTLERS.values(), ids=SETTLERS
)
async def test_who_settles_a_task(
    bank: Bank, rules: list[str], owner: str | None, amount: int, refused: str, why: str, may: str | None
) -> None:
    await bank.rules(*rules)
    robot = await bank.agent(f"of-{owner}-{amount}-{len(rules)}", owner=owner and person(owner))
    view = await unknown(bank, robot, amount=amount)
    visitor = await bank.person(refused)
    task = await visitor.task(view, "unknown")
    assert why in task["why_not"]
    assert refusal(await visitor.settle(task, "fired")) == (403, ErrorCode.NOT_ELIGIBLE)
    if may is not None:
        visitor = await bank.person(may)
        task = await visitor.task(view, "unknown")
        assert "why_not" not in task
        assert (await visitor.settle(task, "fired")).status_code == 200


# --------------------------------------------------------------------------------------------------------- list


async def test_tasks_are_listed_by_state_and_kind_and_page(bank: Bank) -> None:
    views = [await unknown(bank, await bank.agent(f"{bank.robot.name}-{n}")) for n in range(3)]
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
    await bank.maya.settle(await bank.maya.task(views[1], "unknown"), "fired")
    assert len(await listed("state=open")) == 2
    (settled,) = await listed("state=settled&kind=unknown")
    assert (settled["txn"], settled["settlement"]["name"]) == (views[1]["txn"], "Maya")
    assert refusal(await bank.maya.get("/v1/tasks?kind=odd")) == (400, "invalid_request")


async def test_a_settlement_is_one_line_for_each_move_and_keeps_the_words_out_of_the_log(bank: Bank) -> None:
    view = await unknown(bank, bank.robot)
    before = len(await bank.log(view["txn"]))
    await bank.maya.settle(
        await bank.maya.task(view, "unknown"), "not_fired", reason="the bank has no such payment"
    )
    lines = (await bank.log(view["txn"]))[before:]
    assert [kind for kind, _ in lines] == ["effect_failed", "task_settled", "transaction_ended"]
    assert lines[1][1]["answer"] == "not_fired"
    assert "no such payment" not in str(lines)


# ----------------------------------------------------------------------------------- questions nobody can answer


async def asked(bank: Bank, robot: Agent, amount: int = 5_000) -> dict[str, Any]:
    """A payment two people of finance are asked about."""
    view: dict[str, Any] = (await robot.submit(await pay(bank, amount), await mail(bank))).json()
    assert view["effects"][0]["state"] == "review"
    await bank.sweep()
    return view


async def too_few(bank: Bank, finance: tuple[str, ...] = ("maya",)) -> None:
    await bank.people({"finance": finance, "cfo": ("tomas",), "legal": ("ingrid",), "unseen": ("ingrid",)})


ONLY_CFO = '@id("only-cfo") permit (principal in Group::"cfo", action == Action::"approve", resource);'
POSSIBLE: dict[str, tuple[list[str], str | None, int, bool]] = {
    "enough people": ([], None, 5_000, True),
    "one of two owns the agent": ([], "maya", 5_000, False),
    "a passkey nobody has": ([gate("strict", "legal", step_up="passkey")], None, 10, False),
    "a rule about approving": ([ONLY_CFO], None, 5_000, False),
}


@pytest.mark.parametrize(("rules", "owner", "amount", "possible"), POSSIBLE.values(), ids=POSSIBLE)
async def test_a_question_too_few_can_answer_is_a_task(
    bank: Bank, rules: list[str], owner: str | None, amount: int, possible: bool
) -> None:
    await bank.rules(*rules)
    robot = await bank.agent(f"asks-{owner}-{amount}-{len(rules)}", owner=owner and person(owner))
    await asked(bank, robot, amount)
    assert await tasks(bank, robot) == ([] if possible else [("impossible_quorum", "open")])


async def test_a_question_nobody_can_answer_is_one_task_and_closes_by_itself(bank: Bank) -> None:
    await too_few(bank)
    view = await asked(bank, bank.robot)
    await bank.sweep()
    assert await tasks(bank, bank.robot) == [("impossible_quorum", "open")]
    task = await bank.maya.task(view, "impossible_quorum")
    assert task["task"]["text"] == "nobody can approve this as things stand: finance can give 1 of 2"
    await too_few(bank, ("maya", "jonas"))
    await bank.sweep()
    assert await tasks(bank, bank.robot) == []
    await too_few(bank)
    await bank.sweep()
    assert await tasks(bank, bank.robot) == [("impossible_quorum", "open")]
    await bank.robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", {})
    assert refusal(await bank.maya.settle(task, "left_waiting")) == (409, ErrorCode.TASK_SETTLED)
    await bank.sweep()
    assert await tasks(bank, bank.robot) == []


async def test_votes_that_are_in_count_towards_what_is_possible(bank: Bank) -> None:
    view = await asked(bank, bank.robot)
    await bank.maya.vote(view)
    await bank.person("tomas")
    await bank.operator("revoke-approver", {"person": person("tomas"), "reason": "left"})
    await bank.sweep()
    assert await tasks(bank, bank.robot) == [("impossible_quorum", "open")]
    await bank.operator("reinstate-approver", {"person": person("tomas")})
    await bank.sweep()
    assert await tasks(bank, bank.robot) == []


async def test_a_person_withdraws_what_nobody_can_answer(bank: Bank) -> None:
    await too_few(bank, ())
    view = await asked(bank, bank.robot)
    task = await bank.ingrid.task(view, "impossible_quorum")
    assert task["choices"][0]["follows"].startswith("It and the one beside it are withdrawn. Nothing fires")
    assert (await bank.ingrid.settle(task, "withdrawn", reason="ask again on Monday")).status_code == 200
    seen = await bank.robot.see(view["txn"])
    assert (seen["state"], [one["state"] for one in seen["effects"]]) == ("ended", ["withdrawn", "withdrawn"])
    assert seen["effects"][0]["decision"]["reasons"][-1]["text"] == "it was taken back: ask again on Monday"
    await bank.sweep()
    assert await tasks(bank, bank.robot) == []


async def test_what_a_person_leaves_waiting_is_not_asked_again(bank: Bank) -> None:
    await too_few(bank)
    view = await asked(bank, bank.robot)
    await bank.maya.settle(await bank.maya.task(view, "impossible_quorum"), "left_waiting")
    await bank.sweep()
    assert await tasks(bank, bank.robot) == []
    assert (await bank.robot.see(view["txn"]))["effects"][0]["state"] == "review"


# ------------------------------------------------------------------------------------------------ a restored gap


async def restored(bank: Bank, robot: Agent) -> dict[str, Any]:
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
    bank: Bank, said: tuple[str, str], then: tuple[str, list[str]]
) -> None:
    view = await restored(bank, bank.robot)
    for effect, answer in zip(view["effects"], said, strict=True):
        task = await bank.maya.task(view, "restored", effect_id=effect["effect_id"])
        assert [choice["answer"] for choice in task["choices"]] == ["fired", "not_fired"]
        assert (await bank.maya.settle(task, answer)).status_code == 200
    seen = await bank.robot.see(view["txn"])
    assert (seen["state"], [effect["state"] for effect in seen["effects"]]) == then
    assert await tasks(bank, bank.robot) == []
