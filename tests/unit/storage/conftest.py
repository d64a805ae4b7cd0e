"""Databases."""

from tests.unit.storage.databases import (
    database_url,
    db,
    engine,
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
