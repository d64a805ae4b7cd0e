"""Coverage of rules by cases, and the JUnit report."""

from pathlib import Path
from xml.etree import ElementTree as Xml

from policy_service.channels.admin.policy_cli.run_cases import junit_report
from policy_service.pap.policy_tests.coverage import PolicyCoverage, coverage_table, measure_coverage
from policy_service.pap.policy_tests.runner import prepare_cases
from tests.fakes.bundles import PERMIT_ALL, BundleFolder
from tests.fakes.cases import HEAD, ask, read, small_bundle


def rows(folder: BundleFolder, cases: str) -> dict[str, PolicyCoverage]:
    bundle = folder.load()
    prepared = prepare_cases(bundle, read(HEAD + cases))
    answered = [case.ask(bundle.rules) for case in prepared]
    return {row.policy: row for row in measure_coverage(bundle, prepared, answered)}


SMALL = "  - {it: small, expect: release}\n"
LARGE = "  - {it: large, args: {amount: 500}, expect: review, gates: [large]}\n"
MILLION = "  - {it: million, args: {amount: 1000000}, expect: deny, reasons: [never-a-million]}\n"
STRANGER = "  - {it: stranger, agent: {name: x}, expect: deny, reasons: [no_permit]}\n"


def test_unused_policy_is_named(tmp_path: Path) -> None:
    found = rows(small_bundle(tmp_path), SMALL)
    gaps = {"payers-may-pay": "always holds", "large": "never decides", "never-a-million": "never decides"}
    assert {name: row.gap for name, row in found.items()} == gaps
    lines = coverage_table(tuple(found.values())).splitlines()
    assert [line.split()[0] for line in lines] == ["policy", *gaps]
    assert lines[2].endswith("never decides")


def test_complete_cases_leave_no_gap(tmp_path: Path) -> None:
    found = rows(small_bundle(tmp_path), SMALL + LARGE + MILLION + STRANGER)
    assert [row.gap for row in found.values()] == ["", "", ""]
    assert found["large"].to_json() == {
        "policy": "large", "place": "rules.cedar:4", "kind": "gate", "determined": 1, "held": 2, "not_held": 2,
        "erred": 0, "gap": "",
    }  # fmt: skip


def test_gate_behind_a_forbid_holds_but_never_decides(tmp_path: Path) -> None:
    row = rows(small_bundle(tmp_path), SMALL + MILLION)["large"]
    assert (row.held, row.determined, row.gap) == (1, 0, "never decides")


def test_unconditional_and_erring_rules(tmp_path: Path) -> None:
    squared = "context.input.amount * context.input.amount"
    square = f'@id("square") forbid (principal, action, resource) when {{ {squared} < 0 }};'
    folder = BundleFolder(tmp_path).policies(PERMIT_ALL + square)
    assert rows(folder, SMALL)["all"].gap == ""
    found = rows(folder, "  - {it: a, args: {amount: 9007199254740991}, expect: deny, errors: [square]}\n")
    assert (found["square"].erred, found["square"].determined, found["square"].gap) == (1, 1, "never holds")


def test_calls_that_never_reach_the_rules_are_not_counted(tmp_path: Path) -> None:
    lost = "  - {it: a, tool: x, expect: deny, reasons: [unknown_tool]}\n"
    wrong = "  - {it: b, args: {amount: lots}, expect: deny, reasons: [invalid_args]}\n"
    row = rows(small_bundle(tmp_path), lost + wrong)["payers-may-pay"]
    assert (row.held, row.not_held, row.erred) == (0, 0, 0)


def test_junit_report_has_a_suite_per_file(tmp_path: Path) -> None:
    text = f"{HEAD}  - {{it: holds, expect: release}}\n  - {{it: does not, expect: deny, reasons: [no_permit]}}\n"
    root = Xml.fromstring(junit_report(ask(small_bundle(tmp_path), text)))
    assert root.attrib == {"tests": "2", "failures": "1"}
    (suite,) = root
    assert suite.attrib == {"name": "cases/a.yaml", "tests": "2", "failures": "1", "errors": "0"}
    good, bad = suite
    assert (good.get("name"), good.get("line"), len(good)) == ("holds", "8", 0)
    (failure,) = bad
    assert failure.get("message") == "expect: found release, expected deny"
    assert str(failure.text).splitlines()[0] == "cases/a.yaml:9"
    assert Xml.fromstring(junit_report([])).attrib == {"tests": "0", "failures": "0"}


def test_case_name_is_escaped_in_the_report(tmp_path: Path) -> None:
    name = '\\"]]><!-- & <case> \\u0001 \\ufffe'
    answered = ask(small_bundle(tmp_path), f'{HEAD}  - it: "{name}"\n    expect: release\n')
    (test,) = Xml.fromstring(junit_report(answered)).iter("testcase")
    assert str(test.get("name")).startswith('"]]><!-- & <case> \ufffd')
