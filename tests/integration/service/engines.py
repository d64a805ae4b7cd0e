"""The service on both engines: which database a running service gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.counterparts import postgres

ENGINES = ["sqlite", "postgresql"]
# For tests whose rule is decided before the database is asked.
SQLITE_IN_SHORT = ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)]


@pytest.fixture(name="engine", params=SQLITE_IN_SHORT)
def each_engine(request: pytest.FixtureRequest) -> str:
    """For a module of which every test is on both, unless the test is about one of them."""
    return str(request.param)


@contextmanager
def database_on(request: pytest.FixtureRequest, engine: str) -> Iterator[dict[str, str]]:
    """The settings of a fresh database with the service's tables: none for the file that a data folder has anyway."""
    if engine == "sqlite":
        yield {}
        return
    template = request.getfixturevalue("migrated_template")
    with postgres.database(request.getfixturevalue("postgres_server"), template) as url:
        yield {"database_url": url}
