"""``diff``, ``replay`` and ``explain`` as an author calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from policy_service.cli import app
from tests.fakes.bundles import PAY_ARGS, PERMIT_ALL, BundleFolder, pay_manifest

GATE = '@id("g") @approval("finance") forbid (principal, action, resource) when { context.input.amount > LIMIT };'
CALL = {"agent": {"name": "robot"}, "tool": "pay", "args": {"account": "a1", "amount": 60}}


def bundle(path: Path, limit: int) -> str:
    """Payments above the limit wait for finance."""
    BundleFolder(path).policies(PERMIT_ALL + GATE.replace("LIMIT", str(limit)))
    return str(path)


def metered(path: Path) -> str:
    """Payments are counted, and nothing more is paid once 100 are spent."""
    amount = {"type": "integer", "minimum": 0}
    counted = pay_manifest(args={**PAY_ARGS, "properties": {**PAY_ARGS["properties"], "amount": amount}})
    cap = '@id("cap") forbid (principal, action, resource) when { context.history.spent > 100 };'
    meters = '[meters.spent]\nsum = "/amount"\nof = ["pay"]\nper = "principal"\nwindow = "24h"\n'
    BundleFolder(path).policies(PERMIT_ALL + cap).write("tools/pay.json", counted).write(
        "meters.toml", meters
    )
    return str(path)


def run(*args: str) -> Result:
    """One command."""
    return CliRunner().invoke(app, list(args))


def test_diff_stops_at_a_loosening_until_it_is_acknowledged(tmp_path: Path) -> None:
    old, new = bundle(tmp_path / "old", 50), bundle(tmp_path / "new", 70)

    refused = run("diff", old, new, "--json")
    (name,) = json.loads(refused.stdout)["not_acknowledged"]

    assert refused.exit_code == 1
    assert run("diff", old, new, "--ack", name).exit_code == 0
    assert run("diff", new, old).exit_code == 0
    assert run("diff", old, old).stdout == "no loosening\n"


def test_a_bundle_that_does_not_load_is_refused_with_its_problems(tmp_path: Path) -> None:
    old = bundle(tmp_path / "old", 50)
    BundleFolder(tmp_path / "new").policies("permit (principal, action, resource);")

    refused = run("diff", old, str(tmp_path / "new"))

    assert refused.exit_code == 1
    assert "rules.cedar:1: every policy needs an id" in refused.stdout


def test_recorded_calls_are_counted_and_a_bad_line_is_named(tmp_path: Path) -> None:
    old, new = bundle(tmp_path / "old", 50), bundle(tmp_path / "new", 70)
    calls = tmp_path / "calls.jsonl"
    calls.write_text(json.dumps(CALL) + "\nnonsense\n")

    told = run("replay", str(calls), old, "--against", new, "--json")

    assert told.exit_code == 1
    assert json.loads(told.stdout)["bad_lines"][0]["line"] == 2
    assert json.loads(told.stdout)["by_tool"] == {"pay": {"review": 1}}
    assert json.loads(told.stdout)["differences"][0]["way"] == "loosening"


def test_explain_names_the_change_that_releases(tmp_path: Path) -> None:
    call = tmp_path / "call.json"
    call.write_text(json.dumps(CALL))

    told = run("explain", str(call), bundle(tmp_path / "old", 50))

    assert told.exit_code == 0
    assert "Would be released with:\n  context.input.amount = 50" in told.stdout
    assert run("explain", str(tmp_path / "none.json"), str(tmp_path / "old")).exit_code == 1


def test_diff_of_calls_with_a_bad_line_is_refused(tmp_path: Path) -> None:
    old = bundle(tmp_path / "old", 50)
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text(json.dumps(CALL) + "\n")
    bad.write_text(json.dumps(CALL) + "\nnonsense\n")

    assert run("diff", old, old, "--calls", str(good)).exit_code == 0
    refused = run("diff", old, old, "--calls", str(bad))
    assert refused.exit_code == 1 and "line 2 is no call and was left out" in refused.stdout
    assert run("replay", str(good), old).exit_code == 0
    refused = run("replay", str(bad), old)
    assert refused.exit_code == 1 and "line 2 is no call and was left out" in refused.stdout


@pytest.mark.parametrize(
    "history", [{"nope": 1}, {"spent": "x"}, {"spent": 1.5}, {"spent": True}, {"spent": -1}, ["spent"], 3]
)
def test_history_that_no_meter_could_show_is_a_bad_line(tmp_path: Path, history: Any) -> None:
    counted = metered(tmp_path / "bundle")
    calls, one = tmp_path / "calls.jsonl", tmp_path / "call.json"
    lines = [CALL | {"history": {"spent": 5}}, CALL | {"history": history}]
    calls.write_text("\n".join(map(json.dumps, lines)))
    one.write_text(json.dumps(lines[1]))

    replayed = json.loads(run("replay", str(calls), counted, "--json").stdout)
    compared = json.loads(run("diff", counted, counted, "--calls", str(calls), "--json").stdout)
    explained = run("explain", str(one), counted)

    for told in (replayed, compared):
        (bad,) = told["bad_lines"]
        assert bad["line"] == 2 and "history" in bad["why"]
    assert len(replayed["calls"]) == 1
    assert explained.exit_code == 1 and "history" in explained.output


def test_a_recorded_call_may_tell_a_meter_that_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    file.write_text(json.dumps(CALL | {"history": {"spent": 5, "gone": 1}, "decided": "release"}))

    told = run("replay", str(file), metered(tmp_path / "bundle"), "--json")

    assert told.exit_code == 0
    assert json.loads(told.stdout)["by_tool"] == {"pay": {"release": 1}}


def test_a_call_that_does_not_tell_its_meters_is_not_replayed_as_if_they_stood_at_0(tmp_path: Path) -> None:
    old = metered(tmp_path / "old")
    file = tmp_path / "calls.jsonl"
    file.write_text(json.dumps(CALL))

    told = run("replay", str(file), old, "--against", old)

    assert "line 1: not replayable: pay is counted by history.spent" in told.stdout
    assert f"{old} answers every call that can be replayed as before; 1 cannot be" in told.stdout
    assert "answers every call as before" not in told.stdout
    compared = run("diff", old, old, "--calls", str(file))
    assert "1 of them cannot be replayed" in compared.stdout
    assert json.loads(run("diff", old, old, "--calls", str(file), "--json").stdout)["not_replayable"] == 1


@pytest.mark.parametrize("verb", ["explain", "replay", "fmt", "schema", "check", "test"])
def test_a_bundle_that_does_not_load_tells_its_problems_as_json(tmp_path: Path, verb: str) -> None:
    call = tmp_path / "call.json"
    call.write_text(json.dumps(CALL))
    folder = BundleFolder(tmp_path / "bundle").policies("permit (principal, action, resource")
    files = [str(call)] if verb in ("explain", "replay") else []

    refused, plain = (run(verb, *files, str(folder.path), *more) for more in (["--json"], []))

    told = json.loads(refused.stdout)
    assert (refused.exit_code, told["ok"], plain.exit_code) == (1, False, 1)
    assert told["problems"][0]["file"] == "rules.cedar"
    assert told["problems"][0].keys() == {"file", "line", "message", "code", "level"}
    assert "rules.cedar" in plain.output and not plain.output.startswith("{")
