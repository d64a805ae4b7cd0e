"""``explain EFFECT_ID``: what was decided then, by which rules of which commit, beside what today's bundle says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from countersign.contract import ToolManifest
from policy_service.channels.operator.author import explaining
from policy_service.cli import app
from tests.fakes.bundles import PAY_ARGS, PERMIT_ALL, BundleFolder, pay_manifest

EFFECT = "e" * 64
THEN = {
    "outcome": "release", "policies": ["all"], "commit": "c0ffee", "bundle": "b" * 64,
    "decided_at": "2026-01-14T12:00:00Z", "cause": "submit",
}  # fmt: skip
CALL: dict[str, Any] = {
    "id": EFFECT, "agent": {"name": "robot"}, "tool": "pay", "args": {"account": "a1", "amount": 60},
    "now": "2026-01-14T12:00:00Z", "decided": "release", "history": {}, "secret": [], "decisions": [THEN],
}  # fmt: skip
GATE = (
    '@id("g") @approval("finance") forbid (principal, action, resource) when { context.input.amount > 50 };'
)
AMOUNT = {"type": "integer", "minimum": 0}
COUNTED = pay_manifest(args={**PAY_ARGS, "properties": {**PAY_ARGS["properties"], "amount": AMOUNT}})
METERS = '[meters.spent]\nsum = "/amount"\nof = ["pay"]\nper = "principal"\nwindow = "24h"\n'


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    """A bundle that permits everything."""
    return BundleFolder(tmp_path / "bundle").policies(PERMIT_ALL)


def explained(monkeypatch: pytest.MonkeyPatch, folder: BundleFolder, *args: str, **changes: Any) -> Result:
    """What is printed when the service tells this of the effect."""
    monkeypatch.setattr(explaining, "load_settings", lambda: None)
    monkeypatch.setattr(explaining, "run_verb", lambda _settings, _verb, _args: CALL | changes)
    return CliRunner().invoke(app, ["explain", EFFECT, str(folder.path), *args])


def as_json(monkeypatch: pytest.MonkeyPatch, folder: BundleFolder, **changes: Any) -> dict[str, Any]:
    """The same for machines."""
    told: dict[str, Any] = json.loads(explained(monkeypatch, folder, "--json", **changes).stdout)
    return told


def test_the_stored_decision_comes_first_with_its_rule_and_commit(
    monkeypatch: pytest.MonkeyPatch, folder: BundleFolder
) -> None:
    later = THEN | {"cause": "redeem", "commit": "decade", "decided_at": "2026-01-15T12:00:00Z"}

    lines = explained(monkeypatch, folder, decisions=[THEN, later]).stdout.splitlines()

    assert lines[:6] == [
        f"Decided about {EFFECT}, oldest first:",
        "  2026-01-14T12:00:00Z submit: release by all",
        f"      commit c0ffee, bundle {'b' * 64}",
        "  2026-01-15T12:00:00Z redeem: release by all",
        f"      commit decade, bundle {'b' * 64}",
        "Today's bundle answers as at first, by the same policies",
    ]
    assert lines[7].startswith(f"release of pay by {folder.load().digest} at ")


def test_where_today_s_bundle_answers_otherwise_it_is_said(
    monkeypatch: pytest.MonkeyPatch, folder: BundleFolder
) -> None:
    same = as_json(monkeypatch, folder)
    folder.policies(PERMIT_ALL + GATE)

    told = as_json(monkeypatch, folder)

    assert (same["differs"], told["differs"]) == (False, True)
    assert (told["outcome"], told["decided_by"]) == ("review", ["all", "g"])
    assert told["decisions"] == [THEN]
    assert "answers otherwise than at first: review by all, g" in explained(monkeypatch, folder).stdout


def test_the_same_outcome_by_another_rule_is_another_answer(
    monkeypatch: pytest.MonkeyPatch, folder: BundleFolder
) -> None:
    folder.policies(PERMIT_ALL.replace('"all"', '"each"'))

    assert as_json(monkeypatch, folder)["differs"] is True


def test_a_call_from_a_file_has_no_stored_decision(tmp_path: Path, folder: BundleFolder) -> None:
    file = tmp_path / "call.json"
    file.write_text(json.dumps({name: CALL[name] for name in ("agent", "tool", "args")}))

    told = CliRunner().invoke(app, ["explain", str(file), str(folder.path), "--json"])

    assert json.loads(told.stdout)["differs"] is None
    assert "Decided about" not in CliRunner().invoke(app, ["explain", str(file), str(folder.path)]).stdout


def test_the_effect_is_explained_under_the_version_it_was_staged_for(
    monkeypatch: pytest.MonkeyPatch, folder: BundleFolder
) -> None:
    old = ToolManifest.model_validate(pay_manifest(secret=["/account"]))
    folder.policies(PERMIT_ALL + GATE.replace("context.input.amount > 50", 'context.input.account == "x"'))
    gone = as_json(monkeypatch, folder, tool_digest=old.digest)
    folder.write("tools/pay@old.json", pay_manifest(secret=["/account"]))

    held = as_json(monkeypatch, folder, tool_digest=old.digest)
    current = as_json(monkeypatch, folder)

    assert (gone["outcome"], gone["reasons"][0]["code"], gone["policies"]) == ("deny", "tool_changed", [])
    assert held["read"]["context.input.account"] == "(hidden)"
    assert current["read"]["context.input.account"] == "'a1'"


def test_what_the_older_version_takes_is_not_refused(
    monkeypatch: pytest.MonkeyPatch, folder: BundleFolder
) -> None:
    older = pay_manifest(
        args={**PAY_ARGS, "properties": {**PAY_ARGS["properties"], "why": {"type": "string"}}}
    )
    folder.write("tools/pay@old.json", older).policies(PERMIT_ALL + GATE)
    digest = ToolManifest.model_validate(older).digest
    args = {"account": "a1", "amount": 60, "why": "so"}

    told = as_json(monkeypatch, folder, tool_digest=digest, args=args)

    assert (told["outcome"], {one["id"] for one in told["policies"] if one["held"]}) == (
        "review",
        {"all", "g"},
    )
    assert "context.input.amount = 50" in told["would_release"]
    assert as_json(monkeypatch, folder, args=args)["reasons"][0]["code"] == "invalid_args"


def test_what_was_secret_on_that_day_is_not_shown_today(
    monkeypatch: pytest.MonkeyPatch, folder: BundleFolder
) -> None:
    folder.policies(PERMIT_ALL + GATE.replace("context.input.amount > 50", 'context.input.account like "b*"'))
    args = {"account": "hunter2", "amount": 60}

    hidden = explained(monkeypatch, folder, args=args, secret=["/account"])
    shown = explained(monkeypatch, folder, "--with-secrets", args=args, secret=["/account"])

    assert "hunter2" not in hidden.output and "(hidden)" in hidden.output
    assert "hunter2" in shown.output


def test_no_change_that_would_release_tells_a_secret_it_is_compared_with(
    monkeypatch: pytest.MonkeyPatch, folder: BundleFolder
) -> None:
    rule = GATE.replace(
        "context.input.amount > 50", "context.input has note && context.input.note != context.input.account"
    )
    text = {**PAY_ARGS["properties"], "note": {"type": "string"}}
    folder.write("tools/pay.json", pay_manifest(args={**PAY_ARGS, "properties": text})).policies(
        PERMIT_ALL + rule
    )
    args = {"account": "hunter2", "amount": 60, "note": "x"}

    hidden = explained(monkeypatch, folder, args=args, secret=["/account"])
    shown = explained(monkeypatch, folder, "--with-secrets", args=args, secret=["/account"])

    assert "review of pay" in hidden.output and "hunter2" not in hidden.output
    assert "context.input.note = 'hunter2'" in shown.output


def test_a_meter_the_record_does_not_tell_is_named(
    monkeypatch: pytest.MonkeyPatch, folder: BundleFolder
) -> None:
    folder.write("tools/pay.json", COUNTED).write("meters.toml", METERS)
    cap = '@id("cap") forbid (principal, action, resource) when { context.history.spent > 100 };'
    folder.policies(PERMIT_ALL + cap)

    unknown, known = as_json(monkeypatch, folder), as_json(monkeypatch, folder, history={"spent": 101})

    assert (unknown["meters_not_known"], unknown["outcome"]) == (["spent"], "release")
    assert (known["meters_not_known"], known["outcome"]) == ([], "deny")
    assert "history.spent is not told and was read as 0" in explained(monkeypatch, folder).stdout


@pytest.mark.parametrize("decisions", [[{}], ["x"], "x", [THEN | {"more": 1}]])
def test_decisions_the_service_would_not_tell_are_refused(
    tmp_path: Path, folder: BundleFolder, decisions: Any
) -> None:
    file = tmp_path / "call.json"
    file.write_text(json.dumps(CALL | {"decisions": decisions}))

    refused = CliRunner().invoke(app, ["explain", str(file), str(folder.path)])

    assert refused.exit_code == 1 and "decisions are objects with bundle" in refused.output
