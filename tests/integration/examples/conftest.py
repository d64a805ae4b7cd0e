"""A small airline in a file of its own, for every test that asks for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.airline.database import AirlineDatabase
from tests.integration.examples import airline_world


@pytest.fixture
def airline(tmp_path: Path) -> Iterator[AirlineDatabase]:
    database = AirlineDatabase(tmp_path / "airline.sqlite3", airline_world.write(tmp_path / "data"))
    yield database
    database.close()
