"""Lints of `check`: what can be proved about a valid bundle; otherwise they are silent."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from policy_service.pap.lint.report import lint_files
from policy_service.pap.source import FolderSource
from tests.fakes.bundles import GROUPS, PERMIT_ALL, BundleFolder, facts_of, pay_args, pay_manifest

ARGS = pay_args(
    amount={"type": "integer", "minimum": 1, "maximum": 1000},
    total={"type": "integer"},
    kind={"const": "card"},
    urgent={"type": "boolean"},
) | {"required": ["account", "amount", "currency"]}
FACTS = facts_of("Account", balance="Long", state="String?")


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    folder = BundleFolder(tmp_path).write("tools/pay.json", pay_manifest(args=ARGS))
    folder.write("tools/note.json", pay_manifest(tool="note", resource={"type": "Note", "id": "const:one"}))
    return folder.write("facts.toml", FACTS).write("facts/accounts.json", {"a1": {"balance": 1}})


def codes(folder: BundleFolder, text: str, level: str = "warning") -> list[str]:
    """The codes of the findings about these rules and a permit for everything."""
    folder.policies(PERMIT_ALL + text).load()
    found = lint_files(FolderSource(folder.path).read().files)
    return [finding.code for finding in found if finding.level == level]


def about_each(folder: BundleFolder, rules: Mapping[str, str]) -> dict[str, list[str]]:
    """The codes of the warnings about each rule, in one bundle with a file for each rule."""
    for number, text in enumerate(rules.values()):
        folder.write(f"r{number}.cedar", text.replace('"it"', f'"it{number}"'))
    folder.policies(PERMIT_ALL).load()
    found = [one for one in lint_files(FolderSource(folder.path).read().files) if one.level == "warning"]
    return {name: [one.code for one in found if one.file == f"r{n}.cedar"] for n, name in enumerate(rules)}


def forbid(condition: str, *, action: str = "pay", resource: str = "resource", tail: str = "") -> str:
    return f'@id("it") forbid (principal, action == Action::"{action}", {resource}) when {{ {condition} }}{tail};\n'


INPUT = "context.input"
SAME = f"{INPUT}.account == {INPUT}.currency"
NEVER = {
    "two bounds": forbid(f"{INPUT}.amount > 5 && {INPUT}.amount < 3"),
    "nothing between": forbid(f"{INPUT}.amount > 5 && {INPUT}.amount < 6"),
    "two words": forbid('resource has state && resource.state == "a" && resource.state == "b"'),
    "outside the enum": forbid(f'{INPUT}.currency == "GBP"'),
    "all of the enum refused": forbid(f'{INPUT}.currency != "USD" && "EUR" != {INPUT}.currency'),
    "above the maximum": forbid(f"{INPUT}.amount > 1000"),
    "below the minimum": forbid(f"{INPUT}.amount < 1"),
    "arithmetic above the maximum": forbid(f"{INPUT}.amount * 2 > 2000"),
    "itself and not": forbid(f"{SAME} && !({SAME})"),
    "less and more": forbid(f"{INPUT}.amount < resource.balance && {INPUT}.amount >= resource.balance"),
    "has and not": forbid("resource has state", tail=" unless { resource has state }"),
    "no such attribute": forbid("resource has colour"),
    "required attribute missing": forbid("!(resource has balance)"),
    "another resource type": forbid("resource is Note"),
    "another resource": forbid("true", action="note", resource='resource == Note::"two"'),
    "another principal type": forbid("principal is User"),
    "never compensable": forbid("context.effect.compensable"),
    "like what the enum has not": forbid(f'{INPUT}.currency like "G*"'),
    "not in the list": forbid(f'["GBP", "CHF"].contains({INPUT}.currency)'),
    "if that leads nowhere": forbid(f"if {INPUT}.amount > 5 then {INPUT}.amount < 5 else {INPUT}.amount > 7"),
    "two principals": forbid('principal == Agent::"a" && principal == Agent::"b"'),
    "another action": forbid('action == Action::"note"'),
    "a third environment": forbid('context.env == "test"'),
    "an unknown proof": forbid('principal.proof == "password"'),
    "false": forbid("false"),
    "no empty transaction": forbid("context.txn.size < 1"),
    "a gate": '@approval("finance") ' + forbid(f"{INPUT}.amount > 1000"),
}
POSSIBLE = {
    "a bound": forbid(f"{INPUT}.amount > 5 && {INPUT}.amount < 7"),
    "the maximum": forbid(f"{INPUT}.amount >= 1000"),
    "one of the enum": forbid(f'{INPUT}.currency != "USD"'),
    "an optional attribute": forbid("resource has state"),
    "an optional attribute missing": forbid("!(resource has state)"),
    "no bound in the manifest": forbid(f"{INPUT} has total && {INPUT}.total < 0 - 5"),
    "a fact": forbid("resource.balance < 0"),
    "either": forbid(f"({INPUT}.amount > 5 && {INPUT}.amount < 3) || {INPUT}.amount == 4"),
    "an agent and a role": forbid('principal == Agent::"a" && principal in Role::"r"'),
    "the other tool": '@id("it") forbid (principal, action, resource is Note);',
    "the fixed resource": forbid("true", action="note", resource='resource == Note::"one"'),
    "like": forbid(f'{INPUT}.currency like "U*"'),
    "not like": forbid(f'!({INPUT}.currency like "U*")'),
    "production": forbid('context.env == "production"'),
    "a bool": forbid(f"{INPUT} has urgent && {INPUT}.urgent == true"),
}


def test_unsatisfiable_rules_are_found_and_no_others(folder: BundleFolder) -> None:
    found = about_each(folder, NEVER | {f"possible: {name}": text for name, text in POSSIBLE.items()})
    assert {name for name, codes in found.items() if "never-matches" in codes} == set(NEVER)
    assert [codes for name, codes in found.items() if name.startswith("possible")] == [[]] * len(POSSIBLE)


GATE = '@id("ask") @approval("finance") forbid (principal, action == Action::"pay", resource) '
ABOVE_500 = GATE + f"when {{ {INPUT}.amount > 500 }};"
SHADOWED = {
    "a lower bound": ABOVE_500 + forbid(f"{INPUT}.amount > 100"),
    "everything": GATE + ";" + forbid("true"),
    "a narrower gate": ABOVE_500.replace("> 500", f'> 500 && {INPUT}.currency == "EUR"')
    + forbid(f'{INPUT}.currency != "USD"'),
    "a permit": '@id("may") permit (principal, action == Action::"note", resource);'
    + forbid("true", action="note"),
}
OPEN = {
    "a higher bound": ABOVE_500.replace("500", "100") + forbid(f"{INPUT}.amount > 500"),
    "another agent": GATE + ";" + forbid('principal == Agent::"a"'),
    "another tool": GATE + ";" + forbid("true", action="note"),
    "only when it is known": GATE + ";" + forbid("resource has state"),
}


@pytest.mark.parametrize("text", (SHADOWED | OPEN).values(), ids=SHADOWED | OPEN)
def test_shadowed_rule_is_found(folder: BundleFolder, text: str) -> None:
    assert codes(folder, text) == (["shadowed"] if text in SHADOWED.values() else [])


BALANCE = "resource.balance + 1 > 5"
FOUND = {
    "overflow": {
        "facts": BALANCE,
        "facts below": "resource.balance - 1 > 5",
        "a product of arguments": f"{INPUT} has total && {INPUT}.total * {INPUT}.total > 5",
        "a negated fact": "-resource.balance > 5",
        "a check that comes too late": f"{BALANCE} && resource.balance < 100",
        "the wrong side": f"resource.balance > 100 && {BALANCE}",
        "one of two": f"(resource.balance < 100 || resource has state) && {BALANCE}",
        "by way of else": f"if resource.balance < 100 then true else {BALANCE}",
        "a clause that comes too late": f"{BALANCE} }} when {{ resource.balance < 100",
    },
    "": {
        "bounded by the manifest": f"{INPUT}.amount * {INPUT}.amount > 5",
        "an argument without bounds": f"{INPUT} has total && {INPUT}.total * 1000 > 5",
        "asked before": f"resource.balance < 100 && {BALANCE}",
        "asked before by or": f"resource.balance >= 100 || {BALANCE}",
        "asked before by if": f"if resource.balance < 100 then {BALANCE} else true",
        "both ways bounded": f"(resource.balance < 100 || resource.balance < 200) && {BALANCE}",
        "by an argument": f"resource.balance < {INPUT}.amount && {BALANCE}",
        "by an earlier clause": f"resource.balance < 100 }} when {{ {BALANCE}",
        "a pattern with a star": f'{INPUT}.account like "acc*"',
        "a word of one other alphabet": 'principal in Role::"\u0430\u0434\u043c\u0438\u043d"',
        "values of the schema": f'{INPUT}.currency == "EUR" || {INPUT}.amount == 4',
    },
    "outside-schema": {
        "a value outside the enum": f'{INPUT}.currency == "GBP" || {INPUT}.amount == 4',
        "a value below the minimum": f"{INPUT}.amount == 0 || {INPUT}.amount == 4",
    },
    "missing-entity": {
        "an attribute of another": 'Account::"a1".balance > 5',
        "whether another has one": 'Account::"a1" has state',
        "another's group": 'User::"u" in Group::"finance"',
    },
    "like-without-wildcard": {like: f"{INPUT}.account like {like}" for like in ('"acc"', r'"acc\*"')},
    "mixed-alphabets": {"a word of two alphabets": 'principal in Role::"\u0430dmin"'},
}


def test_findings_about_conditions(folder: BundleFolder) -> None:
    rules = {name: forbid(one) for each in FOUND.values() for name, one in each.items()}
    expected = {name: [code] if code else [] for code, each in FOUND.items() for name in each}
    assert about_each(folder, rules) == expected


def test_optional_attribute_without_has_does_not_load(folder: BundleFolder) -> None:
    (problem,) = folder.policies(PERMIT_ALL + forbid('resource.state == "open"')).problems()
    assert problem.startswith("rules.cedar:2:") and "state" in problem and "optional" in problem


def test_gate_with_an_empty_group_is_found(folder: BundleFolder) -> None:
    folder.write("groups.toml", GROUPS + "[groups.empty]\nmembers = []\n")
    gate = '@id("ask") @approval("finance|empty") forbid (principal, action, resource);'
    assert codes(folder, gate) == ["empty-group"]


def test_rule_whose_scope_fits_no_tool_does_not_load(folder: BundleFolder) -> None:
    nothing = '@id("reads") forbid (principal, action in Action::"read", resource);'
    for text in (nothing, forbid("true", resource="resource is Note")):
        assert any("applicable action" in p for p in folder.policies(text).problems())


def test_too_complex_condition_is_reported(folder: BundleFolder) -> None:
    one_of = [f"({INPUT}.amount == {2 * n} || {INPUT}.amount == {2 * n + 1})" for n in range(1, 12)]
    assert "not-looked-at" in codes(folder, forbid(" && ".join(one_of)), "note")


def test_unseen_fields_are_noted_for_each_tool(folder: BundleFolder) -> None:
    folder.policies(PERMIT_ALL).load()
    found = lint_files(FolderSource(folder.path).read().files)
    notes = [(one.file, "items, note" in one.message) for one in found if one.code == "unseen-fields"]
    assert notes == [("tools/note.json", True), ("tools/pay.json", True)]


IMPOSSIBLE = forbid(f"{INPUT}.amount > 1000")
ALLOW = "// countersign: allow never-matches -- soon\n"
FIRST = '@id("first") forbid (principal, action, resource) when { context.input.account == "x" };\n'
# The rules, and the reports: a (f)inding, and that the acknowledgement is (b)ad.
ACKNOWLEDGED = {
    "above": (ALLOW + IMPOSSIBLE, ""),
    "with a blank line between": (ALLOW + "\n" + IMPOSSIBLE, ""),
    "among its annotations": ('@doc("x")\n' + ALLOW + IMPOSSIBLE, ""),
    "no reason": (ALLOW.replace(" -- soon", "") + IMPOSSIBLE, "fb"),
    "an empty reason": (ALLOW.replace("soon", "") + IMPOSSIBLE, "fb"),
    "another code": (ALLOW.replace("never-matches", "overflow") + IMPOSSIBLE, "fb"),
    "no finding": (ALLOW + forbid(f"{INPUT}.amount > 10"), "b"),
    "inside a text": (f'@doc("\n{ALLOW}")\n' + IMPOSSIBLE, "f"),
    "above the policy before": (ALLOW + FIRST + IMPOSSIBLE, "fb"),
    "after the last policy": (IMPOSSIBLE + ALLOW, "fb"),
}


@pytest.mark.parametrize(("text", "expected"), ACKNOWLEDGED.values(), ids=ACKNOWLEDGED)
def test_finding_is_acknowledged_above_its_rule(folder: BundleFolder, text: str, expected: str) -> None:
    names = {"f": "never-matches", "b": "bad-acknowledgement"}
    assert set(codes(folder, "\n" + text)) == {names[one] for one in expected}


@pytest.mark.parametrize("char", ["\u202e", "\u2066", "\u200b", "\ufeff", "\x07"])
def test_invisible_character_does_not_load(folder: BundleFolder, char: str) -> None:
    for place in (f"// a comment{char}\n", f'@doc("a text{char}")\n'):
        problems = folder.policies(PERMIT_ALL + place + forbid("true")).problems()
        assert any(p.startswith("rules.cedar:2:") and f"U+{ord(char):04X}" in p for p in problems), problems


def test_letters_of_any_language_load(folder: BundleFolder) -> None:
    text = '// Größe, 大, \u0430\n\t@id("x")\r\npermit (principal, action, resource);'
    assert folder.policies(text).problems() == []


@pytest.mark.parametrize("name", ["policies", "policies/examples/airline"])
def test_shipped_bundles_have_no_warnings(name: str) -> None:
    found = lint_files(FolderSource(Path(name)).read().files)
    assert [str(finding) for finding in found if finding.level != "note"] == []


def test_external_source_is_a_note(folder: BundleFolder) -> None:
    """A URL or a directory group; otherwise `check --strict` could never pass."""
    (folder.path / "facts/accounts.json").unlink()
    asked = 'kind = "http"\nurl = "https://facts.example/accounts"'
    folder.write("facts.toml", FACTS.replace('kind = "file"\nfile = "facts/accounts.json"', asked))
    assert (codes(folder, ""), codes(folder, "", level="note").count("asks-outside")) == ([], 1)
    folder.write("groups.toml", GROUPS + '[directory.groups]\naudit = "Audit"\n')
    assert codes(folder, GATE.replace("finance", "audit") + ";") == []
    assert codes(folder, "", level="note").count("asks-outside") == 2


@pytest.mark.parametrize(("within", "short"), [("299s", 1), ("1m", 1), ("5m", 0), ("4h", 0)])
def test_short_answer_window_is_found(folder: BundleFolder, within: str, short: int) -> None:
    gate = f'@approval("finance") @answer_within("{within}") ' + forbid(f"{INPUT}.amount > 5")
    assert codes(folder, gate) == ["short-window"] * short
