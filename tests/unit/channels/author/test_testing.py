"""``policy-service test`` and ``new``: what they print, when they refuse, and a new bundle that passes its tests."""

import json
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from policy_service.cli import app
from policy_service.pap.bundle import load_bundle
from tests.fakes.bundles import BundleFolder
from tests.fakes.cases import ALL_CASES, HEAD, small_bundle

HOLDS = f"{HEAD}  - {{it: small, expect: release}}\n"
FAILS = f"{HEAD}  - {{it: small, expect: deny, reasons: [no_permit]}}\n"
DIFFERENCES = ["expect: found release, expected deny", "reasons: found [], expected [no_permit]"]


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    return small_bundle(tmp_path / "bundle")


def run(folder: BundleFolder, *words: str) -> Result:
    return CliRunner().invoke(app, ["test", str(folder.path), *words])


def test_passing_cases_are_counted_with_coverage(folder: BundleFolder) -> None:
    result = run(folder.write("cases/a.yaml", HOLDS))
    assert (result.exit_code, result.stdout) == (0, "1 cases pass, 0 fail\n")
    assert "never decides" in run(folder, "--coverage").stdout


def test_a_failing_case_is_a_line_with_its_location(folder: BundleFolder) -> None:
    """And what a case is called does not move the cursor."""
    result = run(folder.write("cases/a.yaml", FAILS))
    assert result.exit_code == 1
    printed = [f"cases/a.yaml:8: small: {'; '.join(DIFFERENCES)}", "0 cases pass, 1 fail"]
    assert result.stdout.splitlines() == printed
    folder.write("cases/a.yaml", FAILS.replace("it: small", 'it: "\\x1b[2Jsmall"'))
    assert "\x1b" not in run(folder).stdout


def test_a_bundle_that_has_no_cases_or_is_not_there_is_refused(folder: BundleFolder) -> None:
    result = run(folder)
    assert (result.exit_code, "the bundle has no cases" in result.stdout) == (1, True)
    result = CliRunner().invoke(app, ["test", str(folder.path / "none")])
    assert (result.exit_code, "there is no such folder" in result.stderr) == (1, True)


def test_unreadable_cases_are_reported_with_their_line(folder: BundleFolder) -> None:
    folder.write("cases/a.yaml", f"{HEAD}  - {{it: a}}\n")
    plain, machine = run(folder), run(folder, "--json")
    assert (plain.exit_code, machine.exit_code) == (1, 1)
    assert "cases/a.yaml:8: a case needs `expect:`" in plain.stderr
    problem = {"file": "cases/a.yaml", "line": 8, "message": "a case needs `expect:`"}
    problem |= {"code": "invalid", "level": "error"}
    assert json.loads(machine.stdout) == {"ok": False, "problems": [problem]}


def test_json_holds_every_case_and_the_coverage(folder: BundleFolder) -> None:
    answer = json.loads(run(folder.write("cases/a.yaml", FAILS), "--json").stdout)
    assert answer["ok"] is False
    place = {"file": "cases/a.yaml", "line": 8, "it": "small"}
    assert answer["cases"] == [place | {"holds": False, "differences": DIFFERENCES}]
    assert [row["policy"] for row in answer["coverage"]] == ["payers-may-pay", "large", "never-a-million"]
    assert "mutants" not in answer


def test_junit_is_also_written_when_cases_fail(folder: BundleFolder, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert run(folder.write("cases/a.yaml", FAILS), "--junit", str(report)).exit_code == 1
    assert Xml.parse(report).getroot().get("failures") == "1"


UNWRITABLE = [("rules.cedar", "is inside the bundle"), ("../no/x", "cannot be written")]


@pytest.mark.parametrize(("file", "printed"), UNWRITABLE)
def test_junit_never_replaces_a_file_of_the_bundle(folder: BundleFolder, file: str, printed: str) -> None:
    rules = (folder.path / "rules.cedar").read_text()
    result = run(folder.write("cases/a.yaml", HOLDS), "--junit", str(folder.path / file))
    assert (result.exit_code, printed in result.output) == (1, True)
    assert (folder.path / "rules.cedar").read_text() == rules


def test_a_surviving_mutant_is_reported_with_its_location(folder: BundleFolder) -> None:
    result = run(folder.write("cases/a.yaml", HOLDS), "--mutate")
    assert result.exit_code == 1
    printed = "rules.cedar:4: large: survives: @quorum: 2 -> 1; write a case"
    assert any(line.startswith(printed) for line in result.stdout.splitlines())


def test_an_explained_survivor_passes_and_a_stale_explanation_does_not(folder: BundleFolder) -> None:
    entry = '[[survives]]\npolicy = "large"\nmutant = "@quorum: 2 -> 3"\nwhy = "three is the same to us"\n'
    folder.write("cases/mutants.toml", entry)
    folder.write("cases/a.yaml", ALL_CASES.replace("true}", "true, shared: false}"))
    stale = run(folder, "--mutate")
    assert stale.exit_code == 1
    assert "cases/mutants.toml: policy 'large': no mutant '@quorum: 2 -> 3' survives" in stale.stdout
    kept = [line for line in ALL_CASES.splitlines() if "it: above" not in line]
    folder.write("cases/a.yaml", "\n".join(kept))
    left = json.loads(run(folder, "--mutate", "--json").stdout)["mutants"]
    assert left["acknowledged"] == 1
    assert all(each["mutant"] != "@quorum: 2 -> 3" for each in left["survived"])


# -- `new`: the bundle passes every command in its README, and nothing is overwritten


def invoked(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new") / "rules"
    code, out, _ = invoked("new", "--json", str(folder))
    printed = json.loads(out)
    assert (code, printed["ok"]) == (0, True)
    assert all((folder / name).is_file() for name in printed["files"])
    return folder


def test_the_starter_is_valid_and_its_cases_detect_every_mutant(made: Path) -> None:
    assert load_bundle(made).warnings == ()
    code, out, _ = invoked("test", "--mutate", str(made))
    assert (code, ", 0 survive" in out) == (0, True), out
    files = {path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()}
    assert {"README.md", "rules.cedar", "groups.toml", "facts.toml", "cases/rules.yaml"} <= files


def test_the_workflow_runs_the_documented_commands_without_pull_request_text(made: Path) -> None:
    """A branch's name is somebody else's text: it goes through the environment, never into the script."""
    workflow = yaml.safe_load((made / ".github/workflows/policies.yml").read_text())
    steps = [step.get("run", "") for step in workflow["jobs"]["policies"]["steps"]]
    page = (made / "README.md").read_text()
    for verb in ("check", "fmt --check", "test --mutate", "diff"):
        assert any(f"policy-service {verb}" in step for step in steps), verb
        assert f"policy-service {verb.removesuffix(' --check')} " in page
    assert workflow["permissions"] == {"contents": "read"}
    assert all("${{" not in step for step in steps)


def test_new_writes_into_an_empty_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert invoked("new", str(tmp_path))[0] == 0


@pytest.mark.parametrize("name", ["rules.cedar", "notes.txt", ".github"])
def test_new_refuses_a_folder_that_is_not_empty(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    code, _, said = invoked("new", str(tmp_path))
    assert code == 1
    assert f"contains {name!r}" in said
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_new_refuses_a_path_that_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place, printed in (("file", "is a file"), ("file/inner", "cannot be written")):
        code, _, said = invoked("new", str(tmp_path / place))
        assert (code, printed in said) == (1, True)
