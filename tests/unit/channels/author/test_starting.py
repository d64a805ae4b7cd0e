"""``policy-service new``: a bundle that passes everything it tells its reader to run, and nothing overwritten."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from policy_service.cli import app
from policy_service.pap.bundle import load_bundle


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new") / "rules"
    code, out, _ = run("new", "--json", str(folder))
    told = json.loads(out)
    assert (code, told["ok"]) == (0, True)
    assert all((folder / name).is_file() for name in told["files"])
    return folder


def test_it_is_valid_without_a_warning_and_its_cases_notice_every_slip(made: Path) -> None:
    assert load_bundle(made).warnings == ()
    code, out, _ = run("test", "--mutate", str(made))
    assert (code, ", 0 survive" in out) == (0, True), out
    files = {path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()}
    assert {"README.md", "rules.cedar", "groups.toml", "facts.toml", "cases/rules.yaml"} <= files


def test_its_workflow_runs_what_its_page_says_and_no_words_of_a_pull_request(made: Path) -> None:
    """A branch's name is somebody else's text: it goes through the environment, never into the script."""
    workflow = yaml.safe_load((made / ".github/workflows/policies.yml").read_text())
    steps = [step.get("run", "") for step in workflow["jobs"]["policies"]["steps"]]
    page = (made / "README.md").read_text()
    for verb in ("check", "fmt --check", "test --mutate", "diff"):
        assert any(f"policy-service {verb}" in step for step in steps), verb
        assert f"policy-service {verb.removesuffix(' --check')} " in page
    assert workflow["permissions"] == {"contents": "read"}
    assert all("${{" not in step for step in steps)


def test_an_empty_repository_is_a_place_for_it(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert run("new", str(tmp_path))[0] == 0


@pytest.mark.parametrize("name", ["rules.cedar", "notes.txt", ".github"])
def test_a_folder_with_something_in_it_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    code, _, said = run("new", str(tmp_path))
    assert code == 1
    assert f"holds {name!r}" in said
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_place_that_is_no_folder_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place, told in (("file", "is a file"), ("file/inner", "cannot be written")):
        code, _, said = run("new", str(tmp_path / place))
        assert (code, told in said) == (1, True)
