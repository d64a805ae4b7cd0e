"""Outcomes of redeemed effects: reported by their redeemer, and the first report is kept."""

from __future__ import annotations

from typing import Any

import pytest

from policy_service.queries.reviews import review_page
from tests.fakes.payments import MAIL, gate
from tests.fakes.world import Agent
from tests.integration.service.effects import call, mail, pay
from tests.integration.service.together.bank import Bank, refusal, voter

pytestmark = pytest.mark.anyio


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
    "pay unknown, mail fired": ("unsettled", ["unknown"]),
    "mail fired, notice failed": ("settled", []),
    "mail fired, notice unused": ("unsettled", ["standing"]),
    "pay fired, notice failed": ("settled", []),  # nothing is to be taken back
    "lookup fired, mail failed": ("ended", []),
    "lookup fired, mail fired": ("settled", []),
    "lookup failed, mail fired": ("unsettled", ["standing"]),
    "lookup fired, mail fired, mail failed": ("unsettled", ["standing"]),
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
    pages = [
        await review_page(wider.service.ctx, voter("maya"), one["review"]["review_id"])
        for one in view["effects"]
    ]
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
        assert (
            await report_outcomes(bank.robot, (effect_id, then))
            == await report_outcomes(bank.robot, (effect_id, then))
            == before
        )
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
    answer = await bank.robot.report(
        bank.robot.attempt,
        {"effect_id": one, "outcome": "fired", "result": {"id": "re_1", "at": 1.5}},
        {"effect_id": two, "outcome": "failed", "error": "the printer burns; " * 200},
    )
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
    assert await report_outcomes(bank.robot, (two, "failed"), attempt_id=attempt + "-2") == (
        "ended",
        ["failed"],
    )
    assert await report_outcomes(bank.robot, (one, "fired")) == ("settled", ["fired"]), (
        "nothing refused was taken"
    )


async def test_an_uncompensated_effect_becomes_a_task(bank: Bank) -> None:
    one, two = await redeemed(bank.robot, await pay(bank), await mail(bank))
    assert await report_outcomes(bank.robot, (one, "fired")) == ("redeemed", ["fired", "redeemed"])
    assert (await report_outcomes(bank.robot, (two, "failed")))[0] == "redeemed"
    for time, tasks in (({"seconds": 30}, []), ({"minutes": 10}, ["compensation_due"])):
        bank.clock.pass_(**time)
        await bank.sweep()
        await bank.sweep()
        assert await bank.tasks() == tasks
