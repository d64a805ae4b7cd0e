"""Which tests reach which line: run tests once under coverage and keep the answer in `.mutation/reach.sqlite`.

    python -m tests.mutation.reach [arguments of pytest]

Without arguments: the short suite, without the tests of the repository itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from coverage.numbits import numbits_to_nums

from tests.conventions.repository import ROOT

FOLDER = ROOT / ".mutation"
TABLE = FOLDER / "reach.sqlite"

_FLAGS = "-n3 --dist=loadfile -q --ignore=tests/conventions --randomly-seed=20261121"
_SHORT = [*_FLAGS.split(), "-m", "not long"]
# Slower than the suite alone, so with longer limits. A program that a test starts records under that test's name.
_COVERAGE = """
[run]
source_pkgs = policy_service, countersign
parallel = true
relative_files = true
sigterm = true
patch = subprocess
data_file = {folder}/lines
context = ${{PYTEST_CURRENT_TEST-}}
"""


@dataclass(frozen=True)
class Test:
    """One test that passed: its id, its seconds with set-up, and how many lines it ran."""

    name: str
    seconds: float
    lines: int


def record(arguments: list[str]) -> int:
    """Run pytest with `arguments`, then write the table; the exit status of pytest."""
    recorded = FOLDER / "recorded"
    shutil.rmtree(recorded, ignore_errors=True)
    recorded.mkdir(parents=True)
    (recorded / "coveragerc").write_text(_COVERAGE.format(folder=recorded))
    paths = os.pathsep.join((str(ROOT), str(ROOT / "sdk/python")))
    environment = {**os.environ, "REACH_FOLDER": str(recorded), "PYTHONPATH": paths}
    plugin = ["-p", "tests.mutation.recording", "--timeout", "600"]
    command = [sys.executable, "-m", "pytest", *plugin, *arguments]
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    build(recorded)
    (FOLDER / "tree").write_text(tree())
    return status


def build(recorded: Path) -> None:
    """Gather the data files of one run in one table: per file of the packages and test, the lines that ran."""
    TABLE.unlink(missing_ok=True)
    with sqlite3.connect(TABLE) as table:
        table.executescript(
            "CREATE TABLE tests (name TEXT PRIMARY KEY, seconds REAL, passed INT, lines INT DEFAULT 0);"
            "CREATE TABLE reached (file TEXT, test TEXT, lines BLOB);"
        )
        outcomes = [json.loads(line) for line in (recorded / "tests.jsonl").read_text().splitlines()]
        table.executemany("INSERT INTO tests (name, seconds, passed) VALUES (?, ?, ?)", outcomes)
        for data in sorted(recorded.glob("lines.*")):
            _take(table, data)
        table.executescript(
            "CREATE INDEX by_file ON reached (file);"
            "CREATE TABLE sizes AS SELECT test, sum(length(lines)) AS size FROM reached GROUP BY test;"
            "CREATE INDEX by_test ON sizes (test);"
            "UPDATE tests SET lines = coalesce((SELECT size FROM sizes WHERE test = tests.name), 0);"
        )


def _take(table: sqlite3.Connection, data: Path) -> None:
    with sqlite3.connect(data) as one:
        try:
            rows = one.execute(
                "SELECT file.path, context.context, numbits FROM line_bits"
                " JOIN file ON file.id = file_id JOIN context ON context.id = context_id WHERE context <> ''"
            ).fetchall()
        except sqlite3.OperationalError:  # a program that was killed before it wrote
            return
    for file, context, lines in rows:
        name, _, phase = context.rpartition(" (")
        # What a fixture started serves the other tests of that file too, under the name of the first.
        test = (
            context if not phase.endswith(")") else name if phase == "call)" else f"{name.split('::')[0]}::*"
        )
        table.execute("INSERT INTO reached VALUES (?, ?, ?)", (file, test, lines))


def tree() -> str:
    """What the table is of: a digest of the tests and of both packages."""
    folders = (ROOT / "tests", ROOT / "policy_service", ROOT / "sdk/python/countersign")
    paths = [path for folder in folders for path in folder.rglob("*.py") if "mutation" not in path.parts]
    whole = hashlib.sha256()
    for path in sorted(paths):
        whole.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()


def require_table() -> None:
    """Raises SystemExit: there is no table, or it is of another tree; a test that is gone would pass for a find."""
    recorded = (FOLDER / "tree").read_text() if TABLE.exists() and (FOLDER / "tree").exists() else ""
    if recorded != tree():
        raise SystemExit("the table is of another tree: python -m tests.mutation.reach")


def tests_of(file: str, lines: set[int]) -> list[Test]:
    """The tests that passed and ran one of `lines` of `file`: the quick ones first, then those that run little else."""
    with sqlite3.connect(TABLE) as table:
        rows = table.execute("SELECT test, lines FROM reached WHERE file = ?", (file,)).fetchall()
        names = {test for test, bits in rows if lines & set(numbits_to_nums(bits))}
        whole = {name.removesuffix("::*") for name in names if name.endswith("::*")}
        passed = table.execute("SELECT name, seconds, lines FROM tests WHERE passed")
        found = [Test(*row) for row in passed if row[0] in names or row[0].split("::")[0] in whole]
    return sorted(found, key=lambda test: (test.seconds // 0.2, test.lines, test.name))


if __name__ == "__main__":
    sys.exit(record(sys.argv[1:] or _SHORT))
