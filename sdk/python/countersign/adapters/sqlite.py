"""The SQLite adapter: live effects run in one database transaction, each in a savepoint.

Undo is ROLLBACK, and it happens by itself when the process dies. The transaction takes the write lock at its
first effect, so what it read cannot move; it is ended before anybody is asked. SQLite has no prepare: a
COMMIT can still fail (disk full), and the SDK then treats the staged effects that fired as its failure path
says.

`prepare` writes the attempt's id into `countersign_landed` in the same transaction, so that after a crash
`landed` knows whether the data is permanent.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from countersign.adapters.protocol import Change, LiveAdapter, LiveCall, LiveSession, Savepoint
from countersign.adapters.sqlite_changes import WRITES, changes_of
from countersign.errors import OutsideTransaction

_LANDED: Final = (
    "CREATE TABLE IF NOT EXISTS countersign_landed (attempt_id TEXT PRIMARY KEY, landed_at TEXT NOT NULL)"
)


class SQLiteAdapter(LiveAdapter):
    """One SQLite database as a resource. Inside a live tool, `adapter.connection` is the transaction's
    connection.
    """

    def __init__(self, path: str | Path, *, name: str | None = None, busy_seconds: float = 5.0) -> None:
        self._path = str(path)
        self._busy_seconds = busy_seconds
        self._name = name or Path(path).stem
        self._current: ContextVar[sqlite3.Connection | None] = ContextVar(
            f"countersign_{self._name}", default=None
        )

    @property
    def name(self) -> str:
        """Its name in the journal and in errors."""
        return self._name

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection of the live effect that is running.

        Raises:
            OutsideTransaction: none is running here; open your own connection to read.
        """
        current = self._current.get()
        if current is None:
            raise OutsideTransaction(
                f"{self.name}.connection was used outside a live tool; only there is its work undone on failure"
            )
        return current

    def begin(self, txn: str) -> SQLiteSession:
        """Open a connection of the transaction's own and take the write lock."""
        connection = self._connect()
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            connection.close()
            raise
        return SQLiteSession(connection, self._current)

    def landed(self, attempt_id: str) -> bool | None:
        """Whether the attempt's mark is in the database; read only, and None for a file that cannot be read."""
        try:
            connection = sqlite3.connect(
                f"{Path(self._path).resolve().as_uri()}?mode=ro", uri=True, timeout=self._busy_seconds
            )
        except sqlite3.Error:
            return None
        try:
            return _has_mark(connection, attempt_id)
        except sqlite3.Error:
            return None
        finally:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        # A session may end on another thread than it began on (an event loop's executor); never two at once.
        return sqlite3.connect(
            self._path, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
        )


class SQLiteSession(LiveSession):
    """One open database transaction."""

    def __init__(
        self, connection: sqlite3.Connection, current: ContextVar[sqlite3.Connection | None]
    ) -> None:
        self._connection = connection
        self._current = current
        self._touched: set[tuple[str, str]] = set()

    @contextmanager
    def effect(self, call: LiveCall) -> Iterator[None]:
        """Run one effect in a savepoint."""
        self._connection.execute("SAVEPOINT countersign_effect")
        token = self._current.set(self._connection)
        self._connection.set_authorizer(self._authorize)
        try:
            yield
        except BaseException:
            self._connection.set_authorizer(None)
            self._connection.execute("ROLLBACK TO countersign_effect")
            raise
        finally:
            self._connection.set_authorizer(None)
            self._current.reset(token)
            self._connection.execute("RELEASE countersign_effect")

    def savepoint(self) -> Savepoint:
        """A savepoint around those of the effects."""
        self._connection.execute("SAVEPOINT countersign_block")
        return Savepoint(self._release, self._rollback)

    def _release(self) -> None:
        self._connection.execute("RELEASE countersign_block")

    def _rollback(self) -> None:
        self._connection.execute("ROLLBACK TO countersign_block")
        self._release()

    def _authorize(
        self, action: int, name: str | None, _: str | None, database: str | None, __: str | None
    ) -> int:
        """A live tool may not end the transaction it runs in (nor may `commit()` or `executescript`): it could not be
        undone. What it may write to is noted.
        """
        if action == sqlite3.SQLITE_TRANSACTION:
            return sqlite3.SQLITE_DENY
        if action in WRITES and name is not None:
            self._touched.add((database or "main", name))
        return sqlite3.SQLITE_OK

    def changes(self) -> tuple[Change, ...] | None:
        """The rows that a commit would change, as `table[key]`, and definitions, before and after."""
        return changes_of(self._connection, self._touched)

    def verify_unmoved(self) -> None:
        """Nothing can have moved: the session holds the write lock since before its first read."""

    def prepare(self, attempt_id: str) -> None:
        """Write the mark, so that at least a full disk is noticed before anything is redeemed."""
        self._connection.execute(_LANDED)
        self._connection.execute(
            "INSERT OR REPLACE INTO countersign_landed VALUES (?, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))",
            (attempt_id,),
        )

    def commit(self, attempt_id: str) -> None:
        """Make it permanent. SQL says COMMIT, so that a transaction that is gone is an error, not a silent
        success.
        """
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            self.undo()
            raise
        self._connection.close()

    def undo(self) -> None:
        """Roll back and close."""
        with suppress(sqlite3.Error):
            self._connection.set_authorizer(None)  # of an effect that is still running in another thread
            self._connection.execute("ROLLBACK")
        self._connection.close()


def _has_mark(connection: sqlite3.Connection, attempt_id: str) -> bool:
    table = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'countersign_landed'").fetchone()
    if table is None:
        return False
    found = connection.execute(
        "SELECT 1 FROM countersign_landed WHERE attempt_id = ?", (attempt_id,)
    ).fetchone()
    return found is not None
