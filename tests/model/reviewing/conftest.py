"""The databases of the machine."""

from tests.unit.storage.databases import migrated_template, postgres_server

__all__ = ["migrated_template", "postgres_server"]
