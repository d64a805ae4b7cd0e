"""docs/how-to/test-policies.md is correct: its examples run on the shipped bundle."""

import re
import shutil
import tomllib
from pathlib import Path

from typer.testing import CliRunner

from policy_service.cli import app
from policy_service.pap.policy_tests import parser
from policy_service.pap.policy_tests.parser import read_cases

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/how-to/test-policies.md").read_text()
EXAMPLE, ABOUT_PEOPLE = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_example_holds(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(ROOT / "policies", folder, ignore=shutil.ignore_patterns("examples", "library", "cases"))
    (folder / "cases").mkdir()
    (folder / "cases/page.yaml").write_text(EXAMPLE)
    result = CliRunner().invoke(app, ["test", str(folder)])
    assert (result.exit_code, result.stdout) == (0, "12 cases pass, 0 fail\n"), result.output


def test_cases_about_people_are_read() -> None:
    assert [case.it for case in read_cases({"cases/a.yaml": ABOUT_PEOPLE.encode()})] == [
        "finance may",
        "a development sign-in may not settle",
        "an administrator starts a tool again",
    ]


def test_explanation_matches_the_shipped_bundle() -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    shipped = tomllib.loads((ROOT / "policies/cases/mutants.toml").read_text())
    names = [{key: entry[key] for key in ("policy", "mutant")} for entry in shipped["survives"]]
    (entry,) = tomllib.loads(shown)["survives"]
    assert {key: entry[key] for key in ("policy", "mutant")} in names


def test_every_case_key_is_documented() -> None:
    keys = set(re.findall(r'\.(?:take|need)\(\s*"([a-z_]+)"', Path(parser.__file__).read_text()))
    assert len(keys) > 20
    assert [key for key in sorted(keys) if not re.search(rf"\b{key}\b", PAGE)] == []
