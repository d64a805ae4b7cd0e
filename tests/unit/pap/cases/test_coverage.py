"""Which rules the cases use: what no case shows is named."""

from pathlib import Path

from policy_service.pap.cases.coverage import Covered, coverage_of, table
from policy_service.pap.cases.running import prepare_cases
from tests.fakes.bundles import BundleFolder
from tests.fakes.cases import HEAD, read, small_bundle


def rows(folder: BundleFolder, cases: str) -> dict[str, Covered]:
    bundle = folder.load()
    prepared = prepare_cases(bundle, read(HEAD + cases))
    return {
        row.policy: row
        for row in coverage_of(bundle, prepared, [case.ask(bundle.rules) for case in prepared])
    }


SMALL = "  - {it: small, expect: release}\n"
LARGE = "  - {it: large, args: {amount: 500}, expect: review, gates: [large]}\n"
MILLION = "  - {it: million, args: {amount: 1000000}, expect: deny, reasons: [never-a-million]}\n"
STRANGER = "  - {it: stranger, agent: {name: x}, expect: deny, reasons: [no_permit]}\n"


def test_a_policy_no_case_uses_is_named(tmp_path: Path) -> None:
    found = rows(small_bundle(tmp_path), SMALL)
    assert {name: row.gap for name, row in found.items()} == {
        "payers-may-pay": "always holds",
        "large": "never decides",
        "never-a-million": "never decides",
    }


def test_cases_that_show_every_side_leave_no_gap(tmp_path: Path) -> None:
    found = rows(small_bundle(tmp_path), SMALL + LARGE + MILLION + STRANGER)
    assert [row.gap for row in found.values()] == ["", "", ""]
    assert found["large"].to_json() == {
        "policy": "large", "place": "rules.cedar:4", "kind": "gate", "determined": 1, "held": 2, "not_held": 2,
        "erred": 0, "gap": "",
    }  # fmt: skip


def test_a_gate_behind_a_forbid_holds_but_never_decides(tmp_path: Path) -> None:
    row = rows(small_bundle(tmp_path), SMALL + MILLION)["large"]
    assert (row.held, row.determined, row.gap) == (1, 0, "never decides")


def test_a_rule_without_conditions_need_not_go_both_ways(tmp_path: Path) -> None:
    folder = BundleFolder(tmp_path).policies('@id("all") permit (principal, action, resource);')
    assert rows(folder, SMALL)["all"].gap == ""


def test_a_rule_that_errs_is_counted(tmp_path: Path) -> None:
    folder = BundleFolder(tmp_path).policies(
        '@id("all") permit (principal, action, resource);'
        '@id("square") forbid (principal, action == Action::"pay", resource)'
        " when { context.input.amount * context.input.amount < 0 };"
    )
    found = rows(folder, "  - {it: a, args: {amount: 9007199254740991}, expect: deny, errors: [square]}\n")
    assert (found["square"].erred, found["square"].determined) == (1, 1)
    assert found["square"].gap == "never holds"


def test_calls_that_never_reach_the_rules_count_for_nothing(tmp_path: Path) -> None:
    lost = "  - {it: a, tool: x, expect: deny, reasons: [unknown_tool]}\n"
    wrong = "  - {it: b, args: {amount: lots}, expect: deny, reasons: [invalid_args]}\n"
    row = rows(small_bundle(tmp_path), lost + wrong)["payers-may-pay"]
    assert (row.held, row.not_held, row.erred) == (0, 0, 0)


def test_the_table_names_each_policy_and_its_gap(tmp_path: Path) -> None:
    lines = table(tuple(rows(small_bundle(tmp_path), SMALL).values())).splitlines()
    assert [line.split()[0] for line in lines] == ["policy", "payers-may-pay", "large", "never-a-million"]
    assert lines[2].endswith("never decides")
