"""Every bundle we ship: its cases hold, and they notice every small slip in its rules but those that are explained."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from policy_service.cli import app
from policy_service.pap.bundle import load_bundle
from policy_service.pap.cases.coverage import coverage_of
from policy_service.pap.cases.reading import cases_in
from policy_service.pap.cases.running import prepare_cases

POLICIES = Path(__file__).resolve().parents[2] / "policies"
BUNDLES = {"support desk": POLICIES, "airline": POLICIES / "examples/airline"}


@pytest.mark.parametrize("folder", BUNDLES.values(), ids=BUNDLES)
def test_no_case_needs_a_database_and_all_hold(folder: Path) -> None:
    result = CliRunner().invoke(app, ["test", str(folder)])
    assert result.exit_code == 0, result.output
    assert ", 0 do not" in result.output


@pytest.mark.parametrize("folder", BUNDLES.values(), ids=BUNDLES)
def test_every_policy_decides_a_case_and_every_condition_goes_both_ways(folder: Path) -> None:
    bundle = load_bundle(folder)
    prepared = prepare_cases(bundle, cases_in(bundle.source.files))
    rows = coverage_of(bundle, prepared, [case.ask(bundle.rules) for case in prepared])
    assert [row.policy for row in rows] == list(bundle.policies)
    assert {row.policy: row.gap for row in rows if row.gap} == {}


@pytest.mark.parametrize("folder", BUNDLES.values(), ids=BUNDLES)
def test_no_mutant_survives_but_those_that_are_explained(folder: Path) -> None:
    result = CliRunner().invoke(app, ["test", "--mutate", str(folder)])
    assert result.exit_code == 0, result.output
    assert ", 0 survive" in result.output
