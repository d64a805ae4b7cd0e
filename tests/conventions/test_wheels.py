"""The wheels hold everything: apart from the repository the programs start and the pages are there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conventions.repository import ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both wheels unpacked, as an installer would, and nothing of the repository."""
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
         "--wheel-dir", wheels, ROOT / "sdk/python", ROOT],
        check=True, timeout=100,
    )  # fmt: skip
    for wheel in wheels.iterdir():
        zipfile.ZipFile(wheel).extractall(site)
    return site


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COUNTERSIGN_")}
    return subprocess.run(
        [sys.executable, *arguments], cwd=site, env=environment | {"PYTHONPATH": str(site)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("module", ["policy_service.cli", "countersign.cli"])
def test_program_starts_from_its_wheel(installed: Path, module: str) -> None:
    result = run(installed, "-c", f"import {module} as m; print(m.__file__); m.app(['--help'])")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(str(installed))
    assert "Usage" in result.stdout


def test_the_pages_travel_in_the_wheel(installed: Path) -> None:
    code = "from policy_service.channels.web.rendering import web_folder; print(web_folder())"
    folder = Path(run(installed, "-c", code).stdout.strip())
    assert folder.is_relative_to(installed)
    inside = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert inside >= {path.relative_to(ROOT / "web") for path in (ROOT / "web/templates").rglob("*.html")}


def test_the_wheels_install_only_the_two_packages(installed: Path) -> None:
    names = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"policy_service", "countersign"}


def test_the_wheels_carry_types_and_licence(installed: Path) -> None:
    for package in ("policy_service", "countersign"):
        assert (installed / package / "py.typed").is_file()
    for distribution in ("countersign_service", "countersign_sdk"):
        assert list(installed.glob(f"{distribution}-*.dist-info/licenses/LICENSE"))


def test_the_catalogue_travels_in_the_wheel(installed: Path) -> None:
    result = run(installed, "-m", "countersign.cli", "tools", "take", "payments.refund")
    assert (result.returncode, json.loads(result.stdout)["tool"]) == (0, "payments.refund"), result.stderr
    listed = json.loads(run(installed, "-m", "countersign.cli", "tools", "catalogue", "--json").stdout)
    folder = ROOT / "sdk/python/countersign/catalogue"
    assert len(listed["manifests"]) == len(list((folder / "manifests").iterdir()))
    assert len(listed["no_compensation"]) == len(json.loads((folder / "no_compensation.json").read_text()))


def test_every_migration_and_data_file_of_the_service_is_in_the_wheel(installed: Path) -> None:
    def shipped(root: Path) -> set[str]:
        files = (path for path in (root / "policy_service").rglob("*") if path.is_file())
        shown = [path for path in files if "__pycache__" not in path.parts and path.name != "README.md"]
        return {str(path.relative_to(root)) for path in shown}

    missing = shipped(ROOT) - shipped(installed)
    assert missing == set()
