"""The database: units, snapshots, errors and durability, on both engines."""

import asyncio
import os
import sqlite3
import stat
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, NullPool, create_engine, text
from sqlalchemy.exc import IntegrityError

from policy_service.errors import StartError, StorageUnavailableError
from policy_service.storage.database import Database, StorageLimits, Tx
from tests.unit.storage.databases import column, execute


def create(db: Database, columns: str = "n INTEGER PRIMARY KEY") -> None:
    execute(db, f"CREATE TABLE t ({columns})")


def insert(n: int) -> Callable[[Tx], int]:
    return lambda tx: tx.conn.execute(text("INSERT INTO t VALUES (:n)"), {"n": n}).rowcount


def numbers(db: Database) -> list[int]:
    return column(db, "SELECT n FROM t ORDER BY n")


async def test_a_unit_returns_a_result_or_is_rolled_back_with_its_error(db: Database) -> None:
    create(db)
    assert await db.write(insert(1)) == 1
    assert await db.read(lambda conn: conn.execute(text("SELECT n FROM t")).scalar_one()) == 1

    def half(tx: Tx) -> None:
        insert(2)(tx)
        raise LookupError("x")

    with pytest.raises(LookupError):
        await db.write(half)
    with pytest.raises(IntegrityError):
        await db.write(insert(1))
    with pytest.raises(StorageUnavailableError):  # a query cannot write
        await db.read(lambda conn: conn.execute(text("INSERT INTO t VALUES (3)")).rowcount)
    with pytest.raises(TypeError, match="open result"):
        await db.read(lambda conn: conn.execute(text("SELECT 1")))
    assert numbers(db) == [1]


def test_an_error_does_not_quote_bound_values(db: Database) -> None:
    with pytest.raises(Exception) as caught:  # which one is the engine's own affair
        execute(db, "SELECT :v FROM nowhere", v="canary-7f3a")
    assert "canary" not in str(caught.value)


async def test_a_query_sees_one_snapshot(db: Database) -> None:
    create(db)
    seen, written = threading.Event(), threading.Event()

    def twice(conn: Connection) -> tuple[int, int]:
        first = conn.execute(text("SELECT COUNT(*) FROM t")).scalar_one()
        seen.set()
        assert written.wait(10)
        return first, conn.execute(text("SELECT COUNT(*) FROM t")).scalar_one()

    reading = asyncio.ensure_future(db.read(twice))
    assert await asyncio.to_thread(seen.wait, 10)
    await db.write(insert(1))
    written.set()
    assert await reading == (0, 0)
    assert numbers(db) == [1]


async def test_a_row_read_by_its_key_is_always_the_newest_committed(db: Database) -> None:
    create(db)
    count = text("SELECT COUNT(*) FROM t")
    for n in range(3):
        assert await db.read_row(lambda conn: conn.execute(count).scalar_one()) == n
        await db.write(insert(n))
    with pytest.raises(StorageUnavailableError):  # it cannot write either
        await db.read_row(lambda conn: conn.execute(text("INSERT INTO t VALUES (9)")).rowcount)
    assert numbers(db) == [0, 1, 2]


def test_now_is_aware_utc(db: Database) -> None:
    """test_writer.py tests a given clock."""
    moment = db.write_sync(lambda tx: tx.now)
    assert moment.utcoffset() == timedelta(0)
    assert abs(moment - datetime.now(UTC)) < timedelta(seconds=5)


async def test_a_closed_database_refuses(database_url: str) -> None:
    db = Database.open(database_url)
    db.close()
    with pytest.raises(StorageUnavailableError, match="stopping"):
        await db.write(lambda tx: tx.now)
    for read in (db.read, db.read_row):
        with pytest.raises(StorageUnavailableError, match="closed"):
            await read(lambda conn: 1)


async def test_two_deadlocked_units_both_complete(db: Database) -> None:
    """PostgreSQL breaks the deadlock by failing one, which is then run again; SQLite has one writer."""
    create(db, "n INTEGER PRIMARY KEY, hits INTEGER")
    execute(db, "INSERT INTO t VALUES (1, 0), (2, 0)")
    both, hit = threading.Barrier(2), text("UPDATE t SET hits = hits + 1 WHERE n = :n")

    def touch(first: int, second: int) -> Callable[[Tx], None]:
        def unit(tx: Tx) -> None:
            tx.conn.execute(hit, {"n": first})
            if db.dialect == "postgresql" and not both.broken:
                with suppress(threading.BrokenBarrierError):
                    both.wait(0.5)
            tx.conn.execute(hit, {"n": second})

        return unit

    await asyncio.gather(db.write(touch(1, 2)), db.write(touch(2, 1)))
    assert column(db, "SELECT hits FROM t") == [2, 2]


# -- opening -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite://", "sqlite:///:memory:"])
def test_a_database_that_is_not_durable_is_refused(url: str) -> None:
    with pytest.raises((StartError, StorageUnavailableError)):
        Database.open(url)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"not a database" * 400)
    with pytest.raises(StorageUnavailableError, match="check database_url"):
        Database.open(f"sqlite:///{tmp_path / 'x.db'}")


@pytest.mark.parametrize("path", ["a-folder", "a-file/x.db"])
def test_a_place_that_cannot_be_written_is_refused_by_name(tmp_path: Path, path: str) -> None:
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "a-file").touch()
    with pytest.raises(StartError, match=f"{path}.*cannot be written"):
        Database.open(f"sqlite:///{tmp_path / path}")


def test_a_damaged_file_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    with Database.open(sqlite_url) as db:
        create(db, "n INTEGER PRIMARY KEY, body TEXT")
        rows = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 200) SELECT n, :b FROM r"
        execute(db, f"INSERT INTO t {rows}", b="x" * 500)
    path = tmp_path / "countersign.db"
    with closing(sqlite3.connect(path)) as checkpoint:
        checkpoint.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damaged = bytearray(path.read_bytes())
    damaged[4096 * 3 : 4096 * 3 + 200] = b"\xff" * 200
    path.write_bytes(damaged)
    with pytest.raises((StartError, StorageUnavailableError), match=r"damaged|check database_url"):
        Database.open(sqlite_url)


def test_the_file_and_its_log_are_for_their_owner_only(sqlite_url: str, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Database.open(sqlite_url) as db:
            create(db)
            for name in ("countersign.db", "countersign.db-wal"):
                assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_the_writer_is_durable_and_the_reader_cannot_write(sqlite_url: str) -> None:
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "query_only": 0}
    wanted |= {"busy_timeout": 5000, "temp_store": 2}  # 2: memory

    def pragmas(conn: Connection) -> dict[str, object]:
        return {name: conn.execute(text(f"PRAGMA {name}")).scalar_one() for name in wanted}

    with Database.open(sqlite_url) as db:
        assert db.write_sync(lambda tx: pragmas(tx.conn)) == wanted
        assert db.read_sync(pragmas)["query_only"] == 1
    with Database.open(sqlite_url, limits=StorageLimits(durable=False)) as db:  # as a trial may ask for
        assert db.write_sync(lambda tx: pragmas(tx.conn))["synchronous"] == 1  # NORMAL


def test_a_server_that_acknowledges_what_it_may_lose_is_refused(postgres_url: str) -> None:
    admin = create_engine(postgres_url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with admin.connect() as conn:
        conn.execute(text(f"ALTER DATABASE {admin.url.database} SET synchronous_commit = off"))
    with pytest.raises(StartError, match="synchronous_commit"):
        Database.open(postgres_url)


async def test_a_connection_that_dies_in_the_middle_acknowledges_nothing(postgres_url: str) -> None:
    """N6."""
    with Database.open(postgres_url) as db:
        create(db)

        def killed(tx: Tx) -> None:
            insert(1)(tx)
            own = tx.conn.execute(text("SELECT pg_backend_pid()")).scalar_one()
            with create_engine(postgres_url, poolclass=NullPool).connect() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": own})
            insert(2)(tx)

        with pytest.raises(StorageUnavailableError, match="repeat the request under the same key"):
            await db.write(killed)
        await db.write(insert(3))
        assert numbers(db) == [3]


@pytest.mark.parametrize(("failures", "kept"), [(2, [3]), (3, [])])
def test_an_unserializable_unit_is_run_again(postgres_url: str, failures: int, kept: list[int]) -> None:
    runs: list[int] = []

    def unit(tx: Tx) -> None:
        runs.append(1)
        insert(len(runs))(tx)
        if len(runs) <= failures:
            tx.conn.execute(text("DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$"))

    with Database.open(postgres_url, limits=StorageLimits(max_runs=3)) as db:
        create(db)
        with nullcontext() if kept else pytest.raises(StorageUnavailableError):
            db.write_sync(unit)
        assert (len(runs), numbers(db)) == (3, kept), "nothing of a run that failed is left"


def test_a_unit_whose_key_was_taken_meanwhile_is_run_again_and_sees_it(postgres_url: str) -> None:
    """A row that two units miss and both insert: the later one finds it, instead of failing."""
    runs: list[int] = []

    def unit(tx: Tx) -> str:
        runs.append(1)
        if tx.conn.execute(text("SELECT n FROM t WHERE n = 7")).first() is not None:
            return "known"
        if len(runs) == 1:
            other.write_sync(insert(7))
        insert(7)(tx)
        return "made"

    with Database.open(postgres_url) as db, Database.open(postgres_url) as other:
        create(db)
        assert (db.write_sync(unit), numbers(db)) == ("known", [7])
