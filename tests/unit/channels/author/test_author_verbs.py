"""`check`, `fmt` and `schema` on the command line: what they print, what they write, how they end."""

import json
from pathlib import Path
from typing import Any

import pytest
from cedarpy import Schema, validate_policies
from typer.testing import CliRunner, Result

from policy_service.cli import app
from tests.fakes.bundles import PERMIT_ALL, BundleFolder, pay_manifest

NEVER = '@id("never") forbid (principal, action, resource) when { context.env == "nowhere" };\n'
NEAT = '@id("{}")\npermit (principal, action, resource);\n'


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    return BundleFolder(tmp_path / "bundle").policies(PERMIT_ALL)


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_a_warning_ends_with_one_only_when_strict_and_a_note_never(folder: BundleFolder) -> None:
    noted = run("check", "--strict", folder.path)
    assert noted.exit_code == 0 and "note: tools/pay.json: policy cannot see items, note" in noted.output
    folder.policies(PERMIT_ALL + NEVER)
    relaxed, strict = run("check", folder.path), run("check", "--strict", folder.path)
    assert (relaxed.exit_code, strict.exit_code) == (0, 1)
    assert "warning: rules.cedar:2: never: no call can satisfy" in strict.output
    assert "[never-matches]" in strict.output
    result = json.loads(run("check", "--strict", "--json", folder.path).output)
    (warning,) = result["warnings"]
    place = {"file": "rules.cedar", "line": 2, "code": "never-matches", "level": "warning"}
    assert (result["ok"], warning | place) == (False, warning)
    assert [note["code"] for note in result["notes"]] == ["unseen-fields"]


def test_an_error_has_its_location(folder: BundleFolder) -> None:
    folder.policies('@id("a") @titel("x") permit (principal, action, resource);\n' + PERMIT_ALL + PERMIT_ALL)
    done = run("check", "--json", folder.path)
    result = json.loads(done.output)["problems"]
    assert done.exit_code == 1
    assert [(one["line"], one["level"]) for one in result] == [(1, "error"), (3, "error")]
    first, second = (one["message"] for one in result)
    assert "did you mean @title?" in first and "is taken at rules.cedar:2" in second


def test_fmt_writes_only_changed_files(folder: BundleFolder) -> None:
    folder.write("neat.cedar", NEAT.format("b"))
    kept = [folder.path / name for name in ("groups.toml", "tools/pay.json", "neat.cedar")]
    before, rules = [path.read_bytes() for path in kept], folder.path / "rules.cedar"
    rules.chmod(0o640)
    done = run("fmt", folder.path)
    assert (done.exit_code, done.output) == (0, "1 of 2 policy files formatted\n")
    assert rules.read_text() == NEAT.format("all")
    assert rules.stat().st_mode & 0o777 == 0o640
    assert [path.read_bytes() for path in kept] == before
    names = {path.name for path in folder.path.iterdir()}
    assert names == {"groups.toml", "neat.cedar", "rules.cedar", "tools"}


def test_fmt_check_prints_a_diff_writes_nothing_and_exits_with_one(folder: BundleFolder) -> None:
    raw = (folder.path / "rules.cedar").read_bytes()
    done = run("fmt", "--check", folder.path)
    assert done.exit_code == 1 and (folder.path / "rules.cedar").read_bytes() == raw
    assert '-@id("all") permit (principal, action, resource);\n+@id("all")\n' in done.output
    result = json.loads(run("fmt", "--check", "--json", folder.path).output)
    assert (result["ok"], result["changed"]) == (False, ["rules.cedar"])
    broken = run("fmt", folder.write("broken.cedar", "permit (").path)
    assert broken.exit_code == 1 and "broken.cedar:1" in broken.output
    assert (folder.path / "rules.cedar").read_bytes() == raw, "nothing is written where one cannot be read"
    (folder.path / "broken.cedar").unlink()
    run("fmt", folder.path)
    assert run("fmt", "--check", folder.path).exit_code == 0


@pytest.mark.parametrize("people", [(), ("--people",)], ids=["tools", "people"])
@pytest.mark.parametrize("bundle", ["policies", "policies/examples/airline"])
def test_both_schema_formats_are_equal(bundle: str, people: tuple[str, ...]) -> None:
    human = Schema.from_str(run("schema", *people, bundle).output)
    machine = Schema.from_json_str(run("schema", *people, "--json", bundle).output)
    files = [path for path in Path(bundle).glob("*.cedar") if people or path.name != "people.cedar"]
    text = "\n".join(path.read_text() for path in files)
    results = [validate_policies(text, schema) for schema in (human, machine)]
    one, other = ((each.validation_passed, sorted(e.error for e in each.errors)) for each in results)
    assert one == other
    assert one[0] is (not people)


TEXT, CLOSED = {"type": "string"}, {"type": "object", "additionalProperties": False}
NAMES: dict[str, Any] = {"if": TEXT, 'a "quoted" name': {"type": "integer"}, "größe": {"type": "boolean"}}
NAMES |= {"back\\slash": TEXT, "price": {"type": "number", "multipleOf": 0.01}}
NAMES |= {"tags": {"type": "array", "uniqueItems": True, "items": TEXT}}
NAMES |= {"inner": CLOSED | {"properties": {"has": TEXT, "": TEXT}}}
ODD: dict[str, Any] = CLOSED | {"required": ["if"], "properties": NAMES}
RULES = {
    'context.input["if"] == "x"': True,
    'context.input["größe"]': False,
    r'context.input has "a \"quoted\" name" && context.input["a \"quoted\" name"] > 5': True,
    r'context.input has "back\\slash" && context.input["back\\slash"] > 5': False,
    'context.input has price && context.input.price.lessThan(decimal("1.0"))': True,
    'context.input has tags && context.input.tags.contains("x")': True,
    'context.input has inner && context.input.inner has "" && context.input.inner[""] == "x"': True,
    "context.input.nothing": False,
}


@pytest.mark.parametrize(("tool", "file"), [("a/b", "a%2Fb"), ("srv:tool", "srv%3Atool"), (".x", "%2Ex")])
def test_odd_names_are_written_as_cedar_reads_them(folder: BundleFolder, tool: str, file: str) -> None:
    (folder.path / "tools/pay.json").unlink()
    resource, out = {"type": "Bank::Account", "id": "const:one"}, folder.path.parent / "x.cedarschema"
    odd = pay_manifest(tool=tool, args=ODD, resource=resource, sentence="Pay", groups=["money"])
    done = run("schema", "--out", out, folder.write(f"tools/{file}.json", odd).path)
    assert done.exit_code == 0, done.output
    human = Schema.from_str(out.read_text())
    machine = Schema.from_json_str(run("schema", "--json", folder.path).output)
    for condition, valid in RULES.items():
        text = f'forbid (principal, action == Action::"{tool}", resource is Bank::Account) when {{ {condition} }};'
        passed = [validate_policies(text, schema).validation_passed for schema in (human, machine)]
        assert passed == [valid, valid], condition


def test_an_unwritable_schema_is_reported(folder: BundleFolder) -> None:
    done = run("schema", "--out", folder.path / "no" / "where", folder.path)
    assert done.exit_code == 1 and "cannot be written" in done.output
