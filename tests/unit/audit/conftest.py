"""Databases: the fixtures of the storage tests, and which engine they run on."""

import pytest

from tests.unit.storage import databases as of

database_url, db, store, sqlite_url = of.database_url, of.db, of.store, of.sqlite_url
migrated_file, migrated_template, migrated_url = of.migrated_file, of.migrated_template, of.migrated_url
postgres_server, postgres_url = of.postgres_server, of.postgres_url


POSTGRES = pytest.param("postgresql", marks=[pytest.mark.long, pytest.mark.xdist_group("postgresql")])


@pytest.fixture(params=["sqlite", POSTGRES])
def engine(request: pytest.FixtureRequest) -> str:
    """Where the engines could differ in the short suite a test asks for both."""
    chosen: str = request.param
    return chosen
