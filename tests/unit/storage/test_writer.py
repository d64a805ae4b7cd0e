"""The SQLite writer: an acknowledged unit is committed, and a failed one affects no other."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from policy_service.errors import StorageUnavailableError
from policy_service.storage.database import Database, StorageLimits, Tx
from policy_service.storage.sqlite_writer import SqliteWriter, TransactionLostError
from tests.unit.storage.databases import column, execute

Unit = Callable[[Tx], Any]


NOTES = "CREATE TABLE notes (id INTEGER PRIMARY KEY, word TEXT UNIQUE NOT NULL, body BLOB)"


@pytest.fixture
def db(sqlite_url: str) -> Iterator[Database]:
    with Database.open(sqlite_url) as database:
        execute(database, NOTES)
        yield database


def run(sql: str, **values: object) -> Unit:
    return lambda tx: tx.conn.execute(text(sql), values).rowcount


def note(word: str, size: int = 0) -> Unit:
    return run("INSERT INTO notes (word, body) VALUES (:word, zeroblob(:size))", word=word, size=size)


def words(db: Database) -> list[str]:
    return column(db, "SELECT word FROM notes ORDER BY id")


def submit(db: Database, *units: Unit) -> list[Future[Any]]:
    """Send the units to the writer."""
    futures: list[Future[Any]] = [Future() for _ in units]
    for unit, future in zip(units, futures, strict=True):
        writer(db).submit(unit, future)
    return futures


def hold(db: Database) -> tuple[threading.Event, Future[Any]]:
    """Hold the writer up until the event is set."""
    held, go = threading.Event(), threading.Event()

    def wait(_tx: Tx) -> None:
        held.set()
        go.wait(10)

    (first,) = submit(db, wait)
    assert held.wait(10)
    return go, first


def one_batch(db: Database, *units: Unit) -> list[Future[Any]]:
    """Send the units while the writer is held up, so that they meet in the next batch."""
    go, first = hold(db)
    futures = submit(db, *units)
    go.set()
    first.result(10)
    return futures


def writer(db: Database) -> SqliteWriter:
    assert isinstance(db._writer, SqliteWriter)
    return db._writer


def outcome(future: Future[Any]) -> object:
    error = future.exception(10)
    return type(error) if error else future.result()


def cause(future: Future[Any]) -> object:
    """Why a refused unit was refused."""
    error = future.exception(10)
    assert isinstance(error, StorageUnavailableError)
    return type(error.__cause__)


def test_a_unit_that_raises_is_rolled_back_alone(db: Database) -> None:
    def half(tx: Tx) -> None:
        note("half")(tx)
        raise LookupError("no such thing")

    before = writer(db).commits
    outcomes = [outcome(one) for one in one_batch(db, note("a"), half, note("a"), note("b"))]
    assert outcomes == [1, LookupError, IntegrityError, 1]
    assert words(db) == ["a", "b"]
    assert writer(db).commits == before + 2, "the four met in one batch"


def test_a_full_disk_in_the_middle_of_a_batch_acknowledges_nothing(db: Database) -> None:
    (pages,) = column(db, "PRAGMA page_count")
    db.write_sync(lambda tx: tx.conn.execute(text(f"PRAGMA max_page_count = {pages + 4}")).scalar_one())
    futures = one_batch(db, note("a"), note("huge", 1_000_000), note("b"))
    assert [cause(one) for one in futures] == [TransactionLostError] * 3
    assert words(db) == []
    assert outcome(one_batch(db, note("after"))[0]) == 1, "the writer goes on"
    assert words(db) == ["after"]


@pytest.fixture
def bomb(db: Database) -> Unit:
    """A unit whose DELETE makes SQLite roll the whole transaction back; one note is there before."""
    execute(db, "CREATE TRIGGER bomb BEFORE DELETE ON notes BEGIN SELECT RAISE(ROLLBACK, 'boom'); END")
    execute(db, "INSERT INTO notes (word) VALUES ('there')")
    return run("DELETE FROM notes")


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_rollback_by_a_trigger_acknowledges_nothing(db: Database, bomb: Unit, position: int) -> None:
    units = [note("a"), note("b")]
    units.insert(position, bomb)
    assert [cause(one) for one in one_batch(db, *units)] == [TransactionLostError] * 3
    db.write_sync(note("after"))
    assert words(db) == ["there", "after"]


@pytest.mark.parametrize("writes_on", [True, False])
def test_a_hidden_lost_transaction_fails_the_batch(db: Database, bomb: Unit, writes_on: bool) -> None:
    """The author caught the error and wrote on: outside any transaction, each statement its own commit."""

    def hide(tx: Tx) -> int:
        with pytest.raises(IntegrityError):
            bomb(tx)
        return note("half")(tx) if writes_on else 1

    futures = one_batch(db, note("a"), hide, note("b"))
    assert [cause(one) for one in futures] == [TransactionLostError] * 3
    assert words(db) == ["there"]


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
def test_a_unit_that_ends_the_transaction_by_hand_fails_its_batch(db: Database, statement: str) -> None:
    outcomes = [outcome(one) for one in one_batch(db, run(statement), note("b"))]
    assert outcomes == [StorageUnavailableError] * 2
    assert "b" not in words(db)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_unit_that_ends_it_through_the_library_is_refused_alone(db: Database, end: str) -> None:
    def ends(tx: Tx) -> None:
        note("half")(tx)
        getattr(tx.conn, end)()

    assert [outcome(one) for one in one_batch(db, note("a"), ends, note("b"))] == [1, RuntimeError, 1]
    assert words(db) == ["a", "b"]


def test_a_commit_that_fails_acknowledges_nothing(db: Database) -> None:
    """A deferred foreign key is looked at by COMMIT alone."""
    execute(db, "CREATE TABLE replies (note INTEGER REFERENCES notes (id) DEFERRABLE INITIALLY DEFERRED)")
    orphan = run("INSERT INTO replies VALUES (999)")
    assert [outcome(one) for one in one_batch(db, note("a"), orphan)] == [StorageUnavailableError] * 2
    assert words(db) == []
    conn = writer(db)._conn
    assert conn is not None
    driver = conn.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection) and not driver.in_transaction


def test_a_savepoint_inside_a_unit_works(db: Database) -> None:
    def tries(tx: Tx) -> None:
        note("a")(tx)
        with pytest.raises(IntegrityError), tx.conn.begin_nested():
            note("b")(tx)
            note("a")(tx)

    db.write_sync(tries)
    assert words(db) == ["a"]


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, StopIteration, GeneratorExit])
def test_nothing_a_unit_raises_ends_the_writer(db: Database, raised: type[BaseException]) -> None:
    def bad(_tx: Tx) -> None:
        raise raised

    with pytest.raises(RuntimeError, match=raised.__name__):
        db.write_sync(bad)
    db.write_sync(note("after"))
    assert words(db) == ["after"]


def test_an_async_unit_or_an_open_result_is_refused_and_nothing_of_the_unit_stays(db: Database) -> None:
    async def late(tx: Tx) -> None:
        note("late")(tx)

    def leaky(tx: Tx) -> object:
        note("leaky")(tx)
        return tx.conn.execute(text("SELECT 1"))

    for unit, why in ((late, "async"), (leaky, "open result")):
        with pytest.raises(TypeError, match=why):
            db.write_sync(unit)
    assert words(db) == []


def test_now_is_read_once_for_a_unit(sqlite_url: str) -> None:
    ticks = iter(datetime(2026, 11, 21, tzinfo=UTC) + timedelta(seconds=n) for n in range(10))
    with Database.open(sqlite_url, clock=lambda: next(ticks)) as db:
        assert db.write_sync(lambda tx: (tx.now, tx.now)) == (datetime(2026, 11, 21, tzinfo=UTC),) * 2
        assert db.write_sync(lambda tx: tx.now) == datetime(2026, 11, 21, 0, 0, 1, tzinfo=UTC)


async def test_many_concurrent_units_land_in_few_commits(db: Database) -> None:
    before = writer(db).commits
    await asyncio.gather(*(db.write(note(f"w{n}")) for n in range(64)))
    assert writer(db).commits - before <= 4
    assert len(words(db)) == 64


def test_a_batch_is_never_longer_than_its_limit(sqlite_url: str) -> None:
    with Database.open(sqlite_url, limits=StorageLimits(max_batch=2)) as db:
        execute(db, NOTES)
        before = writer(db).commits
        for one in one_batch(db, *(note(str(n)) for n in range(5))):
            one.result(10)
        assert writer(db).commits - before == 1 + 3


async def test_a_caller_that_goes_away_leaves_a_whole_unit_or_none(db: Database) -> None:
    held = threading.Event()
    first, task = map(asyncio.ensure_future, (db.write(lambda _tx: held.wait(10)), db.write(note("alone"))))
    await asyncio.sleep(0.05)
    task.cancel()
    held.set()
    await first
    with pytest.raises(asyncio.CancelledError):
        await task
    await db.write(note("next"))
    assert words(db) == ["alone", "next"]


def test_a_failing_commit_listener_does_not_end_the_writer(db: Database) -> None:
    heard: list[int] = []

    def loud() -> None:
        heard.append(1)
        raise RuntimeError("the listener broke")

    db.on_commit(loud)
    db.write_sync(note("a"))
    db.write_sync(note("b"))
    assert words(db) == ["a", "b"]
    assert heard


def test_another_process_that_holds_the_lock_makes_the_batch_fail_and_only_that(sqlite_url: str) -> None:
    with Database.open(sqlite_url, limits=StorageLimits(busy_timeout_ms=50)) as db:
        execute(db, NOTES)
        with closing(sqlite3.connect(db.url.database or "", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StorageUnavailableError):
                db.write_sync(note("a"))
        db.write_sync(note("b"))
        assert words(db) == ["b"]


def test_a_closed_database_refuses_and_what_waited_was_finished(db: Database) -> None:
    go, _ = hold(db)
    waiting = submit(db, note("a"), note("b"))
    closing_it = threading.Thread(target=db.close)
    closing_it.start()
    while not writer(db)._closed:
        time.sleep(0.001)
    with pytest.raises(StorageUnavailableError, match="stopping"):
        db.write_sync(note("c"))
    go.set()
    closing_it.join(10)
    assert not closing_it.is_alive()
    assert [outcome(one) for one in waiting] == [1, 1]


def test_two_processes_that_read_and_write_lose_no_update(db: Database, sqlite_url: str) -> None:
    """Two databases on one file stand for two processes: BEGIN IMMEDIATE lines them up before they read."""
    execute(db, "CREATE TABLE counter (n INTEGER)")
    execute(db, "INSERT INTO counter VALUES (0)")
    completed_read = threading.Event()

    def add(tx: Tx) -> None:
        n = tx.conn.execute(text("SELECT n FROM counter")).scalar_one()
        completed_read.set()
        time.sleep(0.1)  # long enough for the other to come in between, if it could
        run("UPDATE counter SET n = :n", n=n + 1)(tx)

    with Database.open(sqlite_url) as other:
        (first,) = submit(db, add)
        assert completed_read.wait(10)
        other.write_sync(add)
        first.result(10)
    assert column(db, "SELECT n FROM counter") == [2]
