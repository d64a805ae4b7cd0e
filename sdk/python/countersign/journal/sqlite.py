"""The journal in a SQLite file: the default.

Rules: the file must be 0600. Writing transactions take the lock at once (BEGIN IMMEDIATE), so none fails half way for
lack of it. COMMIT is sent as SQL, so that a lost transaction is an error. `durable` commits reach the disk before they
return (synchronous=FULL); the others survive a crash of the process, not a power failure. A file of another program,
of a newer version, or damaged, is refused.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from countersign.errors import JournalError
from countersign.journal.database import Columns, Database, Names, Updated, Values, update_statements
from countersign.journal.schema import _TRIGGERS, ADDED, APPLICATION_ID, TABLES, VERSION

_BUSY_MS: Final = 5_000  # other processes hold the lock for one short transaction
_WAL_PAUSE_SECONDS: Final = 0.005
_MAGIC: Final = b"SQLite format 3\0"  # the header of a non-empty SQLite database


class SQLiteConnection(sqlite3.Connection):
    """An open connection that accepts the journal's statements."""

    def update(self, table: str, key: Names, columns: Columns, where: str, parameters: Values) -> Updated:
        """As `Unit.update`. With RETURNING, an UPDATE takes three times as long as with a query for its keys."""
        sql, query = update_statements(table, key, tuple(columns), where)
        values = (*columns.values(), *parameters)
        if not key:
            return [()] * self.execute(sql, values).rowcount, columns
        found = [tuple(row) for row in self.execute(query, parameters)]
        if found:
            self.execute(sql, values)
        return found, columns


class SQLiteDatabase(Database):
    """One journal file, or `:memory:`."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(str(path))
        self._connection: SQLiteConnection | None = None
        self._level = ""  # the connection's current `synchronous` level

    def exists(self) -> bool:
        return Path(self.name).is_file()

    def _connected(self) -> SQLiteConnection:
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._leave()

    def _leave(self) -> object:
        left, self._connection = self._connection, None
        self._level = ""
        return left

    def _begin(self, durable: bool) -> None:
        level = "FULL" if durable else "NORMAL"
        connection = self._connected()
        if level != self._level:
            connection.execute(f"PRAGMA synchronous={level}")
            self._level = level
        connection.execute("BEGIN IMMEDIATE")

    def _commit(self) -> None:
        self._connected().execute("COMMIT")

    def _undo(self) -> None:
        with suppress(sqlite3.Error):
            self._connected().execute("ROLLBACK")

    def _translated(self, error: BaseException) -> JournalError | None:
        if not isinstance(error, sqlite3.Error):
            return None
        return JournalError(f"the journal {self.name!r} cannot be used: {error}. Nothing fires without it")

    def _open(self) -> SQLiteConnection:
        if self.name != ":memory:":
            _make_private(Path(self.name))
        connection = sqlite3.connect(
            self.name, isolation_level=None, check_same_thread=False, factory=SQLiteConnection
        )
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
    """When several processes open a new file at once, SQLite does not wait for the one that switches it to WAL; we
    do.
    """
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
    """Create the file for its owner only, or refuse one that others may read: it holds the arguments of every call."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            mode = os.fstat(descriptor).st_mode
            begins = b"?"  # for a pipe: reading it could block forever
            if stat.S_ISREG(mode):
                begins = os.read(descriptor, len(_MAGIC))
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        _sync_folder(path.parent)
    except OSError as error:
        raise JournalError(
            f"the journal {str(path)!r} cannot be opened ({error.strerror}); nothing fires without it: make its "
            "folder "
            "writable, or set COUNTERSIGN_JOURNAL"
        ) from error
    # Zeros may be left by a crash while SQLite created the file; its journal file recovers that.
    if begins.strip(b"\0") not in {b"", _MAGIC.strip(b"\0")}:
        raise JournalError(
            f"{str(path)!r} is not a journal; name a journal, or a path that does not exist yet"
        )
    if mode & 0o077:
        raise JournalError(
            f"the journal {str(path)!r} is open to others (mode {stat.S_IMODE(mode):04o}); run: chmod 600 {path}"
        )


def _sync_folder(folder: Path) -> None:
    """A new file survives a crash only if its folder's entry reached the disk too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prepare(connection: sqlite3.Connection) -> None:
    """Create the tables in a new file, or check that an existing one is a journal this version reads.

    Raises:
        JournalError: it is another program's file, of a newer version, or damaged.
    """
    if not _is_new(connection):
        _require_journal(connection)
        _add_what_is_new(connection)
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _is_new(connection):  # another process may have created it
            for statement in f"{TABLES}{_TRIGGERS}{''.join(ADDED.values())}".split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    _require_journal(connection)


def _add_what_is_new(connection: sqlite3.Connection) -> None:
    """Add later tables to a journal of an earlier SDK."""
    if not _missing(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in "".join(_missing(connection)).split(";\n"):  # another process may have created it
            connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _missing(connection: sqlite3.Connection) -> list[str]:
    there = {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return [tables for last, tables in ADDED.items() if last not in there]


def _is_new(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0)


def _require_journal(connection: sqlite3.Connection) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise JournalError(
            "this file is a database of another program; name another path in COUNTERSIGN_JOURNAL"
        )
    if version != VERSION:
        raise JournalError(
            f"this journal is of version {version}, this SDK reads {VERSION}; use the SDK that wrote it"
        )
    damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        raise JournalError(
            f"this journal is damaged ({damage}); keep the file, restore a copy, tell the operator"
        )
