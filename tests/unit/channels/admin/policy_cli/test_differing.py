"""``diff``, ``replay`` and ``explain`` as an author calls them."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from policy_service.cli import app
from tests.fakes.bundles import CAP, COUNTED, PERMIT_ALL, SPENT, BundleFolder, asks_above

CALL = {"agent": {"name": "robot"}, "tool": "pay", "args": {"account": "a1", "amount": 60}}


def bundle(path: Path, limit: int) -> str:
    return str(BundleFolder(path).policies(asks_above(limit)).path)


def metered(path: Path) -> str:
    """Payments are counted, and nothing more is paid once 100 are spent."""
    made = BundleFolder(path).policies(PERMIT_ALL + CAP).write("tools/pay.json", COUNTED)
    return str(made.write("meters.toml", SPENT).path)


def recorded(path: Path, *calls: Any) -> str:
    """A file of calls; one that is text is written as it is."""
    path.write_text("\n".join(call if isinstance(call, str) else json.dumps(call) for call in calls) + "\n")
    return str(path)


def run(*args: str) -> Result:
    """One command."""
    return CliRunner().invoke(app, list(args))


def as_json(*args: str) -> dict[str, Any]:
    """The JSON output."""
    result: dict[str, Any] = json.loads(run(*args, "--json").stdout)
    return result


def test_diff_stops_at_a_loosening_until_it_is_acknowledged(tmp_path: Path) -> None:
    old, new = bundle(tmp_path / "old", 50), bundle(tmp_path / "new", 70)
    refused = run("diff", old, new, "--json")
    (name,) = json.loads(refused.stdout)["not_acknowledged"]
    assert refused.exit_code == 1
    assert run("diff", old, new, "--ack", name).exit_code == 0
    assert run("diff", new, old).exit_code == 0
    assert run("diff", old, old).stdout == "no loosening\n"
    BundleFolder(tmp_path / "new").policies("permit (principal, action, resource);")
    refused = run("diff", old, new)
    assert refused.exit_code == 1
    assert "rules.cedar:1: every policy needs an id" in refused.stdout


def test_recorded_calls_are_counted_and_a_bad_line_is_named_and_refused(tmp_path: Path) -> None:
    old, new = bundle(tmp_path / "old", 50), bundle(tmp_path / "new", 70)
    good, bad = recorded(tmp_path / "good", CALL), recorded(tmp_path / "bad", CALL, "nonsense")
    result = run("replay", bad, old, "--against", new, "--json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["bad_lines"][0]["line"]) == (1, 2)
    assert (answer["by_tool"], answer["differences"][0]["way"]) == ({"pay": {"review": 1}}, "loosening")
    for verb in (["diff", old, old, "--calls", "FILE"], ["replay", "FILE", old]):
        assert run(*(good if word == "FILE" else word for word in verb)).exit_code == 0
        refused = run(*(bad if word == "FILE" else word for word in verb))
        assert refused.exit_code == 1 and "line 2 is not a call and was skipped" in refused.stdout


def test_explain_names_the_change_that_releases(tmp_path: Path) -> None:
    result = run("explain", recorded(tmp_path / "call.json", CALL), bundle(tmp_path / "old", 50))
    assert result.exit_code == 0
    assert "Would be released with:\n  context.input.amount = 50" in result.stdout
    assert run("explain", str(tmp_path / "none.json"), str(tmp_path / "old")).exit_code == 1


HISTORIES: list[Any] = [{"nope": 1}, *({"spent": amount} for amount in ("x", 1.5, True, -1)), ["spent"], 3]


@pytest.mark.parametrize("history", HISTORIES)
def test_history_that_no_meter_could_show_is_a_bad_line(tmp_path: Path, history: Any) -> None:
    counted, wrong = metered(tmp_path / "bundle"), CALL | {"history": history}
    calls = recorded(tmp_path / "calls.jsonl", CALL | {"history": {"spent": 5}}, wrong)
    replayed = as_json("replay", calls, counted)
    for result in (replayed, as_json("diff", counted, counted, "--calls", calls)):
        (bad,) = result["bad_lines"]
        assert bad["line"] == 2 and "history" in bad["why"]
    assert len(replayed["calls"]) == 1
    explained = run("explain", recorded(tmp_path / "call.json", wrong), counted)
    assert explained.exit_code == 1 and "history" in explained.output


def test_a_recorded_call_without_its_meter_is_not_replayed(tmp_path: Path) -> None:
    counted = metered(tmp_path / "bundle")
    result = CALL | {"history": {"spent": 5, "gone": 1}, "decided": "release"}
    replayed = run("replay", recorded(tmp_path / "told", result), counted, "--json")
    assert (replayed.exit_code, json.loads(replayed.stdout)["by_tool"]) == (0, {"pay": {"release": 1}})
    file = recorded(tmp_path / "untold", CALL)
    said = run("replay", file, counted, "--against", counted).stdout
    assert "line 1: not replayable: pay is counted by history.spent" in said
    assert f"{counted} decides every replayable call the same; 1 cannot be replayed" in said
    assert "decides every call the same" not in said
    assert "1 of them cannot be replayed" in run("diff", counted, counted, "--calls", file).stdout
    assert as_json("diff", counted, counted, "--calls", file)["not_replayable"] == 1


@pytest.mark.parametrize("verb", ["explain", "replay", "fmt", "schema", "check", "test"])
def test_an_invalid_bundle_reports_its_problems_as_json(tmp_path: Path, verb: str) -> None:
    files = [recorded(tmp_path / "call.json", CALL)] if verb in ("explain", "replay") else []
    folder = BundleFolder(tmp_path / "bundle").policies("permit (principal, action, resource")
    refused, plain = (run(verb, *files, str(folder.path), *more) for more in (["--json"], []))
    result = json.loads(refused.stdout)
    assert (refused.exit_code, result["ok"], plain.exit_code) == (1, False, 1)
    assert result["problems"][0]["file"] == "rules.cedar"
    assert result["problems"][0].keys() == {"file", "line", "message", "code", "level"}
    assert "rules.cedar" in plain.output and not plain.output.startswith("{")
