"""The connection that live tools on SQLite get: it does nothing outside the one transaction that was begun on it.

SQLite ends transactions by itself (ON CONFLICT ROLLBACK, RAISE(ROLLBACK), an interrupt, a full disk), and the next
statement would stand at once, out of reach of any undo. So an authorizer is asked about every statement as long as the
connection is open. It refuses all of them once the transaction is over, a tool's outside its effects, and what would
end the transaction, its savepoints or the means of rolling it back; and a PRAGMA that would have no effect inside one,
which is `unheeded`. It is asked when a statement is compiled, and therefore none is kept for a second use. What it does
not hear of (`executemany` that goes on, `blobopen`) is refused here.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

from countersign.adapters.sqlite_changes import WRITES

OURS: Final = "countersign_"
"""How the names of the adapter's own savepoints begin."""


class LiveConnection(sqlite3.Connection):
    """One transaction, which holds the write lock; what its statements may write to is in `touched`."""

    def __init__(self, uri: str, busy_seconds: float, *, foreign_keys: bool) -> None:
        # A session may end on another thread than it began on (an event loop's executor); never two at once.
        super().__init__(
            uri,
            timeout=busy_seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=0,
            uri=True,
        )
        self.touched: set[tuple[str, str]] = set()
        self.defers = False  # whether a tool may have put off references that the schema does not
        self.unheeded = ""  # the last statement that was refused because SQLite would pass over it
        self._effects = 0  # that are running, one inside the other
        self._speaking: set[int] = set()  # threads that say something of ours
        try:
            if foreign_keys:
                self.execute("PRAGMA foreign_keys = ON")  # passed over inside a transaction
            self.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            self.close()
            raise
        super().set_authorizer(self._authorize)

    @property
    def goes_on(self) -> bool:
        """Whether the transaction does. One that is over stays over: nothing can begin another."""
        try:
            return self.in_transaction
        except sqlite3.ProgrammingError:  # a closed one took everything back
            return False

    @contextmanager
    def effect(self) -> Iterator[None]:
        """Inside, tools may use it."""
        self._effects += 1
        try:
            yield
        finally:
            self._effects -= 1

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Inside, this thread speaks for the session; a tool that still runs in another one does not."""
        self._speaking.add(threading.get_ident())
        try:
            yield
        finally:
            self._speaking.discard(threading.get_ident())

    def say(self, statement: str, params: tuple[str, ...] = ()) -> None:
        """A statement of the session's own."""
        with self.ours():
            self.execute(statement, params)

    def _authorize(
        self, action: int, name: str | None, argument: str | None, database: str | None, _: str | None
    ) -> int:
        if not self.in_transaction:
            return sqlite3.SQLITE_DENY
        if threading.get_ident() in self._speaking:
            return sqlite3.SQLITE_OK
        if not self._effects or _would_end_it(action, name or "", argument):
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_PRAGMA and argument is not None:
            self.defers = self.defers or (name or "").lower() == "defer_foreign_keys"
            if (name or "").lower() == "foreign_keys":
                self.unheeded = "PRAGMA foreign_keys"
                return sqlite3.SQLITE_DENY
        if action in WRITES and name is not None:
            self.touched.add((database or "main", name))
        return sqlite3.SQLITE_OK

    # ------------------------------------------------------------------------ what the authorizer does not hear of

    def cursor(self, factory: Any = None) -> Any:
        """A cursor that looks before each row of `executemany`."""
        return super().cursor(factory or _Cursor)

    def executemany(self, statement: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
        """By such a cursor; Python's own way from here does not ask for one."""
        cursor: sqlite3.Cursor = self.cursor().executemany(statement, rows)
        return cursor

    def blobopen(self, *args: Any, **options: Any) -> sqlite3.Blob:
        """Inside an effect, as ever."""
        self.require_open()
        return super().blobopen(*args, **options)

    def set_authorizer(self, *_: Any, **__: Any) -> None:
        """Never: there is one for each connection, and it is ours."""
        raise sqlite3.NotSupportedError("the authorizer of a live tool's connection belongs to its adapter")

    def deserialize(self, *_: Any, **__: Any) -> None:
        """Never: the transaction would go on in memory, and be lost there."""
        raise sqlite3.NotSupportedError("a live tool's connection cannot be given another database")

    def require_open(self) -> None:
        """Refuse what would stand by itself.

        Raises:
            sqlite3.ProgrammingError: the transaction is over, or no effect is running.
        """
        if not (self._effects and self.goes_on):
            raise sqlite3.ProgrammingError(
                "a live tool's connection was used outside its effect, or after SQLite had ended its transaction"
            )


class _Cursor(sqlite3.Cursor):
    """Its statement is compiled once for all rows, and making a row may run statements too."""

    connection: LiveConnection

    def executemany(self, statement: str, rows: Iterable[Any], /) -> Self:
        return super().executemany(statement, self._looked_at(rows))

    def _looked_at(self, rows: Iterable[Any]) -> Iterator[Any]:
        for row in rows:
            self.connection.require_open()
            yield row


def _would_end_it(action: int, name: str, argument: str | None) -> bool:
    """The transaction, a savepoint of its session, or the journal without which a ROLLBACK takes nothing back."""
    if action == sqlite3.SQLITE_SAVEPOINT:
        return (argument or "").lower().startswith(OURS)
    if action == sqlite3.SQLITE_PRAGMA:
        return name.lower() == "journal_mode" and argument is not None
    return action == sqlite3.SQLITE_TRANSACTION
