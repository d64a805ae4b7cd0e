"""The single writer of SQLite: queued units of work share one commit.

The thread owns its connection, in autocommit, and sends every BEGIN, SAVEPOINT and COMMIT itself. For a
batch it

1. sends BEGIN IMMEDIATE, so that no unit reads what another process is about to change;
2. runs each unit in its own savepoint; one that raises is rolled back alone and gets its own exception;
3. checks after each unit, and before each of its statements, that the transaction is still open. SQLite rolls all of it
   back on a full disk, an I/O error or RAISE(ROLLBACK), and the next statement would then run in autocommit. If it was
   rolled back, the batch has failed;
4. sends a COMMIT that must find a transaction (the driver's ``commit()`` does nothing when there is none);
5. only then sets the results.

INVARIANT (I-7): a result is set only after the COMMIT that holds it. Every unit of a failed batch gets
``storage_unavailable``.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import structlog
from sqlalchemy import Connection, Engine, event

from policy_service import metrics
from policy_service.errors import StorageUnavailableError
from policy_service.storage.unit_of_work import (
    Clock,
    QueuedUnit,
    T,
    Tx,
    Unit,
    as_storage_error,
    resolve_futures,
    run_unit,
    storage_unavailable,
)

log = structlog.get_logger(__name__)

_SAVEPOINT = "unit"


class TransactionLostError(Exception):
    """SQLite has rolled the whole transaction back."""


class SqliteWriter:
    """Runs units of work on its own thread."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock,
        max_batch: int,
        on_commit: Callable[[], None],
        on_failure: Callable[[str | None], None] = lambda name: None,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._max_batch = max_batch
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._queue: queue.SimpleQueue[QueuedUnit | None] = queue.SimpleQueue()
        self._gate = threading.Lock()  # no unit is queued after the end marker
        self._closed = False
        self._conn: Connection | None = None
        self._in_unit = False
        self.commits = 0
        for name in ("commit", "rollback"):
            event.listen(engine, name, self._refuse_ending)
        event.listen(engine, "before_cursor_execute", self._refuse_outside)
        self._thread = threading.Thread(target=self._run, name="countersign-writer", daemon=True)
        self._thread.start()

    # -- callers --------------------------------------------------------------------------------------------

    def submit(self, unit: Unit[Any], future: Future[Any] | asyncio.Future[Any]) -> None:
        """Queue a unit; the future is settled after its commit.

        Raises:
            StorageUnavailableError: the writer is closed.
        """
        with self._gate:
            if self._closed:
                raise StorageUnavailableError(
                    "the database is closed, the service is stopping; repeat the request under the same key"
                )
            self._queue.put(QueuedUnit(unit, future))

    def close(self) -> None:
        """Finish the queued units, then stop."""
        with self._gate:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    # -- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while batch := self._next_batch():
            self._run_batch(batch)
            resolve_futures(batch)
            self._notify()
        self._drop_connection()
        self._engine.dispose()

    def _next_batch(self) -> list[QueuedUnit]:
        """The queued units, at least one; empty when the writer is closed."""
        batch: list[QueuedUnit] = []
        while len(batch) < self._max_batch:
            try:
                queued = self._queue.get(block=not batch)
            except queue.Empty:
                break
            if queued is None:
                if batch:
                    self._queue.put(None)  # keep the end marker last
                break
            batch.append(queued)
        return batch

    def _run_batch(self, batch: list[QueuedUnit]) -> None:
        try:
            conn, driver = self._connection()
            driver.execute("BEGIN IMMEDIATE")
            for queued in batch:
                self._run_unit(conn, driver, queued)
            self._commit(driver)
            metrics.COMMIT_UNITS.observe(len(batch))
        except BaseException as error:  # noqa: BLE001  no unit of the batch may succeed
            log.error("batch_failed", units=len(batch), error=_name(error), cause=_name(error.__cause__))
            self._on_failure(_name(error.__cause__) or _name(error))
            self._abandon()
            for queued in batch:
                queued.answer, queued.error = (
                    None,
                    storage_unavailable("the database lost the change", error),
                )

    def _run_unit(self, conn: Connection, driver: sqlite3.Connection, queued: QueuedUnit) -> None:
        driver.execute(f"SAVEPOINT {_SAVEPOINT}")
        try:
            queued.require_not_expired()
            queued.answer = self._call(conn, queued.unit)
        except BaseException as error:  # noqa: BLE001  it is returned to the caller of the unit
            _require_transaction(driver, error)
            driver.execute(f"ROLLBACK TO {_SAVEPOINT}")
            _restart_bookkeeping(conn)
            queued.error = as_storage_error(error)
        _require_transaction(driver, None)
        driver.execute(f"RELEASE {_SAVEPOINT}")

    def _call(self, conn: Connection, unit: Unit[T]) -> T:
        self._in_unit = True
        try:
            answer = run_unit(unit, Tx(conn, self._clock()))
            if conn.in_nested_transaction():
                raise RuntimeError("a unit of work left a savepoint open; use begin_nested() in a with block")
            return answer
        finally:
            self._in_unit = False

    def _commit(self, driver: sqlite3.Connection) -> None:
        _require_transaction(driver, None)
        driver.execute("COMMIT")
        self.commits += 1

    def _connection(self) -> tuple[Connection, sqlite3.Connection]:
        if self._conn is None:
            self._conn = self._engine.connect()
            self._conn.begin()
        return self._conn, cast(sqlite3.Connection, self._conn.connection.driver_connection)

    def _abandon(self) -> None:
        """Leave no transaction open; drop a connection that cannot roll back."""
        if self._conn is None:
            return
        try:
            driver = cast(sqlite3.Connection, self._conn.connection.driver_connection)
            if driver.in_transaction:
                driver.execute("ROLLBACK")
            _restart_bookkeeping(self._conn)
        except Exception:
            log.exception("rollback_failed")
            self._drop_connection()

    def _drop_connection(self) -> None:
        conn, self._conn = self._conn, None
        if conn is None:
            return
        try:
            conn.invalidate()
            conn.close()
        except Exception:
            log.exception("close_failed")

    def _refuse_ending(self, _conn: Connection) -> None:
        if self._in_unit:
            raise RuntimeError("a unit of work neither commits nor rolls back; raise to undo it")

    def _refuse_outside(self, _conn: Connection, cursor: sqlite3.Cursor, *_rest: object) -> None:
        """Refuse a statement outside the transaction: a unit that caught the error would continue in autocommit."""
        if self._in_unit and not cursor.connection.in_transaction:
            raise TransactionLostError("the transaction is gone; nothing more of this unit can be written")

    def _notify(self) -> None:
        try:
            self._on_commit()
        except Exception:
            log.exception("commit_listener_failed")


def _restart_bookkeeping(conn: Connection) -> None:
    """Reset SQLAlchemy's view of the transaction after a failed unit; sends nothing."""
    conn.rollback()
    conn.begin()


def _require_transaction(driver: sqlite3.Connection, cause: BaseException | None) -> None:
    if not driver.in_transaction:
        raise TransactionLostError("the transaction is gone") from cause


def _name(error: BaseException | None) -> str | None:
    """The error's name in the database, else its class; a message could quote a row."""
    if error is None:
        return None
    driver_error = getattr(error, "orig", None) or error
    return getattr(driver_error, "sqlite_errorname", None) or type(error).__name__
