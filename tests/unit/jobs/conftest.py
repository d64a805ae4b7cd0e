"""Databases: the fixtures of the storage tests, and which engine they run on."""

import pytest

from tests.unit.storage import databases as of

database_url, db, store, sqlite_url = of.database_url, of.db, of.store, of.sqlite_url
migrated_file, migrated_template, migrated_url = of.migrated_file, of.migrated_template, of.migrated_url
postgres_server, postgres_url = of.postgres_server, of.postgres_url


@pytest.fixture
def engine() -> str:
    """Plain statements need one engine; where several write at once a test asks for both."""
    return "sqlite"
