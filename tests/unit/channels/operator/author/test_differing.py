"""``diff``, ``replay`` and ``explain`` as an author calls them."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from policy_service.cli import app
from tests.fakes.bundles import PERMIT_ALL, BundleFolder

GATE = '@id("g") @approval("finance") forbid (principal, action, resource) when { context.input.amount > LIMIT };'
CALL = {"agent": {"name": "robot"}, "tool": "pay", "args": {"account": "a1", "amount": 60}}


def bundle(path: Path, limit: int) -> str:
    """Payments above the limit wait for finance."""
    BundleFolder(path).policies(PERMIT_ALL + GATE.replace("LIMIT", str(limit)))
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
