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


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=[pytest.mark.long, pytest.mark.xdist_group("postgresql")]),
    ]
)
def engine(request: pytest.FixtureRequest) -> str:
    """Where the engines could differ in the short suite a test asks for both."""
    chosen: str = request.param
    return chosen
