"""The database as the rest of the service sees it: write a unit, read a query.

``await db.write(unit)`` answers after the commit that holds the unit; ``await db.read(query)`` sees one
committed snapshot and cannot write. Neither blocks the event loop. The ``_sync`` twins are for the command
line and for threads.

An error of the database itself arrives as ``StorageUnavailableError``; what a unit raises arrives as it was
raised (an ``IntegrityError`` too: the unit's author knows what it means).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self

import structlog
from sqlalchemy import URL, Engine, make_url
from sqlalchemy.exc import SQLAlchemyError

from policy_service import metrics
from policy_service.errors import StartError, StorageUnavailableError
from policy_service.storage import postgres, sqlite
from policy_service.storage.sqlite_writer import SqliteWriter
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

# Units handed over and not answered: seconds of work on either engine. Whoever came after them would have given up
# before being served, and what is refused at once can be asked again at once.
MAX_PENDING_UNITS = 4_096


@dataclass(frozen=True, slots=True)
class StorageLimits:
    """How much the database is asked to do at once. ``settings.py`` says why each is what it is."""

    max_batch: int = 256
    busy_timeout_ms: int = 5_000
    read_threads: int = 4
    pool_size: int = 8
    max_runs: int = 5
    durable: bool = True  # SQLite: every acknowledged commit is on the disk (I-7)


class Writer(Protocol):
    """Runs units of work; one of them for each kind of database."""

    def submit(self, unit: Unit[Any], future: Future[Any] | asyncio.Future[Any]) -> None:
        """Queue a unit; the future is settled after its commit."""

    def close(self) -> None:
        """Finish what waits, then stop."""


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
        self._pools: tuple[Engine, ...] = ()  # of a database server: connections come and go
        self._writer: Writer
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
            StartError: another kind of database, a damaged file, or one that would lose acknowledged commits.
            StorageUnavailableError: it cannot be reached.
        """
        try:
            return cls(make_url(url), limits or StorageLimits(), clock)
        except SQLAlchemyError as error:
            raise _open_failed(error) from error

    def _open_sqlite(self, limits: StorageLimits, clock: Clock) -> None:
        sqlite.create_file(self.url)
        if not limits.durable:
            log.warning("durability_normal", told="acknowledged decisions may be lost at power loss")
        engine = sqlite.open_writer(self.url, busy_timeout_ms=limits.busy_timeout_ms, durable=limits.durable)
        sqlite.require_intact(engine, self.url.database)
        self._readers = sqlite.open_reader(
            self.url, busy_timeout_ms=limits.busy_timeout_ms, connections=limits.read_threads + 1
        )
        self._writer = SqliteWriter(
            engine,
            clock=clock,
            max_batch=limits.max_batch,
            on_commit=self._committed,
            on_failure=self._failed,
        )

    def _open_postgres(self, limits: StorageLimits, clock: Clock | None) -> None:
        waits, name = limits.busy_timeout_ms, postgres.make_application_name()
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
        """Run a unit of work and answer once it is committed.

        Cancelling the caller does not cancel the unit: it is committed whole or not at all, and nobody is
        told.

        Raises:
            StorageUnavailableError: it was not committed, or nobody knows; or too many wait, and it was not begun.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(unit, future)
        return await asyncio.shield(future)  # a caller who goes away takes nothing from the count

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
        told = ObservedUnit(unit, self._listener)
        try:
            self._writer.submit(told, future)
        except BaseException:
            self._pending.release()
            raise
        told.when(future)  # called back in the caller's context, and before the caller goes on
        future.add_done_callback(self._release_pending)

    def _release_pending(self, _over: object) -> None:
        self._pending.release()

    def on_commit(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after commits, from the writer's thread: a hint, so it must return at once."""
        self._listeners.append(listener)

    def set_listener(self, listener: CommitListener) -> None:
        """Show ``listener`` the lines of the log that are committed from here."""
        self._listener = listener

    def _committed(self) -> None:
        for listener in self._listeners:
            listener()

    def _failed(self, name: str | None) -> None:
        """A commit failed; the first since :meth:`well` is remembered, for whoever looks whether it still does."""
        metrics.COMMIT_FAILURES.inc()
        if self.failed is None:
            self.failed = (name or "unknown", utc_now())

    def well(self) -> None:
        """Writing works again."""
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

    def read_sync(self, query: Query[T]) -> T:
        """:meth:`read` for threads and the command line."""
        try:
            with self._readers.connect() as conn:
                return require_plain_result(query(conn))
        except SQLAlchemyError as error:
            raise as_storage_error(error) from error

    # -- a server that comes back ---------------------------------------------------------------------------

    def count_other_connections(self) -> int:
        """How many connections other processes of ours have; an embedded database has one process."""
        return self.read_sync(postgres.count_other_connections) if self._pools else 0

    def refuse_stale_server(self, reached: Callable[[], tuple[int, int]]) -> None:
        """Stop using a server that comes back behind what was reached (epoch, audit index)."""
        for engine in self._pools:
            postgres.refuse_stale_server(engine, reached)

    # -- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish the units that wait, then let go."""
        self._writer.close()
        self._read_threads.shutdown(wait=True)
        self._readers.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open_failed(error: SQLAlchemyError) -> StorageUnavailableError:
    return StorageUnavailableError(
        f"the database cannot be opened ({type(error).__name__}); check database_url"
    )
