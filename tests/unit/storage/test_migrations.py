"""Migrations: the tables are exactly the declared ones, and the audit log is append-only."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from alembic import command
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError

from policy_service.errors import StartError, StorageUnavailableError
from policy_service.storage import migrations
from policy_service.storage.core import table
from policy_service.storage.database import Database
from policy_service.storage.system_tables import AuditRow
from tests.unit.storage.databases import column, execute

AUDIT = table(AuditRow)
ROW = {
    "audit_id": "a1", "kind": "test", "actor": "system", "txn": "t" * 64, "effect_id": "e" * 64, "rev": 1,
    "agent": "robot", "body": b"{}", "at": datetime(2026, 11, 21, tzinfo=UTC),
}  # fmt: skip


@pytest.fixture
def migrated(store: Database) -> Database:
    store.write_sync(lambda tx: tx.conn.execute(AUDIT.insert().values(**ROW)).rowcount)
    return store


def stored(db: Database) -> list[dict[str, object]]:
    return db.read_sync(lambda conn: [dict(row) for row in conn.execute(AUDIT.select()).mappings()])


def refused(db: Database, sql: str, **values: object) -> None:
    """The statement fails and the row is as it was."""
    before = stored(db)
    with pytest.raises((DBAPIError, StorageUnavailableError)):
        execute(db, sql, **values)
    assert stored(db) == before


def test_the_migrated_tables_are_the_declared_ones_also_the_second_time(database_url: str) -> None:
    with Database.open(database_url) as db:
        assert db.read_sync(migrations.current) is None
    for _ in range(2):
        migrations.migrate(database_url)
        migrations.check(database_url)
    with Database.open(database_url) as db:
        assert db.read_sync(migrations.current) == migrations.head()


def test_replicas_that_start_together_migrate_one_at_a_time(postgres_url: str) -> None:
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    with Database.open(postgres_url) as db, ThreadPoolExecutor(1) as replicas:
        with db._pools[0].connect() as first:
            first.execute(text(f"SELECT pg_advisory_lock({migrations._MIGRATION_LOCK_ID})"))
            second = replicas.submit(migrations.migrate, postgres_url)
            while not second.done() and column(db, f"{locks} AND NOT granted") == [0]:
                pass
            assert migrations.is_empty(postgres_url)
            assert not second.done()
            first.execute(text(f"SELECT pg_advisory_unlock({migrations._MIGRATION_LOCK_ID})"))
            second.result(60)
        migrations.check(postgres_url)
        assert column(db, locks) == [0], "it is given back"


def test_a_missing_column_is_noticed(sqlite_url: str) -> None:
    migrations.migrate(sqlite_url)
    with Database.open(sqlite_url) as db:
        execute(db, "ALTER TABLE meta DROP COLUMN value")
    with pytest.raises(Exception, match="value"):
        migrations.check(sqlite_url)


def test_a_database_of_a_newer_release_is_refused(migrated_url: str) -> None:
    with Database.open(migrated_url) as db:
        execute(db, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StartError, match="'9999'"):
        migrations.migrate(migrated_url)


def test_a_failed_migration_is_rolled_back(database_url: str) -> None:
    """A table of the first step is in the way; those made before it must not stay."""
    with Database.open(database_url) as db:
        execute(db, "CREATE TABLE votes (n INTEGER)")
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


def test_a_row_gets_its_index_and_keeps_it(migrated: Database) -> None:
    execute(migrated, "UPDATE audit SET idx = 1")
    assert stored(migrated) == [{**ROW, "idx": 1}]
    for index in (1, 2, None):
        refused(migrated, "UPDATE audit SET idx = :index", index=index)


def test_no_other_column_ever_changes(migrated: Database) -> None:
    new = {"rev": 2, "body": b"[]", "at": "2027-01-01T00:00:00.000000Z"}
    for name in {one.name for one in AUDIT.columns} - {"idx"}:
        for also in ("", ", idx = 1"):
            refused(migrated, f"UPDATE audit SET {name} = :new{also}", new=new.get(name, "other"))


def test_a_row_is_never_deleted_replaced_or_written_with_an_index(migrated: Database) -> None:
    refused(migrated, "DELETE FROM audit")
    new = {**ROW, "body": b"[]", "at": "2026-11-21T00:00:00.000000Z"}
    into = "INTO audit ({}) VALUES (:{})"
    if migrated.dialect == "postgresql":
        refused(migrated, "TRUNCATE audit")
    else:
        refused(migrated, "INSERT OR REPLACE " + into.format(", ".join(new), ", :".join(new)), **new)
    for index in (7,) if migrated.dialect == "sqlite" else (1, 7):
        new |= {"audit_id": "a2", "idx": index}
        refused(migrated, "INSERT " + into.format(", ".join(new), ", :".join(new)), **new)
    if migrated.dialect == "sqlite":
        execute(migrated, "INSERT " + into.format(", ".join(new), ", :".join(new)), **(new | {"idx": 1}))
        new |= {"audit_id": "a3"}
        for index in (0, 1, 3):
            new |= {"idx": index}
            refused(migrated, "INSERT " + into.format(", ".join(new), ", :".join(new)), **new)


def test_lines_without_an_index_get_it_when_an_embedded_database_is_upgraded(sqlite_url: str) -> None:
    """A service that was killed before 0008 left them, after some that it had numbered."""
    migrations._run(sqlite_url, lambda config: command.upgrade(config, "0007"))
    with Database.open(sqlite_url) as db:
        # in the order of writing; the clock went back in between, so the ids sort otherwise
        for number, audit_id in enumerate("edcba"):
            line = AUDIT.insert().values(**ROW | {"audit_id": audit_id})
            db.write_sync(lambda tx, line=line: tx.conn.execute(line).rowcount)
            if number < 2:
                execute(db, f"UPDATE audit SET idx = {number + 1} WHERE idx IS NULL")
    migrations.migrate(sqlite_url)
    with Database.open(sqlite_url) as db:
        assert column(db, "SELECT audit_id FROM audit ORDER BY idx") == [*"edcba"]
        assert column(db, "SELECT idx FROM audit ORDER BY idx") == [1, 2, 3, 4, 5]
