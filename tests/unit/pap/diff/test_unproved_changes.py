"""Loosenings that the tried values, a tightening or an inexact condition could hide."""

from pathlib import Path
from typing import Any

import pytest

from policy_service.pap.diff.compare import DiffReport, compare
from policy_service.pap.diff.findings import Direction
from tests.fakes.bundles import PERMIT_ALL, BundleFolder, facts_of, pay_args, pay_manifest

STATE = facts_of("Account", state="String")
APPROVE = '@id("w") permit (principal in Group::"cfo", action == Action::"approve", resource);\n'


def folder(path: Path, rules: str, manifest: Any = None) -> BundleFolder:
    """A bundle of these rules and a permit for everything."""
    made = BundleFolder(path).write("facts.toml", STATE).policies(PERMIT_ALL + rules)
    made.write("facts/accounts.json", {"a1": {"state": "open"}})
    return made if manifest is None else made.write("tools/pay.json", manifest)


def report_of(path: Path, before: str, after: str, *manifests: Any) -> DiffReport:
    """The diff of two sets of rules; `manifests` before and after, or one for both."""
    old, new = (manifests[0], manifests[-1]) if manifests else (None, None)
    return compare(folder(path / "before", before, old).load(), folder(path / "after", after, new).load())


def forbid(condition: str, name: str = "c") -> str:
    return f'@id("{name}") forbid (principal, action, resource) when {{ {condition} }};\n'


def barred(condition: str) -> str:
    """A permit for approving, and a forbid with this condition."""
    may_not = f'@id("no") forbid (principal, action == Action::"approve", resource) when {{ {condition} }};\n'
    return APPROVE + may_not


def chosen(condition: str) -> str:
    """A permit for approving with this condition."""
    return f'@id("x") permit (principal, action == Action::"approve", resource) when {{ {condition} }};\n'


def kinds(report: DiffReport) -> set[str]:
    """The kinds of the reported loosenings."""
    return {finding.kind for finding in report.in_direction(Direction.LOOSENING)}


OTHER = "something-else"
ACCOUNT, TAGS = "context.input.account", "context.input.tags"
OTHER_TEXTS = [
    (f'{ACCOUNT} != "bob"', f'["{OTHER}", "x"].contains({ACCOUNT})'),
    (f'{ACCOUNT} != "bob"', f'["{OTHER}", "{OTHER}q"].contains({ACCOUNT})'),
    ('resource.state != "open"', f'["{OTHER}", "x"].contains(resource.state)'),
    ("context has on_behalf_of", 'context has on_behalf_of && context.on_behalf_of == User::"someone|else"'),
    ('principal != Agent::"bob"', '[Agent::"some-agent", Agent::"some-agentq"].contains(principal)'),
    ('context.env != "dev"', f'context.env == "production" || context.env == "{OTHER}"'),
    ("principal has owner", 'principal has owner && principal.owner == User::"someone|else"'),
    ("context.input has tags", f'context.input has tags && {TAGS}.containsAny(["{OTHER}", "a"])'),
]


@pytest.mark.parametrize(("before", "after"), OTHER_TEXTS)
def test_unnamed_text_is_not_named_by_any_rule(tmp_path: Path, before: str, after: str) -> None:
    assert "deny-to-release" in kinds(report_of(tmp_path, forbid(before), forbid(after)))


@pytest.mark.parametrize("after", ['resource.tool == "something-else"', 'resource.tool == "something-elseq"'])
def test_unnamed_tool_is_not_named_by_any_rule(tmp_path: Path, after: str) -> None:
    assert "who-may-approve" in kinds(report_of(tmp_path, barred('resource.tool != "pay"'), barred(after)))


def test_argument_without_an_unnamed_text_is_sampled(tmp_path: Path) -> None:
    odd = pay_manifest(args=pay_args(account={"type": "string", "pattern": "^[0-9]{9}Z$"}))
    before, after = 'context.input.account != "123456789Z"', 'context.input.account == "987654321Z"'
    report = report_of(tmp_path, forbid(before), forbid(after), odd)
    assert report.tools[0].how == "sampled"
    assert report.in_direction(Direction.LOOSENING)


def test_tightening_does_not_hide_unproved_changes(tmp_path: Path) -> None:
    before = 'context.input.account like "*secret*"'
    after = f'({before} && !(context.input.account like "*q*")) || context.input.account == "tighten"'
    report = report_of(tmp_path, forbid(before), forbid(after))
    assert [(f.kind, f.policies) for f in report.in_direction(Direction.LOOSENING)] == [("unproved", ("c",))]


UNPROVED = [
    'resource.tool like "*p*y*" && !(resource.tool like "*x*") && !(resource.tool like "py")',
    " || ".join(f'(resource.tool == "t{n}" && principal == User::"u|{n}")' for n in range(70)),
    'resource.gates.containsAll(["a", "b", "c", "d", "e", "f", "g"])',
]


@pytest.mark.parametrize("condition", UNPROVED)
def test_unproved_change_about_people_is_a_loosening(tmp_path: Path, condition: str) -> None:
    assert report_of(tmp_path, APPROVE, APPROVE + chosen(condition)).in_direction(Direction.LOOSENING)


NEVER = forbid("context.claimed has nothing_like_this")
NO_LOOSENINGS = {
    "a forbid more about people": (APPROVE, barred('resource.tool like "*a*b"')),
    "a claim that does not exist is never present": (NEVER, NEVER.replace("forbid", "permit")),
}


@pytest.mark.parametrize(("before", "after"), NO_LOOSENINGS.values(), ids=NO_LOOSENINGS)
def test_restricting_change_is_not_a_loosening(tmp_path: Path, before: str, after: str) -> None:
    assert report_of(tmp_path, before, after).not_acknowledged(()) == []


def test_optional_object_is_tried_with_its_members(tmp_path: Path) -> None:
    inner = {"type": "object", "additionalProperties": False, "properties": {"bank": {"type": "string"}}}
    rule = forbid('context.input has to && context.input.to has bank && context.input.to.bank != "b"')
    report = report_of(tmp_path, rule, rule.replace("!=", "=="), pay_manifest(args=pay_args(to=inner)))
    assert "deny-to-release" in kinds(report)


@pytest.mark.parametrize(("limit", "expected"), [("> 6", {"p", "q"}), ("> 4", {"q"})])
def test_each_looser_rule_behind_a_call_is_reported(tmp_path: Path, limit: str, expected: set[str]) -> None:
    before, named = forbid("context.input.amount > 5", "p"), forbid('context.input.account == "z"', "q")
    report = report_of(tmp_path, before + named, before.replace("> 5", limit) + named.replace('"z"', '"zz"'))
    found = report.in_direction(Direction.LOOSENING)
    assert {name for finding in found for name in finding.policies} == expected


GATES = (
    '@id("a") @approval("finance") forbid (principal, action, resource) when { context.input.amount > 5 };\n'
    '@id("b") @approval("cfo") forbid (principal, action, resource) when { context.input.amount > 3 };\n'
)
READ = {
    'resource.gates.contains("a")': {"a"},
    "!resource.gates.isEmpty()": {"a", "b"},
    '["a", "b"].containsAll(resource.gates)': {"a", "b"},
    'resource.tool == "pay"': set(),
}


@pytest.mark.parametrize(("condition", "ids"), READ.items())
def test_gates_that_exchange_ids_loosen_if_read(tmp_path: Path, condition: str, ids: set[str]) -> None:
    swapped = GATES.replace('"a"', '"c"').replace('"b"', '"a"').replace('"c"', '"b"')
    report = report_of(tmp_path, GATES + chosen(condition), swapped + chosen(condition))
    assert {f.subject for f in report.in_direction(Direction.LOOSENING) if f.kind == "gate-id"} == ids


@pytest.mark.parametrize(("fact", "is_read"), [('risk == "high"', True), ('tool == "pay"', False)])
def test_changed_risk_is_a_loosening_if_read(tmp_path: Path, fact: str, is_read: bool) -> None:
    reads, risks = chosen(f"resource.{fact}"), [pay_manifest(risk=risk) for risk in ("low", "high")]
    assert bool(report_of(tmp_path, reads, reads, *risks).in_direction(Direction.LOOSENING)) is is_read


def test_boolean_instead_of_a_number_does_not_narrow_an_enum(tmp_path: Path) -> None:
    flags = [pay_manifest(args=pay_args(flag={"enum": values})) for values in ([0, 1], [False, True])]
    assert "manifest-args" in kinds(report_of(tmp_path, "", "", *flags))


def test_new_tool_is_reported_by_its_calls_and_not_by_unchanged_rules(tmp_path: Path) -> None:
    more = '@id("p2") permit (principal, action, resource) when { context.input.amount == 7 };'
    new = folder(tmp_path / "after", more).write("tools/send.json", pay_manifest(tool="send"))
    assert kinds(compare(folder(tmp_path / "before", more).load(), new.load())) == {"deny-to-release"}
