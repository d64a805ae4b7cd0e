"""What every room may rely on, on both engines."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import IntegrityError

from policy_service.errors import StartError, StorageUnavailableError
from policy_service.storage.database import Database, StorageLimits, Tx


def create(db: Database, columns: str = "n INTEGER PRIMARY KEY") -> None:
    db.write_sync(lambda tx: tx.conn.execute(text(f"CREATE TABLE t ({columns})")).rowcount)


def insert(tx: Tx, n: int) -> int:
    return tx.conn.execute(text("INSERT INTO t VALUES (:n)"), {"n": n}).rowcount


def numbers(db: Database) -> list[int]:
    return db.read_sync(lambda conn: list(conn.scalars(text("SELECT n FROM t ORDER BY n"))))


@pytest.mark.anyio
async def test_a_unit_answers_and_is_there_for_readers(db: Database) -> None:
    create(db)
    assert await db.write(lambda tx: insert(tx, 1)) == 1
    assert await db.read(lambda conn: conn.execute(text("SELECT n FROM t")).scalar_one()) == 1


@pytest.mark.anyio
async def test_a_unit_that_raises_leaves_nothing_and_its_error_arrives(db: Database) -> None:
    create(db)

    def half(tx: Tx) -> None:
        insert(tx, 1)
        raise LookupError("x")

    with pytest.raises(LookupError):
        await db.write(half)
    assert numbers(db) == []


@pytest.mark.anyio
async def test_a_broken_constraint_arrives_as_it_is(db: Database) -> None:
    create(db)
    await db.write(lambda tx: insert(tx, 1))
    with pytest.raises(IntegrityError):
        await db.write(lambda tx: insert(tx, 1))


@pytest.mark.anyio
async def test_an_error_does_not_quote_what_was_bound(db: Database) -> None:
    with pytest.raises(Exception) as caught:  # which one is the engine's own affair
        await db.write(
            lambda tx: tx.conn.execute(text("SELECT :v FROM nowhere"), {"v": "canary-7f3a"}).rowcount
        )
    assert "canary" not in str(caught.value)


@pytest.mark.anyio
async def test_a_query_cannot_write(db: Database) -> None:
    create(db)
    with pytest.raises(StorageUnavailableError):
        await db.read(lambda conn: conn.execute(text("INSERT INTO t VALUES (1)")).rowcount)
    assert numbers(db) == []


@pytest.mark.anyio
async def test_a_query_sees_one_snapshot(db: Database) -> None:
    create(db)
    seen, written = threading.Event(), threading.Event()

    def twice(conn):  # type: ignore[no-untyped-def]
        first = conn.execute(text("SELECT COUNT(*) FROM t")).scalar_one()
        seen.set()
        assert written.wait(10)
        return first, conn.execute(text("SELECT COUNT(*) FROM t")).scalar_one()

    reading = asyncio.ensure_future(db.read(twice))
    assert await asyncio.to_thread(seen.wait, 10)
    await db.write(lambda tx: insert(tx, 1))
    written.set()
    assert await reading == (0, 0)
    assert numbers(db) == [1]


@pytest.mark.anyio
async def test_an_open_result_of_a_query_is_refused(db: Database) -> None:
    with pytest.raises(TypeError, match="open result"):
        await db.read(lambda conn: conn.execute(text("SELECT 1")))


@pytest.mark.anyio
async def test_one_conditional_update_has_one_winner(db: Database) -> None:
    create(db)
    await db.write(lambda tx: insert(tx, 0))

    def take(tx: Tx) -> int:
        return tx.conn.execute(text("UPDATE t SET n = 1 WHERE n = 0")).rowcount

    assert sum(await asyncio.gather(*(db.write(take) for _ in range(32)))) == 1


@pytest.mark.anyio
async def test_now_is_aware_utc_and_near(db: Database) -> None:
    moment = await db.write(lambda tx: tx.now)
    assert moment.utcoffset() == timedelta(0)
    assert abs(moment - datetime.now(UTC)) < timedelta(seconds=5)


@pytest.mark.anyio
async def test_the_clock_can_be_given(database_url: str) -> None:
    fixed = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    with Database.open(database_url, clock=lambda: fixed) as db:
        assert await db.write(lambda tx: tx.now) == fixed


@pytest.mark.anyio
async def test_a_closed_database_refuses(database_url: str) -> None:
    db = Database.open(database_url)
    db.close()
    with pytest.raises(StorageUnavailableError, match="stopping"):
        await db.write(lambda tx: tx.now)
    with pytest.raises(StorageUnavailableError, match="closed"):
        await db.read(lambda conn: 1)


@pytest.mark.anyio
async def test_two_units_that_lock_each_other_out_are_both_done(database_url: str) -> None:
    """PostgreSQL breaks the deadlock by failing one, which is then run again; SQLite has one writer."""
    with Database.open(database_url) as db:
        create(db, "n INTEGER PRIMARY KEY, hits INTEGER")
        await db.write(lambda tx: tx.conn.execute(text("INSERT INTO t VALUES (1, 0), (2, 0)")).rowcount)
        both = threading.Barrier(2)

        def touch(first: int, second: int):  # type: ignore[no-untyped-def]
            def unit(tx: Tx) -> None:
                tx.conn.execute(text("UPDATE t SET hits = hits + 1 WHERE n = :n"), {"n": first})
                if db.dialect == "postgresql" and not both.broken:
                    with suppress(threading.BrokenBarrierError):
                        both.wait(0.5)
                tx.conn.execute(text("UPDATE t SET hits = hits + 1 WHERE n = :n"), {"n": second})

            return unit

        await asyncio.gather(db.write(touch(1, 2)), db.write(touch(2, 1)))
        assert await db.read(lambda conn: list(conn.scalars(text("SELECT hits FROM t")))) == [2, 2]


# -- opening -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite://", "sqlite:///:memory:"])
def test_what_is_no_durable_database_is_refused(url: str) -> None:
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
    with pytest.raises(StartError, match="cannot be written") as refused:
        Database.open(f"sqlite:///{tmp_path / path}")
    assert str(tmp_path / path) in str(refused.value)


def test_a_damaged_file_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    with Database.open(sqlite_url) as db:
        create(db, "n INTEGER PRIMARY KEY, body TEXT")
        db.write_sync(
            lambda tx: [
                tx.conn.execute(text("INSERT INTO t VALUES (:n, :b)"), {"n": n, "b": "x" * 500}).rowcount
                for n in range(200)
            ]
        )
        db.write_sync(lambda tx: tx.now)
    path = tmp_path / "countersign.db"
    checkpoint = sqlite3.connect(path)
    checkpoint.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    checkpoint.close()
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
    def pragmas(conn):  # type: ignore[no-untyped-def]
        names = ("journal_mode", "synchronous", "foreign_keys", "query_only", "busy_timeout")
        return {name: conn.execute(text(f"PRAGMA {name}")).scalar_one() for name in names}

    with Database.open(sqlite_url) as db:
        written = db.write_sync(lambda tx: pragmas(tx.conn))
        assert written == {
            "journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "query_only": 0, "busy_timeout": 5000
        }  # fmt: skip
        assert db.read_sync(pragmas)["query_only"] == 1


def test_a_trial_may_ask_for_less_than_durable_commits(sqlite_url: str) -> None:
    with Database.open(sqlite_url, limits=StorageLimits(durable=False)) as db:
        level = db.write_sync(lambda tx: tx.conn.execute(text("PRAGMA synchronous")).scalar_one())
    assert level == 1  # NORMAL


def test_a_server_that_acknowledges_what_it_may_lose_is_refused(postgres_server: str) -> None:
    from tests.counterparts import postgres

    with postgres.database(postgres_server) as url:
        admin = create_engine(url, isolation_level="AUTOCOMMIT")
        with admin.connect() as conn:
            name = conn.execute(text("SELECT current_database()")).scalar_one()
            conn.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
        admin.dispose()
        with pytest.raises(StartError, match="synchronous_commit"):
            Database.open(url)


@pytest.mark.anyio
async def test_a_connection_that_dies_in_the_middle_acknowledges_nothing_and_the_next_unit_works(
    postgres_url: str,
) -> None:
    """N6."""
    with Database.open(postgres_url) as db:
        create(db)

        def killed(tx: Tx) -> None:
            insert(tx, 1)
            own = tx.conn.execute(text("SELECT pg_backend_pid()")).scalar_one()
            admin = create_engine(postgres_url, poolclass=NullPool)
            with admin.connect() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": own})
            insert(tx, 2)

        with pytest.raises(StorageUnavailableError, match="repeat the request under the same key"):
            await db.write(killed)
        await db.write(lambda tx: insert(tx, 3))
        assert numbers(db) == [3]


@pytest.mark.anyio
async def test_a_unit_that_keeps_failing_to_serialize_is_given_up(postgres_url: str) -> None:
    runs: list[int] = []

    def unit(tx: Tx) -> None:
        runs.append(1)
        tx.conn.execute(text("DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$"))

    with Database.open(postgres_url, limits=StorageLimits(max_runs=3)) as db:
        with pytest.raises(StorageUnavailableError):
            await db.write(unit)
        assert len(runs) == 3


@pytest.mark.anyio
async def test_a_unit_that_fails_to_serialize_once_is_run_again(postgres_url: str) -> None:
    runs: list[int] = []

    def unit(tx: Tx) -> None:
        runs.append(1)
        insert(tx, len(runs))
        if len(runs) == 1:
            tx.conn.execute(text("DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$"))

    with Database.open(postgres_url) as db:
        create(db)
        await db.write(unit)
        assert numbers(db) == [2], "nothing of the first run is left"


@pytest.mark.anyio
async def test_a_unit_whose_key_was_taken_meanwhile_is_run_again_and_sees_it(postgres_url: str) -> None:
    """A row that two units miss and both insert: the later one finds it, instead of failing."""
    runs: list[int] = []

    def unit(tx: Tx) -> str:
        runs.append(1)
        if tx.conn.execute(text("SELECT n FROM t WHERE n = 7")).first() is not None:
            return "known"
        if len(runs) == 1:
            other.write_sync(lambda tx: insert(tx, 7))
        insert(tx, 7)
        return "made"

    with Database.open(postgres_url) as db, Database.open(postgres_url) as other:
        create(db)
        assert await db.write(unit) == "known"
        assert numbers(db) == [7]
