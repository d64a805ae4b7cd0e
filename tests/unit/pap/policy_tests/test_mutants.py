"""Every mutant of a rule is tried; an undetected one is reported by name and may be acknowledged."""

from pathlib import Path

import pytest

from policy_service.pap.folder_reader import is_bundle_file
from policy_service.pap.policies import read_policies
from policy_service.pap.policy_tests import coverage
from policy_service.pap.policy_tests.mutants import Mutant, generate_mutants
from policy_service.pap.policy_tests.runner import prepare_cases
from policy_service.pap.problems import BundleError
from tests.fakes.bundles import BundleFolder
from tests.fakes.cases import ALL_CASES, HEAD, read, small_bundle


def names(text: str, *narrows: str) -> list[str]:
    policies, problems = read_policies({"a.cedar": text.encode()}, frozenset({"finance", "cfo"}))
    assert problems == []
    (policy,) = policies.values()
    return [mutant.name for mutant in generate_mutants(policy, {"finance", "cfo"}, frozenset(narrows))]


def run(folder: BundleFolder, cases: str) -> coverage.MutationResult:
    bundle = folder.load()
    prepared = prepare_cases(bundle, read(cases))
    return coverage.run_mutants(bundle, prepared, [case.ask(bundle.rules) for case in prepared])


def survivors(folder: BundleFolder, cases: str) -> list[str]:
    return [f"{mutant.of.source.id}: {mutant.name}" for mutant in run(folder, cases).survived]


N, S, AB = "(context.n) > 5", '(context.s) == "x"', "(context.a) && (context.b)"
ANYTHING = "(principal, action, resource)"
T, EVENING = "((context.now).toTime())", 'context.now.toTime() >= duration("18h")'
MADE = {
    "a bare permit": (f"permit {ANYTHING};", ["permit -> forbid"]),
    "a role": ('permit (principal in Role::"r", action, resource);', ["permit -> forbid", "principal: anybody"]),
    "two actions": (
        'permit (principal, action in [Action::"x", Action::"y"], resource);',
        ["permit -> forbid", 'action: without Action::"x"', 'action: without Action::"y"']),
    "a comparison with a number": (
        f"forbid {ANYTHING} when {{ context.n > 5 }};",
        ["forbid -> permit", f"when {{ {N} }} is dropped", f"when -> unless: {N}", f"{N} -> (context.n) >= 5",
         "5 -> 4", "5 -> 6"]),
    "unless": (
        f'forbid {ANYTHING} unless {{ context.s == "x" }};',
        ["forbid -> permit", f"unless {{ {S} }} is dropped", f"unless -> when: {S}", f'{S} -> (context.s) != "x"',
         '"x" -> "x~"']),
    "two conditions": (
        f"forbid {ANYTHING} when {{ context.a && context.b }};",
        ["forbid -> permit", f"when {{ {AB} }} is dropped", f"when -> unless: {AB}",
         f"{AB} -> (context.a) || (context.b)", f"{AB} -> context.a", f"{AB} -> context.b"]),
    "a duration": (
        f"forbid {ANYTHING} when {{ {EVENING} }};",
        ["forbid -> permit", f'when {{ {T} >= (duration("18h")) }} is dropped',
         f'when -> unless: {T} >= (duration("18h"))', f'{T} >= (duration("18h")) -> {T} > (duration("18h"))',
         'duration("18h") -> duration("17h")', 'duration("18h") -> duration("19h")']),
    "a gate": (
        '@approval("finance|cfo") @quorum("2") @valid_for("30m") @answer_within("4h") @reason '
        f'@step_up("passkey") @shared forbid {ANYTHING};',
        ["@approval is dropped: nobody is asked", "@approval: cfo|finance -> finance", "@approval: cfo|finance -> cfo",
         "@quorum: 2 -> 1", "@quorum: 2 -> 3", "@step_up is dropped", "@answer_within: 4:00:00 -> 8:00:00",
         "@valid_for: 0:30:00 -> 1:00:00", "@reason is dropped", "@shared is dropped"]),
    "fields exempt from review": (f'@unseen("items") permit {ANYTHING};', ["permit -> forbid", "@unseen is dropped"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "made"), MADE.values(), ids=MADE)
def test_mutants_of_a_rule(text: str, made: list[str]) -> None:
    assert names(f'@id("a") {text}') == ["the policy is dropped", *made]


def test_mutants_of_a_narrowing_type_and_duplicate_names() -> None:
    text = '@id("a") permit (principal, action, resource is Account);'
    assert "resource: any" in names(text, "Account", "Order")
    assert "resource: any" not in names(text, "Account")
    text = '@id("a") forbid (principal, action, resource) when { context.a > 5 || context.b > 5 };'
    assert {"5 -> 6", "5 -> 6 #2"} <= set(names(text))


def test_complete_cases_leave_no_survivor(tmp_path: Path) -> None:
    mutation = run(small_bundle(tmp_path), ALL_CASES)
    assert [mutant.name for mutant in mutation.survived] == []
    assert mutation.noticed > 20


MISSED = {
    "the edge": "large: ((context.input).amount) > 100 -> ((context.input).amount) >= 100",
    "above": "large: @reason is dropped",
    "a stranger": "payers-may-pay: principal: anybody",
    "below a million": "never-a-million: 1000000 -> 999999",
}


def test_missing_case_leaves_a_survivor(tmp_path: Path) -> None:
    folder = small_bundle(tmp_path)
    for without, survivor in MISSED.items():
        cases = "".join(line for line in ALL_CASES.splitlines(keepends=True) if f"it: {without}," not in line)
        assert survivor in survivors(folder, cases)


def test_failing_or_unrelated_cases_detect_nothing(tmp_path: Path) -> None:
    """A failing case would fail on every mutant, and hide that the rule is not covered."""
    folder = small_bundle(tmp_path)
    mutation = run(folder, f"{HEAD}  - {{it: a, tool: other, expect: deny, reasons: [unknown_tool]}}\n")
    assert mutation.noticed == 0
    survived = {mutant.of.source.id for mutant in mutation.survived}
    assert survived == {"payers-may-pay", "large", "never-a-million"}
    assert run(folder, f"{HEAD}  - {{it: a, expect: deny, reasons: [never-a-million]}}\n").noticed == 0


def test_mutant_refused_by_the_schema_is_counted_separately(tmp_path: Path) -> None:
    folder = BundleFolder(tmp_path).policies(
        '@id("a") permit (principal, action == Action::"pay", resource)\n'
        'when { context.input has currency && context.input.currency == "USD" };'
    )
    mutation = run(folder, HEAD + "  - {it: a, args: {currency: USD}, expect: release}\n")
    assert mutation.refused >= 2  # `||`, and the second half alone, read what may be missing
    assert not any("||" in mutant.name for mutant in mutation.survived)


def test_rule_refused_by_its_own_schema_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each of its mutants would count as refused, and none as a survivor."""
    folder = small_bundle(tmp_path)
    folder.load()
    monkeypatch.setattr(coverage, "tool_shapes", lambda parts: [])
    with pytest.raises(ValueError, match="no longer fits its bundle's schema"):
        run(folder, ALL_CASES)


def test_rules_about_people_have_mutants(tmp_path: Path) -> None:
    rule = '@id("approvers") permit (principal in Group::"finance", action == Action::"approve", resource);'
    folder = small_bundle(tmp_path).write("people.cedar", rule)
    people = "approve:\n  - {it: p, tool: pay, groups: [finance], expect: allowed}\n"
    left = ["approvers: the policy is dropped", "approvers: principal: anybody"]
    assert survivors(folder, ALL_CASES + people) == left
    both = people + "  - {it: q, tool: pay, groups: [cfo], expect: refused}\n"
    assert survivors(folder, ALL_CASES + both) == []


# ------------------------------------------------------------------------------------------ acknowledging

ENTRY = '[[survives]]\npolicy = "large"\nmutant = "@shared is added"\nwhy = "no other gate fires with it"\n'


def survivor(tmp_path: Path) -> list[Mutant]:
    cases = ALL_CASES.replace("needs: {finance: {people: 2, reason: true}}", "needs: {finance: 2}")
    return [mutant for mutant in run(small_bundle(tmp_path), cases).survived if "shared" in mutant.name]


def test_acknowledged_survivor_and_stale_acknowledgement(tmp_path: Path) -> None:
    acknowledged = coverage.read_acknowledged_mutants({"cases/mutants.toml": ENTRY.encode()})
    assert acknowledged == {("large", "@shared is added"): "no other gate fires with it"}
    survived = survivor(tmp_path)
    assert coverage.unacknowledged_mutants(survived, acknowledged) == ([], [])
    for entry, hint in (
        (ENTRY.replace("@shared is added", "@shared is ad"), "did you mean '@shared is added'?"),
        (ENTRY.replace('"large"', '"gone"'), "remove the entry"),
        (ENTRY.replace("@shared is added", "@reason is dropped"), "remove the entry"),
    ):
        entries = coverage.read_acknowledged_mutants({"cases/mutants.toml": entry.encode()})
        left, stale = coverage.unacknowledged_mutants(survived, entries)
        assert (len(left), len(stale)) == (1, 1)
        assert hint in stale[0].message


WRONG = [
    ("[[survives", "cases/mutants.toml: "),
    ('[survives]\npolicy = "a"', "in two brackets"),
    ("[[survive]]", "'survive' is not a key of this file"),
    (ENTRY.replace("why", "because"), "needs why = a text"),
    (ENTRY.replace("no other gate fires with it", "  "), "needs why = a text"),
    (ENTRY + "when = 1", "'when' is unknown"),
    ("survives = [1]", "needs policy = a text"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_invalid_mutants_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(BundleError) as refused:
        coverage.read_acknowledged_mutants({"cases/mutants.toml": text.encode()})
    assert message in str(refused.value)


def test_mutants_file_has_one_name() -> None:
    assert is_bundle_file("cases/mutants.toml")
    others = ("cases/mutant.toml", "mutants.toml", "tools/mutants.toml")
    assert [name for name in others if is_bundle_file(name)] == []
