"""The connection that live tools on SQLite get: it does nothing outside the one transaction that was begun on it.

SQLite ends transactions by itself (ON CONFLICT ROLLBACK, RAISE(ROLLBACK), an interrupt, a full disk), and the next
statement would stand at once, out of reach of any undo. So an authorizer is asked about every statement as long as the
connection is open. It refuses all of them once the transaction is over, a tool's outside its effects, and what would
end the transaction, its savepoints or the means of rolling it back; and a PRAGMA that would have no effect inside one,
which is `unheeded`. It is asked when a statement is compiled, and therefore none is kept for a second use. What it does
not hear of (`executemany` that goes on, `blobopen`) is refused here; so statements come by cursors of this connection's
own making, and a bare `sqlite3.Cursor(connection)` is refused.
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
"""How the names of the adapter's own savepoints begin."""


class LiveConnection(sqlite3.Connection):
    """One transaction, which holds the write lock; what its statements may write to is in `touched`."""

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
        self.defers = False  # whether a tool may have put off references that the schema does not
        self.unheeded = ""  # the last statement that was refused because SQLite would pass over it
        # that came while SQLite asked, and waits for the statement's end
        self._interrupt: BaseException | None = None
        self._effects = 0  # that are running, one inside the other
        self._inside = inside
        self._speaking: set[int] = set()  # threads that say something of ours
        self._compiling: set[int] = set()  # threads in which a cursor of ours has a statement to say
        try:
            if foreign_keys:
                self.execute("PRAGMA foreign_keys = ON")  # passed over inside a transaction
            self.execute("BEGIN IMMEDIATE")
            super().set_authorizer(self._authorize)
        except BaseException:  # Ctrl-C as well, while somebody else has the lock: it would be got, and kept
            self.close()
            raise

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
        with _membership(self._speaking, True):
            yield

    def say(self, statement: str, params: tuple[str, ...] = ()) -> None:
        """A statement of the session's own."""
        with self.ours():
            self.execute(statement, params)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Inside, this thread's statements come by a cursor of ours."""
        with _membership(self._compiling, True):
            yield

    @contextmanager
    def not_compiling(self) -> Iterator[None]:
        """Inside, they come by one again or not at all."""
        with _membership(self._compiling, False):
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, the effect that this place belongs to does not end, as between compiling a statement and doing it."""
        with self._inside.held():
            yield

    @contextmanager
    def heeding(self) -> Iterator[None]:
        """A statement, and then the interrupt (Ctrl-C, a signal that raises) that came while SQLite asked about it."""
        try:
            yield
        finally:
            interrupt, self._interrupt = self._interrupt, None
            if interrupt is not None:
                raise interrupt

    def _authorize(self, *asked: Any) -> int:
        """SQLite takes whatever is raised here for a no: a COMMIT would be refused, and Ctrl-C heard by nobody. One
        that comes before the first line of this is out of reach, and still such a no.
        """
        while True:
            try:
                return self._allowed(*asked)
            except Exception:
                raise
            except BaseException as interrupt:  # noqa: BLE001 - it is raised at the statement's end
                self._interrupt = interrupt

    def _allowed(
        self, action: int, name: str | None, argument: str | None, database: str | None, _: str | None
    ) -> int:
        if not self.in_transaction:
            return sqlite3.SQLITE_DENY
        if (thread := threading.get_ident()) in self._speaking:
            return sqlite3.SQLITE_OK
        if thread not in self._compiling or not self._effects or self._inside.is_over:
            return sqlite3.SQLITE_DENY
        if _ends_transaction(action, name or "", argument):
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
        """A cursor that looks before each row of `executemany`. Of another kind there is none."""
        if factory not in {None, sqlite3.Cursor}:
            raise sqlite3.NotSupportedError("a live tool's connection makes its cursors itself")
        return super().cursor(_Cursor)

    def execute(self, statement: str, params: Any = (), /) -> sqlite3.Cursor:
        """By such a cursor, as the next two; Python's own way from here does not ask for one."""
        cursor: sqlite3.Cursor = self.cursor().execute(statement, params)
        return cursor

    def executemany(self, statement: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
        """Many rows."""
        cursor: sqlite3.Cursor = self.cursor().executemany(statement, rows)
        return cursor

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        """Many statements."""
        cursor: sqlite3.Cursor = self.cursor().executescript(script)
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
        if not (self._effects and self.goes_on) or self._inside.is_over:
            raise sqlite3.ProgrammingError(
                "a live tool's connection was used outside its effect, or after SQLite had ended its transaction"
            )


class _Cursor(sqlite3.Cursor):
    """Its statement is compiled once for all rows, and making a row may run statements too."""

    connection: LiveConnection

    def execute(self, statement: str, params: Any = (), /) -> Self:
        with self.connection.heeding(), self.connection.held(), self.connection.compiling():
            return super().execute(statement, params)

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        with self.connection.heeding(), self.connection.held(), self.connection.compiling():
            return super().executescript(script)

    def executemany(self, statement: str, rows: Iterable[Any], /) -> Self:
        with self.connection.heeding(), self.connection.compiling():
            return super().executemany(statement, self._looked_at(rows))

    def _looked_at(self, rows: Iterable[Any]) -> Iterator[Any]:
        left = iter(rows)
        while True:
            with self.connection.not_compiling():
                row = next(left, _END)
            if row is _END:
                return
            self.connection.require_open()
            yield row


@contextmanager
def _membership(threads: set[int], now: bool) -> Iterator[None]:
    """Inside, this thread is one of them, or none; afterwards as before."""
    me = threading.get_ident()
    before = me in threads
    (threads.add if now else threads.discard)(me)
    try:
        yield
    finally:
        (threads.add if before else threads.discard)(me)


def _ends_transaction(action: int, name: str, argument: str | None) -> bool:
    """The transaction, a savepoint of its session, or the journal without which a ROLLBACK takes nothing back."""
    if action == sqlite3.SQLITE_SAVEPOINT:
        return (argument or "").lower().startswith(SAVEPOINT_PREFIX)
    if action == sqlite3.SQLITE_PRAGMA:
        return name.lower() == "journal_mode" and argument is not None
    return action == sqlite3.SQLITE_TRANSACTION
