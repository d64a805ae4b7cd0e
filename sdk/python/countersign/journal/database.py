"""The journal's SQLite file: one connection, short transactions, and a say in how durable each one is.

Rules: the file is 0600 or it is refused; writing transactions take the lock at once (BEGIN IMMEDIATE), so
none fails half way for want of it; COMMIT is sent as SQL, so that a transaction that vanished is an error.
`durable` commits reach the disk before they return (synchronous=FULL); the others survive the process, not
the power. A forked child gets a connection of its own. Every SQLite error leaves as `JournalError`: without
its journal the SDK fires nothing.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from countersign.errors import JournalError, MisuseError
from countersign.journal.schema import prepare

_BUSY_MS: Final = 5_000  # other processes hold the lock for one short transaction
_WAL_PAUSE_SECONDS: Final = 0.005
Row = sqlite3.Row


class Database:
    """One journal file, or `:memory:` for a journal that nothing survives."""

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        self._level = ""  # what this connection's commits wait for now
        self._open_unit = ""  # the level of the unit that is open, if one is
        self._part_failed = False

    @contextmanager
    def unit(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        """One writing transaction: all of it or nothing. A unit inside a unit is part of it, also where it fails.

        Raises:
            MisuseError: a durable unit inside one that is not: it would not be durable when it ends.
            JournalError: a part had failed; or SQLite did.
        """
        level = "FULL" if durable else "NORMAL"
        with self._lock, _told(self.path):
            connection = self._connected()
            if self._open_unit:
                with self._part(level):
                    yield connection
                return
            if level != self._level:
                connection.execute(f"PRAGMA synchronous={level}")
                self._level = level
            connection.execute("BEGIN IMMEDIATE")
            self._open_unit, self._part_failed = level, False
            try:
                yield connection
                if self._part_failed:
                    raise JournalError("a part of this unit of the journal failed, so nothing of it is kept")
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            finally:
                self._open_unit = ""

    @contextmanager
    def _part(self, level: str) -> Iterator[None]:
        if level == "FULL" != self._open_unit:
            raise MisuseError("a durable unit of the journal cannot be part of one that is not")
        try:
            yield
        except BaseException:
            self._part_failed = True
            raise

    def rows(self, sql: str, parameters: tuple[Any, ...] | dict[str, Any] = ()) -> list[Row]:
        """Read."""
        with self._lock, _told(self.path):
            return self._connected().execute(sql, parameters).fetchall()

    def row(self, sql: str, parameters: tuple[Any, ...] = ()) -> Row | None:
        """Read the first row."""
        found = self.rows(sql, parameters)
        return found[0] if found else None

    def close(self) -> None:
        """Close the connection; using the journal again opens another."""
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None
            self._level = ""

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None or self._pid != os.getpid():
            # After fork the parent's connection must not even be closed here: that would drop the parent's locks.
            self._connection = self._open()
            self._pid = os.getpid()
            self._level = self._open_unit = ""
        return self._connection

    def _open(self) -> sqlite3.Connection:
        if self.path != ":memory:":
            _make_private(Path(self.path))
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        try:
            for pragma in (
                f"busy_timeout={_BUSY_MS}",
                "foreign_keys=ON",
                "trusted_schema=OFF",
                "cell_size_check=ON",
            ):
                connection.execute(f"PRAGMA {pragma}")
            _enter_wal(connection)
            prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _enter_wal(connection: sqlite3.Connection) -> None:
    """Where several processes open a new file at once, SQLite does not wait for the one that makes it WAL; we do."""
    until = time.monotonic() + _BUSY_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_WAL_PAUSE_SECONDS)


def _make_private(path: Path) -> None:
    """Create the file for its owner only, or refuse one that others may read: it holds the arguments of every
    call.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        _sync_folder(path.parent)
    except OSError as error:
        raise JournalError(
            f"the journal {str(path)!r} cannot be opened ({error.strerror}); nothing fires without it: make its folder "
            "writable, or set COUNTERSIGN_JOURNAL"
        ) from error
    if mode & 0o077:
        raise JournalError(
            f"the journal {str(path)!r} is open to others (mode {mode:04o}); run: chmod 600 {path}"
        )


def _sync_folder(folder: Path) -> None:
    """A new file is only there after a crash if its folder's entry reached the disk too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise JournalError(
            f"the journal {path!r} cannot be used: {error}. Nothing fires without it"
        ) from error
