"""Replay recorded calls, with invalid lines, labels and hidden values."""

import json
from pathlib import Path
from typing import Any

import pytest

from countersign.contract import ToolManifest
from policy_service.pap.diff.findings import Direction
from policy_service.pap.diff.recorded_calls import read_calls
from policy_service.pap.diff.replay import count_outcomes, replay, replay_differences, replay_findings
from tests.fakes import bundles
from tests.fakes.bundles import PERMIT_ALL, BundleFolder, facts_of, pay_args, pay_manifest

ARGS = {"account": "a1", "amount": 60}
CALL = {"agent": {"name": "robot"}, "tool": "pay", "args": ARGS, "now": "2026-01-14T12:00:00Z"}
SHUT = '@id("shut") forbid (principal, action, resource) when { resource.shut };'
SHUT_FACTS = facts_of("Account", "facts/s.json", shut="Bool")


def line(**changes: Any) -> bytes:
    """One recorded call."""
    return json.dumps(CALL | changes).encode()


def read(*lines: bytes) -> Any:
    """The calls of these lines, all valid."""
    calls, bad = read_calls(list(lines))
    assert bad == []
    return calls


def outcomes(folder: BundleFolder, *lines: bytes) -> list[str]:
    """The current outcomes of these calls."""
    return [each.outcome for each in replay(folder.load(), read(*lines))]


def bundle(path: Path, limit: int) -> BundleFolder:
    """Payments above the limit wait for finance."""
    return BundleFolder(path).policies(bundles.asks_above(limit))


def test_outcomes_are_counted_by_tool_and_label(tmp_path: Path) -> None:
    calls = read(line(label="good"), line(args=ARGS | {"amount": 1}, label="good"), b"\n")
    counts = count_outcomes(replay(bundle(tmp_path, 50).load(), calls))
    assert counts.by_tool == {("pay", "review"): 1, ("pay", "release"): 1}
    assert counts.by_label == {("good", "review"): 1, ("good", "release"): 1}


WRONG = [{"tool": 3}, {"agent": "robot"}, {"args": []}, {"lable": "x"}, {"now": "noon"}, {"decided": "yes"}]


@pytest.mark.parametrize("wrong", [b"{", b"[]", *(line(**each) for each in WRONG)])
def test_invalid_line_is_reported_and_others_are_read(wrong: bytes) -> None:
    calls, bad = read_calls([line(), wrong, line()])
    assert [call.number for call in calls] == [1, 3]
    assert [each.number for each in bad] == [2]


def test_differences_are_findings_with_example_calls(tmp_path: Path) -> None:
    calls = read(line(id="effect-1"), line(id="effect-2", args=ARGS | {"amount": 1}))
    before, after = (replay(bundle(tmp_path / str(limit), limit).load(), calls) for limit in (50, 70))
    (found,) = replay_findings(replay_differences(before, after))
    (back,) = replay_findings(replay_differences(after, before))
    assert (found.way, found.kind) == (Direction.LOOSENING, "recorded-review-to-release")
    assert "effect-1" in found.lines[0] and "effect-2" not in found.lines[0]
    assert back.way is Direction.TIGHTENING


def test_hidden_value_that_a_rule_reads_is_not_replayable(tmp_path: Path) -> None:
    folder = bundle(tmp_path, 50).write("tools/pay.json", pay_manifest(secret=["/amount"]))
    calls = read(line(hidden=["/amount"], args=ARGS | {"amount": 1}), line(hidden=["/note"]))
    first, second = replay(folder.load(), calls)
    assert first.outcome == "not replayable" and "/amount" in first.why_not
    assert second.outcome == "review"


def test_recorded_facts_override_the_bundles_sources(tmp_path: Path) -> None:
    folder = BundleFolder(tmp_path).policies(PERMIT_ALL + SHUT).write("facts.toml", SHUT_FACTS)
    folder.write("facts/s.json", {"a1": {"shut": True}})
    lines = (line(), line(facts={"shut": False}), line(facts={"shut": "no"}))
    assert outcomes(folder, *lines) == ["deny", "release", "not replayable"]


def test_call_uses_its_recorded_tool_version(tmp_path: Path) -> None:
    resource = {"type": "Account", "id": "/why"}
    older = pay_manifest(args=pay_args(why={"type": "string"}), resource=resource)
    digest, args = ToolManifest.model_validate(older).digest, ARGS | {"why": "so"}
    folder = bundle(tmp_path, 50).write("tools/pay@old.json", older)
    expected: dict[bytes, tuple[str, list[str]]] = {
        line(args=args, tool_digest=digest): ("review", []),
        line(args=args): ("deny", ["invalid_args"]),
        line(tool_digest="0" * 64): ("deny", ["tool_changed"]),
        line(args=args, tool_digest=digest, hidden=["/why"]): ("not replayable", []),
        line(hidden=["/why"]): ("review", []),
    }
    rows = [each.to_json() for each in replay(folder.load(), read(*expected))]
    assert [(each["outcome"], each["reasons"]) for each in rows] == list(expected.values())


def test_facts_of_an_older_versions_resource_are_read(tmp_path: Path) -> None:
    older = pay_manifest(resource={"type": "Account", "id": "/currency"})
    folder = BundleFolder(tmp_path).write("tools/pay@old.json", older).policies(PERMIT_ALL + SHUT)
    rows = {"a1": {"shut": True}, "EUR": {"shut": False}}
    folder.write("facts.toml", SHUT_FACTS).write("facts/s.json", rows)
    args, digest = ARGS | {"currency": "EUR"}, ToolManifest.model_validate(older).digest
    assert outcomes(folder, line(args=args), line(args=args, tool_digest=digest)) == ["deny", "release"]


def test_meter_without_a_recorded_value_is_not_replayable(tmp_path: Path) -> None:
    folder = BundleFolder(tmp_path / "2").policies(PERMIT_ALL + bundles.CAP)
    folder.write("meters.toml", bundles.SPENT).write("tools/pay.json", bundles.COUNTED)
    calls = read(line(history={"spent": 101}), line(history={"spent": 100}), line(history={}), line())
    capped = replay(folder.load(), calls)
    assert [each.outcome for each in capped] == ["deny", "release", "not replayable", "not replayable"]
    assert "history.spent" in capped[2].why_not
    free = replay(BundleFolder(tmp_path / "1").policies(PERMIT_ALL).load(), calls)
    assert [each.before.call.number for each in replay_differences(free, capped)] == [1, 3, 4]
    assert outcomes(folder, line(tool_digest="0" * 64)) == ["deny"]
