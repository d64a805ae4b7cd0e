"""One desk for each test; its connections are closed whatever the test does."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.desk import Desk, make_desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    world = make_desk(tmp_path)
    yield world
    world.runtime.close()
