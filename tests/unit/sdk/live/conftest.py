"""A small database and a folder of files for the live lane, with a tool on each."""

from pathlib import Path
from typing import Any

import pytest

from countersign import FilesAdapter, SQLiteAdapter
from tests.fakes.desk import Desk, note_tool, notes_database


@pytest.fixture
def notes(desk: Desk) -> Path:
    return notes_database(desk.folder)


@pytest.fixture
def database(notes: Path) -> SQLiteAdapter:
    return SQLiteAdapter(notes, busy_seconds=0.2)


@pytest.fixture
def note(desk: Desk, database: SQLiteAdapter) -> Any:
    """Raises after it has written, where the text is "bad"."""
    return note_tool(desk, database)


@pytest.fixture
def root(desk: Desk) -> Path:
    (desk.folder / "root").mkdir()
    return desk.folder / "root"


@pytest.fixture
def files(root: Path) -> FilesAdapter:
    return FilesAdapter(root)
