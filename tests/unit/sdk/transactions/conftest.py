"""A note of the test's desk, and the database of the notes."""

from pathlib import Path
from typing import Any

import pytest

from countersign import SQLiteAdapter
from tests.fakes.desk import Desk, note_tool, notes_database


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return notes_database(tmp_path)


@pytest.fixture
def note(desk: Desk, notes: Path) -> Any:
    return note_tool(desk, SQLiteAdapter(notes))
