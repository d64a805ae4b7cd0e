"""Loosenings that hide behind the values that are tried, behind a tightening, or behind what cannot be proved."""

from __future__ import annotations

from pathlib import Path

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
APPROVE = '@id("w") permit (principal in Group::"cfo", action == Action::"approve", resource);\n'


def folder(path: Path, rules: str) -> BundleFolder:
    """A bundle of these rules beside one that permits everything."""
    made = (
        BundleFolder(path).write("facts.toml", STATE).write("facts/accounts.json", {"a1": {"state": "open"}})
    )
    return made.policies(PERMIT_ALL + rules)


def report_of(path: Path, before: str, after: str) -> Report:
    """What two sets of rules differ in."""
    return compare(folder(path / "before", before).load(), folder(path / "after", after).load())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('context.input.account != "bob"', '["something-else", "x"].contains(context.input.account)'),
        ('context.input.account != "bob"', '["something-else", "something-elseq"].contains(context.input.account)'),
        ('resource.state != "open"', '["something-else", "x"].contains(resource.state)'),
        ('context has on_behalf_of', 'context has on_behalf_of && context.on_behalf_of == User::"someone|else"'),
        ('principal != Agent::"bob"', '[Agent::"some-agent", Agent::"some-agentq"].contains(principal)'),
        ('context.env != "dev"', 'context.env == "production" || context.env == "something-else"'),
        ('principal has owner', 'principal has owner && principal.owner == User::"someone|else"'),
        ('context.input has tags', 'context.input has tags && context.input.tags.containsAny(["something-else", "a"])'),
    ],
)  # fmt: skip
def test_no_text_that_is_tried_can_be_one_that_a_rule_names(tmp_path: Path, before: str, after: str) -> None:
    report = report_of(tmp_path, FORBID.replace("CONDITION", before), FORBID.replace("CONDITION", after))

    assert "deny-to-release" in {finding.kind for finding in report.of_way(Way.LOOSENING)}


def test_a_text_that_nothing_beside_the_named_ones_stands_for_is_sampled(tmp_path: Path) -> None:
    args = pay_manifest()["args"]
    odd = {
        **args,
        "properties": {**args["properties"], "account": {"type": "string", "pattern": "^[0-9]{9}Z$"}},
    }
    before = FORBID.replace("CONDITION", 'context.input.account != "123456789Z"')
    after = FORBID.replace("CONDITION", 'context.input.account == "987654321Z"')
    made = [
        folder(tmp_path / name, rules).write("tools/pay.json", pay_manifest(args=odd))
        for name, rules in (("before", before), ("after", after))
    ]

    report = compare(made[0].load(), made[1].load())

    assert report.tools[0].how == "sampled"
    assert report.of_way(Way.LOOSENING)


def test_a_tightening_of_a_rule_does_not_excuse_what_is_not_proved(tmp_path: Path) -> None:
    before = 'context.input.account like "*secret*"'
    after = f'({before} && !(context.input.account like "*q*")) || context.input.account == "tighten"'

    report = report_of(tmp_path, FORBID.replace("CONDITION", before), FORBID.replace("CONDITION", after))

    assert [(f.kind, f.policies) for f in report.of_way(Way.LOOSENING)] == [("unproved", ("c",))]


@pytest.mark.parametrize(
    "condition",
    [
        'resource.tool like "*p*y*" && !(resource.tool like "*x*") && !(resource.tool like "py")',
        " || ".join(f'(resource.tool == "t{n}" && principal == User::"u|{n}")' for n in range(70)),
        'resource.gates.containsAll(["a", "b", "c", "d", "e", "f", "g"])',
    ],
)
def test_what_is_not_proved_about_people_is_a_loosening(tmp_path: Path, condition: str) -> None:
    wide = f'@id("x") permit (principal, action == Action::"approve", resource) when {{ {condition} }};'

    report = report_of(tmp_path, APPROVE, APPROVE + wide)

    assert report.of_way(Way.LOOSENING)


def test_a_forbid_more_about_people_is_stricter_whatever_it_reads(tmp_path: Path) -> None:
    more = '@id("x") forbid (principal, action == Action::"approve", resource) when { resource.tool like "*a*b" };'

    report = report_of(tmp_path, APPROVE, APPROVE + more)

    assert report.not_acknowledged(()) == []


@pytest.mark.parametrize("after", ['resource.tool == "something-else"', 'resource.tool == "something-elseq"'])
def test_a_tool_that_a_rule_about_people_names_is_not_the_other_one_tried(tmp_path: Path, after: str) -> None:
    rule = '@id("no") forbid (principal, action == Action::"approve", resource) when { CONDITION };'
    before = rule.replace("CONDITION", 'resource.tool != "pay"')

    report = report_of(tmp_path, APPROVE + before, APPROVE + rule.replace("CONDITION", after))

    assert "who-may-approve" in {finding.kind for finding in report.of_way(Way.LOOSENING)}


def test_an_object_that_may_be_left_out_is_tried_with_what_is_in_it(tmp_path: Path) -> None:
    args = pay_manifest()["args"]
    inner = {"type": "object", "additionalProperties": False, "properties": {"bank": {"type": "string"}}}
    deep = pay_manifest(args={**args, "properties": {**args["properties"], "to": inner}})
    rule = FORBID.replace(
        "CONDITION", 'context.input has to && context.input.to has bank && context.input.to.bank != "b"'
    )
    made = [
        folder(tmp_path / name, rules).write("tools/pay.json", deep)
        for name, rules in (("before", rule), ("after", rule.replace("!=", "==")))
    ]

    report = compare(made[0].load(), made[1].load())

    assert "deny-to-release" in {finding.kind for finding in report.of_way(Way.LOOSENING)}


def test_what_nobody_can_claim_is_never_there(tmp_path: Path) -> None:
    before = FORBID.replace("CONDITION", "context.claimed has nothing_like_this")

    report = report_of(tmp_path, before, before.replace("forbid", "permit"))

    assert report.not_acknowledged(()) == []


LIMIT = '@id("p") forbid (principal, action, resource) when { context.input.amount > 5 };\n'
NAMED = '@id("q") forbid (principal, action, resource) when { context.input.account == "z" };\n'


def test_one_loosening_does_not_hide_another_behind_the_same_call(tmp_path: Path) -> None:
    report = report_of(tmp_path, LIMIT + NAMED, LIMIT.replace("> 5", "> 6") + NAMED.replace('"z"', '"zz"'))

    behind = {name for finding in report.of_way(Way.LOOSENING) for name in finding.policies}
    assert behind == {"p", "q"}


def test_a_rule_that_is_stricter_by_itself_needs_no_acknowledgement_beside_a_laxer_one(
    tmp_path: Path,
) -> None:
    report = report_of(tmp_path, LIMIT + NAMED, LIMIT.replace("> 5", "> 4") + NAMED.replace('"z"', '"zz"'))

    behind = {name for finding in report.of_way(Way.LOOSENING) for name in finding.policies}
    assert behind == {"q"}


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
    reads = READS.replace("CONDITION", condition)
    swapped = GATES.replace('"a"', '"c"').replace('"b"', '"a"').replace('"c"', '"b"')

    report = report_of(tmp_path, GATES + reads, swapped + reads)

    assert {f.subject for f in report.of_way(Way.LOOSENING) if f.kind == "gate-id"} == ids


@pytest.mark.parametrize(
    ("condition", "is_read"), [('resource.risk == "high"', True), ('resource.tool == "pay"', False)]
)
def test_more_risk_may_open_where_people_are_chosen_by_it(
    tmp_path: Path, condition: str, is_read: bool
) -> None:
    reads = READS.replace("CONDITION", condition)
    made = [
        folder(tmp_path / risk, reads).write("tools/pay.json", pay_manifest(risk=risk))
        for risk in ("low", "high")
    ]

    report = compare(made[0].load(), made[1].load())

    assert bool(report.of_way(Way.LOOSENING)) is is_read


def test_a_truth_in_place_of_a_number_is_no_narrower_enum(tmp_path: Path) -> None:
    args = pay_manifest()["args"]
    made = [
        folder(tmp_path / str(index), "").write(
            "tools/pay.json",
            pay_manifest(args={**args, "properties": {**args["properties"], "flag": {"enum": values}}}),
        )
        for index, values in enumerate(([0, 1], [False, True]))
    ]

    report = compare(made[0].load(), made[1].load())

    assert "manifest-args" in {finding.kind for finding in report.of_way(Way.LOOSENING)}


def test_a_new_tool_is_told_by_its_calls_and_not_by_rules_that_stand_as_they_were(tmp_path: Path) -> None:
    more = '@id("p2") permit (principal, action, resource) when { context.input.amount == 7 };'
    old = folder(tmp_path / "before", more)
    new = folder(tmp_path / "after", more).write("tools/send.json", pay_manifest(tool="send"))

    report = compare(old.load(), new.load())

    assert {finding.kind for finding in report.of_way(Way.LOOSENING)} == {"deny-to-release"}
