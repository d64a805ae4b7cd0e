"""The shipped bundle: its cases pass and cover each policy and each number, and its README is correct."""

import re
import shutil
from pathlib import Path

import pytest

from policy_service.pap.bundle import Bundle, load_bundle
from policy_service.pap.policy_tests.parser import read_cases
from policy_service.pap.policy_tests.runner import prepare_cases
from policy_service.pap.problems import BundleError

FOLDER = Path(__file__).resolve().parents[2] / "policies"
BUNDLE: Bundle = load_bundle(FOLDER)
CASES = {prepared.case.it: prepared for prepared in prepare_cases(BUNDLE, read_cases(BUNDLE.source.files))}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the bundle that tests may change."""
    folder = tmp_path / "bundle"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("examples", "library"))
    return folder


def test_loads_without_warnings() -> None:
    assert BUNDLE.warnings == ()


def notices(folder: Path) -> list[str]:
    """The cases that fail in this folder; all of them if it does not load."""
    try:
        bundle = load_bundle(folder)
    except BundleError:
        return list(CASES)
    cases = prepare_cases(bundle, read_cases(bundle.source.files))
    return [case.case.it for case in cases if not case.ask(bundle.rules).holds]


@pytest.mark.parametrize("policy_id", sorted(BUNDLE.policies))
def test_dropping_a_policy_is_detected(copy: Path, policy_id: str) -> None:
    file = copy / BUNDLE.policies[policy_id].file
    file.write_text(file.read_text().replace(BUNDLE.policies[policy_id].text, ""))
    assert policy_id not in load_bundle(copy).policies
    assert notices(copy)


def test_readme_names_existing_things() -> None:
    page = (FOLDER / "README.md").read_text()
    for name in re.findall(r"`([a-z]+/)`|`([a-z_]+\.toml|[a-z]+\.cedar)`", page):
        path = FOLDER / (name[0] or name[1])
        assert path.exists() or path.name == "meters.toml", path  # this desk counts nothing
    blocks = re.findall(r"```cedar\n(.*?)```", page, re.DOTALL)
    assert blocks


def test_readme_examples_load(copy: Path) -> None:
    page = (FOLDER / "README.md").read_text()
    (meters,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (copy / "meters.toml").write_text(meters)
    for index, block in enumerate(re.findall(r"```cedar\n(.*?)```", page, re.DOTALL)):
        (copy / f"readme{index}.cedar").write_text(block)
    loaded = load_bundle(copy)
    assert [meter.name for meter in loaded.meters["refund"]] == ["refunded", "refunds_to_account"]
