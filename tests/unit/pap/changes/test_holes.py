"""Loosenings that hide behind the values that are tried, behind a tightening, or behind what cannot be proved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policy_service.pap.changes.comparing import Report, compare
from policy_service.pap.changes.findings import Way
from tests.fakes.bundles import PERMIT_ALL, BundleFolder, pay_manifest

STATE = """
[entities.Account.attributes]
state = "String"
[[source]]
name = "accounts"
kind = "file"
file = "facts/accounts.json"
entity = "Account"
"""
FORBID = '@id("c") forbid (principal, action, resource) when { CONDITION };'
NOT_APPROVE = '@id("no") forbid (principal, action == Action::"approve", resource) when { CONDITION };'
APPROVE = '@id("w") permit (principal in Group::"cfo", action == Action::"approve", resource);\n'


def folder(path: Path, rules: str, manifest: Any = None) -> BundleFolder:
    """A bundle of these rules beside one that permits everything."""
    made = BundleFolder(path).write("facts.toml", STATE).policies(PERMIT_ALL + rules)
    made.write("facts/accounts.json", {"a1": {"state": "open"}})
    return made if manifest is None else made.write("tools/pay.json", manifest)


def report_of(path: Path, before: str, after: str, *manifests: Any) -> Report:
    """What two sets of rules differ in; `manifests` are of before and after, or one for both."""
    old, new = (folder(path / name, rules, manifest).load() for name, rules, manifest in (
        ("before", before, manifests[0] if manifests else None), ("after", after, manifests[-1] if manifests else None)
    ))  # fmt: skip
    return compare(old, new)


def when(condition: str, rule: str = FORBID) -> str:
    """The rule with this condition."""
    return rule.replace("CONDITION", condition)


def with_property(**properties: Any) -> dict[str, Any]:
    """The manifest with args more or other."""
    args = pay_manifest()["args"]
    return pay_manifest(args={**args, "properties": {**args["properties"], **properties}})


def kinds(report: Report) -> set[str]:
    """The kinds of loosenings that are told."""
    return {finding.kind for finding in report.of_way(Way.LOOSENING)}


def behind(report: Report) -> set[str]:
    """The policies behind the loosenings that are told."""
    return {name for finding in report.of_way(Way.LOOSENING) for name in finding.policies}


OTHER_TEXTS = [
    ('context.input.account != "bob"', '["something-else", "x"].contains(context.input.account)'),
    ('context.input.account != "bob"', '["something-else", "something-elseq"].contains(context.input.account)'),
    ('resource.state != "open"', '["something-else", "x"].contains(resource.state)'),
    ('context has on_behalf_of', 'context has on_behalf_of && context.on_behalf_of == User::"someone|else"'),
    ('principal != Agent::"bob"', '[Agent::"some-agent", Agent::"some-agentq"].contains(principal)'),
    ('context.env != "dev"', 'context.env == "production" || context.env == "something-else"'),
    ('principal has owner', 'principal has owner && principal.owner == User::"someone|else"'),
    ('context.input has tags', 'context.input has tags && context.input.tags.containsAny(["something-else", "a"])'),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), OTHER_TEXTS)
def test_no_text_that_is_tried_can_be_one_that_a_rule_names(tmp_path: Path, before: str, after: str) -> None:
    assert "deny-to-release" in kinds(report_of(tmp_path, when(before), when(after)))


def test_a_text_that_nothing_beside_the_named_ones_stands_for_is_sampled(tmp_path: Path) -> None:
    odd = with_property(account={"type": "string", "pattern": "^[0-9]{9}Z$"})
    before, after = (
        when('context.input.account != "123456789Z"'),
        when('context.input.account == "987654321Z"'),
    )
    report = report_of(tmp_path, before, after, odd)
    assert report.tools[0].how == "sampled"
    assert report.of_way(Way.LOOSENING)


def test_a_tightening_of_a_rule_does_not_excuse_what_is_not_proved(tmp_path: Path) -> None:
    before = 'context.input.account like "*secret*"'
    after = f'({before} && !(context.input.account like "*q*")) || context.input.account == "tighten"'
    report = report_of(tmp_path, when(before), when(after))
    assert [(f.kind, f.policies) for f in report.of_way(Way.LOOSENING)] == [("unproved", ("c",))]


UNPROVED = [
    'resource.tool like "*p*y*" && !(resource.tool like "*x*") && !(resource.tool like "py")',
    " || ".join(f'(resource.tool == "t{n}" && principal == User::"u|{n}")' for n in range(70)),
    'resource.gates.containsAll(["a", "b", "c", "d", "e", "f", "g"])',
]


@pytest.mark.parametrize("condition", UNPROVED)
def test_what_is_not_proved_about_people_is_a_loosening(tmp_path: Path, condition: str) -> None:
    wide = f'@id("x") permit (principal, action == Action::"approve", resource) when {{ {condition} }};'
    assert report_of(tmp_path, APPROVE, APPROVE + wide).of_way(Way.LOOSENING)


def test_a_forbid_more_about_people_is_stricter_whatever_it_reads(tmp_path: Path) -> None:
    more = when('resource.tool like "*a*b"', NOT_APPROVE)
    assert report_of(tmp_path, APPROVE, APPROVE + more).not_acknowledged(()) == []


@pytest.mark.parametrize("after", ['resource.tool == "something-else"', 'resource.tool == "something-elseq"'])
def test_a_tool_that_a_rule_about_people_names_is_not_the_other_one_tried(tmp_path: Path, after: str) -> None:
    before = when('resource.tool != "pay"', NOT_APPROVE)
    assert "who-may-approve" in kinds(
        report_of(tmp_path, APPROVE + before, APPROVE + when(after, NOT_APPROVE))
    )


def test_an_object_that_may_be_left_out_is_tried_with_what_is_in_it(tmp_path: Path) -> None:
    inner = {"type": "object", "additionalProperties": False, "properties": {"bank": {"type": "string"}}}
    rule = when('context.input has to && context.input.to has bank && context.input.to.bank != "b"')
    report = report_of(tmp_path, rule, rule.replace("!=", "=="), with_property(to=inner))
    assert "deny-to-release" in kinds(report)


def test_what_nobody_can_claim_is_never_there(tmp_path: Path) -> None:
    before = when("context.claimed has nothing_like_this")
    assert report_of(tmp_path, before, before.replace("forbid", "permit")).not_acknowledged(()) == []


LIMIT = '@id("p") forbid (principal, action, resource) when { context.input.amount > 5 };\n'
NAMED = '@id("q") forbid (principal, action, resource) when { context.input.account == "z" };\n'


@pytest.mark.parametrize(("limit", "told"), [("> 6", {"p", "q"}), ("> 4", {"q"})], ids=["looser", "stricter"])
def test_of_two_rules_behind_the_same_call_each_that_is_looser_is_told(
    tmp_path: Path, limit: str, told: set[str]
) -> None:
    after = LIMIT.replace("> 5", limit) + NAMED.replace('"z"', '"zz"')
    assert behind(report_of(tmp_path, LIMIT + NAMED, after)) == told


GATES = (
    '@id("a") @approval("finance") forbid (principal, action, resource) when { context.input.amount > 5 };\n'
    '@id("b") @approval("cfo") forbid (principal, action, resource) when { context.input.amount > 3 };\n'
)
READS = '@id("w") permit (principal, action == Action::"approve", resource) when { CONDITION };\n'


@pytest.mark.parametrize(("condition", "ids"), [
    ('resource.gates.contains("a")', {"a"}),
    ('!resource.gates.isEmpty()', {"a", "b"}),
    ('["a", "b"].containsAll(resource.gates)', {"a", "b"}),
    ('resource.tool == "pay"', set()),
])  # fmt: skip
def test_gates_that_exchange_their_ids_are_a_loosening_where_people_are_chosen_by_them(
    tmp_path: Path, condition: str, ids: set[str]
) -> None:
    reads = when(condition, READS)
    swapped = GATES.replace('"a"', '"c"').replace('"b"', '"a"').replace('"c"', '"b"')
    report = report_of(tmp_path, GATES + reads, swapped + reads)
    assert {f.subject for f in report.of_way(Way.LOOSENING) if f.kind == "gate-id"} == ids


@pytest.mark.parametrize(
    ("condition", "is_read"), [('resource.risk == "high"', True), ('resource.tool == "pay"', False)]
)
def test_more_risk_may_open_where_people_are_chosen_by_it(
    tmp_path: Path, condition: str, is_read: bool
) -> None:
    reads, risks = when(condition, READS), [pay_manifest(risk=risk) for risk in ("low", "high")]
    assert bool(report_of(tmp_path, reads, reads, *risks).of_way(Way.LOOSENING)) is is_read


def test_a_truth_in_place_of_a_number_is_no_narrower_enum(tmp_path: Path) -> None:
    flags = [with_property(flag={"enum": values}) for values in ([0, 1], [False, True])]
    assert "manifest-args" in kinds(report_of(tmp_path, "", "", *flags))


def test_a_new_tool_is_told_by_its_calls_and_not_by_rules_that_stand_as_they_were(tmp_path: Path) -> None:
    more = '@id("p2") permit (principal, action, resource) when { context.input.amount == 7 };'
    new = folder(tmp_path / "after", more).write("tools/send.json", pay_manifest(tool="send"))
    assert kinds(compare(folder(tmp_path / "before", more).load(), new.load())) == {"deny-to-release"}
