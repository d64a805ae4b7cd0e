"""Reminders and escalation: when and to which groups they are sent, what they cost, and that no quorum is lowered."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import select

from countersign.contract import ErrorCode
from policy_service.queries import signers as eligible
from policy_service.storage.core import table
from policy_service.storage.system_tables import OutboxRow
from policy_service.workflow.expiry import sweep
from policy_service.workflow.reviews import unsatisfiable
from tests.fakes.payments import GROUPS, gate, person
from tests.fakes.world import Agent
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank, refusal

pytestmark = pytest.mark.anyio


async def after(bank: Bank, view: dict[str, Any], **time: float) -> None:
    """This long after a submission the sweeps run."""
    bank.clock.stop_at(opened(view) + timedelta(**time))
    await bank.sweep()


async def audit_bodies(
    bank: Bank, view: dict[str, Any], kind: str = "review_escalated"
) -> list[dict[str, Any]]:
    return [body for one, body in await bank.log(view["txn"]) if one == kind]


async def review(bank: Bank, view: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (await bank.robot.see(view["txn"]))["effects"][0]["review"]
    return found


async def vote(bank: Bank, name: str, view: dict[str, Any], verdict: str = "approve", **more: Any) -> int:
    """The status of a vote by a person who signs in now: sessions end while hours pass."""
    return (await (await bank.person(name)).vote(view, verdict, **more)).status_code


def opened(view: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(view["submitted_at"])


# ------------------------------------------------------------------------------------------------------ reminders


async def test_reminders_are_sent_at_every_interval_until_the_review_settles(bank: Bank) -> None:
    await bank.only(gate("g", "finance", remind="1h", answer_within="8h"))
    view = await bank.asks()
    for minutes, reminders in ((0, 0), (59, 0), (60, 1), (61, 1), (119, 1), (120, 2), (180, 3)):
        await after(bank, view, minutes=minutes)
        await bank.sweep()
        assert len(await audit_bodies(bank, view, "review_reminded")) == reminders, minutes
    reminded = datetime.fromisoformat((await review(bank, view))["reminded_at"])
    assert reminded == opened(view) + timedelta(hours=3)
    await vote(bank, "maya", view)
    bank.clock.pass_(hours=2)
    await bank.sweep()
    assert len(await audit_bodies(bank, view, "review_reminded")) == 3
    box = table(OutboxRow).c
    rows = await bank.service.db.read(lambda conn: conn.execute(select(box.kind, box.payload)).all())
    mine = view["effects"][0]["review"]["review_id"]
    sent = [row.kind for row in rows if row.payload.get("review_id") == mine]
    assert sent.count("review_reminded") == 3


async def test_missed_intervals_are_one_reminder(
    bank: Bank,
) -> None:
    await bank.only(gate("g", "finance", remind="1h", answer_within="8h"))
    view = await bank.asks()
    for hours, reminders in ((5.5, 1), (5.9, 1), (6, 2), (7, 3)):
        await after(bank, view, hours=hours)
        assert len(await audit_bodies(bank, view, "review_reminded")) == reminders, hours
    await bank.only(gate("g", "finance", remind="1h", answer_within="90m", escalate="cfo"))
    view = await bank.asks(run_key="over")
    bank.clock.stop_at(opened(view) + timedelta(hours=2))
    await sweep.send_reminders(bank.service.ctx)  # before the sweep that expires it
    assert (await bank.states(view))[0] == "ended"
    await bank.sweep()
    assert await audit_bodies(bank, view, "review_reminded") == await audit_bodies(bank, view) == []


# ----------------------------------------------------------------------------------------------------- escalation


async def test_a_review_escalates_at_half_of_its_time(bank: Bank) -> None:
    bank.folder.people(GROUPS | {"board": ("jonas",)})
    await bank.only(gate("g", "finance", escalate="board|legal", answer_within="4h"))
    view = await bank.asks()
    await after(bank, view, minutes=119)
    assert await vote(bank, "jonas", view) == 403
    mine, jonas = view["effects"][0]["review"]["review_id"], await bank.person("jonas")
    assert mine not in (await jonas.get("/")).text, "under what needs him"
    await after(bank, view, minutes=120)
    await bank.sweep()
    assert await sweep.escalate_reviews(bank.service.ctx) == 0, "each gate once"
    assert mine in (await jonas.get("/")).text
    (body,) = await audit_bodies(bank, view)
    assert (body["groups"], body["gates"], body["why"]) == (["board", "legal"], ["finance"], "unanswered")
    seen = await review(bank, view)
    assert datetime.fromisoformat(seen["escalated_at"]) == opened(view) + timedelta(hours=2)
    (need,) = seen["needs"]
    assert (need["groups"], need["added"]) == (["board", "finance", "legal"], ["board", "legal"])
    assert await vote(bank, "jonas", view) == 200
    ready = await bank.robot.see(view["txn"])
    assert (await bank.robot.spend(ready))["redeemed"] is True, "the vote counts where it is spent, too"


async def test_escalation_adds_voters_and_keeps_the_quorum(bank: Bank) -> None:
    await bank.only(gate("g", "finance", quorum="2", escalate="legal", answer_within="4h"))
    view, other = await bank.asks(), await bank.asks(600, run_key="denied")
    await after(bank, other, hours=2)
    await vote(bank, "ingrid", view)
    (need,) = (await review(bank, view))["needs"]
    assert (need["quorum"], need["have"]) == (2, 1)
    await vote(bank, "maya", view)
    assert (await bank.states(view))[0] == "ready"
    await vote(bank, "ingrid", other, "deny", reason="no contract")
    assert (await bank.states(other))[0] == "ended"


async def test_merged_gates_escalate_only_to_common_groups(bank: Bank) -> None:
    named = {"a": "legal|cfo", "b": "cfo"}
    await bank.only(*(gate(n, "finance", escalate=e, answer_within="4h") for n, e in named.items()))
    view = await bank.asks()
    await after(bank, view, hours=2)
    assert (await audit_bodies(bank, view))[0]["groups"] == ["cfo"]
    assert await vote(bank, "ingrid", view) == 403
    first = gate("g", "finance", escalate="legal", answer_within="4h")
    await bank.only(first)
    view = await bank.asks(run_key="taken back")
    await after(bank, view, hours=2)
    await bank.only(first, gate("late", "finance", answer_within="8h"))
    assert await vote(bank, "ingrid", view) == 403
    await bank.only(gate("g", "finance", answer_within="4h"))
    view = await bank.asks(run_key="no further group")
    await after(bank, view, hours=3)
    assert (await audit_bodies(bank, view), "escalated_at" in await review(bank, view)) == ([], False)


async def test_a_late_gate_escalates_at_half_of_its_own_time(bank: Bank) -> None:
    first = gate("g", "finance", answer_within="10h")
    await bank.only(first)
    view = await bank.asks()
    bank.clock.stop_at(opened(view) + timedelta(hours=1))
    await bank.only(first, gate("late", "cfo", escalate="legal", answer_within="4h"))
    for hours, status in ((2.9, 403), (3, 200)):
        await after(bank, view, hours=hours)
        assert await vote(bank, "ingrid", view) == status, hours


async def test_escalation_excludes_the_requesters_side(bank: Bank) -> None:
    await bank.only(gate("g", "finance", escalate="legal", answer_within="4h"))
    bank.robot = await bank.agent(f"{bank.robot.name}-mine", owner=person("ingrid"))
    view = await bank.asks()
    await after(bank, view, hours=2)
    assert await vote(bank, "ingrid", view) == 403


# ------------------------------------------------------------------------------------- questions nobody can answer


async def test_an_unsatisfiable_review_escalates_with_the_submission(bank: Bank) -> None:
    bank.folder.people(GROUPS | {"finance": ("maya",)})
    await bank.only(gate("g", "finance", quorum="2", escalate="legal"))
    view = await bank.asks()  # and no sweep runs
    (body,) = await audit_bodies(bank, view)
    assert (body["groups"], body["why"]) == (["legal"], "quorum")
    (need,) = view["effects"][0]["review"]["needs"]
    assert (need["quorum"], need["added"]) == (2, ["legal"])
    assert await bank.tasks() == []
    assert [await vote(bank, name, view) for name in ("maya", "ingrid")] == [200, 200]
    assert (await bank.states(view))[0] == "ready"


async def test_an_unsatisfiable_review_is_reported_with_the_submission(bank: Bank) -> None:
    bank.folder.people(GROUPS | {"finance": ("maya",)})
    await bank.only(gate("g", "finance", quorum="3", escalate="legal"))
    view, other = await bank.asks(), await bank.asks(run_key="left")
    seen = view["effects"][0]["review"]
    assert seen["needs"][0]["quorum"] == 3
    assert "finance or legal can give 2 of 3" in seen["unanswerable"]
    assert await bank.tasks() == ["impossible_quorum"] * 2
    await bank.maya.settle(await bank.maya.task(other, "impossible_quorum"), "left_waiting")
    assert "unanswerable" not in await review(bank, other), "what a person left waiting is no longer said"
    await bank.people(GROUPS | {"finance": ("maya", "tomas")})
    await bank.sweep()
    assert "unanswerable" not in await review(bank, view)
    assert await bank.tasks() == []


async def test_a_review_that_becomes_unsatisfiable_escalates_with_the_next_sweep(bank: Bank) -> None:
    await bank.only(gate("g", "finance", quorum="2", escalate="legal"))
    view = await bank.asks()
    assert await audit_bodies(bank, view) == []
    await bank.people(GROUPS | {"finance": ("maya",)})
    await bank.sweep()
    assert [body["why"] for body in await audit_bodies(bank, view)] == ["quorum"]
    assert await bank.tasks() == []


async def test_only_the_gate_that_is_short_escalates(bank: Bank) -> None:
    bank.folder.people(GROUPS | {"finance": ()})
    await bank.only(gate("g", "finance", escalate="legal"), gate("h", "cfo", escalate="legal", shared=""))
    (body,) = await audit_bodies(bank, await bank.asks())
    assert body["gates"] == ["finance"]


async def test_revoked_people_do_not_count_at_submission(bank: Bank) -> None:
    await bank.only(gate("g", "legal", escalate="cfo"))
    async with bank.revoked("ingrid"):
        view = await bank.asks()
    assert [entry["added"] for entry in view["effects"][0]["review"]["needs"]] == [["cfo"]]


@pytest.mark.parametrize("narrow_first", [True, False])
async def test_the_gate_that_can_escalate_does_if_two_share_one_voter(bank: Bank, narrow_first: bool) -> None:
    """Which of the two is short depends on where the voter is counted, so it must not matter."""
    bank.folder.people(GROUPS | {"finance": ("maya",), "cfo": ()})
    narrow, wide = gate("a", "finance", escalate="legal"), gate("b", "finance|cfo")
    await bank.only(*((narrow, wide) if narrow_first else (wide, narrow)))
    view = await bank.asks()
    assert await bank.tasks() == []
    assert [await vote(bank, name, view) for name in ("maya", "ingrid")] == [200, 200]
    assert (await bank.states(view))[0] == "ready"


async def asked(bank: Bank, robot: Agent, amount: int = 5_000) -> dict[str, Any]:
    """A payment in review by two people of finance."""
    view: dict[str, Any] = (await robot.submit(await pay(bank, amount), await mail(bank))).json()
    assert view["effects"][0]["state"] == "review"
    await bank.sweep()
    return view


async def too_few(bank: Bank, finance: tuple[str, ...] = ("maya",)) -> None:
    await bank.people(GROUPS | {"finance": finance})


async def swept(bank: Bank) -> list[str]:
    await bank.sweep()
    return await bank.tasks()


ONLY_CFO = '@id("only-cfo") permit (principal in Group::"cfo", action == Action::"approve", resource);'

POSSIBLE: list[tuple[list[str], str | None, int, list[str]]] = [
    ([], None, 5_000, []),
    ([], "maya", 5_000, ["impossible_quorum"]),  # one of two owns the agent
    ([gate("strict", "legal", step_up="passkey")], None, 10, ["impossible_quorum"]),  # which no one has
    ([ONLY_CFO], None, 5_000, ["impossible_quorum"]),
]


async def test_a_review_with_too_few_voters_is_a_task(bank: Bank) -> None:
    for row, (rules, owner, amount, tasks) in enumerate(POSSIBLE):
        await bank.rules(*rules)
        robot = await bank.agent(f"{bank.robot.name}-{row}", owner=owner and person(owner))
        await asked(bank, robot, amount)
        assert await bank.tasks(robot) == tasks


async def test_an_unsatisfiable_review_is_one_task_that_closes_by_itself(bank: Bank) -> None:
    await too_few(bank)
    view = await asked(bank, bank.robot)
    assert await swept(bank) == ["impossible_quorum"]
    task = await bank.maya.task(view, "impossible_quorum")
    assert task["task"]["text"] == "this review cannot be approved now: finance can give 1 of 2"
    await too_few(bank, ("maya", "jonas"))
    assert await swept(bank) == []
    await too_few(bank)
    assert await swept(bank) == ["impossible_quorum"]
    await bank.withdraw(view)
    assert refusal(await bank.maya.settle(task, "left_waiting")) == (409, ErrorCode.TASK_SETTLED)
    assert await swept(bank) == []


async def test_existing_votes_count_for_satisfiability(bank: Bank) -> None:
    view = await asked(bank, bank.robot)
    await bank.maya.vote(view)
    async with bank.revoked("tomas"):
        assert await swept(bank) == ["impossible_quorum"]
    assert await swept(bank) == []


# -- what the watch over open questions costs ------------------------------------------------------------------------


def counting(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[Any]:
    """The calls of one of its functions from here on."""
    calls: list[Any] = []
    original = getattr(module, name)

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return original(*given, **named)

    monkeypatch.setattr(module, name, counted)
    return calls


async def test_people_are_read_once_for_all_reviews_of_a_sweep(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsatisfiable, "_PAGE", 1)
    for n in range(10):
        await bank.person(f"somebody-{n}")
    counts = []
    for n in range(5):
        await bank.asks(run_key=f"r-{n}")
        read = counting(monkeypatch, unsatisfiable, "list_people")
        grouped = counting(monkeypatch, eligible, "current_groups")
        assert await unsatisfiable.update_unsatisfiable_reviews(bank.service.ctx) == 0
        counts.append((len(read), len(grouped)))
    assert counts[0][0] == 1 and counts[0][1] > 10
    assert set(counts) == {counts[0]}, "one more question costs nothing more"


async def test_a_review_left_waiting_costs_no_unit_of_work(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    await too_few(bank)
    view = await asked(bank, bank.robot)
    await bank.maya.settle(await bank.maya.task(view, "impossible_quorum"), "left_waiting")
    moved = counting(monkeypatch, unsatisfiable, "_move")
    assert await unsatisfiable.update_unsatisfiable_reviews(bank.service.ctx) == 0
    assert moved == []
    assert (await swept(bank), (await bank.states(view))[1]) == ([], "review")


async def test_a_person_withdraws_an_unsatisfiable_review(bank: Bank) -> None:
    await too_few(bank, ())
    view = await asked(bank, bank.robot)
    task = await bank.ingrid.task(view, "impossible_quorum")
    assert task["choices"][0]["follows"].startswith(
        "It and the other 1 of its transaction are withdrawn. Nothing fires"
    )
    assert (await bank.ingrid.settle(task, "withdrawn", reason="ask again on Monday")).status_code == 200
    assert await bank.states(view) == ["ended", "withdrawn", "withdrawn"]
    seen = (await bank.robot.see(view["txn"]))["effects"][0]
    assert seen["decision"]["reasons"][-1]["text"] == "it was taken back: ask again on Monday"
    assert await swept(bank) == []
