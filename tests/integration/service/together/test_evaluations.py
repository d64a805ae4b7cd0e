"""Evaluations: a dry run stores and promises nothing; one about a live effect is answered and audited."""

from __future__ import annotations

from typing import Any

import pytest

from countersign.contract import digests as names
from policy_service import metrics
from policy_service.storage.system_tables import AuditRow
from policy_service.workflow.effects import evaluation_requests as evaluating
from tests.fakes.payments import PAY, gate, manifest, plain_forbid
from tests.fakes.world import Agent
from tests.integration.service.effects import call, mail, pay
from tests.integration.service.together.bank import Bank, refusal, sizes

NOTE = manifest("note", PAY["args"], "/account", lane="live", ask="live")
NOTES = (
    gate("note-large", "finance", "context.input.amount > 100", action="note"),
    plain_forbid("note-never", "context.input.amount > 1000", action="note"),
)


@pytest.fixture(autouse=True)
async def notes(bank: Bank) -> None:
    """The bundle has a live tool that is asked about."""
    bank.folder.write("tools/note.json", NOTE)
    await bank.rules(*NOTES)


def txn_of(robot: Agent) -> str:
    return names.txn_id(agent=robot.name, run_key="r")


async def ask(robot: Agent, *effects: dict[str, Any], **members: Any) -> Any:
    body = {"run_key": "r", "effects": list(effects), **members}
    return await robot.send("POST", "/v1/evaluations", body)


async def evaluated(robot: Agent, *effects: dict[str, Any], **members: Any) -> list[dict[str, Any]]:
    answer = await ask(robot, *effects, **members)
    assert answer.status_code == 200, answer.text
    return [effect["decision"] for effect in answer.json()["effects"]]


async def note(bank: Bank, amount: int = 10) -> dict[str, Any]:
    return await call(bank, "note", {"account": "acme", "amount": amount})


async def test_a_dry_run_answers_as_a_submission_would(bank: Bank, robot: Agent) -> None:
    invalid = await call(bank, "pay", {"account": "a"})
    effects = [await pay(bank), await pay(bank, 500), await mail(bank), invalid]
    await bank.service.sequencer.number()
    before = await bank.service.db.read(sizes)
    dry = await ask(robot, *effects)
    assert await bank.service.db.read(sizes) == before, "nothing is stored"
    decisions = [effect["decision"] for effect in dry.json()["effects"]]
    assert [one["outcome"] for one in decisions] == ["release", "review", "release", "deny"]
    assert decisions[3]["reasons"][0]["code"] == "invalid_args"
    for one, real in zip(decisions, (await robot.submit(*effects)).json()["effects"], strict=True):
        for member in ("outcome", "policies", "gates", "bundle", "commit", "unseen"):
            assert one[member] == real["decision"][member]
    two = effects[:2]
    view = (await robot.submit(*two, run_key="r")).json()
    released, asked = (one.get("needs", []) for one in (await ask(robot, *two)).json()["effects"])
    assert released == []
    assert asked == view["effects"][1]["review"]["needs"] != []
    await (await bank.person("maya")).vote(view, effect=1)
    (_, decision) = await evaluated(robot, *two)  # nothing is said about what was submitted
    assert (decision["outcome"], decision["decision_id"]) == ("review", "dry-run")
    assert refusal(await ask(robot, two[0], attempt_id="a1")) == (400, "unknown_field")


async def test_a_dry_run_follows_what_is_claimed(bank: Bank, robot: Agent) -> None:
    bribe = 'context.claimed has purpose && context.claimed.purpose == "bribe"'
    await bank.rules(gate("if-claimed", "legal", bribe))
    (plain,) = await evaluated(robot, await pay(bank))
    (bribed,) = await evaluated(robot, await pay(bank), claimed={"purpose": "bribe"})
    assert (plain["gates"], bribed["gates"]) == ([], ["if-claimed"])


# ------------------------------------------------------------------------------------------------------- live effects


async def test_each_answer_about_a_live_effect_is_a_line_of_the_log(bank: Bank, robot: Agent) -> None:
    for n, (amount, outcome, policies, reasons) in enumerate([
        (10, "release", [], []),
        (500, "review", ["note-large"], []),
        (5_000, "deny", ["note-never"], ["forbidden_by_policy"]),
    ]):  # fmt: skip
        counted = metrics.DECISIONS.labels(outcome, "live")._value.get()
        effect = await note(bank, amount)
        await bank.service.sequencer.number()
        before = await bank.service.db.read(sizes)
        (decided,) = await evaluated(robot, effect, live=True)
        await bank.service.sequencer.number()
        after = await bank.service.db.read(sizes)
        assert {name for name in after if after[name] != before[name]} == {"audit"}
        assert decided["outcome"] == outcome
        kind, body = (await bank.log(txn_of(robot)))[n]
        line = (kind, body["tool"], body["outcome"], body["reasons"])
        assert line == ("live_decided", "note", outcome, reasons)
        assert set(policies) <= {*body["policies"], *body["gates"]}
        assert body["args_digest"] == names.args_digest(args=effect["args"])
        assert (body["bundle"], body["commit"]) == (decided["bundle"], decided["commit"])
        assert metrics.DECISIONS.labels(outcome, "live")._value.get() == counted + 1
    key = names.call_key(agent=robot.name, run_key="r", tool="note", args=effect["args"], n=0)
    lines = AuditRow.__table__  # type: ignore[attr-defined]
    query = lines.select().where(lines.c.effect_id == names.effect_id(txn=txn_of(robot), call_key=key))
    (row,) = await bank.service.db.read(lambda conn: conn.execute(query).all())
    assert (row.actor, row.agent, row.txn) == (f"agent:{robot.name}", robot.name, txn_of(robot))
    changed = await note(bank) | {"tool_digest": "0" * 64}  # another manifest than the reviewed one
    assert [one["outcome"] for one in await evaluated(robot, changed, live=True)] == ["deny"]
    body = (await bank.log(txn_of(robot)))[3][1]
    assert (body["outcome"], body["reasons"]) == ("deny", ["tool_changed"])


async def test_only_live_questions_are_audited(
    bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(robot, await note(bank, 500), live=False)
    answer = await ask(robot, await pay(bank), live=True)  # staged by its manifest: to be submitted
    assert refusal(answer) == (400, "invalid_request")
    assert "staged in its reviewed manifest" in answer.json()["detail"]
    frozen = ("freeze", "unfreeze", {"agent": robot.name})
    for stop, end, args in (("stop", "go-on", {"tool": "note"}), ("stop", "go-on", {"tool": None}), frozen):
        await bank.operator(stop, args | {"reason": "it loops"})
        assert refusal(await ask(robot, await note(bank), live=True)) == (403, "frozen")
        await bank.operator(end, args)
    assert await bank.log(txn_of(robot)) == []
    assert (await ask(robot, await note(bank), live=True)).status_code == 200

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("policy_service.workflow.effects.evaluation_requests.audit_effect", full)
    assert (await ask(robot, await note(bank, 11), live=True)).status_code >= 500, "what cannot be logged"


async def test_a_bundle_activated_meanwhile_decides(
    bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decided under one bundle and noted under the next, an agent would run what was just forbidden."""
    gather, effect = evaluating.gather_facts, await note(bank)
    swaps: list[bool] = []

    async def swapped(*about: Any) -> Any:
        facts = await gather(*about)
        if not swaps:
            bank.folder.rules(plain_forbid("from-now-on", action="note"))
            swaps.append(await bank.activate())
        return facts

    monkeypatch.setattr(evaluating, "gather_facts", swapped)
    assert [one["outcome"] for one in await evaluated(robot, effect, live=True)] == ["deny"]
    assert swaps == [True]
    assert [body["outcome"] for _, body in await bank.log(txn_of(robot))] == ["deny"]
