"""Outcomes of redeemed effects, reported by their redeemer, and compensations of those that fired."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from countersign.contract import ARGS_LIMITS, canonicalize
from countersign.contract import digests as names
from policy_service.queries.reviews import review_page
from policy_service.storage.core import update_rows
from policy_service.storage.tables import AgentRow, EffectRow
from tests.fakes.payments import MAIL, PAY, gate, plain_forbid
from tests.fakes.world import Agent
from tests.integration.service.effects import call, mail, pay
from tests.integration.service.together.bank import Bank, refusal, voter


async def redeemed(robot: Agent, *effects: dict[str, Any], **more: Any) -> list[str]:
    """The effect ids of a transaction that was redeemed at once."""
    view = (await robot.submit(*effects, **({"attempt_id": robot.attempt} | more))).json()
    assert view["state"] == "redeemed", view
    return [seen["effect_id"] for seen in view["effects"]]


async def report_outcomes(
    robot: Agent, *outcomes: tuple[str, str], attempt_id: str | None = None
) -> tuple[str, list[str]]:
    """The states after a report."""
    said = [{"effect_id": effect_id, "outcome": outcome} for effect_id, outcome in outcomes]
    answer = await robot.report(attempt_id or robot.attempt, *said)
    assert answer.status_code == 200, answer.text
    return answer.json()["state"], [seen["state"] for seen in answer.json()["effects"]]


NOTICE = MAIL | {"tool": "notice", "sentence": "Tell {to}"}

MAY_FAIL = NOTICE | {"on_exhausted": "tool"}

LOOKUP = MAIL | {"tool": "lookup", "groups": ["read"], "sentence": "Read {to}"}


@pytest.fixture
async def wider(bank: Bank) -> Bank:
    """A bundle with two more tools: a notice that may fail, and a read."""
    bank.folder.write("tools/lookup.json", LOOKUP)
    await bank.write("tools/notice.json", MAY_FAIL)
    return bank


async def made(bank: Bank, tool: str, n: int = 0) -> dict[str, Any]:
    """A call of a tool."""
    return await pay(bank) if tool == "pay" else await call(bank, tool, {"to": "acme", "text": f"hello {n}"})


OUTCOMES = {
    # each tool and its outcome: the transaction, and what people have to settle; of the states alone, see the domain
    "mail fired": ("settled", []),
    "mail failed": ("ended", []),
    "mail unknown": ("unsettled", ["unknown"]),
    "pay fired, mail failed": ("redeemed", []),  # the payment is to be taken back first
    "pay failed, mail fired": ("unsettled", ["standing"]),
    "mail fired, notice failed": ("settled", []),
    "mail fired, notice unused": ("unsettled", ["standing"]),
    "lookup fired, mail failed": ("ended", []),
    "lookup failed, mail fired": ("unsettled", ["standing"]),
}


async def test_outcomes_determine_the_transaction_and_its_tasks(wider: Bank) -> None:
    settled: list[Agent] = []
    for outcomes, expected in OUTCOMES.items():
        robot = await wider.fresh()
        tools, ends = zip(*(one.split() for one in outcomes.split(", ")), strict=True)
        ids = await redeemed(robot, *[await made(wider, tool, n) for n, tool in enumerate(tools)])
        state, seen = await report_outcomes(robot, *zip(ids, ends, strict=True))
        assert ((state, await wider.tasks()), seen) == (expected, list(ends)), outcomes
        settled += [robot] if state == "settled" else []
    wider.clock.pass_(minutes=10)
    await wider.sweep()
    assert [await wider.tasks(robot) for robot in settled] == [[]] * len(settled)


async def test_a_later_bundle_does_not_change_submitted_effects(bank: Bank) -> None:
    for before, after, tools, state in (
        (NOTICE, NOTICE | {"groups": ["read"]}, ("notice", "mail"), "unsettled"),  # a write stays one
        (MAY_FAIL, NOTICE, ("mail", "notice"), "settled"),  # what may fail may still
    ):
        await bank.write("tools/notice.json", before)
        one, two = await redeemed(await bank.fresh(), *[await made(bank, tool) for tool in tools])
        await bank.write("tools/notice.json", after)
        assert (await report_outcomes(bank.robot, (one, "fired"), (two, "failed")))[0] == state


async def test_the_review_shows_that_an_effect_may_fail(wider: Bank) -> None:
    await wider.rules(gate("asked", "finance", action="notice"), gate("asked-too", "finance", action="mail"))
    view = (await wider.robot.submit(await made(wider, "notice"), await mail(wider))).json()
    ctx, ids = wider.service.ctx, [one["review"]["review_id"] for one in view["effects"]]
    pages = [await review_page(ctx, voter("maya"), review_id) for review_id in ids]
    assert [page and page.finality for page in pages] == [
        "This cannot be undone. If it fails, the other effects of its transaction continue.",
        "This cannot be undone.",
    ]


async def test_the_same_report_again_changes_nothing(bank: Bank) -> None:
    for outcome in ("fired", "failed", "unused", "unknown"):
        (effect_id,) = await redeemed(await bank.fresh(), await mail(bank))
        first = await report_outcomes(bank.robot, (effect_id, outcome))
        assert await report_outcomes(bank.robot, (effect_id, outcome)) == first
        assert await report_outcomes(bank.robot, (effect_id, outcome), (effect_id, outcome)) == first
        assert await bank.tasks() == (["unknown"] if outcome == "unknown" else [])


CONTRADICTIONS = [
    ("fired", "failed"), ("fired", "unused"), ("failed", "fired"), ("unused", "fired"), ("failed", "unused"),
    ("fired", "unknown"),  # knowing less than before contradicts nothing
]  # fmt: skip


async def test_a_contradicting_report_is_a_task_and_the_first_is_kept(bank: Bank) -> None:
    for first, then in CONTRADICTIONS:
        (effect_id,) = await redeemed(await bank.fresh(), await mail(bank))
        before = await report_outcomes(bank.robot, (effect_id, first))
        for _ in range(2):
            assert await report_outcomes(bank.robot, (effect_id, then)) == before
        assert await bank.tasks() == ([] if then == "unknown" else ["contradiction"]), (first, then)


async def test_a_late_report_settles_an_unknown_and_its_task(wider: Bank) -> None:
    for late, state in (("fired", "settled"), ("failed", "ended"), ("unused", "ended")):
        (effect_id,) = await redeemed(await wider.fresh(), await mail(wider))
        await report_outcomes(wider.robot, (effect_id, "unknown"))
        assert await report_outcomes(wider.robot, (effect_id, late)) == (state, [late])
        assert await wider.tasks() == []  # the task has closed
    one, two = await redeemed(await wider.fresh(), await mail(wider), await made(wider, "notice"))
    assert (await report_outcomes(wider.robot, (one, "fired"), (two, "unknown")))[0] == "unsettled"
    assert (await report_outcomes(wider.robot, (two, "failed")))[0] == "settled"
    assert await wider.tasks() == []
    assert (await report_outcomes(wider.robot, (two, "fired")))[0] == "settled", "the first report is kept"
    assert await wider.tasks() == ["contradiction"]


async def test_an_unreported_effect_becomes_unknown_and_a_task(bank: Bank) -> None:
    """``fire_by`` and the manifest's timeout: 30 and 90 seconds."""
    bank.clock.stop_at(bank.clock())
    (effect_id,) = await redeemed(bank.robot, await pay(bank))
    view = await bank.asks(10)
    bank.clock.pass_(seconds=120, milliseconds=-1)
    await bank.sweep()
    assert (await bank.states(view), await bank.tasks()) == (["redeemed", "redeemed"], [])
    bank.clock.pass_(milliseconds=1)
    await bank.sweep()
    assert (await bank.states(view), await bank.tasks()) == (["unsettled", "unknown"], ["unknown"])
    assert await report_outcomes(bank.robot, (effect_id, "fired")) == ("settled", ["fired"])


async def test_a_result_and_an_error_are_kept_with_their_outcome(bank: Bank) -> None:
    one, two = await redeemed(bank.robot, await pay(bank), await mail(bank))
    fired = {"effect_id": one, "outcome": "fired", "result": {"id": "re_1", "at": 1.5}}
    failed = {"effect_id": two, "outcome": "failed", "error": "the printer burns; " * 200}
    answer = await bank.robot.report(bank.robot.attempt, fired, failed)
    seen = answer.json()["effects"]
    assert seen[0]["outcome"]["outcome"] == "fired" and "error" not in seen[0]["outcome"]
    assert seen[1]["outcome"]["error"].startswith("the printer burns")
    log = str(await bank.log(answer.json()["txn"]))
    assert "re_1" not in log and "printer" not in log


async def test_an_effect_of_another_attempt_cannot_be_reported(bank: Bank) -> None:
    attempt = bank.robot.attempt
    (one,) = await redeemed(bank.robot, await pay(bank))
    (two,) = await redeemed(bank.robot, await mail(bank), run_key="other", attempt_id=attempt + "-2")
    fired = {"effect_id": one, "outcome": "fired"}
    for effect_id in (two, "0" * 64):
        answer = await bank.robot.report(attempt, fired, fired | {"effect_id": effect_id})
        assert refusal(answer) == (404, "not_found")
    assert refusal(await bank.robot.report(attempt + "-3", fired)) == (404, "unknown_attempt")
    for outcome in ("compensated", "compensation_failed"):  # what follows from a compensation is not reported
        answer = await bank.robot.report(attempt, {"effect_id": one, "outcome": outcome})
        assert refusal(answer) == (400, "invalid_request")
    ended = await report_outcomes(bank.robot, (two, "failed"), attempt_id=attempt + "-2")
    assert ended == ("ended", ["failed"])
    assert await report_outcomes(bank.robot, (one, "fired")) == ("settled", ["fired"]), "refused before"


async def test_an_uncompensated_effect_becomes_a_task(bank: Bank) -> None:
    one, two = await redeemed(bank.robot, await pay(bank), await mail(bank))
    assert await report_outcomes(bank.robot, (one, "fired")) == ("redeemed", ["fired", "redeemed"])
    assert (await report_outcomes(bank.robot, (two, "failed")))[0] == "redeemed"
    for time, tasks in (({"seconds": 30}, []), ({"minutes": 10}, ["compensation_due"])):
        bank.clock.pass_(**time)
        await bank.sweep()
        await bank.sweep()
        assert await bank.tasks() == tasks


# -- Compensating a fired effect by an effect that the service builds, decided now and redeemed once

UNDO_GATE = gate("undo-asks", "legal", action="unpay")


async def undone(robot: Agent, view: dict[str, Any], effect: int = 0) -> httpx2.Response:
    """Request the compensation of an effect."""
    body = {"effect_id": view["effects"][effect]["effect_id"]}
    return await robot.send("POST", f"/v1/transactions/{view['txn']}/compensate", body)


async def fired(
    bank: Bank, robot: Agent, *, amount: int = 10, result: Any = None, approve: bool = False
) -> dict[str, Any]:
    """A payment that fired next to a mail that failed."""
    view: dict[str, Any] = (await robot.submit(await pay(bank, amount), await mail(bank))).json()
    if approve:
        await bank.maya.vote(view)
        view = await robot.see(view["txn"])
    await robot.spend(view, robot.attempt)
    one, two = (seen["effect_id"] for seen in view["effects"])
    body = {"effect_id": one, "outcome": "fired", "result": {"id": "p1"} if result is None else result}
    answer = await robot.report(robot.attempt, body, {"effect_id": two, "outcome": "failed"})
    assert answer.status_code == 200, answer.text
    return view


async def spent_undo(robot: Agent, undo: dict[str, Any], attempt: str = "-undo") -> httpx2.Response:
    """A compensation is redeemed."""
    return await robot.redeem([undo["release"]], robot.attempt + attempt)


async def undo_ended(robot: Agent, undo: dict[str, Any], outcome: str) -> None:
    """A compensation is redeemed and reported."""
    await spent_undo(robot, undo)
    body = {"effect_id": undo["effect"]["effect_id"], "outcome": outcome}
    await robot.report(robot.attempt + "-undo", body)


async def left_to_people(bank: Bank, view: dict[str, Any], undo: str | None) -> None:
    """Nothing compensates the payment, and that is a task."""
    assert await states(bank.robot, view) == ("unsettled", "compensation_failed", undo)
    assert await bank.tasks() == ["compensation_failed"]


async def states(robot: Agent, view: dict[str, Any]) -> tuple[str, str, str | None]:
    """The states of the transaction, the payment and its compensation."""
    seen = await robot.see(view["txn"])
    undo = seen["effects"][0].get("compensation")
    return seen["state"], seen["effects"][0]["state"], None if undo is None else undo["state"]


async def test_a_fired_effect_is_compensated_by_an_effect_the_service_builds(bank: Bank) -> None:
    view = await fired(bank, bank.robot)
    bank.clock.pass_(minutes=10)
    await bank.sweep()
    assert await bank.tasks() == ["compensation_due"]
    answer = (await undone(bank.robot, view)).json()
    undo, forward = answer["effect"], view["effects"][0]["effect_id"]
    args = {"payment": "p1", "amount": 10}
    assert (undo["tool"], undo["args"], undo["state"]) == ("unpay", args, "released")
    assert undo["resource"] == {"type": "Account", "id": "p1"}
    assert undo["call_key"] == names.compensation_call_key(effect_id=forward, tool="unpay")
    assert undo["effect_id"] == names.effect_id(txn=view["txn"], call_key=undo["call_key"])
    claims = bank.release_of(answer["release"])
    assert (claims.kind, claims.compensates, claims.txn_digest) == ("compensate", forward, view["txn_digest"])
    assert await states(bank.robot, view) == ("redeemed", "compensating", "released")
    assert bank.receipt_of((await spent_undo(bank.robot, answer)).json()).kind == "compensate"
    await undo_ended(bank.robot, answer, "fired")
    assert await states(bank.robot, view) == ("settled", "compensated", "fired")
    assert await bank.tasks() == []


async def test_a_repeated_request_returns_the_same_compensation_redeemed_once(bank: Bank) -> None:
    view, attempt = await fired(bank, bank.robot), bank.robot.attempt + "-undo"
    first, again = (await undone(bank.robot, view)).json(), (await undone(bank.robot, view)).json()
    assert again["effect"]["effect_id"] == first["effect"]["effect_id"]
    both = await bank.robot.redeem([first["release"], first["release"]], attempt)
    assert refusal(both) == (400, "bad_token")
    assert (await spent_undo(bank.robot, first)).json()["redeemed"] is True
    assert refusal(await spent_undo(bank.robot, again, "-2")) == (409, "already_redeemed")
    late = (await undone(bank.robot, view)).json()
    assert late["effect"]["state"] == "redeemed" and "release" not in late
    forward = (await bank.robot.submit(await pay(bank), await mail(bank), attempt_id=attempt)).json()
    assert forward["releases"] == [] and "receipt" not in forward


async def test_an_effect_that_did_not_fire_is_not_compensated(bank: Bank) -> None:
    for outcome in (None, "failed", "unused", "unknown"):
        robot = await bank.fresh()
        view = await bank.asks(10, attempt_id=robot.attempt)
        body = {"effect_id": view["effects"][0]["effect_id"], "outcome": outcome}
        if outcome is not None:
            await robot.report(robot.attempt, body)
        answer = await undone(robot, view)
        assert refusal(answer) == (409, "illegal_state")
        assert answer.json()["state"] == (outcome or "redeemed")
    await robot.report(robot.attempt, body | {"outcome": "fired", "result": {"id": "p1"}})
    assert (await undone(robot, view)).json()["release"], "what was unknown turns out to have fired"
    robot = await bank.fresh()  # nor is one whose tool has no compensation
    view = (await robot.submit(await mail(bank), attempt_id=robot.attempt)).json()
    await robot.report(robot.attempt, {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired"})
    assert refusal(await undone(robot, view)) == (409, "illegal_state")
    unknown = await undone(robot, view | {"effects": [{"effect_id": "0" * 64}]})
    assert refusal(unknown) == (404, "not_found")


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


WITHIN: list[Any] = ["x" * (ARGS_LIMITS.max_bytes - 100), [1] * (ARGS_LIMITS.max_nodes - 10)]
WITHIN += [nested(ARGS_LIMITS.max_depth - 1)]
BEYOND: list[Any] = ["x" * ARGS_LIMITS.max_bytes, [1] * ARGS_LIMITS.max_nodes, nested(ARGS_LIMITS.max_depth)]
BEYOND += ["\N{SNOWMAN}" * (ARGS_LIMITS.max_bytes // 3)]


async def test_every_admitted_result_can_be_compensated(bank: Bank) -> None:
    for log in WITHIN:
        view = await fired(bank, await bank.fresh(), result={"id": "p1", "log": log})
        assert (await undone(bank.robot, view)).json()["effect"]["args"] == {"payment": "p1", "amount": 10}


async def test_a_result_beyond_the_limits_is_refused_but_not_its_outcome(bank: Bank) -> None:
    view = await bank.asks(10, attempt_id=bank.robot.attempt)
    body = {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired"}
    for log in BEYOND:
        refused = await bank.robot.report(bank.robot.attempt, body | {"result": {"id": "p1", "log": log}})
        assert refusal(refused) == (400, "invalid_request")
        assert "report a smaller part of it, or none" in refused.text
    assert (await bank.robot.report(bank.robot.attempt, body)).status_code == 200
    assert (await undone(bank.robot, view)).json()["code"] == "illegal_state"


# No result, one without the field, one that is text, and one whose arguments grow beyond the limits.
UNBUILDABLE: list[Any] = [{}, {"other": 1}, "p1", {"id": "x" * (ARGS_LIMITS.max_bytes - len('{"id":""}'))}]


async def test_a_compensation_that_cannot_be_built_is_a_task(bank: Bank) -> None:
    for result in UNBUILDABLE:
        view = await fired(bank, await bank.fresh(), result=result)
        for _ in range(2):
            assert refusal(await undone(bank.robot, view)) == (409, "illegal_state")
        await left_to_people(bank, view, None)


async def store(bank: Bank, view: dict[str, Any], result: Any) -> None:
    where, stored = {"effect_id": view["effects"][0]["effect_id"]}, {"result": canonicalize(result)}
    await bank.service.db.write(lambda tx: update_rows(tx.conn, EffectRow, where, stored))


async def test_a_stored_result_beyond_the_limits_is_a_task(bank: Bank) -> None:
    for log in BEYOND:
        view = await fired(bank, await bank.fresh())
        await store(bank, view, {"id": "p1", "log": log})
        for _ in range(2):
            assert refusal(await undone(bank.robot, view)) == (409, "illegal_state")
        await left_to_people(bank, view, None)


async def test_invalid_compensation_args_are_denied_and_a_task(bank: Bank) -> None:
    for payment in (7, ["p1"], "", "p" * 2_000):
        view = await fired(bank, await bank.fresh(), result={"id": payment})
        answer = (await undone(bank.robot, view)).json()
        assert answer["effect"]["decision"]["reasons"][0]["code"] == "invalid_args"
        assert "release" not in answer
        await left_to_people(bank, view, "denied")


async def test_a_plain_forbid_makes_a_task(bank: Bank) -> None:
    """One that is in force before, and one that is activated before the redemption."""
    view = await fired(bank, bank.robot)
    answer = (await undone(bank.robot, view)).json()
    bank.folder.rules(plain_forbid("never-back", action="unpay"))
    await bank.service.active.reload()
    assert (await spent_undo(bank.robot, answer)).json()["redeemed"] is False
    await left_to_people(bank, view, "denied")
    view = await fired(bank, await bank.fresh())
    answer = (await undone(bank.robot, view)).json()
    assert answer["effect"]["state"] == "denied" and "release" not in answer
    await left_to_people(bank, view, "denied")


async def test_gates_of_a_preapproved_compensation_count_as_met(bank: Bank) -> None:
    seen = {"tool": "unpay", "map": {"payment": "args:/account", "amount": "args:/amount"}}
    bank.folder.write("tools/pay.json", PAY | {"compensation": seen})
    await bank.rules(UNDO_GATE)
    view = await fired(bank, bank.robot, amount=500, approve=True)
    answer = (await undone(bank.robot, view)).json()
    assert answer["effect"]["state"] == "released" and answer["release"]
    await bank.rules(UNDO_GATE, gate("more", "cfo", action="unpay"))
    assert (await states(bank.robot, view))[2] == "released"
    assert (await spent_undo(bank.robot, answer)).json()["redeemed"] is True


async def asks_to_undo(bank: Bank, **how: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A payment that fired, whose compensation is in review, and the review."""
    view = await fired(bank, await bank.fresh(), **how)
    waiting = (await undone(bank.robot, view)).json()
    assert waiting["effect"]["state"] == "review" and "release" not in waiting
    return view, view | {"effects": [waiting["effect"]]}


async def test_gates_of_an_unapproved_compensation_open_a_review(bank: Bank) -> None:
    await bank.rules(UNDO_GATE)
    await asks_to_undo(bank, amount=500, approve=True, result={"id": "an account not in the review"})
    view, question = await asks_to_undo(bank)
    assert (await bank.ingrid.vote(question)).json()["state"] == "met"
    assert (await spent_undo(bank.robot, (await undone(bank.robot, view)).json())).json()["redeemed"] is True


async def test_a_denied_compensation_is_a_task(bank: Bank) -> None:
    await bank.rules(UNDO_GATE)
    view, question = await asks_to_undo(bank)
    assert (await bank.ingrid.vote(question, "deny", reason="let it stand")).json()["state"] == "denied"
    await left_to_people(bank, view, "denied")
    view, _ = await asks_to_undo(bank)  # and one without an answer
    bank.clock.pass_(hours=25)
    await bank.sweep()
    await left_to_people(bank, view, "expired")


async def test_an_unused_compensation_release_is_a_task(bank: Bank) -> None:
    view = await fired(bank, bank.robot)
    await undone(bank.robot, view)
    bank.clock.pass_(minutes=59)
    await bank.sweep()
    assert (await undone(bank.robot, view)).json()["release"]
    bank.clock.pass_(minutes=1)
    assert (await undone(bank.robot, view)).json()["effect"]["state"] == "expired"
    await bank.sweep()
    await left_to_people(bank, view, "expired")


async def test_a_compensation_release_expires_earlier_with_a_shorter_gate(bank: Bank) -> None:
    await bank.rules(UNDO_GATE)
    view, question = await asks_to_undo(bank)
    await bank.ingrid.vote(question)
    await bank.rules(UNDO_GATE, gate("hurry", "legal", action="unpay", valid_for="5m"))
    bank.clock.pass_(minutes=4)
    await bank.sweep()
    assert await states(bank.robot, view) == ("redeemed", "compensating", "released")
    bank.clock.pass_(minutes=1)
    await bank.sweep()
    await left_to_people(bank, view, "expired")


async def test_the_outcome_of_a_compensation_moves_the_forward_effect(bank: Bank) -> None:
    failed = ("compensation_failed", "compensation_failed")
    ends = {"failed": failed, "unused": failed, "unknown": ("compensating", "unknown")}
    for outcome, (state, task) in ends.items():
        view = await fired(bank, await bank.fresh())
        answer = (await undone(bank.robot, view)).json()
        await undo_ended(bank.robot, answer, outcome)
        assert await states(bank.robot, view) == ("unsettled", state, outcome)
        assert await bank.tasks() == [task]
    await undo_ended(bank.robot, answer, "fired")
    assert await states(bank.robot, view) == ("settled", "compensated", "fired")
    assert await bank.tasks() == []


async def test_a_frozen_agent_may_compensate(bank: Bank) -> None:
    view = await fired(bank, bank.robot)
    where = {"name": bank.robot.name}
    await bank.service.db.write(lambda tx: update_rows(tx.conn, AgentRow, where, {"frozen_at": tx.now}))
    answer = (await undone(bank.robot, view)).json()
    assert (await spent_undo(bank.robot, answer)).json()["redeemed"] is True
    named = {"effect_ids": [answer["effect"]["effect_id"]]}
    renewed = await bank.robot.send("POST", f"/v1/redemptions/{bank.robot.attempt}-undo/renew", named)
    assert renewed.json()["redeemed"] is True
    await undo_ended(bank.robot, answer, "fired")
    assert await states(bank.robot, view) == ("settled", "compensated", "fired")


async def test_the_compensating_tool_is_the_version_in_the_review(bank: Bank) -> None:
    view = await fired(bank, bank.robot)
    text = (bank.folder.path / "tools/unpay.json").read_text()
    await bank.write("tools/unpay.json", text.replace('"Unpay"', '"Unpay somebody else"'))
    answer = (await undone(bank.robot, view)).json()
    assert answer["effect"]["decision"]["reasons"][0]["code"] == "tool_changed"
    assert await states(bank.robot, view) == ("unsettled", "compensation_failed", "denied")
