"""The record of submitted calls, as an operator takes it out for replaying and for explaining one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from policy_service.channels.admin.policy_cli import explain, replay
from policy_service.cli import app
from policy_service.pap.diff.recorded_calls import read_calls
from policy_service.workflow.shadow import recorded_calls
from tests.fakes.payments import Payments, gate
from tests.fakes.world import Agent, Clock, World, running
from tests.integration.service.effects import pay, refund
from tests.integration.service.metered import metered
from tests.integration.service.test_secrets import CARD, PIN, TRANSFER, submitted

pytestmark = pytest.mark.anyio


async def test_what_was_submitted_comes_out_as_calls_that_can_be_replayed(world: World, desk: Agent) -> None:
    call = await refund(world, 100)
    view = (await desk.submit(call)).json()
    found = await world.operator("recorded-calls", {"days": 1, "with_secrets": False})
    effect_id = view["effects"][0]["effect_id"]
    one = await world.operator("recorded-call", {"effect_id": effect_id})
    calls, bad = read_calls([json.dumps(each) for each in found])
    assert bad == []
    told = [(call.name, call.tool, call.args, call.decided) for call in calls]
    assert told == [(effect_id, "refund", call["args"], "release")]
    assert calls[0].agent.roles == {"support-agent"}
    assert (calls[0].tool_digest, calls[0].history) == (call["tool_digest"], {})
    assert one["id"] == effect_id


async def test_a_record_longer_than_a_page_comes_out_whole_and_in_order(
    bank: World, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one call with everything that was decided about it."""
    monkeypatch.setattr(recorded_calls, "_PAGE", 2)
    for n in range(5):
        await robot.submit(await pay(bank, n + 1), run_key=f"r-{n}")
        bank.clock.pass_(seconds=1)
    everything = await bank.operator("recorded-calls", {"days": 1, "with_secrets": False})
    bank.clock.pass_(hours=24, seconds=-2.5)
    lately = await bank.operator("recorded-calls", {"days": 1, "with_secrets": False})
    assert [call["args"]["amount"] for call in everything] == [1, 2, 3, 4, 5]
    assert [call["args"]["amount"] for call in lately] == [4, 5]
    view = (await robot.submit(await pay(bank, 500))).json()
    await (await bank.person("maya")).vote(view)
    await robot.spend(await robot.see(view["txn"]))
    one = await bank.operator("recorded-call", {"effect_id": view["effects"][0]["effect_id"]})
    bundle, decisions = bank.service.active.current, one["decisions"]
    assert decisions[0]["cause"] == "submit"
    assert len(decisions) > 1
    assert {(each["commit"], each["bundle"]) for each in decisions} == {(bundle.commit, bundle.digest)}
    assert decisions[0]["decided_at"] == one["now"]
    assert decisions[0]["policies"] == view["effects"][0]["decision"]["policies"]


async def run(*args: str) -> Result:
    """One command, in a thread: it has a loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, app, list(args))


def answers(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Any], Any]) -> None:
    """What the operator's socket answers to an author's verb, by its arguments."""
    for module in (replay, explain):
        monkeypatch.setattr(module, "load_settings", lambda: None)
        monkeypatch.setattr(module, "run_admin_command", lambda _settings, _verb, args: answer(args))


async def printed(*args: str) -> str:
    """Everything that a command prints, on both streams."""
    result = await run(*args)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
async def transfer(bank: World, folder: Payments, robot: Agent) -> str:
    """A transfer with two secrets, which a rule reads, waits for finance; its effect's id."""
    folder.write("tools/transfer.json", TRANSFER)
    folder.rules(gate("look", "finance", f'context.input.pin == "{PIN}"', action="transfer"))
    await bank.activate()
    view = await submitted(bank, robot, "acct-1")
    effect_id: str = view["effects"][0]["effect_id"]
    return effect_id


async def test_calls_leave_without_secrets_unless_they_are_asked_for(
    bank: World, transfer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {
        wanted: await bank.operator("recorded-calls", {"days": 7, "with_secrets": wanted})
        for wanted in (False, True)
    }
    answers(monkeypatch, lambda args: found[args["with_secrets"]])
    kept, told = await printed("calls"), await printed("calls", "--with-secrets")
    assert PIN not in kept and CARD not in kept
    assert (json.loads(kept)["id"], json.loads(kept)["hidden"]) == (transfer, ["/card", "/pin"])
    assert PIN in told and CARD in told


async def test_an_explained_effect_keeps_its_secrets_whatever_the_manifest_says_today(
    bank: World, folder: Payments, transfer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await bank.operator("recorded-call", {"effect_id": transfer})
    assert sorted(found["secret"]) == ["/card/number", "/pin"]
    assert PIN in json.dumps(found)  # the search for what would release it needs it
    answers(monkeypatch, lambda _: found)
    told = ("explain", transfer, str(folder.path))
    folder.write("rules.cedar", (folder.path / "rules.cedar").read_text().replace(PIN, "another pin"))
    for manifest in ("the same", "another", "none"):
        if manifest == "another":
            folder.write("tools/transfer.json", {**TRANSFER, "secret": []})
        elif manifest == "none":
            (folder.path / "tools/transfer.json").unlink()
            folder.rules("")
        for as_json in ((), ("--json",)):
            kept = await printed(*told, *as_json)
            assert PIN not in kept and CARD not in kept
            assert transfer in kept
            if manifest == "the same":
                assert PIN in await printed(*told, "--with-secrets", *as_json)


async def test_meters_are_recorded_as_the_decision_saw_them(tmp_path: Path) -> None:
    folder = metered(tmp_path / "bundle")
    async with running(tmp_path / "data", folder.path, clock=Clock.from_noon()) as bank:
        robot = await bank.agent("robot")
        await robot.submit(await pay(bank, 300), run_key="r-1")
        denied = (await robot.submit(await pay(bank, 800), run_key="r-2")).json()
        calls = await bank.operator("recorded-calls", {"days": 1, "with_secrets": False})
        one = await bank.operator("recorded-call", {"effect_id": denied["effects"][0]["effect_id"]})
    assert [call["history"] for call in calls] == [{"spent": 0, "shipped": 0}, {"spent": 300, "shipped": 1}]
    assert [call["decided"] for call in calls] == ["release", "deny"]
    assert one["history"] == {"spent": 300, "shipped": 1}
    file = tmp_path / "calls.jsonl"
    file.write_text("\n".join(map(json.dumps, calls)))
    looser = (folder.path / "rules.cedar").read_text().replace("> 1000", "> 2000")
    other = metered(tmp_path / "looser").policies(looser)
    same = await run("replay", str(file), str(folder.path), "--json")
    against = await run("diff", str(folder.path), str(other.path), "--calls", str(file))
    assert [call["outcome"] for call in json.loads(same.stdout)["calls"]] == ["release", "deny"]
    assert "1 recorded calls are decided differently" in against.stdout and against.exit_code == 1
