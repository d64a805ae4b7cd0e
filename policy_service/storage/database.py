"""The database: write a unit of work, read a snapshot.

``await db.write(unit)`` returns after the commit that holds the unit. ``await db.read(query)`` sees one committed
snapshot and cannot write. Neither blocks the event loop. The ``_sync`` variants are for threads and the command line.

A fault of the database is raised as ``StorageUnavailableError``. What a unit raises is raised unchanged, an
``IntegrityError`` too.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

import structlog
from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event, make_url
from sqlalchemy.exc import SQLAlchemyError

from policy_service import metrics
from policy_service.errors import StartError, StorageUnavailableError
from policy_service.storage import sqlite
from policy_service.storage.sqlite_writer import SqliteWriter
from policy_service.storage.types import refuse_nul

if TYPE_CHECKING:
    from policy_service.storage.postgres import PostgresWriter
from policy_service.storage.unit_of_work import (
    Clock,
    CommitListener,
    ObservedUnit,
    Query,
    T,
    Tx,
    Unit,
    as_storage_error,
    require_plain_result,
    utc_now,
)

__all__ = ["Database", "StorageLimits", "Tx"]

log = structlog.get_logger(__name__)

# Pending units: seconds of work on either engine. A later caller would time out before it was served;
# a refused caller can retry at once.
MAX_PENDING_UNITS = 4_096


@dataclass(frozen=True, slots=True)
class StorageLimits:
    """Concurrency limits of the database. ``settings.py`` gives the reason for each."""

    max_batch: int = 256
    busy_timeout_ms: int = 5_000
    read_threads: int = 4
    pool_size: int = 8
    max_runs: int = 5
    durable: bool = True  # SQLite: every acknowledged commit is synced to disk (I-7)


class Database:
    """An open database. Use :meth:`open`."""

    def __init__(self, url: URL, limits: StorageLimits, clock: Clock | None) -> None:
        self.url = url
        self.dialect = url.get_backend_name()
        self._listeners: list[Callable[[], None]] = []
        self._listener: CommitListener | None = None
        self.failed: tuple[str, datetime] | None = None
        self._pending = threading.BoundedSemaphore(MAX_PENDING_UNITS)
        self._readers: Engine
        self._at_once: Connection | None = None  # of SQLite, for the event loop's thread
        self._pools: tuple[Engine, ...] = ()  # of a database server
        self._writer: SqliteWriter | PostgresWriter
        if self.dialect == "sqlite":
            self._open_sqlite(limits, clock or utc_now)
        elif self.dialect == "postgresql":
            self._open_postgres(limits, clock)
        else:
            raise StartError(
                f"database_url names {self.dialect!r}; write sqlite:///... or postgresql+psycopg://..."
            )
        self._read_threads = ThreadPoolExecutor(limits.read_threads, "countersign-read")

    @classmethod
    def open(cls, url: str, *, limits: StorageLimits | None = None, clock: Clock | None = None) -> Self:
        """Open for reading and writing.

        Raises:
            StartError: an unsupported or damaged database, or one that could lose acknowledged commits.
            StorageUnavailableError: it cannot be reached.
        """
        try:
            return cls(make_url(url), limits or StorageLimits(), clock)
        except SQLAlchemyError as error:
            raise StorageUnavailableError(
                f"the database cannot be opened ({type(error).__name__}); check database_url"
            ) from error

    def _open_sqlite(self, limits: StorageLimits, clock: Clock) -> None:
        sqlite.create_file(self.url)
        if not limits.durable:
            log.warning("durability_normal", told="acknowledged decisions may be lost at power loss")
        engine = sqlite.open_writer(self.url, busy_timeout_ms=limits.busy_timeout_ms, durable=limits.durable)
        sqlite.require_intact(engine, self.url.database)
        self._readers = _open_sqlite_reader(
            self.url, busy_timeout_ms=limits.busy_timeout_ms, connections=limits.read_threads + 1
        )
        # It never waits for a lock, because it would block the event loop.
        by_key = _open_sqlite_reader(self.url, busy_timeout_ms=0, connections=1, snapshots=False)
        self._at_once = by_key.connect()
        self._writer = SqliteWriter(
            engine,
            clock=clock,
            max_batch=limits.max_batch,
            on_commit=self._committed,
            on_failure=self._failed,
        )

    def _open_postgres(self, limits: StorageLimits, clock: Clock | None) -> None:
        from policy_service.storage import postgres  # imports psycopg, which SQLite does not need

        waits, name = limits.busy_timeout_ms, f"countersign-{secrets.token_hex(8)}"
        engine = postgres.open_pool(
            self.url, connections=limits.pool_size, read_only=False, lock_timeout_ms=waits, name=name
        )
        postgres.require_durable(engine)
        self._readers = postgres.open_pool(
            self.url, connections=limits.read_threads + 1, read_only=True, lock_timeout_ms=waits, name=name
        )
        self._pools = (engine, self._readers)
        self._writer = postgres.PostgresWriter(
            engine,
            clock=clock,
            connections=limits.pool_size,
            max_runs=limits.max_runs,
            on_commit=self._committed,
            on_failure=self._failed,
        )

    # -- writing --------------------------------------------------------------------------------------------

    async def write(self, unit: Unit[T]) -> T:
        """Run a unit of work and return its result after the commit.

        Cancelling the caller does not cancel the unit: it is committed entirely or not at all.

        Raises:
            StorageUnavailableError: it was not committed, or its outcome is unknown; or the queue is full.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(unit, future)
        return await asyncio.shield(future)  # a cancelled caller must not change the count

    def write_sync(self, unit: Unit[T]) -> T:
        """:meth:`write` for threads and the command line."""
        future: Future[T] = Future()
        self._submit(unit, future)
        return future.result()

    def _submit(self, unit: Unit[T], future: Future[T] | asyncio.Future[T]) -> None:
        if not self._pending.acquire(blocking=False):
            raise StorageUnavailableError(
                "too many changes wait for the database; this one was not begun, repeat the request under the same key"
            )
        observed = ObservedUnit(unit, self._listener)
        try:
            self._writer.submit(observed, future)
        except BaseException:
            self._pending.release()
            raise
        observed.observe(future)  # runs in the caller's context
        future.add_done_callback(lambda _: self._pending.release())

    def on_commit(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after commits, in the writer's thread. It must return at once."""
        self._listeners.append(listener)

    def set_listener(self, listener: CommitListener) -> None:
        """Report the audit lines of later commits to ``listener``."""
        self._listener = listener

    def _committed(self) -> None:
        for listener in self._listeners:
            listener()

    def _failed(self, name: str | None) -> None:
        """Count a failed commit and remember the first since :meth:`clear_failure` for the health check."""
        metrics.COMMIT_FAILURES.inc()
        if self.failed is None:
            self.failed = (name or "unknown", utc_now())

    def clear_failure(self) -> None:
        """Clear the remembered failure: writing works again."""
        self.failed = None

    # -- reading --------------------------------------------------------------------------------------------

    async def read(self, query: Query[T]) -> T:
        """Run a query on one committed snapshot.

        Raises:
            StorageUnavailableError: the database is closed, or cannot be read.
        """
        try:
            reading = asyncio.get_running_loop().run_in_executor(self._read_threads, self.read_sync, query)
        except RuntimeError as error:
            raise StorageUnavailableError(
                "the database is closed, the service is stopping; repeat the request under the same key"
            ) from error
        return await reading

    async def read_row(self, query: Query[T]) -> T:
        """:meth:`read` for one statement that finds a row by its key, as every request needs.

        SQLite answers it on this thread: the hand-over to another one costs ten times as much as the read.
        """
        if self._at_once is None:
            return await self.read(query)
        try:
            return require_plain_result(query(self._at_once))
        except SQLAlchemyError as error:
            raise as_storage_error(error) from error

    def read_sync(self, query: Query[T]) -> T:
        """:meth:`read` for threads and the command line."""
        try:
            with self._readers.connect() as conn:
                return require_plain_result(query(conn))
        except SQLAlchemyError as error:
            raise as_storage_error(error) from error

    # -- a server that comes back ---------------------------------------------------------------------------

    def count_other_connections(self) -> int:
        """Connections of other processes of this service; 0 for an embedded database, which has one process."""
        if not self._pools:
            return 0
        from policy_service.storage import postgres

        return self.read_sync(postgres.count_other_connections)

    def refuse_stale_server(self, reached: Callable[[], tuple[int, int]]) -> None:
        """Refuse a server that reconnects behind ``reached`` (epoch, audit index)."""
        if self._pools:
            from policy_service.storage import postgres

            for engine in self._pools:
                postgres.refuse_stale_server(engine, reached)

    # -- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish the queued units, then disconnect."""
        self._writer.close()
        self._read_threads.shutdown(wait=True)
        self._readers.dispose()
        if self._at_once is not None:
            self._at_once.close()
            self._at_once.engine.dispose()
            self._at_once = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open_sqlite_reader(
    url: URL, *, busy_timeout_ms: int, connections: int, snapshots: bool = True
) -> Engine:
    """An engine whose connections cannot write. With ``snapshots`` all statements of a query see the same one."""
    engine = create_engine(
        url, poolclass=QueuePool, pool_size=connections, max_overflow=0,
        connect_args={**sqlite.CONNECT, "check_same_thread": False}, hide_parameters=True,
    )  # fmt: skip

    refuse_nul(engine)

    @event.listens_for(engine, "connect")
    def _prepare(driver: sqlite3.Connection, _record: object) -> None:
        driver.execute(f"PRAGMA busy_timeout = {busy_timeout_ms:d}")
        driver.execute("PRAGMA query_only = ON")

    def _begin(conn: Connection) -> None:
        cast(sqlite3.Connection, conn.connection.driver_connection).execute("BEGIN")

    if snapshots:
        event.listen(engine, "begin", _begin)
    return engine
