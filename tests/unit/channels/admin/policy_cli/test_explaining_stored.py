"""``explain EFFECT_ID``: the recorded decision with its policies and commit, and today's decision."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from countersign.contract import ToolManifest
from policy_service.channels.admin.policy_cli import explain
from policy_service.cli import app
from tests.fakes import bundles
from tests.fakes.bundles import PERMIT_ALL, BundleFolder, pay_args, pay_manifest

Explain = Callable[..., Result]
AsJson = Callable[..., dict[str, Any]]
EFFECT = "e" * 64
THEN = {
    "outcome": "release", "policies": ["all"], "commit": "c0ffee", "bundle": "b" * 64,
    "decided_at": "2026-01-14T12:00:00Z", "cause": "submit",
}  # fmt: skip
CALL: dict[str, Any] = {
    "id": EFFECT, "agent": {"name": "robot"}, "tool": "pay", "args": {"account": "a1", "amount": 60},
    "now": "2026-01-14T12:00:00Z", "decided": "release", "history": {}, "secret": [], "decisions": [THEN],
}  # fmt: skip
ABOVE_50 = "context.input.amount > 50"
GATED = bundles.asks_above(50)


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    """A bundle that permits everything."""
    return BundleFolder(tmp_path / "bundle").policies(PERMIT_ALL)


@pytest.fixture
def explained(monkeypatch: pytest.MonkeyPatch, folder: BundleFolder) -> Explain:
    """The output for this recorded effect."""
    monkeypatch.setattr(explain, "load_settings", lambda: None)

    def run_explain(*args: str, **changes: Any) -> Result:
        monkeypatch.setattr(explain, "run_admin_command", lambda _settings, _verb, _args: CALL | changes)
        return CliRunner().invoke(app, ["explain", EFFECT, str(folder.path), *args])

    return run_explain


@pytest.fixture
def as_json(explained: Explain) -> AsJson:
    """The same for machines."""
    return lambda **changes: json.loads(explained("--json", **changes).stdout)


def test_the_stored_decision_comes_first_with_its_commit(explained: Explain, folder: BundleFolder) -> None:
    later = THEN | {"cause": "redeem", "commit": "decade", "decided_at": "2026-01-15T12:00:00Z"}
    lines = explained(decisions=[THEN, later]).stdout.splitlines()
    assert lines[0] == f"Decisions on {EFFECT}, oldest first:"
    for line, day, cause, commit in ((1, 14, "submit", "c0ffee"), (3, 15, "redeem", "decade")):
        assert lines[line] == f"  2026-01-{day}T12:00:00Z {cause}: release by all"
        assert lines[line + 1] == f"      commit {commit}, bundle {'b' * 64}"
    assert lines[5] == "Today's bundle decides the same, by the same policies"
    assert lines[7].startswith(f"release of pay by {folder.load().digest} at ")


def test_a_changed_decision_is_reported(explained: Explain, as_json: AsJson, folder: BundleFolder) -> None:
    assert as_json()["differs"] is False
    folder.policies(GATED)
    result = as_json()
    assert (result["differs"], result["outcome"], result["decided_by"]) == (True, "review", ["all", "g"])
    assert result["decisions"] == [THEN]
    assert "decides differently: review by all, g" in explained().stdout
    folder.policies(PERMIT_ALL.replace('"all"', '"each"'))
    assert as_json()["differs"] is True, "the same outcome by another rule"


def test_a_call_from_a_file_has_no_stored_decision(tmp_path: Path, folder: BundleFolder) -> None:
    file = tmp_path / "call.json"
    file.write_text(json.dumps({name: CALL[name] for name in ("agent", "tool", "args")}))
    command = ["explain", str(file), str(folder.path)]
    plain, result = (CliRunner().invoke(app, [*command, *more]) for more in ([], ["--json"]))
    assert json.loads(result.stdout)["differs"] is None
    assert "Decisions on" not in plain.stdout


def test_an_effect_is_explained_under_its_own_version(as_json: AsJson, folder: BundleFolder) -> None:
    old = ToolManifest.model_validate(pay_manifest(secret=["/account"]))
    folder.policies(GATED.replace(ABOVE_50, 'context.input.account == "x"'))
    gone = as_json(tool_digest=old.digest)
    folder.write("tools/pay@old.json", pay_manifest(secret=["/account"]))
    held, current = as_json(tool_digest=old.digest), as_json()
    assert (gone["outcome"], gone["reasons"][0]["code"], gone["policies"]) == ("deny", "tool_changed", [])
    assert held["read"]["context.input.account"] == "(hidden)"
    assert current["read"]["context.input.account"] == "'a1'"


def test_arguments_of_an_older_version_are_accepted(as_json: AsJson, folder: BundleFolder) -> None:
    older = pay_manifest(args=pay_args(why={"type": "string"}))
    folder.write("tools/pay@old.json", older).policies(GATED)
    args = CALL["args"] | {"why": "so"}
    result = as_json(tool_digest=ToolManifest.model_validate(older).digest, args=args)
    held = {one["id"] for one in result["policies"] if one["held"]}
    assert (result["outcome"], held) == ("review", {"all", "g"})
    assert "context.input.amount = 50" in result["would_release"]
    assert as_json(args=args)["reasons"][0]["code"] == "invalid_args"


UNLIKE = "context.input has note && context.input.note != context.input.account"


LIKE_B = 'context.input.account like "b*"'


@pytest.mark.parametrize(("condition", "shown_as"), [(LIKE_B, ""), (UNLIKE, "note = ")])
def test_secrets_stay_hidden(explained: Explain, folder: BundleFolder, condition: str, shown_as: str) -> None:
    """A suggested change does not reveal it either."""
    folder.write("tools/pay.json", pay_manifest(args=pay_args(note={"type": "string"})))
    folder.policies(GATED.replace(ABOVE_50, condition))
    result = {"args": {"account": "hunter2", "amount": 60, "note": "x"}, "secret": ["/account"]}
    hidden, shown = explained(**result), explained("--with-secrets", **result)
    assert "hunter2" not in hidden.output and "(hidden)" in hidden.output
    assert ("review of pay" in hidden.output) is bool(shown_as)
    assert f"{shown_as}'hunter2'" in shown.output


def test_a_missing_meter_is_named(explained: Explain, as_json: AsJson, folder: BundleFolder) -> None:
    folder.write("tools/pay.json", bundles.COUNTED)
    folder.write("meters.toml", bundles.SPENT).policies(PERMIT_ALL + bundles.CAP)
    unknown, known = as_json(), as_json(history={"spent": 101})
    assert (unknown["meters_not_known"], unknown["outcome"]) == (["spent"], "release")
    assert (known["meters_not_known"], known["outcome"]) == ([], "deny")
    assert "history.spent is not recorded and was read as 0" in explained().stdout


@pytest.mark.parametrize("decisions", [[{}], ["x"], "x", [THEN | {"more": 1}]])
def test_decisions_of_another_form_are_refused(explained: Explain, tmp_path: Path, decisions: Any) -> None:
    file = tmp_path / "call.json"
    file.write_text(json.dumps(CALL | {"decisions": decisions}))
    refused = CliRunner().invoke(app, ["explain", str(file), str(tmp_path / "bundle")])
    assert refused.exit_code == 1 and "decisions are objects with bundle" in refused.output
