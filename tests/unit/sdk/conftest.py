"""One desk for each test; its connections are closed whatever the test does, and its journal is verified."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from countersign.journal.verifying import verify
from tests.fakes.desk import Desk, make_desk


@pytest.fixture
def desk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Desk]:
    world = make_desk(tmp_path)
    yield world
    world.runtime.close()
    journal = world.runtime.settings.journal_path
    if journal.exists():
        found = verify(journal).findings
        tampers = request.node.get_closest_marker("tampers") is not None
        assert bool(found) is tampers, found or "the chain did not notice what this test did to the journal"
