"""The connection for live tools on SQLite: nothing can run on it outside the transaction that was begun on it.

SQLite can end a transaction by itself (ON CONFLICT ROLLBACK, RAISE(ROLLBACK), an interrupt, a full disk). The next
statement would then be permanent at once, and no undo could reach it. So an authorizer checks every statement while the
connection is open. It refuses all statements after the end of the transaction, a tool's statements outside its effects,
and statements that would end the transaction, its savepoints or the means of rolling it back. It also refuses a PRAGMA
that has no effect inside a transaction, which is then in `ignored_statement`. The authorizer runs when a statement is
compiled, so no compiled statement is cached. What it does not see (a running `executemany`, `blobopen`) is refused
here. Statements therefore need a cursor of this connection, and a bare `sqlite3.Cursor(connection)` is refused.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

from countersign.adapters.protocol import EffectContext
from countersign.adapters.sqlite_diff import WRITES

_END: Final = object()
SAVEPOINT_PREFIX: Final = "countersign_"
"""The prefix of the adapter's own savepoints."""


class LiveConnection(sqlite3.Connection):
    """One transaction, which holds the write lock; `touched` are the tables its statements may write to."""

    def __init__(
        self, uri: str, busy_seconds: float, inside: EffectContext[LiveConnection], *, foreign_keys: bool
    ) -> None:
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
        self.may_defer = False  # whether a tool may have deferred foreign keys
        self.ignored_statement = ""  # the last statement that was refused because SQLite would ignore it
        # raised during an authorizer call, to be raised again after the statement
        self._interrupt: BaseException | None = None
        self._effects = 0  # running effects, nested in each other
        self._inside = inside
        self._internal_threads: set[int] = set()  # threads that run a statement of the session
        self._own_cursor_threads: set[int] = set()  # threads in which one of our cursors compiles a statement
        try:
            if foreign_keys:
                self.execute("PRAGMA foreign_keys = ON")  # ignored inside a transaction
            self.execute("BEGIN IMMEDIATE")
            super().set_authorizer(self._authorize)
        except (
            BaseException
        ):  # Ctrl-C while waiting for the lock too: it would be taken later and never released
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether the transaction is open. Once ended it stays ended: no other one can begin."""
        try:
            return self.in_transaction
        except sqlite3.ProgrammingError:  # closing rolled everything back
            return False

    @contextmanager
    def effect(self) -> Iterator[None]:
        """Allow tools to use the connection."""
        self._effects += 1
        try:
            yield
        finally:
            self._effects -= 1

    @contextmanager
    def internal(self) -> Iterator[None]:
        """Mark this thread's statements as the session's own; those of a tool that still runs in another thread are
        not.
        """
        with _membership(self._internal_threads, True):
            yield

    def run_internal(self, statement: str, params: tuple[str, ...] = ()) -> None:
        """Run a statement of the session."""
        with self.internal():
            self.execute(statement, params)

    @contextmanager
    def own_cursor(self) -> Iterator[None]:
        """Mark this thread's statements as made by one of our cursors."""
        with _membership(self._own_cursor_threads, True):
            yield

    @contextmanager
    def no_own_cursor(self) -> Iterator[None]:
        """Clear that mark."""
        with _membership(self._own_cursor_threads, False):
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the current effect from ending, as between compiling and running a statement."""
        with self._inside.held():
            yield

    @contextmanager
    def raising_interrupts(self) -> Iterator[None]:
        """After a statement, raise the interrupt (Ctrl-C, a signal handler that raises) from the authorizer."""
        try:
            yield
        finally:
            interrupt, self._interrupt = self._interrupt, None
            if interrupt is not None:
                raise interrupt

    def _authorize(self, *arguments: Any) -> int:
        """SQLite interprets an exception here as a refusal: a COMMIT would fail, and Ctrl-C would be lost. An interrupt
        before the first line of this method cannot be caught and still acts as a refusal.
        """
        while True:
            try:
                return self._allowed(*arguments)
            except Exception:
                raise
            except BaseException as interrupt:  # noqa: BLE001 - it is raised at the statement's end
                self._interrupt = interrupt

    def _allowed(
        self, action: int, name: str | None, argument: str | None, database: str | None, _: str | None
    ) -> int:
        if not self.in_transaction:
            return sqlite3.SQLITE_DENY
        if (thread := threading.get_ident()) in self._internal_threads:
            return sqlite3.SQLITE_OK
        if thread not in self._own_cursor_threads or not self._effects or self._inside.is_over:
            return sqlite3.SQLITE_DENY
        if _ends_transaction(action, name or "", argument):
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_PRAGMA and argument is not None:
            self.may_defer = self.may_defer or (name or "").lower() == "defer_foreign_keys"
            if (name or "").lower() == "foreign_keys":
                self.ignored_statement = "PRAGMA foreign_keys"
                return sqlite3.SQLITE_DENY
        if action in WRITES and name is not None:
            self.touched.add((database or "main", name))
        return sqlite3.SQLITE_OK

    # ------------------------------------------------------------------------ what the authorizer does not see

    def cursor(self, factory: Any = None) -> Any:
        """A cursor that checks each row of `executemany`. Other cursor types are refused."""
        if factory not in {None, sqlite3.Cursor}:
            raise sqlite3.NotSupportedError("a live tool's connection makes its cursors itself")
        return super().cursor(_Cursor)

    def execute(self, statement: str, params: Any = (), /) -> sqlite3.Cursor:
        """Use such a cursor, as the next two methods do; Python's own implementation would not."""
        cursor: sqlite3.Cursor = self.cursor().execute(statement, params)
        return cursor

    def executemany(self, statement: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor().executemany(statement, rows)
        return cursor

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor().executescript(script)
        return cursor

    def blobopen(self, *args: Any, **options: Any) -> sqlite3.Blob:
        """Only inside an effect."""
        self.require_open()
        return super().blobopen(*args, **options)

    def set_authorizer(self, *_: Any, **__: Any) -> None:
        """Refused: a connection has one authorizer, and it is ours."""
        raise sqlite3.NotSupportedError("the authorizer of a live tool's connection belongs to its adapter")

    def deserialize(self, *_: Any, **__: Any) -> None:
        """Refused: the transaction would continue in memory and be lost."""
        raise sqlite3.NotSupportedError("a live tool's connection cannot be given another database")

    def require_open(self) -> None:
        """Refuse statements that would be permanent by themselves.

        Raises:
            sqlite3.ProgrammingError: the transaction has ended, or no effect is running.
        """
        if not (self._effects and self.is_open) or self._inside.is_over:
            raise sqlite3.ProgrammingError(
                "a live tool's connection was used outside its effect, or after SQLite had ended its transaction"
            )


class _Cursor(sqlite3.Cursor):
    """Its statement is compiled once for all rows, and producing a row may run statements too."""

    connection: LiveConnection

    def execute(self, statement: str, params: Any = (), /) -> Self:
        with self.connection.raising_interrupts(), self.connection.held(), self.connection.own_cursor():
            return super().execute(statement, params)

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        with self.connection.raising_interrupts(), self.connection.held(), self.connection.own_cursor():
            return super().executescript(script)

    def executemany(self, statement: str, rows: Iterable[Any], /) -> Self:
        with self.connection.raising_interrupts(), self.connection.own_cursor():
            return super().executemany(statement, self._looked_at(rows))

    def _looked_at(self, rows: Iterable[Any]) -> Iterator[Any]:
        left = iter(rows)
        while True:
            with self.connection.no_own_cursor():
                row = next(left, _END)
            if row is _END:
                return
            self.connection.require_open()
            yield row


@contextmanager
def _membership(threads: set[int], now: bool) -> Iterator[None]:
    """Set or clear this thread's membership, and restore it afterwards."""
    me = threading.get_ident()
    before = me in threads
    (threads.add if now else threads.discard)(me)
    try:
        yield
    finally:
        (threads.add if before else threads.discard)(me)


def _ends_transaction(action: int, name: str, argument: str | None) -> bool:
    """Whether it would end the transaction or a savepoint of the session, or disable the rollback journal."""
    if action == sqlite3.SQLITE_SAVEPOINT:
        return (argument or "").lower().startswith(SAVEPOINT_PREFIX)
    if action == sqlite3.SQLITE_PRAGMA:
        return name.lower() == "journal_mode" and argument is not None
    return action == sqlite3.SQLITE_TRANSACTION
