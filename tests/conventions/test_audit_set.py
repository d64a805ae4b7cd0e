"""What a stranger must read to trust the service and the SDK is listed, and stays within its size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conventions.audit_set import (
    BACKGROUND,
    PAGE,
    SDK_MARKER,
    SERVICE_MARKER,
    Trace,
    files_of,
    lines_of_code,
)
from tests.conventions.repository import ROOT

# At most so many files and lines of code. The service is at its goal of 60 and 9,200; the SDK goes to 40 and 6,800.
SERVICE_FILES, SERVICE_LINES = 60, 9_200
SDK_FILES, SDK_LINES = 47, 7_851


def test_one_effects_life_runs_through_the_listed_files_and_no_more(tmp_path: Path) -> None:
    traced = tmp_path / "page.md"
    command = [sys.executable, "-m", "tests.conventions.audit_set", str(traced)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert traced.read_text() == PAGE.read_text(), "`make pages` lists the files again; look at what came in"


@pytest.mark.parametrize(
    ("marker", "most", "most_lines"),
    [(SERVICE_MARKER, SERVICE_FILES, SERVICE_LINES), (SDK_MARKER, SDK_FILES, SDK_LINES)],
)
def test_there_is_no_more_to_read_than_before(marker: str, most: int, most_lines: int) -> None:
    files = files_of(PAGE.read_text(), marker)
    assert len(files) <= most and sum(map(lines_of_code, files)) <= most_lines


def test_a_file_that_is_called_is_seen_and_one_that_is_only_imported_is_not() -> None:
    trace = Trace((Path(__file__).parent,))
    with trace.watching(), trace.step("here"):
        lines_of_code("tests/conventions/audit_set.py")
    assert trace.files == {"tests/conventions/audit_set.py"}


def test_the_background_jobs_left_out_are_files() -> None:
    assert [name for name in BACKGROUND if not (ROOT / name).is_file()] == []
