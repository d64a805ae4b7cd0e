"""``policy-service test``: what it prints, and when it refuses."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from click.testing import Result
from typer.testing import CliRunner

from policy_service.cli import app
from tests.fakes.bundles import BundleFolder
from tests.fakes.cases import HEAD, small_bundle

HOLDS = f"{HEAD}  - {{it: small, expect: release}}\n"
FAILS = f"{HEAD}  - {{it: small, expect: deny, reasons: [no_permit]}}\n"
ENOUGH = (
    HEAD
    + """\
  - {it: the edge, args: {amount: 100}, expect: release}
  - {it: above, args: {amount: 101}, expect: review, needs: {finance: {people: 2, reason: true}}}
  - {it: a stranger, agent: {name: x}, expect: deny, reasons: [no_permit]}
  - {it: below a million, args: {amount: 999999}, expect: review, gates: [large]}
  - {it: a million, args: {amount: 1000000}, expect: deny, reasons: [never-a-million]}
  - {it: more, args: {amount: 1000001}, expect: deny, reasons: [never-a-million]}
"""
)


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    return small_bundle(tmp_path / "bundle")


def run(folder: BundleFolder, *words: str) -> Result:
    return CliRunner().invoke(app, ["test", str(folder.path), *words])


def told(result: Result) -> Any:
    return json.loads(result.stdout)


def test_cases_that_hold_are_counted(folder: BundleFolder) -> None:
    result = run(folder.write("cases/a.yaml", HOLDS))
    assert (result.exit_code, result.stdout) == (0, "1 cases hold, 0 do not\n")


def test_a_case_that_does_not_hold_is_a_line_with_its_place(folder: BundleFolder) -> None:
    result = run(folder.write("cases/a.yaml", FAILS))
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "cases/a.yaml:8: small: expect: found release, expected deny; reasons: found [], expected [no_permit]",
        "0 cases hold, 1 do not",
    ]


def test_a_bundle_without_cases_is_refused(folder: BundleFolder) -> None:
    result = run(folder)
    assert result.exit_code == 1
    assert "held by nothing" in result.stdout


@pytest.mark.parametrize("as_json", [True, False])
def test_cases_that_cannot_be_read_are_told_with_their_line(folder: BundleFolder, as_json: bool) -> None:
    result = run(folder.write("cases/a.yaml", f"{HEAD}  - {{it: a}}\n"), *["--json"] * as_json)
    assert result.exit_code == 1
    if as_json:
        assert told(result) == {
            "ok": False,
            "problems": [
                {
                    "file": "cases/a.yaml",
                    "line": 8,
                    "message": "a case needs `expect:`",
                    "code": "invalid",
                    "level": "error",
                }
            ],
        }
    else:
        assert "cases/a.yaml:8: a case needs `expect:`" in result.stderr


def test_a_bundle_that_does_not_load_is_refused(folder: BundleFolder) -> None:
    result = run(folder.policies("permit (").write("cases/a.yaml", HOLDS))
    assert result.exit_code == 1
    assert "rules.cedar:1" in result.stderr


def test_there_is_no_such_folder(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["test", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert "there is no such folder" in result.stderr


def test_json_holds_every_case_and_the_coverage(folder: BundleFolder) -> None:
    answer = told(run(folder.write("cases/a.yaml", FAILS), "--json"))
    assert answer["ok"] is False
    assert answer["cases"] == [
        {
            "file": "cases/a.yaml",
            "line": 8,
            "it": "small",
            "holds": False,
            "differences": [
                "expect: found release, expected deny",
                "reasons: found [], expected [no_permit]",
            ],
        }
    ]
    assert [row["policy"] for row in answer["coverage"]] == ["payers-may-pay", "large", "never-a-million"]
    assert "mutants" not in answer


def test_coverage_is_a_table_when_asked(folder: BundleFolder) -> None:
    folder.write("cases/a.yaml", HOLDS)
    assert "never decides" in run(folder, "--coverage").stdout
    assert "never decides" not in run(folder).stdout


def test_junit_is_written_also_when_cases_do_not_hold(folder: BundleFolder, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    assert run(folder.write("cases/a.yaml", FAILS), "--junit", str(report)).exit_code == 1
    assert Xml.parse(report).getroot().get("failures") == "1"


def test_junit_never_replaces_a_file_of_the_bundle(folder: BundleFolder) -> None:
    rules = (folder.path / "rules.cedar").read_text()
    result = run(folder.write("cases/a.yaml", HOLDS), "--junit", str(folder.path / "rules.cedar"))
    assert result.exit_code == 1
    assert "lies in the bundle" in result.output
    assert (folder.path / "rules.cedar").read_text() == rules


def test_junit_that_cannot_be_written_is_a_refusal(folder: BundleFolder, tmp_path: Path) -> None:
    result = run(folder.write("cases/a.yaml", HOLDS), "--junit", str(tmp_path / "none" / "report.xml"))
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr


def test_a_survivor_is_refused_by_name_and_place(folder: BundleFolder) -> None:
    result = run(folder.write("cases/a.yaml", HOLDS), "--mutate")
    assert result.exit_code == 1
    survivors = [line for line in result.stdout.splitlines() if "survives" in line]
    assert any(
        line.startswith("rules.cedar:4: large: survives: @quorum: 2 -> 1; write a case") for line in survivors
    )


def test_cases_that_notice_everything_pass(folder: BundleFolder) -> None:
    result = run(folder.write("cases/a.yaml", ENOUGH), "--mutate", "--json")
    assert result.exit_code == 0, result.output
    mutants = told(result)["mutants"]
    assert (mutants["survived"], mutants["stale"], mutants["acknowledged"]) == ([], [], 0)
    assert mutants["noticed"] > 20


def test_an_explained_survivor_passes_and_a_stale_explanation_does_not(folder: BundleFolder) -> None:
    entry = '[[survives]]\npolicy = "large"\nmutant = "@quorum: 2 -> 3"\nwhy = "three is the same to us"\n'
    folder.write(
        "cases/a.yaml", ENOUGH.replace("people: 2, reason: true", "people: 2, reason: true, shared: false")
    )
    folder.write("cases/mutants.toml", entry)
    stale = run(folder, "--mutate")
    assert stale.exit_code == 1
    assert "cases/mutants.toml: policy 'large': no mutant '@quorum: 2 -> 3' survives" in stale.stdout
    folder.write("cases/a.yaml", "\n".join(line for line in ENOUGH.splitlines() if "it: above" not in line))
    left = run(folder, "--mutate", "--json")
    assert told(left)["mutants"]["acknowledged"] == 1
    assert all(each["mutant"] != "@quorum: 2 -> 3" for each in told(left)["mutants"]["survived"])


def test_what_a_case_is_called_does_not_move_the_cursor(folder: BundleFolder) -> None:
    folder.write("cases/a.yaml", f'{HEAD}  - {{it: "\\x1b[2Jsmall", expect: deny, reasons: [no_permit]}}\n')
    assert "\x1b" not in run(folder).stdout
