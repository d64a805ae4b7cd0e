"""The databases of the machines."""

import pytest

from tests.model.playing import Databases, databases_on
from tests.unit.storage.databases import migrated_template, postgres_server

__all__ = ["databases", "migrated_template", "postgres_server"]


@pytest.fixture
def databases(request: pytest.FixtureRequest, engine: str) -> Databases:
    """The settings of a database for one run of a machine."""
    return databases_on(request, engine)
