"""The vector files are what their script writes; the forty-line verifier is short and runs by itself.

`test_switches.py` gives it every vector.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import countersign
import reference_verifier
from tests.unit.contract.reading import VECTORS

PROGRAM = Path(reference_verifier.__file__)

# It reads the form of claims less closely; a later step refuses these. The step it refuses at, for each.


LATER = dict.fromkeys("cnf_not_a_thumbprint cnf_null cnf_unknown_word cnf_with_a_key_in_it".split(), 30)
LATER |= {"txn_capitals": 19, "txn_short": 19, "compensates_not_a_digest": 17, "exp_negative": 14}
LATER |= {"kind_unknown": 16, "payload_too_deep": 10, "seq_zero": 23, "unknown_resource_member": 26}


def test_it_is_about_forty_lines_of_the_standard_library_and_cryptography() -> None:
    tree = ast.parse(PROGRAM.read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} - sys.stdlib_module_names == {"cryptography"}
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "verify")
    assert sum(isinstance(node, ast.stmt) for node in ast.walk(function)) <= 50


RUNS = [("good/reviewed", 0, "accepted: "), ("bad/exp_now", 1, "refused at step 14")]


@pytest.mark.parametrize(("vector", "code", "said"), RUNS)
def test_it_runs_as_a_program(vector: str, code: int, said: str) -> None:
    command = [sys.executable, PROGRAM, VECTORS / "tokens" / f"{vector}.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code
    assert said in done.stdout + done.stderr


def test_building_them_again_changes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, VECTORS / "build.py", "--out", tmp_path]
    path = {"PYTHONPATH": str(Path(countersign.__file__).parents[1])}
    subprocess.run(command, check=True, capture_output=True, timeout=100, env={**os.environ, **path})
    built = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.json")}
    kept = {path.relative_to(VECTORS): path.read_bytes() for path in VECTORS.rglob("*.json")}
    assert kept.keys() - {path for path in kept if path.parts[0] == "third_party"} == built.keys()
    assert [str(path) for path in built if built[path] != kept[path]] == []


def test_the_readme_names_every_folder() -> None:
    readme = (VECTORS / "README.md").read_text(encoding="utf-8")
    for folder in VECTORS.iterdir():
        if folder.is_dir() and folder.name != "__pycache__":
            assert f"`{folder.name}/" in readme
