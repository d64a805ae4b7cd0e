"""What several tests of recovery begin with."""

from collections.abc import Callable
from typing import Any

import pytest

from countersign import FilesAdapter, SQLiteAdapter
from tests.fakes.desk import Desk, note_tool, notes_database
from tests.unit.sdk.live.test_lane import Stubborn

Live = Callable[[str, str], Any]


@pytest.fixture
def both(desk: Desk) -> tuple[Live, Live]:
    """A tool whose database can commit, and one whose cannot."""
    (desk.folder / "other").mkdir()
    first = note_tool(desk, SQLiteAdapter(notes_database(desk.folder)))
    second = note_tool(desk, Stubborn(notes_database(desk.folder / "other"), name="other"), name="other_note")
    return first, second


@pytest.fixture
def files(desk: Desk) -> FilesAdapter:
    (desk.folder / "root").mkdir()
    return FilesAdapter(desk.folder / "root")


@pytest.fixture
def note(desk: Desk) -> Live:
    return note_tool(desk, SQLiteAdapter(notes_database(desk.folder), name="notes"))
