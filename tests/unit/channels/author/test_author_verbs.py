"""`check`, `fmt` and `schema` on the command line: what they print, what they write, how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cedarpy import Schema, validate_policies
from typer.testing import CliRunner, Result

from policy_service.cli import app
from tests.fakes.bundles import PERMIT_ALL, BundleFolder, pay_manifest

NEVER = '@id("never") forbid (principal, action, resource) when { context.env == "nowhere" };\n'


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    return BundleFolder(tmp_path / "bundle").policies(PERMIT_ALL)


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_a_warning_ends_with_one_only_when_strict(folder: BundleFolder) -> None:
    folder.policies(PERMIT_ALL + NEVER)
    relaxed, strict = run("check", folder.path), run("check", "--strict", folder.path)
    assert (relaxed.exit_code, strict.exit_code) == (0, 1)
    assert "warning: rules.cedar:2: never: no call can satisfy" in strict.output
    assert "[never-matches]" in strict.output


def test_a_note_never_ends_with_one(folder: BundleFolder) -> None:
    done = run("check", "--strict", folder.path)
    assert done.exit_code == 0 and "note: tools/pay.json: policy cannot see items, note" in done.output


def test_check_as_json_names_code_level_file_and_line(folder: BundleFolder) -> None:
    folder.policies(PERMIT_ALL + NEVER)
    told = json.loads(run("check", "--strict", "--json", folder.path).output)
    (warning,) = told["warnings"]
    assert told["ok"] is False
    assert {key: warning[key] for key in ("file", "line", "code", "level")} == {
        "file": "rules.cedar",
        "line": 2,
        "code": "never-matches",
        "level": "warning",
    }
    assert [note["code"] for note in told["notes"]] == ["unseen-fields"]


def test_an_error_is_told_with_its_place(folder: BundleFolder) -> None:
    folder.policies('@id("a") @titel("x") permit (principal, action, resource);\n' + PERMIT_ALL + PERMIT_ALL)
    done = run("check", "--json", folder.path)
    told = json.loads(done.output)["problems"]
    assert done.exit_code == 1
    assert [(one["line"], one["level"]) for one in told] == [(1, "error"), (3, "error")]
    assert "did you mean @title?" in told[0]["message"] and "is taken at rules.cedar:2" in told[1]["message"]


def test_fmt_writes_what_differs_and_keeps_the_rest(folder: BundleFolder) -> None:
    folder.write("neat.cedar", '@id("b")\npermit (principal, action, resource);\n')
    before = (folder.path / "groups.toml").read_bytes(), (folder.path / "tools/pay.json").read_bytes()
    (folder.path / "rules.cedar").chmod(0o640)
    done = run("fmt", folder.path)
    assert (done.exit_code, done.output) == (0, "1 of 2 policy files laid out anew\n")
    assert (folder.path / "rules.cedar").read_text() == '@id("all")\npermit (principal, action, resource);\n'
    assert (folder.path / "rules.cedar").stat().st_mode & 0o777 == 0o640
    assert before == (
        (folder.path / "groups.toml").read_bytes(),
        (folder.path / "tools/pay.json").read_bytes(),
    )
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "groups.toml",
        "neat.cedar",
        "rules.cedar",
        "tools",
    ]


def test_fmt_check_shows_a_diff_writes_nothing_and_ends_with_one(folder: BundleFolder) -> None:
    raw = (folder.path / "rules.cedar").read_bytes()
    done = run("fmt", "--check", folder.path)
    assert done.exit_code == 1 and (folder.path / "rules.cedar").read_bytes() == raw
    assert '-@id("all") permit (principal, action, resource);\n+@id("all")\n' in done.output
    told = json.loads(run("fmt", "--check", "--json", folder.path).output)
    assert (told["ok"], told["changed"]) == (False, ["rules.cedar"])
    run("fmt", folder.path)
    assert run("fmt", "--check", folder.path).exit_code == 0


def test_fmt_writes_nothing_at_all_when_one_file_cannot_be_read(folder: BundleFolder) -> None:
    folder.write("broken.cedar", "permit (")
    done = run("fmt", folder.path)
    assert done.exit_code == 1 and "broken.cedar:1" in done.output
    assert (folder.path / "rules.cedar").read_text() == PERMIT_ALL


BUNDLES = ("policies", "policies/examples/airline")


@pytest.mark.parametrize("people", [(), ("--people",)], ids=["tools", "people"])
@pytest.mark.parametrize("bundle", BUNDLES)
def test_both_forms_of_the_schema_say_the_same_about_the_shipped_policies(
    bundle: str, people: tuple[str, ...]
) -> None:
    human = Schema.from_str(run("schema", *people, bundle).output)
    machine = Schema.from_json_str(run("schema", *people, "--json", bundle).output)
    text = "\n".join(
        path.read_text() for path in Path(bundle).glob("*.cedar") if people or path.name != "people.cedar"
    )
    results = [validate_policies(text, schema) for schema in (human, machine)]
    told = [(one.validation_passed, sorted(error.error for error in one.errors)) for one in results]
    assert told[0] == told[1]
    assert told[0][0] is (not people)


ODD: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["if"],
    "properties": {
        "if": {"type": "string"},
        'a "quoted" name': {"type": "integer"},
        "größe": {"type": "boolean"},
        "back\\slash": {"type": "string"},
        "price": {"type": "number", "multipleOf": 0.01},
        "tags": {"type": "array", "uniqueItems": True, "items": {"type": "string"}},
        "inner": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"has": {"type": "string"}, "": {"type": "string"}},
        },
    },
}
RULES = {
    "right": ('context.input["if"] == "x"', True),
    "required": ('context.input["größe"]', False),
    "quoted": (r'context.input has "a \"quoted\" name" && context.input["a \"quoted\" name"] > 5', True),
    "wrong type": (r'context.input has "back\\slash" && context.input["back\\slash"] > 5', False),
    "decimal": ('context.input has price && context.input.price.lessThan(decimal("1.0"))', True),
    "set": ('context.input has tags && context.input.tags.contains("x")', True),
    "nested": (
        'context.input has inner && context.input.inner has "" && context.input.inner[""] == "x"',
        True,
    ),
    "unknown": ("context.input.nothing", False),
}


@pytest.mark.parametrize("tool", ["pay", "a/b", "srv:tool", ".x"])
def test_odd_names_are_written_as_cedar_reads_them(folder: BundleFolder, tool: str) -> None:
    (folder.path / "tools/pay.json").unlink()
    file = {"pay": "pay", "a/b": "a%2Fb", "srv:tool": "srv%3Atool", ".x": "%2Ex"}[tool]
    resource = {"type": "Bank::Account", "id": "const:one"}
    odd = pay_manifest(tool=tool, args=ODD, resource=resource, sentence="Pay", groups=["money"])
    folder.write(f"tools/{file}.json", odd)
    out = folder.path.parent / "x.cedarschema"
    done = run("schema", "--out", out, folder.path)
    assert done.exit_code == 0, done.output
    human, machine = (
        Schema.from_str(out.read_text()),
        Schema.from_json_str(run("schema", "--json", folder.path).output),
    )
    for condition, valid in RULES.values():
        text = f'forbid (principal, action == Action::"{tool}", resource is Bank::Account) when {{ {condition} }};'
        passed = [validate_policies(text, schema).validation_passed for schema in (human, machine)]
        assert passed == [valid, valid], condition


def test_a_bundle_with_a_problem_gives_no_schema(folder: BundleFolder) -> None:
    done = run("schema", folder.policies("permit (").path)
    assert done.exit_code == 1 and "rules.cedar:1" in done.output and "entity" not in done.output


def test_a_schema_that_cannot_be_written_is_told(folder: BundleFolder) -> None:
    done = run("schema", "--out", folder.path / "no" / "where", folder.path)
    assert done.exit_code == 1 and "cannot be written" in done.output
