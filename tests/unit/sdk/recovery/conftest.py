"""What several tests of recovery begin with."""

from typing import Any

import pytest

from tests.fakes.desk import Desk, note_tool, notes_database
from tests.unit.sdk.live.test_lane import Stubborn


@pytest.fixture
def both(desk: Desk, note: Any) -> tuple[Any, Any]:
    """A tool whose database can commit, and one whose cannot."""
    (desk.folder / "other").mkdir()
    return note, note_tool(
        desk, Stubborn(notes_database(desk.folder / "other"), name="other"), name="other_note"
    )
