"""What became of redeemed effects: told by the party that redeemed them, the first telling stands."""

from __future__ import annotations

from typing import Any

import pytest

from policy_service.workflow.pages.reviews import review_page
from tests.fakes.payments import MAIL, Payments, gate
from tests.fakes.world import Agent, World
from tests.integration.service.effects import call, mail, pay
from tests.integration.service.together.test_who_counts import voter

pytestmark = pytest.mark.anyio


async def redeemed(robot: Agent, *effects: dict[str, Any], attempt_id: str | None = None) -> list[str]:
    """The effect ids of a transaction that was spent at once."""
    view = (await robot.submit(*effects, attempt_id=attempt_id or robot.attempt)).json()
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


async def tasks(bank: World, robot: Agent) -> list[tuple[str, str]]:
    """What people must settle of an agent's: kind and state."""
    maya = await bank.person("maya")
    page = (await maya.get("/v1/tasks?limit=200")).json()
    return [(task["kind"], task["state"]) for task in page["tasks"] if task["txn"] in robot.txns]


ONE = {"fired": "settled", "failed": "ended", "unused": "ended", "unknown": "unsettled"}


@pytest.mark.parametrize(("outcome", "state"), ONE.items(), ids=ONE)
async def test_each_outcome_settles_its_transaction_in_its_way(
    bank: World, robot: Agent, outcome: str, state: str
) -> None:
    (effect_id,) = await redeemed(robot, await mail(bank))
    assert await told(robot, (effect_id, outcome)) == (state, [outcome])
    assert await tasks(bank, robot) == ([("unknown", "open")] if outcome == "unknown" else [])


TWO = {  # outcomes of a payment (can be taken back) and a mail (cannot)
    ("fired", "fired"): ("settled", []),
    ("fired", "failed"): ("redeemed", []),  # the payment is to be taken back first
    ("fired", "unused"): ("redeemed", []),
    ("failed", "fired"): ("unsettled", ["standing"]),
    ("unused", "fired"): ("unsettled", ["standing"]),
    ("failed", "unused"): ("ended", []),
    ("unused", "unused"): ("ended", []),
    ("unknown", "fired"): ("unsettled", ["unknown"]),
    ("unknown", "unused"): ("unsettled", ["unknown"]),
}


@pytest.mark.parametrize(("outcomes", "expected"), TWO.items(), ids=map("-".join, TWO))
async def test_outcomes_together_say_whether_a_person_is_needed(
    bank: World, robot: Agent, outcomes: tuple[str, str], expected: tuple[str, list[str]]
) -> None:
    ids = await redeemed(robot, await pay(bank), await mail(bank))
    state, _ = await told(robot, *zip(ids, outcomes, strict=True))
    assert (state, [kind for kind, _ in await tasks(bank, robot)]) == expected


MAY_FAIL = {  # outcomes of a mail that has to go, and one that may fail alone
    ("fired", "failed"): ("settled", []),
    ("failed", "fired"): ("unsettled", ["standing"]),
    ("failed", "failed"): ("ended", []),
    ("fired", "unused"): ("unsettled", ["standing"]),
    ("fired", "unknown"): ("unsettled", ["unknown"]),
    ("unused", "failed"): ("ended", []),
}


@pytest.fixture
async def lenient(bank: World, folder: Payments) -> World:
    """Under a bundle with one more tool, which may fail without stopping the others."""
    tool = MAIL | {"tool": "notice", "on_exhausted": "tool", "sentence": "Tell {to}"}
    folder.write("tools/notice.json", tool)
    await bank.activate()
    return bank


async def notice(bank: World) -> dict[str, Any]:
    return await call(bank, "notice", {"to": "acme", "text": "hello"})


@pytest.mark.parametrize(("outcomes", "expected"), MAY_FAIL.items(), ids=map("-".join, MAY_FAIL))
async def test_what_may_fail_and_did_leaves_nobody_a_task(
    lenient: World, robot: Agent, outcomes: tuple[str, str], expected: tuple[str, list[str]]
) -> None:
    ids = await redeemed(robot, await mail(lenient), await notice(lenient))
    state, _ = await told(robot, *zip(ids, outcomes, strict=True))
    assert (state, [kind for kind, _ in await tasks(lenient, robot)]) == expected


READS = {  # outcomes of a read and of a mail
    ("fired", "failed"): ("ended", []),
    ("fired", "unused"): ("ended", []),
    ("fired", "fired"): ("settled", []),
    ("failed", "fired"): ("unsettled", ["standing"]),
    ("fired", "unknown"): ("unsettled", ["unknown"]),
}


@pytest.fixture
async def readable(bank: World, folder: Payments) -> World:
    """Under a bundle with one more tool, which only reads."""
    tool = MAIL | {"tool": "notice", "groups": ["read"], "sentence": "Read {to}"}
    folder.write("tools/notice.json", tool)
    await bank.activate()
    return bank


@pytest.mark.parametrize(("outcomes", "expected"), READS.items(), ids=map("-".join, READS))
async def test_a_read_that_fired_leaves_nobody_a_task(
    readable: World, robot: Agent, outcomes: tuple[str, str], expected: tuple[str, list[str]]
) -> None:
    ids = await redeemed(robot, await notice(readable), await mail(readable))
    state, _ = await told(robot, *zip(ids, outcomes, strict=True))
    assert (state, [kind for kind, _ in await tasks(readable, robot)]) == expected


async def test_what_fired_beside_a_read_is_the_only_task(readable: World, robot: Agent) -> None:
    ids = await redeemed(robot, await notice(readable), await mail(readable), await mail(readable, text="2"))
    state, _ = await told(robot, *zip(ids, ("fired", "fired", "failed"), strict=True))
    assert (state, [kind for kind, _ in await tasks(readable, robot)]) == ("unsettled", ["standing"])


async def test_a_later_bundle_makes_no_read_of_what_was_submitted_as_a_write(
    bank: World, robot: Agent, folder: Payments
) -> None:
    plain = MAIL | {"tool": "notice", "sentence": "Tell {to}"}
    folder.write("tools/notice.json", plain)
    await bank.activate()
    one, two = await redeemed(robot, await notice(bank), await mail(bank))
    folder.write("tools/notice.json", plain | {"groups": ["read"]})
    await bank.activate()
    assert (await told(robot, (one, "fired"), (two, "failed")))[0] == "unsettled"


async def test_what_could_be_taken_back_is_not_due_where_the_other_may_fail(
    lenient: World, robot: Agent
) -> None:
    one, two = await redeemed(robot, await pay(lenient), await notice(lenient))
    assert (await told(robot, (two, "failed"), (one, "fired")))[0] == "settled"
    lenient.clock.pass_(minutes=10)
    await lenient.sweep()
    assert await tasks(lenient, robot) == []


async def test_a_later_bundle_changes_nothing_of_what_was_agreed(
    lenient: World, robot: Agent, folder: Payments
) -> None:
    one, two = await redeemed(robot, await mail(lenient), await notice(lenient))
    folder.write("tools/notice.json", MAIL | {"tool": "notice", "sentence": "Tell {to}"})
    await lenient.activate()
    assert (await told(robot, (one, "fired"), (two, "failed")))[0] == "settled"


async def test_a_late_report_that_it_failed_settles_the_unknown_and_all_of_it(
    lenient: World, robot: Agent
) -> None:
    one, two = await redeemed(robot, await mail(lenient), await notice(lenient))
    assert (await told(robot, (one, "fired"), (two, "unknown")))[0] == "unsettled"
    assert (await told(robot, (two, "failed")))[0] == "settled"
    assert await tasks(lenient, robot) == []
    assert (await told(robot, (two, "fired")))[0] == "settled", "the first telling stands"
    assert await tasks(lenient, robot) == [("contradiction", "open")]


async def test_people_read_that_it_may_fail_before_they_agree(
    lenient: World, robot: Agent, folder: Payments
) -> None:
    folder.rules(gate("asked", "finance", action="notice"), gate("asked-too", "finance", action="mail"))
    await lenient.activate()
    view = (await robot.submit(await notice(lenient), await mail(lenient))).json()
    pages = [
        await review_page(lenient.service.ctx, voter("maya"), one["review"]["review_id"])
        for one in view["effects"]
    ]
    assert [page and page.finality for page in pages] == [
        "This cannot be undone. If it fails, the other effects of its transaction go on.",
        "This cannot be undone.",
    ]


async def test_outcomes_may_come_one_by_one(bank: World, robot: Agent) -> None:
    one, two = await redeemed(robot, await pay(bank), await mail(bank))
    assert await told(robot, (one, "fired")) == ("redeemed", ["fired", "redeemed"])
    assert await told(robot, (two, "fired")) == ("settled", ["fired", "fired"])


@pytest.mark.parametrize("outcome", ["fired", "failed", "unused", "unknown"])
async def test_the_same_report_again_changes_nothing(bank: World, robot: Agent, outcome: str) -> None:
    (effect_id,) = await redeemed(robot, await mail(bank))
    first = await told(robot, (effect_id, outcome))
    assert await told(robot, (effect_id, outcome)) == first
    assert await told(robot, (effect_id, outcome), (effect_id, outcome)) == first
    assert len(await tasks(bank, robot)) == (1 if outcome == "unknown" else 0)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("fired", "failed"),
        ("fired", "unused"),
        ("failed", "fired"),
        ("unused", "fired"),
        ("failed", "unused"),
    ],
)
async def test_a_contradiction_is_a_task_and_the_first_telling_stands(
    bank: World, robot: Agent, first: str, then: str
) -> None:
    (effect_id,) = await redeemed(robot, await mail(bank))
    before = await told(robot, (effect_id, first))
    assert await told(robot, (effect_id, then)) == before
    assert await told(robot, (effect_id, then)) == before
    assert await tasks(bank, robot) == [("contradiction", "open")]


async def test_knowing_less_than_before_contradicts_nothing(bank: World, robot: Agent) -> None:
    (effect_id,) = await redeemed(robot, await mail(bank))
    await told(robot, (effect_id, "fired"))
    assert await told(robot, (effect_id, "unknown")) == ("settled", ["fired"])
    assert await tasks(bank, robot) == []


@pytest.mark.parametrize(("late", "state"), [("fired", "settled"), ("failed", "ended"), ("unused", "ended")])
async def test_a_late_report_settles_an_unknown_and_its_task(
    bank: World, robot: Agent, late: str, state: str
) -> None:
    (effect_id,) = await redeemed(robot, await mail(bank))
    await told(robot, (effect_id, "unknown"))
    assert await told(robot, (effect_id, late)) == (state, [late])
    assert await tasks(bank, robot) == []  # nobody is left looking for what is known by now


TIMES = {"a moment before": (-1, "redeemed"), "exactly then": (0, "unknown")}


@pytest.mark.parametrize(("milliseconds", "state"), TIMES.values(), ids=TIMES)
async def test_what_nobody_reported_in_time_is_unknown_and_a_task(
    bank: World, robot: Agent, milliseconds: int, state: str
) -> None:
    """``fire_by`` and the manifest's timeout: 30 and 90 seconds."""
    bank.clock.stop_at(bank.clock())
    (effect_id,) = await redeemed(robot, await pay(bank))
    bank.clock.pass_(seconds=120, milliseconds=milliseconds)
    await bank.sweep()
    seen = await robot.see((await robot.submit(await pay(bank))).json()["txn"])
    assert seen["effects"][0]["state"] == state
    assert await tasks(bank, robot) == ([("unknown", "open")] if state == "unknown" else [])
    if state == "unknown":
        assert seen["state"] == "unsettled"
        assert await told(robot, (effect_id, "fired")) == ("settled", ["fired"])


async def test_a_result_and_an_error_are_kept_with_their_outcome(bank: World, robot: Agent) -> None:
    one, two = await redeemed(robot, await pay(bank), await mail(bank))
    answer = await robot.report(
        robot.attempt,
        {"effect_id": one, "outcome": "fired", "result": {"id": "re_1", "at": 1.5}},
        {"effect_id": two, "outcome": "failed", "error": "the printer burns; " * 200},
    )
    seen = answer.json()["effects"]
    assert seen[0]["outcome"]["outcome"] == "fired" and "error" not in seen[0]["outcome"]
    assert seen[1]["outcome"]["error"].startswith("the printer burns")
    log = str(await bank.log(answer.json()["txn"]))
    assert "re_1" not in log and "printer" not in log


@pytest.mark.parametrize("outcome", ["compensated", "compensation_failed"])
async def test_what_follows_from_a_compensation_is_not_reported(
    bank: World, robot: Agent, outcome: str
) -> None:
    (effect_id,) = await redeemed(robot, await pay(bank))
    answer = await robot.report(robot.attempt, {"effect_id": effect_id, "outcome": outcome})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


async def test_only_what_the_attempt_redeemed_is_reported_under_it(bank: World, robot: Agent) -> None:
    (one,) = await redeemed(robot, await pay(bank))
    view = (await robot.submit(await mail(bank), run_key="other", attempt_id=robot.attempt + "-2")).json()
    two = view["effects"][0]["effect_id"]
    for effect_id in (two, "0" * 64):
        answer = await robot.report(
            robot.attempt,
            {"effect_id": one, "outcome": "fired"},
            {"effect_id": effect_id, "outcome": "fired"},
        )
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert (await robot.see(view["txn"]))["effects"][0]["state"] == "redeemed"
    # nothing of the refused ones was taken
    assert await told(robot, (one, "fired")) == (
        "settled",
        ["fired"],
    )


async def test_what_was_not_redeemed_has_no_outcome(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank))).json()
    answer = await robot.report(
        robot.attempt, {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired"}
    )
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_attempt")


async def test_what_fired_and_should_be_taken_back_does_not_hang_when_nobody_does(
    bank: World, robot: Agent
) -> None:
    one, two = await redeemed(robot, await pay(bank), await mail(bank))
    assert (await told(robot, (one, "fired"), (two, "failed")))[0] == "redeemed"
    bank.clock.pass_(seconds=30)
    await bank.sweep()
    assert await tasks(bank, robot) == []
    bank.clock.pass_(minutes=10)
    await bank.sweep()
    await bank.sweep()
    assert await tasks(bank, robot) == [("compensation_due", "open")]
