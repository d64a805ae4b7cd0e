"""Every shipped bundle has no findings, is formatted, and passes its cases, which detect all unacknowledged mutants."""

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
def test_library_bundle_is_clean_and_formatted(folder: Path, command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, str(folder)])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("folder", READY.values(), ids=READY)
def test_library_bundle_is_documented_and_indexed(folder: Path) -> None:
    readme, index = (folder / "README.md").read_text(), (POLICIES / "library/README.md").read_text()
    assert readme.startswith("# ")
    said = ("**It needs**", "**Change before use:**", "**It does not catch**")
    assert [one for one in said if one not in readme] == []
    assert f"| [{folder.name}]({folder.name}/README.md): " in index


@pytest.mark.parametrize("folder", BUNDLES.values(), ids=BUNDLES)
def test_all_cases_hold_and_cover_every_condition(folder: Path) -> None:
    """Without the databases that the bundle would query."""
    bundle = load_bundle(folder)
    prepared = prepare_cases(bundle, read_cases(bundle.source.files))
    asked = [case.ask(bundle.rules) for case in prepared]
    assert [one for one in asked if one.differences] == []
    rows = measure_coverage(bundle, prepared, asked)
    assert [row.policy for row in rows] == list(bundle.policies)
    assert {row.policy: row.gap for row in rows if row.gap} == {}


LONG = [pytest.param(one, id=name, marks=pytest.mark.long) for name, one in BUNDLES.items() if name != SHORT]


@pytest.mark.parametrize("folder", [pytest.param(BUNDLES[SHORT], id=SHORT), *LONG])
def test_only_acknowledged_mutants_survive(folder: Path) -> None:
    result = CliRunner().invoke(app, ["test", "--mutate", str(folder)])
    assert result.exit_code == 0, result.output
    assert ", 0 survive" in result.output
