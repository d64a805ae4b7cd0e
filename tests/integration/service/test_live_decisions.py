"""Questions about live effects: answered as a submission would be, and each answer stands in the log."""

from __future__ import annotations

from typing import Any

import pytest

from countersign.contract import names
from policy_service import metrics
from policy_service.storage.plumbing import AuditRow
from policy_service.workflow.effects import evaluate as evaluating
from tests.fakes.payments import PAY, Payments, gate, manifest, plain_forbid
from tests.fakes.world import Agent, World
from tests.integration.service.effects import call, pay
from tests.integration.service.engines import SQLITE_IN_SHORT
from tests.integration.service.test_evaluations import sizes

pytestmark = pytest.mark.anyio

NOTE = manifest("note", PAY["args"], "/account", lane="live", ask="live")


@pytest.fixture(params=SQLITE_IN_SHORT)
def engine(request: pytest.FixtureRequest) -> str:
    """A line that is written on one engine alone would be no record."""
    chosen: str = request.param
    return chosen


@pytest.fixture
def folder(tmp_path: Any) -> Payments:
    """The bank's bundle with a live tool that is asked about."""
    made = Payments(tmp_path / "bundle")
    made.write("tools/note.json", NOTE)
    made.rules(
        gate("note-large", "finance", "context.input.amount > 100", action="note"),
        plain_forbid("note-never", "context.input.amount > 1000", action="note"),
    )
    return made


async def ask(robot: Agent, *effects: dict[str, Any], live: bool = True, **members: Any) -> Any:
    body = {"run_key": "r", "effects": list(effects), "live": live, **members}
    return await robot.send("POST", "/v1/evaluations", body)


async def note(bank: World, amount: int = 10) -> dict[str, Any]:
    return await call(bank, "note", {"account": "acme", "amount": amount})


@pytest.mark.parametrize(
    ("amount", "outcome", "policies", "reasons"),
    [
        (10, "release", [], []),
        (500, "review", ["note-large"], []),
        (5_000, "deny", ["note-never"], ["forbidden_by_policy"]),
    ],
)
async def test_each_answer_is_a_line_of_the_log(
    bank: World, robot: Agent, amount: int, outcome: str, policies: list[str], reasons: list[str]
) -> None:
    counted = metrics.DECISIONS.labels(outcome, "live")._value.get()
    effect = await note(bank, amount)
    answer = await ask(robot, effect)
    assert answer.status_code == 200, answer.text
    (decided,) = answer.json()["effects"]
    assert decided["decision"]["outcome"] == outcome
    ((kind, body),) = await bank.log(names.txn_id(agent="robot", run_key="r"))
    assert kind == "live_decided"
    assert (body["tool"], body["outcome"], body["reasons"]) == ("note", outcome, reasons)
    assert set(policies) <= {*body["policies"], *body["gates"]}
    assert body["args_digest"] == names.args_digest(args=effect["args"])
    assert (body["bundle"], body["commit"]) == (decided["decision"]["bundle"], decided["decision"]["commit"])
    assert metrics.DECISIONS.labels(outcome, "live")._value.get() == counted + 1


async def test_the_line_says_who_asked_about_which_effect(bank: World, robot: Agent) -> None:
    effect = await note(bank)
    await ask(robot, effect)
    txn = names.txn_id(agent="robot", run_key="r")
    key = names.call_key(agent="robot", run_key="r", tool="note", args=effect["args"], n=0)
    await bank.service.sequencer.number()
    rows = await bank.service.db.read(
        lambda conn: conn.execute(
            AuditRow.__table__.select().where(AuditRow.__table__.c.kind == "live_decided")  # type: ignore[attr-defined]
        ).all()
    )
    (row,) = rows
    assert (row.actor, row.agent, row.txn) == ("agent:robot", "robot", txn)
    assert row.effect_id == names.effect_id(txn=txn, call_key=key)


async def test_nothing_else_is_kept_of_it(bank: World, robot: Agent) -> None:
    await bank.service.sequencer.number()
    before = await bank.service.db.read(sizes)
    await ask(robot, await note(bank, 500))
    await bank.service.sequencer.number()
    after = await bank.service.db.read(sizes)
    assert {name for name in after if after[name] != before[name]} == {"audit"}


async def test_a_question_that_is_not_about_a_live_effect_leaves_no_line(bank: World, robot: Agent) -> None:
    await ask(robot, await note(bank, 500), live=False)
    assert await bank.log(names.txn_id(agent="robot", run_key="r")) == []


async def test_what_is_staged_by_its_manifest_is_to_be_submitted(bank: World, robot: Agent) -> None:
    answer = await ask(robot, await pay(bank))
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert "staged in its reviewed manifest" in answer.json()["detail"]
    assert await bank.log(names.txn_id(agent="robot", run_key="r")) == []


async def test_while_a_tool_everything_or_the_agent_is_stopped_nothing_is_answered(
    bank: World, robot: Agent
) -> None:
    for stop, end, args in (
        ("stop", "go-on", {"tool": "note"}),
        ("stop", "go-on", {"tool": None}),
        ("freeze", "unfreeze", {"agent": "robot"}),
    ):
        await bank.operator(stop, args | {"reason": "it loops"})
        answer = await ask(robot, await note(bank))
        assert (answer.status_code, answer.json()["code"]) == (403, "frozen")
        await bank.operator(end, args)
    assert (await ask(robot, await note(bank))).status_code == 200


async def test_another_manifest_than_the_reviewed_one_is_denied_and_noted(bank: World, robot: Agent) -> None:
    effect = await note(bank) | {"tool_digest": "0" * 64}
    (decided,) = (await ask(robot, effect)).json()["effects"]
    assert decided["decision"]["outcome"] == "deny"
    ((_, body),) = await bank.log(names.txn_id(agent="robot", run_key="r"))
    assert (body["outcome"], body["reasons"]) == ("deny", ["tool_changed"])


async def test_another_bundle_that_came_into_force_meanwhile_answers(
    bank: World, folder: Payments, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decided under one bundle and noted under the next, an agent would run what was just forbidden."""
    gather, effect = evaluating.gather_facts, await note(bank)
    swaps: list[bool] = []

    async def swapped(*about: Any) -> Any:
        facts = await gather(*about)
        if not swaps:
            folder.rules(plain_forbid("from-now-on", action="note"))
            swaps.append(await bank.activate())
        return facts

    monkeypatch.setattr(evaluating, "gather_facts", swapped)
    (decided,) = (await ask(robot, effect)).json()["effects"]
    assert (swaps, decided["decision"]["outcome"]) == ([True], "deny")
    assert [body["outcome"] for _, body in await bank.log(names.txn_id(agent="robot", run_key="r"))] == [
        "deny"
    ]


async def test_what_the_log_cannot_hold_is_not_answered(
    bank: World, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    effect = await note(bank)
    monkeypatch.setattr("policy_service.workflow.effects.evaluate.log_about", full)
    assert (await ask(robot, effect)).status_code >= 500
