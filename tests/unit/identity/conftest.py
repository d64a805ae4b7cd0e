"""Databases."""

import pytest

from tests.unit.storage.databases import (
    database_url,
    db,
    migrated_file,
    migrated_template,
    migrated_url,
    postgres_server,
    postgres_url,
    sqlite_url,
    store,
)

__all__ = [
    "database_url",
    "db",
    "engine",
    "migrated_file",
    "migrated_template",
    "migrated_url",
    "postgres_server",
    "postgres_url",
    "sqlite_url",
    "store",
]


@pytest.fixture
def engine() -> str:
    """Plain statements need one engine; where several write at once a test asks for both."""
    return "sqlite"
