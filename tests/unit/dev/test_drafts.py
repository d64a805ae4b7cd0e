"""Manifests in the developer's bundle: drafted where missing, followed while untouched, never written over."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from countersign.manifests.drafts import manifest_json
from countersign.tools.registry import ToolRegistry
from countersign.tools.tool import tool
from policy_service.channels.admin.dev.folder import (
    STARTER,
    DevFolder,
    Tools,
    merge_manifests,
    prepare_folder,
    write_env,
)
from policy_service.channels.admin.dev.output import warn_unused_options
from policy_service.channels.admin.dev.server import admin_variables, dev_settings
from policy_service.errors import StartError
from policy_service.pap.bundle import load_bundle
from policy_service.settings import load_settings


def tools_of(*functions: object) -> Tools:
    """What the script declares."""
    registry = ToolRegistry()
    for fn in functions:
        tool("refund", resource=("Payment", "payment_id"), registry=registry)(fn)  # type: ignore[call-overload]
    drafts = {one.name: manifest_json(one.draft_manifest()).decode() for one in registry}
    return Tools(drafts, frozenset(), ())


def one(payment_id: str) -> None: ...
def two(payment_id: str, amount_cents: int) -> None: ...


@pytest.fixture
def folder(tmp_path: Path) -> DevFolder:
    (tmp_path / "my_agent.py").write_text("")
    return prepare_folder(tmp_path / "my_agent.py", None)


def manifest(folder: DevFolder) -> Path:
    return folder.bundle / "tools/refund.json"


def test_an_unedited_manifest_is_drafted_and_follows_the_code(folder: DevFolder) -> None:
    load_bundle(folder.bundle).close()
    (said,) = merge_manifests(folder, tools_of(one))
    assert said.startswith("drafted policies/tools/refund.json (a write)")
    bundle = load_bundle(folder.bundle)
    assert (set(bundle.manifests), bundle.warnings) == ({"refund"}, ())
    assert merge_manifests(folder, tools_of(one)) == []
    (said,) = merge_manifests(folder, tools_of(two))
    assert said == "policies/tools/refund.json was updated from the code (a write)"
    assert "amount_cents" in manifest(folder).read_text()
    (said,) = merge_manifests(folder, tools_of())
    assert "my_agent.py no longer has this tool" in said, "reported once, and its manifest kept"
    assert manifest(folder).exists() and merge_manifests(folder, tools_of()) == []


def test_an_edited_manifest_is_never_written_and_the_change_is_shown_once(folder: DevFolder) -> None:
    merge_manifests(folder, tools_of(one))
    edited = manifest(folder).read_text().replace('"Refund"', '"Give back"')
    manifest(folder).write_text(edited)
    assert merge_manifests(folder, tools_of(one)) == []
    first, *diff, last = merge_manifests(folder, tools_of(two))
    assert "was edited by you and is unchanged" in first
    assert any(line.strip().startswith('+      "amount_cents"') for line in diff)
    assert "delete the file and save my_agent.py" in last
    assert (manifest(folder).read_text(), merge_manifests(folder, tools_of(two))) == (edited, [])
    manifest(folder).unlink()
    assert "drafted" in merge_manifests(folder, tools_of(two))[0]


def test_a_manifest_that_was_there_before_is_the_persons(folder: DevFolder) -> None:
    reviewed = json.loads(next(iter(tools_of(one).drafts.values()))) | {"risk": "high"}
    manifest(folder).write_text(json.dumps(reviewed))
    assert merge_manifests(folder, tools_of(one)) == []
    assert json.loads(manifest(folder).read_text()) == reviewed
    merge_manifests(folder, tools_of(two))
    assert json.loads(manifest(folder).read_text()) == reviewed


def test_an_edit_equal_to_the_code_is_not_reported(folder: DevFolder) -> None:
    merge_manifests(folder, tools_of(one))
    (draft,) = tools_of(two).drafts.values()
    manifest(folder).write_text(json.dumps(json.loads(draft)))
    assert merge_manifests(folder, tools_of(two)) == []


def test_a_folder_that_has_policies_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text("")
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "mine.cedar").write_text("// mine\n")
    folder = prepare_folder(tmp_path / "my_agent.py", rules)
    assert sorted(path.name for path in rules.iterdir()) == ["mine.cedar", "tools"]
    assert (folder.bundle, (tmp_path / "policies").exists()) == (rules, False)
    prepare_folder(tmp_path / "my_agent.py", None)
    starter = tmp_path / "policies/starter.cedar"
    starter.write_text("// edited\n")
    prepare_folder(tmp_path / "my_agent.py", None)
    assert starter.read_text() == "// edited\n"


def test_the_agent_is_named_after_the_file(tmp_path: Path) -> None:
    names = {"my_agent.py": "my_agent", "_mein Agent!.py": "mein-Agent", "äö.py": "agent"}
    assert {file: DevFolder(tmp_path / file, tmp_path).agent for file in names} == names
    assert (STARTER / "groups.template").read_text().format(person='"a"', name='"b"').count(
        "[groups.developers]"
    ) == 1, "no name breaks out"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text("")
    (tmp_path / "policies").write_text("no folder")
    with pytest.raises(StartError, match=r"policies.* cannot be created"):
        prepare_folder(tmp_path / "my_agent.py", None)


def test_another_terminal_has_these_settings_and_no_others(folder: DevFolder) -> None:
    names = ("COUNTERSIGN_URL", "COUNTERSIGN_AGENT", "COUNTERSIGN_DATA_DIR")
    ours = dict(zip(names, ("http://127.0.0.1", "it's", "/here"), strict=True))
    theirs = {"COUNTERSIGN_DATABASE_URL": "postgresql://elsewhere/x", "COUNTERSIGN_TOKEN_FILE": "/run/token"}
    theirs |= {"COUNTERSIGN_URL": "https://x", "COUNTERSIGN_PROVIDERS": "[\n]", "MY_COUNTERSIGN_X": "mine"}
    write_env(folder, ours)
    for found in (theirs, {}):
        names = "import os; print({k: v for k, v in os.environ.items() if 'COUNTERSIGN' in k})"
        done = subprocess.run(
            ["sh", "-euc", f'. {folder.env}; exec "$0" -c "$1"', sys.executable, names],
            env={"PATH": os.environ["PATH"], **found}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        kept = {name: value for name, value in found.items() if name == "MY_COUNTERSIGN_X"}
        assert ast.literal_eval(done.stdout) == ours | kept


def test_another_terminal_asks_the_same_database(folder: DevFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = dev_settings(folder, 8420)
    elsewhere = 'database_url = "sqlite:////elsewhere.db"\nkey_dir = "/elsewhere"\n'
    (folder.state / "countersign.toml").write_text(elsewhere)
    for name, value in admin_variables(settings).items():
        monkeypatch.setenv(name, value)
    there = load_settings()
    same = ("database_url", "key_dir", "bundle_dir", "data_dir", "public_url", "environment", "dev_signin")
    assert [getattr(there, name) for name in same] == [getattr(settings, name) for name in same]


# The script's arguments, the wanted roles, the enrolled roles, and the warning.
NO_ROLE = "--role a --role b has no effect: 'my_agent' was enrolled with no role"
UNUSED: list[tuple[list[str], str, str, str]] = [
    ([], "", "", ""),
    (["--fast", "ports"], "b a", "a b", ""),
    ([], "", "support-agent", ""),
    (["case 1", "--port=9000"], "", "", "passed to my_agent.py: 'case 1' --port=9000;"),
    ([], "a", "b c", "--role a has no effect: 'my_agent' was enrolled with b and c and keeps it;"),
    ([], "a b", "", NO_ROLE),
]


@pytest.mark.parametrize(("arguments", "wanted", "kept", "result"), UNUSED)
def test_options_without_effect_are_reported(
    folder: DevFolder,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    wanted: str,
    kept: str,
    result: str,
) -> None:
    warn_unused_options(folder, arguments, wanted.split(), kept.split())
    said = capsys.readouterr().out
    assert said.startswith(f"dev | {result}") and said.count("\n") == 1 if result else said == ""
