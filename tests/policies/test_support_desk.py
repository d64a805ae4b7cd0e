"""The shipped bundle loads without a warning, and its page is true; its cases are run in test_bundles.py."""

import re
import shutil
from pathlib import Path

import pytest

from policy_service.pap.bundle import load_bundle

FOLDER = Path(__file__).resolve().parents[2] / "policies"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The bundle in a folder of its own, to be changed."""
    folder = tmp_path / "bundle"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("examples", "library"))
    return folder


def test_it_loads_without_a_warning() -> None:
    assert load_bundle(FOLDER).warnings == ()


def test_the_page_for_authors_speaks_of_what_is_there() -> None:
    page = (FOLDER / "README.md").read_text()
    for name in re.findall(r"`([a-z]+/)`|`([a-z_]+\.toml|[a-z]+\.cedar)`", page):
        path = FOLDER / (name[0] or name[1])
        assert path.exists() or path.name == "meters.toml", path  # this desk counts nothing
    blocks = re.findall(r"```cedar\n(.*?)```", page, re.DOTALL)
    assert blocks


def test_the_pages_examples_load(copy: Path) -> None:
    page = (FOLDER / "README.md").read_text()
    (meters,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (copy / "meters.toml").write_text(meters)
    for index, block in enumerate(re.findall(r"```cedar\n(.*?)```", page, re.DOTALL)):
        (copy / f"readme{index}.cedar").write_text(block)
    loaded = load_bundle(copy)
    assert [meter.name for meter in loaded.meters["refund"]] == ["refunded", "refunds_to_account"]
