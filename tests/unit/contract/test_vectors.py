"""The vector files are what their script writes: a rerun gives an empty diff."""

import os
import subprocess
import sys
from pathlib import Path

import countersign
from tests.unit.contract.reading import VECTORS


def test_building_them_again_changes_nothing(tmp_path: Path) -> None:
    sdk = Path(countersign.__file__).parents[1]
    subprocess.run(
        [sys.executable, VECTORS / "build.py", "--out", tmp_path],
        check=True,
        capture_output=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(sdk)},
    )
    built = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.json")}
    kept = {path.relative_to(VECTORS): path.read_bytes() for path in VECTORS.rglob("*.json")}
    third_party = {path for path in kept if path.parts[0] == "third_party"}
    assert kept.keys() - third_party == built.keys()
    assert [str(path) for path in built if built[path] != kept[path]] == []


def test_the_readme_names_every_folder() -> None:
    readme = (VECTORS / "README.md").read_text(encoding="utf-8")
    for folder in VECTORS.iterdir():
        if folder.is_dir() and folder.name != "__pycache__":
            assert f"`{folder.name}/" in readme
