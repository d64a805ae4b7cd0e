"""A migrated database has exactly the declared tables, and a log that can only grow."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context

import pytest
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError

from policy_service.errors import StartError, StorageUnavailableError
from policy_service.storage import migrations
from policy_service.storage.core import table
from policy_service.storage.database import Database, Tx
from policy_service.storage.plumbing import AuditRow

AUDIT = table(AuditRow)
ROW = {
    "audit_id": "a1", "kind": "test", "actor": "system", "txn": "t" * 64, "effect_id": "e" * 64, "rev": 1,
    "agent": "robot", "body": b"{}", "at": datetime(2026, 11, 21, tzinfo=UTC),
}  # fmt: skip


@pytest.fixture
def migrated(migrated_url: str) -> Iterator[Database]:
    with Database.open(migrated_url) as db:
        db.write_sync(lambda tx: tx.conn.execute(AUDIT.insert().values(**ROW)).rowcount)
        yield db


def stored(db: Database) -> list[dict[str, object]]:
    return db.read_sync(lambda conn: [dict(row) for row in conn.execute(AUDIT.select()).mappings()])


def refused(db: Database, sql: str, **values: object) -> None:
    """The statement fails and the row is as it was."""
    before = stored(db)

    def unit(tx: Tx) -> None:
        tx.conn.execute(text(sql), values)

    with pytest.raises((DBAPIError, StorageUnavailableError)):
        db.write_sync(unit)
    assert stored(db) == before


def test_the_migrated_tables_are_the_declared_ones(database_url: str) -> None:
    migrations.migrate(database_url)
    migrations.check(database_url)


def test_replicas_that_start_together_on_an_empty_database_migrate_it_once(postgres_url: str) -> None:
    with ProcessPoolExecutor(4, get_context("spawn")) as replicas:
        for turn in [replicas.submit(migrations.migrate, postgres_url) for _ in range(4)]:
            turn.result()
    migrations.check(postgres_url)


def test_a_missing_column_is_noticed(sqlite_url: str) -> None:
    migrations.migrate(sqlite_url)
    with Database.open(sqlite_url) as db:
        db.write_sync(lambda tx: tx.conn.execute(text("ALTER TABLE meta DROP COLUMN value")).rowcount)
    with pytest.raises(Exception, match="value"):
        migrations.check(sqlite_url)


def test_migrating_twice_changes_nothing(database_url: str) -> None:
    migrations.migrate(database_url)
    migrations.migrate(database_url)
    with Database.open(database_url) as db:
        assert db.read_sync(migrations.current) == migrations.head()


def test_an_empty_database_has_no_revision(db: Database) -> None:
    assert db.read_sync(migrations.current) is None


def test_a_database_of_a_newer_release_is_refused(database_url: str) -> None:
    migrations.migrate(database_url)
    with Database.open(database_url) as db:
        db.write_sync(
            lambda tx: tx.conn.execute(text("UPDATE alembic_version SET version_num = '9999'")).rowcount
        )
    with pytest.raises(StartError, match="'9999'"):
        migrations.migrate(database_url)


def test_a_step_that_fails_leaves_nothing(database_url: str) -> None:
    """A table of the first step is in the way; those made before it must not stay."""
    with Database.open(database_url) as db:
        db.write_sync(lambda tx: tx.conn.execute(text("CREATE TABLE votes (n INTEGER)")).rowcount)
        with pytest.raises(StorageUnavailableError):
            migrations.migrate(database_url)
        tables = db.read_sync(lambda conn: set(inspect(conn).get_table_names()))
    assert tables - {"alembic_version"} == {"votes"}


def test_a_locked_file_is_refused(sqlite_url: str) -> None:
    migrations.migrate(sqlite_url)
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StorageUnavailableError):
        migrations.migrate(sqlite_url + "?timeout=0.1")
    other.close()


# -- the log only grows ------------------------------------------------------------------------------------


def test_a_row_gets_its_index(migrated: Database) -> None:
    migrated.write_sync(lambda tx: tx.conn.execute(text("UPDATE audit SET idx = 1")).rowcount)
    assert stored(migrated) == [{**ROW, "idx": 1}]


@pytest.mark.parametrize("index", [1, 2, None])
def test_a_row_keeps_its_index(migrated: Database, index: int | None) -> None:
    migrated.write_sync(lambda tx: tx.conn.execute(text("UPDATE audit SET idx = 1")).rowcount)
    refused(migrated, "UPDATE audit SET idx = :index", index=index)


@pytest.mark.parametrize("column", [one.name for one in AUDIT.columns if one.name != "idx"])
@pytest.mark.parametrize("with_index", [True, False])
def test_no_other_column_ever_changes(migrated: Database, column: str, with_index: bool) -> None:
    new = {"rev": 2, "body": b"[]", "at": "2027-01-01T00:00:00.000000Z"}.get(column, "other")
    also = ", idx = 1" if with_index else ""
    refused(migrated, f"UPDATE audit SET {column} = :new{also}", new=new)


def test_a_row_is_never_deleted(migrated: Database) -> None:
    refused(migrated, "DELETE FROM audit")


def test_a_row_is_never_replaced(migrated: Database) -> None:
    if migrated.dialect == "postgresql":
        refused(migrated, "TRUNCATE audit")
        return
    names, values = ", ".join(ROW), ", ".join(f":{name}" for name in ROW)
    new = {**ROW, "body": b"[]", "at": "2026-11-21T00:00:00.000000Z"}
    refused(migrated, f"INSERT OR REPLACE INTO audit ({names}) VALUES ({values})", **new)


def test_a_row_is_never_written_with_an_index(migrated: Database) -> None:
    columns = ", ".join([*ROW, "idx"])
    values = ", ".join(f":{name}" for name in [*ROW, "idx"])
    refused(migrated, f"INSERT INTO audit ({columns}) VALUES ({values})", **{
        **ROW, "audit_id": "a2", "idx": 7, "at": "2026-11-21T00:00:00.000000Z",
    })  # fmt: skip
