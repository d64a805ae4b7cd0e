"""Reminders and escalation: when, once, to whom, and that they never lower what a gate asks for."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from policy_service.storage.core import table
from policy_service.storage.plumbing import OutboxRow
from policy_service.workflow.due import sweep
from tests.fakes.payments import ANYBODY, GROUPS, Payments, gate, person
from tests.fakes.world import Agent, World
from tests.integration.service.effects import pay
from tests.integration.service.together.test_outcomes import tasks

pytestmark = pytest.mark.anyio


async def rules(bank: World, folder: Payments, *gates: str) -> None:
    """These rules alone."""
    folder.policies(ANYBODY + "".join(gates))
    await bank.activate()


async def asked(robot: Agent, bank: World, **more: Any) -> dict[str, Any]:
    view: dict[str, Any] = (await robot.submit(await pay(bank, 500), **more)).json()
    return view


async def told(bank: World, view: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [body for one, body in await bank.log(view["txn"]) if one == kind]


async def review(robot: Agent, view: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (await robot.see(view["txn"]))["effects"][0]["review"]
    return found


async def vote(bank: World, name: str, view: dict[str, Any], verdict: str = "approve", **more: Any) -> Any:
    """Somebody who signs in now: sessions end while hours pass."""
    return await (await bank.person(name)).vote(view, verdict, **more)


def opened(view: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(view["submitted_at"])


# ------------------------------------------------------------------------------------------------------ reminders


async def test_people_are_reminded_at_every_interval_until_it_settles(
    bank: World, robot: Agent, folder: Payments
) -> None:
    await rules(bank, folder, gate("g", "finance", remind="1h", answer_within="8h"))
    view = await asked(robot, bank)
    start = opened(view)
    counts = []
    for minutes in (0, 59, 60, 61, 119, 120, 180):
        bank.clock.stop_at(start + timedelta(minutes=minutes))
        await bank.sweep()
        await bank.sweep()
        counts.append(len(await told(bank, view, "review_reminded")))
    assert counts == [0, 0, 1, 1, 1, 2, 3]
    assert datetime.fromisoformat((await review(robot, view))["reminded_at"]) == start + timedelta(hours=3)
    await vote(bank, "maya", view)
    bank.clock.pass_(hours=2)
    await bank.sweep()
    assert len(await told(bank, view, "review_reminded")) == 3


async def test_what_was_missed_is_one_reminder_and_the_series_goes_on(
    bank: World, robot: Agent, folder: Payments
) -> None:
    await rules(bank, folder, gate("g", "finance", remind="1h", answer_within="24h"))
    view = await asked(robot, bank)
    for hours, reminders in ((5.5, 1), (5.9, 1), (6, 2), (7, 3)):
        bank.clock.stop_at(opened(view) + timedelta(hours=hours))
        await bank.sweep()
        assert len(await told(bank, view, "review_reminded")) == reminders, hours


async def test_a_reminder_leaves_through_the_outbox(bank: World, robot: Agent, folder: Payments) -> None:
    await rules(bank, folder, gate("g", "finance", remind="1h"))
    view = await asked(robot, bank)
    bank.clock.stop_at(opened(view) + timedelta(hours=1))
    await bank.sweep()
    box = table(OutboxRow).c
    rows = await bank.service.db.read(lambda conn: conn.execute(select(box.kind, box.payload)).all())
    mine = [
        row.kind for row in rows if row.payload.get("review_id") == view["effects"][0]["review"]["review_id"]
    ]
    assert mine.count("review_reminded") == 1


async def test_over_time_it_expires_and_is_not_reminded_of(
    bank: World, robot: Agent, folder: Payments
) -> None:
    await rules(bank, folder, gate("g", "finance", remind="1h", answer_within="90m", escalate="cfo"))
    view = await asked(robot, bank)
    bank.clock.stop_at(opened(view) + timedelta(hours=2))
    await sweep.remind_people(bank.service.ctx)  # before the sweep that expires it
    assert (await robot.see(view["txn"]))["state"] == "ended"
    await bank.sweep()
    assert await told(bank, view, "review_reminded") == await told(bank, view, "review_escalated") == []


# ----------------------------------------------------------------------------------------------------- escalation


async def test_at_half_of_its_time_a_question_is_put_to_further_groups(
    bank: World, robot: Agent, folder: Payments
) -> None:
    folder.people(GROUPS | {"board": ("jonas",)})
    await rules(bank, folder, gate("g", "finance", escalate="board|legal", answer_within="4h"))
    view = await asked(robot, bank)
    bank.clock.stop_at(opened(view) + timedelta(minutes=119))
    await bank.sweep()
    assert (await vote(bank, "jonas", view)).status_code == 403
    jonas, mine = await bank.person("jonas"), view["effects"][0]["review"]["review_id"]
    assert mine not in (await jonas.get("/")).text, "under what needs him"
    bank.clock.stop_at(opened(view) + timedelta(minutes=120))
    await bank.sweep()
    await bank.sweep()
    assert mine in (await jonas.get("/")).text
    (body,) = await told(bank, view, "review_escalated")
    assert (body["groups"], body["gates"], body["why"]) == (["board", "legal"], ["finance"], "unanswered")
    seen = await review(robot, view)
    assert datetime.fromisoformat(seen["escalated_at"]) == opened(view) + timedelta(hours=2)
    (need,) = seen["needs"]
    assert (need["groups"], need["added"]) == (["board", "finance", "legal"], ["board", "legal"])
    assert (await vote(bank, "jonas", view)).status_code == 200
    ready = await robot.see(view["txn"])
    assert ready["state"] == "ready"
    assert (await robot.spend(ready))["redeemed"] is True, "the vote counts where it is spent, too"


async def test_whoever_it_was_put_to_may_deny(bank: World, robot: Agent, folder: Payments) -> None:
    await rules(bank, folder, gate("g", "finance", escalate="legal", answer_within="4h"))
    view = await asked(robot, bank)
    bank.clock.stop_at(opened(view) + timedelta(hours=2))
    await bank.sweep()
    await vote(bank, "ingrid", view, "deny", reason="no contract")
    assert (await robot.see(view["txn"]))["state"] == "ended"


async def test_escalation_adds_people_and_lowers_no_quorum(
    bank: World, robot: Agent, folder: Payments
) -> None:
    await rules(bank, folder, gate("g", "finance", quorum="2", escalate="legal", answer_within="4h"))
    view = await asked(robot, bank)
    bank.clock.stop_at(opened(view) + timedelta(hours=2))
    await bank.sweep()
    await vote(bank, "ingrid", view)
    (need,) = (await review(robot, view))["needs"]
    assert (need["quorum"], need["have"]) == (2, 1)
    await vote(bank, "maya", view)
    assert (await robot.see(view["txn"]))["state"] == "ready"


async def test_merged_gates_escalate_only_to_groups_all_name(
    bank: World, robot: Agent, folder: Payments
) -> None:
    one, two = (
        gate(n, "finance", escalate=e, answer_within="4h") for n, e in (("a", "legal|cfo"), ("b", "cfo"))
    )
    await rules(bank, folder, one, two)
    view = await asked(robot, bank)
    bank.clock.stop_at(opened(view) + timedelta(hours=2))
    await bank.sweep()
    assert (await told(bank, view, "review_escalated"))[0]["groups"] == ["cfo"]
    assert (await vote(bank, "ingrid", view)).status_code == 403


async def test_a_gate_that_names_nobody_further_does_not_escalate(
    bank: World, robot: Agent, folder: Payments
) -> None:
    await rules(bank, folder, gate("g", "finance", answer_within="4h"))
    view = await asked(robot, bank)
    bank.clock.stop_at(opened(view) + timedelta(hours=3))
    await bank.sweep()
    assert await told(bank, view, "review_escalated") == []
    assert "escalated_at" not in await review(robot, view)


async def test_a_late_gate_on_the_same_groups_that_names_nobody_takes_escalation_back(
    bank: World, robot: Agent, folder: Payments
) -> None:
    first = gate("g", "finance", escalate="legal", answer_within="4h")
    await rules(bank, folder, first)
    view = await asked(robot, bank)
    bank.clock.stop_at(opened(view) + timedelta(hours=2))
    await bank.sweep()
    await rules(bank, folder, first, gate("late", "finance", answer_within="8h"))
    assert (await vote(bank, "ingrid", view)).status_code == 403


async def test_a_late_gate_gets_half_of_its_own_time(bank: World, robot: Agent, folder: Payments) -> None:
    first = gate("g", "finance", answer_within="10h")
    await rules(bank, folder, first)
    view = await asked(robot, bank)
    bank.clock.stop_at(opened(view) + timedelta(hours=1))
    await rules(bank, folder, first, gate("late", "cfo", escalate="legal", answer_within="4h"))
    for hours, status in ((2.9, 403), (3, 200)):
        bank.clock.stop_at(opened(view) + timedelta(hours=hours))
        await bank.sweep()
        assert (await vote(bank, "ingrid", view)).status_code == status, hours


# ------------------------------------------------------------------------------------- questions nobody can answer


async def test_an_impossible_quorum_escalates_with_the_submission(
    bank: World, robot: Agent, folder: Payments
) -> None:
    folder.people(GROUPS | {"finance": ("maya",)})
    await rules(bank, folder, gate("g", "finance", quorum="2", escalate="legal"))
    view = await asked(robot, bank)  # and nobody sweeps
    (body,) = await told(bank, view, "review_escalated")
    assert (body["groups"], body["why"]) == (["legal"], "quorum")
    (need,) = view["effects"][0]["review"]["needs"]
    assert (need["quorum"], need["added"]) == (2, ["legal"])
    assert await tasks(bank, robot) == []
    for name in ("maya", "ingrid"):
        assert (await vote(bank, name, view)).status_code == 200
    assert (await robot.see(view["txn"]))["state"] == "ready"


async def test_where_that_does_not_help_people_and_agent_are_told_with_the_submission(
    bank: World, robot: Agent, folder: Payments
) -> None:
    folder.people(GROUPS | {"finance": ("maya",)})
    await rules(bank, folder, gate("g", "finance", quorum="3", escalate="legal"))
    view = await asked(robot, bank)
    seen = view["effects"][0]["review"]
    assert seen["needs"][0]["quorum"] == 3
    assert seen["unanswerable"].startswith(
        "nobody can approve this as things stand: finance or legal can give 2 of 3"
    )
    assert await tasks(bank, robot) == [("impossible_quorum", "open")]
    folder.people(GROUPS | {"finance": ("maya", "tomas")})
    await bank.activate()
    await bank.sweep()
    assert "unanswerable" not in await review(robot, view)
    assert await tasks(bank, robot) == []


async def test_what_a_person_left_waiting_is_no_longer_said(
    bank: World, robot: Agent, folder: Payments
) -> None:
    await rules(bank, folder, gate("g", "finance", quorum="3"))
    view = await asked(robot, bank)
    assert "unanswerable" in await review(robot, view)
    maya = await bank.person("maya")
    await maya.settle(await maya.task(view, "impossible_quorum"), "left_waiting")
    assert "unanswerable" not in await review(robot, view)


async def test_a_quorum_that_becomes_impossible_escalates_with_the_next_round(
    bank: World, robot: Agent, folder: Payments
) -> None:
    await rules(bank, folder, gate("g", "finance", quorum="2", escalate="legal"))
    view = await asked(robot, bank)
    assert await told(bank, view, "review_escalated") == []
    folder.people(GROUPS | {"finance": ("maya",)})
    await bank.activate()
    await bank.sweep()
    assert [body["why"] for body in await told(bank, view, "review_escalated")] == ["quorum"]
    assert await tasks(bank, robot) == []


async def test_only_the_gate_that_is_short_escalates(bank: World, robot: Agent, folder: Payments) -> None:
    folder.people(GROUPS | {"finance": ()})
    await rules(
        bank, folder, gate("g", "finance", escalate="legal"), gate("h", "cfo", escalate="legal", shared="")
    )
    view = await asked(robot, bank)
    (body,) = await told(bank, view, "review_escalated")
    assert body["gates"] == ["finance"]


async def test_the_agents_side_is_not_among_those_it_is_put_to(
    bank: World, robot: Agent, folder: Payments
) -> None:
    await rules(bank, folder, gate("g", "finance", escalate="legal", answer_within="4h"))
    mine = await bank.agent(f"{robot.name}-mine", owner=person("ingrid"))
    view = await asked(mine, bank)
    bank.clock.stop_at(opened(view) + timedelta(hours=2))
    await bank.sweep()
    assert (await vote(bank, "ingrid", view)).status_code == 403


async def test_at_a_submission_people_count_no_more_who_were_taken_out(
    bank: World, robot: Agent, folder: Payments
) -> None:
    await rules(bank, folder, gate("g", "legal", escalate="cfo"))
    await bank.operator("revoke-approver", {"person": person("ingrid"), "reason": "left"})
    view = await asked(robot, bank)
    assert [entry["added"] for entry in view["effects"][0]["review"]["needs"]] == [["cfo"]]
    await bank.operator("reinstate-approver", {"person": person("ingrid")})


@pytest.mark.parametrize("narrow_first", [True, False])
async def test_of_two_gates_with_one_person_between_them_the_one_that_can_escalate_does(
    bank: World, robot: Agent, folder: Payments, narrow_first: bool
) -> None:
    """Which of the two is short is a matter of where the person is counted, so it must not matter."""
    folder.people(GROUPS | {"finance": ("maya",), "cfo": ()})
    narrow, wide = gate("a", "finance", escalate="legal"), gate("b", "finance|cfo")
    await rules(bank, folder, *((narrow, wide) if narrow_first else (wide, narrow)))
    view = await asked(robot, bank)
    assert await tasks(bank, robot) == []
    for name in ("maya", "ingrid"):
        assert (await vote(bank, name, view)).status_code == 200
    assert (await robot.see(view["txn"]))["state"] == "ready"
