"""Every bundle we ship: nothing about it looks wrong, it is laid out, its cases hold, and they notice every small slip
in its rules but those that are explained.
"""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from policy_service.cli import app
from policy_service.pap.bundle import load_bundle
from policy_service.pap.policy_tests.coverage import measure_coverage
from policy_service.pap.policy_tests.parser import read_cases
from policy_service.pap.policy_tests.runner import prepare_cases

POLICIES = Path(__file__).resolve().parents[2] / "policies"
READY = {folder.name: folder for folder in sorted((POLICIES / "library").iterdir()) if folder.is_dir()}
BUNDLES = {"support desk": POLICIES, "airline": POLICIES / "examples/airline"} | READY

SHORT = next(iter(READY))
"""The bundle whose mutants are tried every day; `make check` and `make test-long` try those of all."""


@pytest.mark.parametrize("folder", READY.values(), ids=READY)
@pytest.mark.parametrize("command", [["check", "--strict"], ["fmt", "--check"]], ids=" ".join)
def test_a_ready_rule_looks_right_and_is_laid_out(folder: Path, command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, str(folder)])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("folder", READY.values(), ids=READY)
def test_a_ready_rule_says_what_it_needs_and_does_not_catch_and_is_in_the_index(folder: Path) -> None:
    readme, index = (folder / "README.md").read_text(), (POLICIES / "library/README.md").read_text()
    assert readme.startswith("# ")
    said = ("**It needs**", "**Change before use:**", "**It does not catch**")
    assert [one for one in said if one not in readme] == []
    assert f"| [{folder.name}]({folder.name}/README.md): " in index


@pytest.mark.parametrize("folder", BUNDLES.values(), ids=BUNDLES)
def test_every_case_holds_and_every_condition_goes_both_ways(folder: Path) -> None:
    """Without any of the databases that the bundle would ask."""
    bundle = load_bundle(folder)
    prepared = prepare_cases(bundle, read_cases(bundle.source.files))
    asked = [case.ask(bundle.rules) for case in prepared]
    assert [one for one in asked if one.differences] == []
    rows = measure_coverage(bundle, prepared, asked)
    assert [row.policy for row in rows] == list(bundle.policies)
    assert {row.policy: row.gap for row in rows if row.gap} == {}


def test_the_command_says_that_the_cases_hold() -> None:
    result = CliRunner().invoke(app, ["test", str(BUNDLES[SHORT])])
    assert result.exit_code == 0, result.output
    assert ", 0 do not" in result.output


LONG = [pytest.param(one, id=name, marks=pytest.mark.long) for name, one in BUNDLES.items() if name != SHORT]


@pytest.mark.parametrize("folder", [pytest.param(BUNDLES[SHORT], id=SHORT), *LONG])
def test_no_mutant_survives_but_those_that_are_explained(folder: Path) -> None:
    result = CliRunner().invoke(app, ["test", "--mutate", str(folder)])
    assert result.exit_code == 0, result.output
    assert ", 0 survive" in result.output
