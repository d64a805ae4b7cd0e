"""The record of submitted calls, as an operator exports it, and the arguments that a manifest calls secret."""

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
from tests.fakes.payments import Payments, gate, manifest
from tests.fakes.world import Agent, Clock, running
from tests.integration.service.effects import pay
from tests.integration.service.metered import metered
from tests.integration.service.together.bank import Bank


async def test_recorded_calls_are_paged(bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one call with everything that was decided about it."""
    monkeypatch.setattr(recorded_calls, "_PAGE", 2)
    for n in range(5):
        await robot.submit(await pay(bank, n + 1), run_key=f"r-{n}")
        bank.clock.pass_(seconds=1)
    everything = await bank.operator("recorded-calls", {"days": 1, "with_secrets": False})
    bank.clock.pass_(hours=24, seconds=-2.5)
    lately = await bank.operator("recorded-calls", {"days": 1, "with_secrets": False})
    calls, bad = read_calls([json.dumps(call) for call in everything])
    assert ([(call.tool, call.args["amount"], call.decided) for call in calls], bad) == (
        [("pay", amount, "release") for amount in (1, 2, 3, 4, 5)], []
    )  # fmt: skip
    assert calls[0].agent.roles == {"support-agent"}
    assert (calls[0].tool_digest, calls[0].history) == (await bank.manifest_digest("pay"), {})
    assert [call["args"]["amount"] for call in lately] == [4, 5]
    view = (await robot.submit(await pay(bank, 500))).json()
    await (await bank.person("maya")).vote(view)
    await robot.spend(await robot.see(view["txn"]))
    effect_id = view["effects"][0]["effect_id"]
    one = await bank.operator("recorded-call", {"effect_id": effect_id})
    assert one["id"] == effect_id
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
async def transfer(bank: Bank, folder: Payments, robot: Agent) -> Any:
    """A transfer with two secrets, which a rule reads, waits for finance; its effect's id."""
    folder.write("tools/transfer.json", TRANSFER)
    await bank.rules(gate("look", "finance", f'context.input.pin == "{PIN}"', action="transfer"))
    return (await submitted(bank, robot, "acct-1"))["effects"][0]["effect_id"]


async def test_exported_calls_hide_secrets(
    bank: Bank, transfer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [await bank.operator("recorded-calls", {"days": 7, "with_secrets": one}) for one in (False, True)]
    answers(monkeypatch, lambda args: found[args["with_secrets"]])
    hidden, whole = await printed("calls"), await printed("calls", "--with-secrets")
    assert PIN not in hidden and CARD not in hidden
    assert (json.loads(hidden)["id"], json.loads(hidden)["hidden"]) == (transfer, ["/card", "/pin"])
    assert PIN in whole and CARD in whole


async def test_explain_hides_secrets(bank: Bank, transfer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = await bank.operator("recorded-call", {"effect_id": transfer})
    assert sorted(found["secret"]) == ["/card/number", "/pin"]
    assert PIN in json.dumps(found)  # the search for what would release it needs it
    answers(monkeypatch, lambda _: found)
    command = ("explain", transfer, str(bank.folder.path))
    rules = (bank.folder.path / "rules.cedar").read_text()
    bank.folder.write("rules.cedar", rules.replace(PIN, "another pin"))
    for version in ("the same", "another", "none"):
        if version == "another":
            bank.folder.write("tools/transfer.json", {**TRANSFER, "secret": []})
        elif version == "none":
            (bank.folder.path / "tools/transfer.json").unlink()
            bank.folder.rules("")
        for as_json in ((), ("--json",)):
            kept = await printed(*command, *as_json)
            assert PIN not in kept and CARD not in kept
            assert transfer in kept
            if version == "the same":
                assert PIN in await printed(*command, "--with-secrets", *as_json)


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


# -- What a manifest calls secret is shown to no person, on any way, and stays hidden when the manifest changes

PIN = "HUNTER2-very-secret"

CARD = "4242-4242-4242"

TEXT = {"type": "string"}
TRANSFER = manifest(
    "transfer",
    {
        "type": "object", "additionalProperties": False, "required": ["account", "pin", "card"],
        "properties": {
            "account": TEXT, "pin": TEXT,
            "card": {"type": "object", "additionalProperties": False, "properties": {"number": TEXT}},
        },
    },
    "/account", secret=["/pin", "/card/number"],
) | {"sentence": "Transfer to {account} with {card} and {pin}"}  # fmt: skip


async def submitted(bank: Bank, robot: Agent, account: str) -> dict[str, Any]:
    args = {"account": account, "pin": PIN, "card": {"number": CARD}}
    effect = {"tool": "transfer", "tool_digest": await bank.manifest_digest("transfer"), "args": args}
    view: dict[str, Any] = (await robot.submit(effect)).json()
    assert view["state"] == "review", view
    return view


async def test_no_page_and_no_api_of_people_shows_them(bank: Bank, robot: Agent) -> None:
    bank.folder.write("tools/transfer.json", TRANSFER)
    await bank.rules(gate("look", "finance", action="transfer"))
    view = await submitted(bank, robot, "acct-1")
    assert (await robot.see(view["txn"]))["effects"][0]["args"]["pin"] == PIN, "the agent sees what it sent"
    jonas, review_id = await bank.person("jonas"), view["effects"][0]["review"]["review_id"]
    paths = ["/", f"/reviews/{review_id}", "/v1/reviews", f"/v1/reviews/{review_id}", "/v1/audit"]

    async def hidden() -> bool:
        answers = [await jonas.get(path) for path in paths]
        assert {answer.status_code for answer in answers} == {200}
        return not any(word in answer.text for answer in answers for word in (PIN, CARD))

    assert await hidden()
    args = (await jonas.get(f"/v1/reviews/{review_id}")).json()["effect"]["args"]
    assert (args["account"], args["pin"]) == ("acct-1", "(hidden value, 21 bytes)")
    await submitted(bank, robot, "acct-2")
    stale = await jonas.vote(view)
    assert (stale.status_code, PIN in stale.text, CARD in stale.text) == (409, False, False)
    edited = TRANSFER | {"secret": [], "title": "Renamed"}
    await bank.write("tools/transfer.json", edited)  # which uncovers nothing
    assert await hidden()
