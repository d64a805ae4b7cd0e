"""What `check` can prove about a valid bundle, and that it is silent where it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policy_service.pap.lint.run import findings_about
from policy_service.pap.source import FolderSource
from tests.fakes.bundles import GROUPS, PAY_ARGS, PERMIT_ALL, BundleFolder, pay_manifest

ARGS = PAY_ARGS | {
    "required": ["account", "amount", "currency"],
    "properties": {
        **PAY_ARGS["properties"],
        "amount": {"type": "integer", "minimum": 1, "maximum": 1000},
        "total": {"type": "integer"},
        "kind": {"const": "card"},
        "urgent": {"type": "boolean"},
    },
}
FACTS = """
[entities.Account.attributes]
balance = "Long"
state = "String?"
[[source]]
name = "accounts"
kind = "file"
file = "facts/accounts.json"
entity = "Account"
"""


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    folder = BundleFolder(tmp_path).write("tools/pay.json", pay_manifest(args=ARGS))
    folder.write("tools/note.json", pay_manifest(tool="note", resource={"type": "Note", "id": "const:one"}))
    return folder.write("facts.toml", FACTS).write("facts/accounts.json", {"a1": {"balance": 1}})


def codes(folder: BundleFolder, text: str, level: str = "warning") -> list[str]:
    """The codes of the findings about these rules beside a permit for everything."""
    folder.policies(PERMIT_ALL + text).load()
    found = findings_about(FolderSource(folder.path).read().files)
    return [finding.code for finding in found if finding.level == level]


def forbid(condition: str, *, action: str = "pay", resource: str = "resource", tail: str = "") -> str:
    """One plain forbid."""
    return f'@id("it") forbid (principal, action == Action::"{action}", {resource}) when {{ {condition} }}{tail};\n'


INPUT = "context.input"
NEVER = {
    "two bounds": forbid(f"{INPUT}.amount > 5 && {INPUT}.amount < 3"),
    "nothing between": forbid(f"{INPUT}.amount > 5 && {INPUT}.amount < 6"),
    "two words": forbid('resource has state && resource.state == "a" && resource.state == "b"'),
    "outside the enum": forbid(f'{INPUT}.currency == "GBP"'),
    "all of the enum refused": forbid(f'{INPUT}.currency != "USD" && "EUR" != {INPUT}.currency'),
    "above the maximum": forbid(f"{INPUT}.amount > 1000"),
    "below the minimum": forbid(f"{INPUT}.amount < 1"),
    "arithmetic above the maximum": forbid(f"{INPUT}.amount * 2 > 2000"),
    "itself and not": forbid(
        f"{INPUT}.account == {INPUT}.currency && !({INPUT}.account == {INPUT}.currency)"
    ),
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
    "a proof nobody has": forbid('principal.proof == "password"'),
    "false": forbid("false"),
    "no empty transaction": forbid("context.txn.size < 1"),
    "a gate": '@approval("finance") ' + forbid(f"{INPUT}.amount > 1000"),
}


@pytest.mark.parametrize("text", NEVER.values(), ids=NEVER)
def test_a_rule_that_no_call_can_satisfy_is_found(folder: BundleFolder, text: str) -> None:
    assert "never-matches" in codes(folder, text)


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


@pytest.mark.parametrize("text", POSSIBLE.values(), ids=POSSIBLE)
def test_a_rule_that_some_call_satisfies_is_left_alone(folder: BundleFolder, text: str) -> None:
    assert codes(folder, text) == []


def test_a_value_outside_the_schema_is_found_in_a_rule_that_may_hold(folder: BundleFolder) -> None:
    mixed = forbid(f'{INPUT}.currency == "GBP" || {INPUT}.amount == 4')
    assert codes(folder, mixed) == ["outside-schema"]
    assert codes(folder, forbid(f"{INPUT}.amount == 0 || {INPUT}.amount == 4")) == ["outside-schema"]
    assert codes(folder, forbid(f'{INPUT}.currency == "EUR" || {INPUT}.amount == 4')) == []


GATE = '@id("ask") @approval("finance") forbid (principal, action == Action::"pay", resource) '
SHADOWED = {
    "a lower bound": GATE + f"when {{ {INPUT}.amount > 500 }};" + forbid(f"{INPUT}.amount > 100"),
    "everything": GATE + ";" + forbid("true"),
    "a narrower gate": GATE
    + f'when {{ {INPUT}.amount > 500 && {INPUT}.currency == "EUR" }};'
    + forbid(f'{INPUT}.currency != "USD"'),
    "a permit": '@id("may") permit (principal, action == Action::"note", resource);'
    + forbid("true", action="note"),
}


@pytest.mark.parametrize("text", SHADOWED.values(), ids=SHADOWED)
def test_a_rule_that_a_plain_forbid_always_beats_is_found(folder: BundleFolder, text: str) -> None:
    assert codes(folder, text) == ["shadowed"]


OPEN = {
    "a higher bound": GATE + f"when {{ {INPUT}.amount > 100 }};" + forbid(f"{INPUT}.amount > 500"),
    "another agent": GATE + ";" + forbid('principal == Agent::"a"'),
    "another tool": GATE + ";" + forbid("true", action="note"),
    "only when it is known": GATE + ";" + forbid("resource has state"),
}


@pytest.mark.parametrize("text", OPEN.values(), ids=OPEN)
def test_a_gate_that_is_sometimes_asked_is_left_alone(folder: BundleFolder, text: str) -> None:
    assert codes(folder, text) == []


OVERFLOWS = {
    "facts": "resource.balance + 1 > 5",
    "facts below": "resource.balance - 1 > 5",
    "a product of arguments": f"{INPUT} has total && {INPUT}.total * {INPUT}.total > 5",
    "a negated fact": "-resource.balance > 5",
    "a check that comes too late": "resource.balance + 1 > 5 && resource.balance < 100",
    "the wrong side": "resource.balance > 100 && resource.balance + 1 > 5",
    "one of two": "(resource.balance < 100 || resource has state) && resource.balance + 1 > 5",
    "by way of else": "if resource.balance < 100 then true else resource.balance + 1 > 5",
}


@pytest.mark.parametrize("condition", OVERFLOWS.values(), ids=OVERFLOWS)
def test_arithmetic_that_can_leave_64_bits_is_found(folder: BundleFolder, condition: str) -> None:
    assert codes(folder, forbid(condition)) == ["overflow"]


FITS = {
    "bounded by the manifest": f"{INPUT}.amount * {INPUT}.amount > 5",
    "an argument without bounds": f"{INPUT} has total && {INPUT}.total * 1000 > 5",
    "asked before": "resource.balance < 100 && resource.balance + 1 > 5",
    "asked before by or": "resource.balance >= 100 || resource.balance + 1 > 5",
    "asked before by if": "if resource.balance < 100 then resource.balance + 1 > 5 else true",
    "both ways bounded": "(resource.balance < 100 || resource.balance < 200) && resource.balance + 1 > 5",
    "by an argument": f"resource.balance < {INPUT}.amount && resource.balance + 1 > 5",
}


@pytest.mark.parametrize("condition", FITS.values(), ids=FITS)
def test_arithmetic_that_stays_within_64_bits_is_left_alone(folder: BundleFolder, condition: str) -> None:
    assert codes(folder, forbid(condition)) == []


def test_an_overflow_that_an_earlier_clause_excludes_is_none(folder: BundleFolder) -> None:
    safe = forbid("resource.balance < 100", tail=" when { resource.balance + 1 > 5 }")
    late = forbid("resource.balance + 1 > 5", tail=" when { resource.balance < 100 }")
    assert (codes(folder, safe), codes(folder, late)) == ([], ["overflow"])


@pytest.mark.parametrize(
    "condition", ['Account::"a1".balance > 5', 'Account::"a1" has state', 'User::"u" in Group::"finance"']
)
def test_an_entity_nobody_supplies_is_found(folder: BundleFolder, condition: str) -> None:
    assert codes(folder, forbid(condition)) == ["missing-entity"]


def test_an_optional_attribute_without_has_does_not_load(folder: BundleFolder) -> None:
    (problem,) = folder.policies(PERMIT_ALL + forbid('resource.state == "open"')).problems()
    assert problem.startswith("rules.cedar:2:") and "state" in problem and "optional" in problem


def test_a_pattern_without_a_star_is_found(folder: BundleFolder) -> None:
    assert codes(folder, forbid(f'{INPUT}.account like "acc"')) == ["like-without-wildcard"]
    assert codes(folder, forbid(f'{INPUT}.account like "acc*"')) == []
    assert codes(folder, forbid(rf'{INPUT}.account like "acc\*"')) == ["like-without-wildcard"]


def test_a_word_of_two_alphabets_is_found(folder: BundleFolder) -> None:
    assert codes(folder, forbid('principal in Role::"\u0430dmin"')) == ["mixed-alphabets"]
    assert codes(folder, forbid('principal in Role::"\u0430\u0434\u043c\u0438\u043d"')) == []


def test_a_gate_that_names_an_empty_group_is_found(folder: BundleFolder) -> None:
    groups = (folder.path / "groups.toml").read_text() + "[groups.nobody]\nmembers = []\n"
    folder.write("groups.toml", groups)
    gate = '@id("ask") @approval("finance|nobody") forbid (principal, action, resource);'
    assert codes(folder, gate) == ["empty-group"]


def test_a_rule_whose_scope_fits_no_tool_does_not_load(folder: BundleFolder) -> None:
    nothing = '@id("reads") forbid (principal, action in Action::"read", resource);'
    other = forbid("true", resource="resource is Note")
    for text in (nothing, other):
        assert any("applicable action" in p for p in folder.policies(text).problems())


def test_a_condition_of_too_many_cases_is_said_to_be_given_up(folder: BundleFolder) -> None:
    one_of = [f"({INPUT}.amount == {2 * n} || {INPUT}.amount == {2 * n + 1})" for n in range(1, 12)]
    assert "not-looked-at" in codes(folder, forbid(" && ".join(one_of)), "note")


def test_the_fields_policy_cannot_see_are_noted_for_each_tool(folder: BundleFolder) -> None:
    folder.policies(PERMIT_ALL).load()
    found = findings_about(FolderSource(folder.path).read().files)
    notes = [(one.file, "items, note" in one.message) for one in found if one.code == "unseen-fields"]
    assert notes == [("tools/note.json", True), ("tools/pay.json", True)]


IMPOSSIBLE = forbid(f"{INPUT}.amount > 1000")
ACKNOWLEDGED = {
    "above": "// countersign: allow never-matches -- the limit is about to be raised\n" + IMPOSSIBLE,
    "with a blank line between": "// countersign: allow never-matches -- soon\n\n" + IMPOSSIBLE,
    "among its annotations": '@doc("x")\n// countersign: allow never-matches -- soon\n' + IMPOSSIBLE,
}


@pytest.mark.parametrize("text", ACKNOWLEDGED.values(), ids=ACKNOWLEDGED)
def test_an_acknowledged_finding_is_not_told(folder: BundleFolder, text: str) -> None:
    assert codes(folder, "\n" + text) == []


NOT_ACKNOWLEDGED = {
    "no reason": (
        "// countersign: allow never-matches\n" + IMPOSSIBLE,
        {"never-matches", "bad-acknowledgement"},
    ),
    "an empty reason": (
        "// countersign: allow never-matches -- \n" + IMPOSSIBLE,
        {"never-matches", "bad-acknowledgement"},
    ),
    "another code": (
        "// countersign: allow overflow -- why\n" + IMPOSSIBLE,
        {"never-matches", "bad-acknowledgement"},
    ),
    "no finding": (
        "// countersign: allow never-matches -- why\n" + forbid(f"{INPUT}.amount > 10"),
        {"bad-acknowledgement"},
    ),
    "inside a text": (
        '@doc("\n// countersign: allow never-matches -- why\n")\n' + IMPOSSIBLE,
        {"never-matches"},
    ),
    "above the policy before": (
        '// countersign: allow never-matches -- why\n@id("first") forbid (principal, action, resource) '
        'when { context.input.account == "x" };\n' + IMPOSSIBLE,
        {"never-matches", "bad-acknowledgement"},
    ),
    "after the last policy": (
        IMPOSSIBLE + "// countersign: allow never-matches -- why\n",
        {"never-matches", "bad-acknowledgement"},
    ),
}


@pytest.mark.parametrize(("text", "expected"), NOT_ACKNOWLEDGED.values(), ids=NOT_ACKNOWLEDGED)
def test_what_acknowledges_nothing_is_told(folder: BundleFolder, text: str, expected: set[str]) -> None:
    assert set(codes(folder, text)) == expected


HIDDEN = {
    "right to left": "\u202e",
    "isolate": "\u2066",
    "zero width": "\u200b",
    "order mark": "\ufeff",
    "bell": "\x07",
}


@pytest.mark.parametrize("char", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("place", ["// a comment{}\n", '@doc("a text{}")\n'], ids=["comment", "text"])
def test_a_character_nobody_sees_keeps_a_bundle_from_loading(
    folder: BundleFolder, char: str, place: str
) -> None:
    text = PERMIT_ALL + place.format(char) + forbid("true")
    problems = folder.policies(text).problems()
    assert any(p.startswith("rules.cedar:2:") and f"U+{ord(char):04X}" in p for p in problems), problems


def test_letters_of_any_language_load(folder: BundleFolder) -> None:
    assert (
        folder.policies(
            '// Größe, 大, \u0430\n\t@id("x")\r\npermit (principal, action, resource);'
        ).problems()
        == []
    )


BUNDLES: dict[str, Any] = {"shipped": "policies", "airline": "policies/examples/airline"}


@pytest.mark.parametrize("name", BUNDLES.values(), ids=BUNDLES)
def test_the_shipped_bundles_have_no_warning(name: str) -> None:
    found = findings_about(FolderSource(Path(name)).read().files)
    assert [str(finding) for finding in found if finding.level != "note"] == []


HTTP_FACTS = """
[entities.Account.attributes]
balance = "Long"
[[source]]
name = "accounts"
kind = "http"
entity = "Account"
url = "https://facts.example/accounts"
"""


def test_an_address_is_a_note_and_no_warning(folder: BundleFolder) -> None:
    """Only a service's settings can allow it, so a bundle with a lookup would never pass `check --strict`."""
    (folder.path / "facts/accounts.json").unlink()
    folder.write("facts.toml", HTTP_FACTS)
    assert codes(folder, "") == []
    assert codes(folder, "", level="note").count("asks-outside") == 1


def test_a_directory_of_groups_is_a_note_and_no_warning(folder: BundleFolder) -> None:
    folder.write("groups.toml", GROUPS + '[directory.groups]\naudit = "Audit"\n')
    gate = '@id("g") @approval("audit") forbid (principal, action == Action::"pay", resource);'
    assert codes(folder, gate) == []
    assert codes(folder, "", level="note").count("asks-outside") == 1


@pytest.mark.parametrize(
    ("within", "found"), [("299s", ["short-window"]), ("1m", ["short-window"]), ("5m", []), ("4h", [])]
)
def test_a_question_nobody_could_read_in_time_is_found(
    folder: BundleFolder, within: str, found: list[str]
) -> None:
    gate = (
        f'@id("it") @approval("finance") @answer_within("{within}") forbid (principal, action, resource);\n'
    )
    assert codes(folder, gate) == found
