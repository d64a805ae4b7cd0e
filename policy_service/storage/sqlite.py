"""SQLite: engines for writing and migrating, the process lock, and backups.

The driver's transaction handling is off (``isolation_level=None``): it sends no BEGIN before a SELECT, and units that
read and then write would lose updates without an error.

One process at a time uses a database. The lock is the kernel's (``flock``), so it ends with its holder in every case;
the pid in the file is only information. The file is never deleted: two processes could then lock two inodes of that
name.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event

from policy_service.errors import StartError
from policy_service.storage.types import refuse_nul

CONNECT: Final[Mapping[str, object]] = {"isolation_level": None}


class DatabaseInUseError(StartError):
    """Another process holds the lock."""

    def __init__(self, path: Path, holder: str) -> None:
        self.holder = holder
        super().__init__(
            f"the database of {str(path)!r} is in use by {holder}; stop that process first, "
            "or use another folder (data_dir)"
        )


class ProcessLock:
    """Holds a lock file, or refuses."""

    def __init__(self, path: Path, what: str = "policy-service serve") -> None:
        self.path = path
        self._what = what
        self._fd: int | None = None

    def acquire(self) -> Self:
        """Take the lock.

        Raises:
            DatabaseInUseError: another process holds it; the message names it.
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
        """Release the lock. A second call does nothing."""
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
    """The lock file of a database, in the same folder."""
    return database_file.with_name(database_file.name + ".lock")


def open_writer(url: URL, *, busy_timeout_ms: int, durable: bool = True) -> Engine:
    """An engine for writing: WAL, synced commits (unless not ``durable``), foreign keys enforced."""
    engine = create_engine(url, poolclass=NullPool, connect_args=CONNECT, hide_parameters=True)
    # SQLAlchemy must not end transactions: the writer sends every BEGIN, COMMIT and ROLLBACK.
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
        # NORMAL may lose acknowledged commits at power loss: for trials only (settings.py)
        driver.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        driver.execute("PRAGMA foreign_keys = ON")
        # Every unit has a savepoint, and SQLite copies each page a unit changes. Past 64 KB the copies go to a
        # temporary file: four times as many writes as to the log.
        driver.execute("PRAGMA temp_store = MEMORY")
        # without it INSERT OR REPLACE deletes rows without firing triggers
        driver.execute("PRAGMA recursive_triggers = ON")

    return engine


def open_migrator(url: URL) -> Engine:
    """An engine for migrations: SQLAlchemy ends its transactions, and each begins here.

    Foreign keys are off, because a table is changed by replacing it with a copy.
    """
    engine = create_engine(url, poolclass=NullPool, connect_args=CONNECT, hide_parameters=True)

    @event.listens_for(engine, "begin")
    def _begin(conn: Connection) -> None:
        conn.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _no_operation(_driver: object) -> None:
    """Replaces the dialect's COMMIT and ROLLBACK."""


def is_missing(url: URL) -> bool:
    """Whether an embedded database has no file yet. A file that cannot be accessed counts as present."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return False
    try:
        Path(url.database).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # opening it reports the reason
    return False


def create_file(url: URL) -> None:
    """Create the file with mode 0600; the write-ahead log takes the same mode.

    Raises:
        StartError: the URL names no file, or this user may not write it.
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
    """Copy a database, in use or not, as one committed snapshot, page by page. The copy is one file, checked and
    synced, or there is none.

    Raises:
        StartError: the file exists, its folder does not, or the database is damaged.
    """
    part = file.with_name(f"{file.name}.part")
    try:
        part.unlink(missing_ok=True)  # left by an interrupted backup, or planted: never write through it
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    except OSError as error:
        raise StartError(f"{file} cannot be written: {error.strerror}") from error
    try:
        with closing(sqlite3.connect(database, isolation_level=None)) as source:
            source.execute("PRAGMA query_only = ON")
            with closing(sqlite3.connect(part, isolation_level=None)) as copy:
                # in one step: a copy in steps restarts at every commit of the service
                source.backup(copy)
                copy.execute(
                    "PRAGMA journal_mode = DELETE"
                )  # a single file, without a log that could be forgotten
                found = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
                if found != "ok":
                    raise StartError(
                        f"the database {str(database)!r} is damaged ({found}); keep the backups you have"
                    )
        handle = os.open(part, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        os.link(part, file)  # unlike a rename, it never replaces a file
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


def require_intact(engine: Engine, path: str | None) -> None:
    """Refuse a damaged file.

    Raises:
        StartError: SQLite's quick check found a fault.
    """
    with engine.connect() as conn:
        found = conn.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    if found != "ok":
        raise corruption_error(path, found)


def is_corruption(error: BaseException | None) -> bool:
    """Whether this error means that the file is corrupt."""
    return getattr(error, "sqlite_errorname", None) in {"SQLITE_CORRUPT", "SQLITE_NOTADB"}


def corruption_error(path: str | None, found: object) -> StartError:
    """The error for a damaged file."""
    return StartError(f"the database {path!r} is damaged ({found}); restore it from its newest backup")
