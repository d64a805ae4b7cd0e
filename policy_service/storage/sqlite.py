"""How the embedded database is opened: one way to write, one way to read, both durable.

The driver's own transaction handling is switched off (``isolation_level=None``): it sends no BEGIN before a
SELECT, and read-modify-write units then lose updates without an error.

One process for each embedded database.

The lock is the kernel's (``flock``), so it ends with its holder however that ends; the pid in the file only
helps people. The file is never deleted: a deleted one could be locked by two, each holding another inode.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import URL, Connection, Engine, NullPool, QueuePool, create_engine, event

from policy_service.errors import StartError
from policy_service.storage.types import refuse_nul


class DatabaseInUseError(StartError):
    """Another process holds the lock."""

    def __init__(self, path: Path, holder: str) -> None:
        self.holder = holder
        super().__init__(
            f"the database beside {str(path)!r} is in use by {holder}; stop that one first, "
            "or use another folder (data_dir)"
        )


class ProcessLock:
    """Hold ``path`` for as long as this object, or refuse."""

    def __init__(self, path: Path, what: str = "policy-service serve") -> None:
        self.path = path
        self._what = what
        self._fd: int | None = None

    def acquire(self) -> Self:
        """Take the lock.

        Raises:
            InUseError: another process holds it; the sentence names it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 200).decode("utf-8", "replace").strip() or "another process"
            os.close(fd)
            raise DatabaseInUseError(self.path, holder) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"pid {os.getpid()} ({self._what})\n".encode(), 0)
        self._fd = fd
        return self

    def release(self) -> None:
        """Let go. Doing it twice is no error."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.ftruncate(fd, 0)
            os.close(fd)

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def lock_path(database_file: Path) -> Path:
    """Where the lock of a database lies: beside it."""
    return database_file.with_name(database_file.name + ".lock")


def open_writer(url: URL, *, busy_timeout_ms: int, durable: bool = True) -> Engine:
    """An engine whose connections write: WAL, every commit on the disk (unless not `durable`), foreign keys kept."""
    engine = create_engine(url, poolclass=NullPool, connect_args=_CONNECT, hide_parameters=True)
    # SQLAlchemy keeps its books but ends no transaction: the writer sends every BEGIN, COMMIT and ROLLBACK.
    for name in ("do_commit", "do_rollback"):
        setattr(engine.dialect, name, _no_operation)

    refuse_nul(engine)

    @event.listens_for(engine, "connect")
    def _prepare(driver: sqlite3.Connection, _record: object) -> None:
        driver.execute(f"PRAGMA busy_timeout = {busy_timeout_ms:d}")
        mode = driver.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StartError(
                f"the database {url.database!r} cannot use a write-ahead log (mode {mode!r}); "
                "put data_dir on a local disk"
            )
        # NORMAL may lose acknowledged commits at power loss: a trial's choice, never production's (settings.py)
        driver.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        driver.execute("PRAGMA foreign_keys = ON")
        # without it INSERT OR REPLACE deletes and no trigger sees it
        driver.execute("PRAGMA recursive_triggers = ON")

    return engine


def open_reader(url: URL, *, busy_timeout_ms: int, connections: int) -> Engine:
    """An engine whose connections cannot write; each query sees one snapshot."""
    engine = create_engine(
        url, poolclass=QueuePool, pool_size=connections, max_overflow=0,
        connect_args={**_CONNECT, "check_same_thread": False}, hide_parameters=True,
    )  # fmt: skip

    refuse_nul(engine)

    @event.listens_for(engine, "connect")
    def _prepare(driver: sqlite3.Connection, _record: object) -> None:
        driver.execute(f"PRAGMA busy_timeout = {busy_timeout_ms:d}")
        driver.execute("PRAGMA query_only = ON")

    @event.listens_for(engine, "begin")
    def _begin(conn: Connection) -> None:
        conn.exec_driver_sql("BEGIN")

    return engine


def open_migrator(url: URL) -> Engine:
    """An engine for changing tables: SQLAlchemy ends its transactions, each begun here.

    Foreign keys are off, because a table is changed by dropping it and putting a copy in its place.
    """
    engine = create_engine(url, poolclass=NullPool, connect_args=_CONNECT, hide_parameters=True)

    @event.listens_for(engine, "begin")
    def _begin(conn: Connection) -> None:
        conn.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


_CONNECT: dict[str, object] = {"isolation_level": None}


def _no_operation(_driver: object) -> None:
    """In place of the dialect's own COMMIT and ROLLBACK."""


def is_missing(url: URL) -> bool:
    """Whether an embedded database has no file yet. One that may not be looked at is there."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return False
    try:
        Path(url.database).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # whoever opens it says why that cannot be done
    return False


def create_file(url: URL) -> None:
    """Make the file readable by its owner only; the write-ahead log takes the same mode.

    Raises:
        StartError: the URL names no file, or one that this user may not write.
    """
    if not url.database or url.database == ":memory:":
        raise StartError(
            "database_url 'sqlite://' names no file; write sqlite:////absolute/path/countersign.db"
        )
    path = Path(url.database)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StartError(
            f"the database {str(path)!r} cannot be written ({error.strerror}); give its folder to the user the service "
            "runs as, or name another in data_dir"
        ) from error


def backup_to(database: Path, file: Path) -> None:
    """Copy a database, in use or not, as one committed snapshot: page by page, so that rows keep their places. The copy
    is one file, sound and on the disk, or there is none.

    Raises:
        StartError: there is a file of that name already, no such folder, or no sound database to copy.
    """
    part = file.with_name(f"{file.name}.part")
    try:
        part.unlink(missing_ok=True)  # of a backup that was cut short, or planted: never written through
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    except OSError as error:
        raise StartError(f"{file} cannot be written: {error.strerror}") from error
    try:
        with closing(sqlite3.connect(database, isolation_level=None)) as source:
            source.execute("PRAGMA query_only = ON")
            with closing(sqlite3.connect(part, isolation_level=None)) as copy:
                # at once: a copy in steps would begin anew with every commit of the service
                source.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # no log beside it that could be left behind
                _require_ok(copy, database)
        handle = os.open(part, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        os.link(part, file)  # unlike a rename it takes nobody's place
    except FileExistsError:
        raise StartError(
            f"{file} is there already; a backup is never overwritten, name another file"
        ) from None
    except OSError as error:
        raise StartError(f"{file} cannot be written: {error.strerror}") from error
    except sqlite3.Error as error:
        raise StartError(f"the database {str(database)!r} cannot be copied: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def _require_ok(copy: sqlite3.Connection, database: Path) -> None:
    found = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise StartError(f"the database {str(database)!r} is damaged ({found}); keep the backups you have")


def require_intact(engine: Engine, path: str | None) -> None:
    """Refuse a damaged file.

    Raises:
        StartError: SQLite's own check found a fault.
    """
    with engine.connect() as conn:
        found = conn.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    if found != "ok":
        raise corruption_error(path, found)


def is_corruption(error: BaseException | None) -> bool:
    """Whether SQLite says with this that the file is not what it wrote."""
    return getattr(error, "sqlite_errorname", None) in {"SQLITE_CORRUPT", "SQLITE_NOTADB"}


def corruption_error(path: str | None, found: object) -> StartError:
    """The refusal to start on a damaged file."""
    return StartError(f"the database {path!r} is damaged ({found}); restore it from its newest backup")
