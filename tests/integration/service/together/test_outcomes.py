"""What became of redeemed effects: told by the party that redeemed them, the first telling stands."""

from __future__ import annotations

from typing import Any

import pytest

from policy_service.workflow.pages.reviews import review_page
from tests.fakes.payments import MAIL, gate
from tests.fakes.world import Agent
from tests.integration.service.effects import call, mail, pay
from tests.integration.service.together.bank import Bank, refusal
from tests.integration.service.together.test_who_counts import voter

pytestmark = pytest.mark.anyio


async def redeemed(robot: Agent, *effects: dict[str, Any], **more: Any) -> list[str]:
    """The effect ids of a transaction that was spent at once."""
    view = (await robot.submit(*effects, **({"attempt_id": robot.attempt} | more))).json()
    assert view["state"] == "redeemed", view
    return [seen["effect_id"] for seen in view["effects"]]


async def told(
    robot: Agent, *outcomes: tuple[str, str], attempt_id: str | None = None
) -> tuple[str, list[str]]:
    """The states after a report."""
    answer = await robot.report(
        attempt_id or robot.attempt, *({"effect_id": e, "outcome": o} for e, o in outcomes)
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["state"], [seen["state"] for seen in answer.json()["effects"]]


async def tasks(bank: Bank, robot: Agent) -> list[tuple[str, str]]:
    """What people must settle of an agent's: kind and state."""
    maya = await bank.person("maya")
    page = (await maya.get("/v1/tasks?limit=200")).json()
    return [(task["kind"], task["state"]) for task in page["tasks"] if task["txn"] in robot.txns]


NOTICE = MAIL | {"tool": "notice", "sentence": "Tell {to}"}
MAY_FAIL = NOTICE | {"on_exhausted": "tool"}
LOOKUP = MAIL | {"tool": "lookup", "groups": ["read"], "sentence": "Read {to}"}


@pytest.fixture
async def wider(bank: Bank) -> Bank:
    """Under a bundle with two more tools: a notice, which may fail without stopping the others, and a read."""
    bank.folder.write("tools/lookup.json", LOOKUP)
    await bank.write("tools/notice.json", MAY_FAIL)
    return bank


async def made(bank: Bank, tool: str, n: int = 0) -> dict[str, Any]:
    """A call of a tool."""
    return await pay(bank) if tool == "pay" else await call(bank, tool, {"to": "acme", "text": f"hello {n}"})


OUTCOMES = {
    # each tool and its outcome: the transaction, and what people have to settle
    "mail fired": ("settled", []),
    "mail failed": ("ended", []),
    "mail unused": ("ended", []),
    "mail unknown": ("unsettled", ["unknown"]),
    "pay fired, mail fired": ("settled", []),
    "pay fired, mail failed": ("redeemed", []),  # the payment is to be taken back first
    "pay fired, mail unused": ("redeemed", []),
    "pay failed, mail fired": ("unsettled", ["standing"]),
    "pay unused, mail fired": ("unsettled", ["standing"]),
    "pay failed, mail unused": ("ended", []),
    "pay unknown, mail fired": ("unsettled", ["unknown"]),
    "mail fired, notice failed": ("settled", []),
    "mail failed, notice fired": ("unsettled", ["standing"]),
    "mail fired, notice unused": ("unsettled", ["standing"]),
    "mail fired, notice unknown": ("unsettled", ["unknown"]),
    "pay fired, notice failed": ("settled", []),  # nothing is to be taken back
    "lookup fired, mail failed": ("ended", []),
    "lookup fired, mail unused": ("ended", []),
    "lookup fired, mail fired": ("settled", []),
    "lookup failed, mail fired": ("unsettled", ["standing"]),
    "lookup fired, mail fired, mail failed": ("unsettled", ["standing"]),
}


@pytest.mark.parametrize(("outcomes", "expected"), OUTCOMES.items(), ids=OUTCOMES)
async def test_what_outcomes_come_to(wider: Bank, outcomes: str, expected: tuple[str, list[str]]) -> None:
    tools, ends = zip(*(one.split() for one in outcomes.split(", ")), strict=True)
    ids = await redeemed(wider.robot, *[await made(wider, tool, n) for n, tool in enumerate(tools)])
    state, seen = await told(wider.robot, *zip(ids, ends, strict=True))
    assert (state, seen) == (expected[0], list(ends))
    assert [kind for kind, _ in await tasks(wider, wider.robot)] == expected[1]
    if state == "settled":
        wider.clock.pass_(minutes=10)
        await wider.sweep()
        assert await tasks(wider, wider.robot) == []


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [(NOTICE, NOTICE | {"groups": ["read"]}, "unsettled"), (MAY_FAIL, NOTICE, "settled")],
    ids=["a write stays one", "what may fail may still"],
)
async def test_a_later_bundle_changes_nothing_of_what_was_submitted(
    bank: Bank, before: dict[str, Any], after: dict[str, Any], state: str
) -> None:
    await bank.write("tools/notice.json", before)
    first, then = ("mail", "notice") if before is MAY_FAIL else ("notice", "mail")
    one, two = await redeemed(bank.robot, await made(bank, first), await made(bank, then))
    await bank.write("tools/notice.json", after)
    assert (await told(bank.robot, (one, "fired"), (two, "failed")))[0] == state


async def test_a_late_report_that_it_failed_settles_the_unknown_and_all_of_it(wider: Bank) -> None:
    one, two = await redeemed(wider.robot, await mail(wider), await made(wider, "notice"))
    assert (await told(wider.robot, (one, "fired"), (two, "unknown")))[0] == "unsettled"
    assert (await told(wider.robot, (two, "failed")))[0] == "settled"
    assert await tasks(wider, wider.robot) == []
    assert (await told(wider.robot, (two, "fired")))[0] == "settled", "the first telling stands"
    assert await tasks(wider, wider.robot) == [("contradiction", "open")]


async def test_people_read_that_it_may_fail_before_they_agree(wider: Bank) -> None:
    await wider.rules(gate("asked", "finance", action="notice"), gate("asked-too", "finance", action="mail"))
    view = (await wider.robot.submit(await made(wider, "notice"), await mail(wider))).json()
    pages = [
        await review_page(wider.service.ctx, voter("maya"), one["review"]["review_id"])
        for one in view["effects"]
    ]
    assert [page and page.finality for page in pages] == [
        "This cannot be undone. If it fails, the other effects of its transaction go on.",
        "This cannot be undone.",
    ]


async def test_outcomes_may_come_one_by_one(bank: Bank) -> None:
    one, two = await redeemed(bank.robot, await pay(bank), await mail(bank))
    assert await told(bank.robot, (one, "fired")) == ("redeemed", ["fired", "redeemed"])
    assert await told(bank.robot, (two, "fired")) == ("settled", ["fired", "fired"])


@pytest.mark.parametrize("outcome", ["fired", "failed", "unused", "unknown"])
async def test_the_same_report_again_changes_nothing(bank: Bank, outcome: str) -> None:
    (effect_id,) = await redeemed(bank.robot, await mail(bank))
    first = await told(bank.robot, (effect_id, outcome))
    assert await told(bank.robot, (effect_id, outcome)) == first
    assert await told(bank.robot, (effect_id, outcome), (effect_id, outcome)) == first
    assert len(await tasks(bank, bank.robot)) == (1 if outcome == "unknown" else 0)


CONTRADICTIONS = [
    ("fired", "failed"),
    ("fired", "unused"),
    ("failed", "fired"),
    ("unused", "fired"),
    ("failed", "unused"),
    ("fired", "unknown"),  # knowing less than before contradicts nothing
]


@pytest.mark.parametrize(("first", "then"), CONTRADICTIONS)
async def test_a_contradiction_is_a_task_and_the_first_telling_stands(
    bank: Bank, first: str, then: str
) -> None:
    (effect_id,) = await redeemed(bank.robot, await mail(bank))
    before = await told(bank.robot, (effect_id, first))
    for _ in range(2):
        assert await told(bank.robot, (effect_id, then)) == before
    assert await tasks(bank, bank.robot) == ([] if then == "unknown" else [("contradiction", "open")])


@pytest.mark.parametrize(("late", "state"), [("fired", "settled"), ("failed", "ended"), ("unused", "ended")])
async def test_a_late_report_settles_an_unknown_and_its_task(bank: Bank, late: str, state: str) -> None:
    (effect_id,) = await redeemed(bank.robot, await mail(bank))
    await told(bank.robot, (effect_id, "unknown"))
    assert await told(bank.robot, (effect_id, late)) == (state, [late])
    assert await tasks(bank, bank.robot) == []  # nobody is left looking for what is known by now


TIMES = {"a moment before": (-1, "redeemed"), "exactly then": (0, "unknown")}


@pytest.mark.parametrize(("milliseconds", "state"), TIMES.values(), ids=TIMES)
async def test_what_nobody_reported_in_time_is_unknown_and_a_task(
    bank: Bank, milliseconds: int, state: str
) -> None:
    """``fire_by`` and the manifest's timeout: 30 and 90 seconds."""
    bank.clock.stop_at(bank.clock())
    (effect_id,) = await redeemed(bank.robot, await pay(bank))
    bank.clock.pass_(seconds=120, milliseconds=milliseconds)
    await bank.sweep()
    seen = await bank.robot.see((await bank.robot.submit(await pay(bank))).json()["txn"])
    assert seen["effects"][0]["state"] == state
    assert await tasks(bank, bank.robot) == ([("unknown", "open")] if state == "unknown" else [])
    if state == "unknown":
        assert seen["state"] == "unsettled"
        assert await told(bank.robot, (effect_id, "fired")) == ("settled", ["fired"])


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


async def test_only_what_the_attempt_redeemed_is_reported_under_it(bank: Bank) -> None:
    attempt = bank.robot.attempt
    (one,) = await redeemed(bank.robot, await pay(bank))
    (two,) = await redeemed(bank.robot, await mail(bank), run_key="other", attempt_id=attempt + "-2")
    fired = {"outcome": "fired"}
    for effect_id in (two, "0" * 64):
        answer = await bank.robot.report(
            attempt, {"effect_id": one} | fired, {"effect_id": effect_id} | fired
        )
        assert refusal(answer) == (404, "not_found")
    nowhere = await bank.robot.report(attempt + "-3", {"effect_id": one} | fired)
    assert refusal(nowhere) == (404, "unknown_attempt")
    for outcome in ("compensated", "compensation_failed"):  # what follows from a compensation is not reported
        answer = await bank.robot.report(attempt, {"effect_id": one, "outcome": outcome})
        assert refusal(answer) == (400, "invalid_request")
    assert await told(bank.robot, (two, "failed"), attempt_id=attempt + "-2") == ("ended", ["failed"])
    assert await told(bank.robot, (one, "fired")) == ("settled", ["fired"]), "nothing refused was taken"


async def test_what_fired_and_should_be_taken_back_does_not_hang_when_nobody_does(bank: Bank) -> None:
    one, two = await redeemed(bank.robot, await pay(bank), await mail(bank))
    assert (await told(bank.robot, (one, "fired"), (two, "failed")))[0] == "redeemed"
    bank.clock.pass_(seconds=30)
    await bank.sweep()
    assert await tasks(bank, bank.robot) == []
    bank.clock.pass_(minutes=10)
    await bank.sweep()
    await bank.sweep()
    assert await tasks(bank, bank.robot) == [("compensation_due", "open")]
