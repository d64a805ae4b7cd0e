"""The PostgreSQL adapter: live effects run in one database transaction, each in a savepoint.

It needs the extra `postgres`. Undo is ROLLBACK, and the server does it when the process dies. The transaction
is REPEATABLE READ: rows that it changes are its own until the end, and a row somebody else changed meanwhile
is `Moved` at once, and so is a deadlock that the server ends. What it only reads may move, unless the statement says
FOR SHARE or the table is one of `locks`: nobody else writes to those while a transaction is open. SERIALIZABLE is not
used: the server may find only at COMMIT that what was read has moved, and by then staged effects have fired; these two
keep others out before anything is asked. PREPARE TRANSACTION is not used (servers
have it switched off): `prepare` checks the deferred constraints and writes the mark, and a COMMIT can still
fail; when its answer is lost, the mark tells.

The mark stands in `countersign_landed`, a table made at the first use. A tool gets one statement at a time and
may not end the transaction it runs in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from countersign.adapters.postgres_changes import changes_of
from countersign.adapters.protocol import Change, LiveAdapter, LiveCall, LiveSession, Savepoint
from countersign.errors import MisuseError, Moved, OutsideTransaction, SettingsError

if TYPE_CHECKING:
    import psycopg

_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS countersign_landed"
    " (attempt_id text PRIMARY KEY, landed_at timestamptz NOT NULL DEFAULT now())"
)
_MARK: Final = (
    "INSERT INTO countersign_landed (attempt_id) VALUES (%s)"
    " ON CONFLICT (attempt_id) DO UPDATE SET landed_at = now()"
)
_ENDS_IT: Final = frozenset(
    "abort begin commit deallocate discard end prepare release rollback savepoint start".split()
)
_CONFLICTS: Final = frozenset(
    {"40001", "40P01"}
)  # SQLSTATE: a row was changed meanwhile; a circle of waiting
_NOT_YET: Final = re.compile(r"[\s;]+|--[^\n]*")
_WORD: Final = re.compile(r"[a-z]*", re.IGNORECASE)


class PostgresAdapter(LiveAdapter):
    """One database as a resource. Inside a live tool, `adapter.execute` runs a statement in the transaction."""

    def __init__(
        self,
        conninfo: str,
        *,
        name: str | None = None,
        locks: Sequence[str] = (),
        wait_seconds: float = 5.0,
    ) -> None:
        self._driver = _driver()
        self._conninfo, self._locks, self._wait_seconds = conninfo, tuple(locks), wait_seconds
        self._name = name or str(self._driver.conninfo.conninfo_to_dict(conninfo).get("dbname") or "postgres")
        self._current: ContextVar[psycopg.Connection[Any] | None] = ContextVar(
            f"countersign_{self._name}", default=None
        )

    @property
    def name(self) -> str:
        """Its name in the journal and in errors."""
        return self._name

    def execute(self, statement: str, params: Sequence[Any] = ()) -> psycopg.Cursor[Any]:
        """Run one statement in the live effect that is running.

        Raises:
            OutsideTransaction: none is running here; open your own connection to read.
            MisuseError: the statement would end the transaction.
        """
        connection = self._current.get()
        if connection is None:
            raise OutsideTransaction(
                f"{self.name}.execute was used outside a live tool; only there is its work undone on failure"
            )
        _require_stays(statement)
        # A prepared statement is one statement: the server refuses a second one behind a semicolon.
        return connection.execute(statement.encode(), params, prepare=True)

    def begin(self, txn: str) -> PostgresSession:
        """Open a connection of the transaction's own."""
        connection = self.connect()
        try:
            self._make_table(connection)
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            for table in self._locks:
                named = self._driver.sql.Identifier(*table.split("."))
                connection.execute(
                    self._driver.sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(named)
                )
        except BaseException:
            connection.close()
            raise
        return PostgresSession(self, connection, self._current)

    def landed(self, attempt_id: str) -> bool | None:
        """Whether the attempt's mark is in the database; None if the server cannot be asked.

        Writing the mark and taking it back waits for a COMMIT that is still under way; reading would guess.
        """
        try:
            with self.connect() as connection:
                if not _has_table(connection):
                    return False
                connection.execute("BEGIN")
                done = connection.execute(
                    "INSERT INTO countersign_landed (attempt_id) VALUES (%s) ON CONFLICT DO NOTHING",
                    (attempt_id,),
                )
                found = done.rowcount == 0
                connection.execute("ROLLBACK")
                return found
        except self._driver.Error:
            return None

    def _make_table(self, connection: psycopg.Connection[Any]) -> None:
        """It is there before any attempt, so that `landed` can rely on it. Of two who make it at once, the later meets
        the other's table, its row type or their names, whichever the server looked at last.
        """
        if _has_table(connection):
            return
        errors = self._driver.errors
        try:
            connection.execute(_TABLE.encode())
        except (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject):
            if not _has_table(connection):
                raise

    def connect(self) -> psycopg.Connection[Any]:
        """A connection beside the one of the transaction."""
        milliseconds = int(self._wait_seconds * 1000)
        connection: psycopg.Connection[Any] = self._driver.connect(
            self._conninfo, autocommit=True, connect_timeout=max(2, int(self._wait_seconds))
        )
        connection.execute("SELECT set_config('lock_timeout', %s, false)", (str(milliseconds),))
        return connection


class PostgresSession(LiveSession):
    """One open database transaction."""

    def __init__(
        self,
        adapter: PostgresAdapter,
        connection: psycopg.Connection[Any],
        current: ContextVar[psycopg.Connection[Any] | None],
    ) -> None:
        self._adapter, self._connection, self._current = adapter, connection, current

    @contextmanager
    def effect(self, call: LiveCall) -> Iterator[None]:
        """Run one effect in a savepoint. A tool that swallows an error of the database has failed all the same."""
        self._connection.execute("SAVEPOINT countersign_effect")
        token = self._current.set(self._connection)
        try:
            yield
            self._connection.execute("RELEASE SAVEPOINT countersign_effect")
        except BaseException as error:
            self._connection.execute("ROLLBACK TO SAVEPOINT countersign_effect")
            self._connection.execute(
                "RELEASE SAVEPOINT countersign_effect"
            )  # else all that follows is inside it
            self._require_no_conflict(error, call.tool)
            raise
        finally:
            self._current.reset(token)

    def savepoint(self) -> Savepoint:
        """A savepoint around those of the effects."""
        self._connection.execute("SAVEPOINT countersign_block")
        return Savepoint(self._release, self._rollback)

    def _release(self) -> None:
        self._connection.execute("RELEASE SAVEPOINT countersign_block")

    def _rollback(self) -> None:
        self._connection.execute("ROLLBACK TO SAVEPOINT countersign_block")
        self._release()

    def changes(self) -> tuple[Change, ...] | None:
        """The rows that a commit would change, as `table[key]`, before and after. What is asked of the server may fail
        the transaction, so it is only for one that is undone.
        """
        try:
            return changes_of(self._connection, self._adapter.connect)
        except _driver().Error:
            return None

    def prepare(self, attempt_id: str) -> None:
        """Check what COMMIT would check, and write the mark."""
        try:
            self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except _driver().Error as error:
            self._require_no_conflict(error, "a deferred constraint")
            raise
        self._connection.execute(_MARK.encode(), (attempt_id,))

    def _require_no_conflict(self, error: BaseException, key: str) -> None:
        """The server's word that somebody else came in between is what other adapters find by versions."""
        if isinstance(error, _driver().Error) and error.sqlstate in _CONFLICTS:
            said = error.diag.message_primary or error.sqlstate
            raise Moved(self._adapter.name, key, read=False, expected=None, now=None, said=said) from error

    def commit(self, attempt_id: str) -> None:
        """Make it permanent. A lost answer is looked up; a COMMIT that the server turns into a ROLLBACK is an error."""
        driver = _driver()
        try:
            done = self._connection.execute("COMMIT")
        except driver.Error:
            self.undo()
            if self._adapter.landed(attempt_id):
                return
            raise
        self._connection.close()
        if done.statusmessage != "COMMIT":
            raise driver.InterfaceError(f"the server answered COMMIT with {done.statusmessage}")

    def undo(self) -> None:
        """Roll back, so that no lock outlives this call, and close."""
        with suppress(_driver().Error):
            self._connection.execute("ROLLBACK")
        self._connection.close()


def _driver() -> Any:
    try:
        import psycopg
        import psycopg.conninfo
        import psycopg.sql
    except ImportError as error:
        raise SettingsError(
            "PostgresAdapter needs psycopg: pip install 'countersign-sdk[postgres]'"
        ) from error
    return psycopg


def _has_table(connection: psycopg.Connection[Any]) -> bool:
    return connection.execute("SELECT to_regclass('countersign_landed')").fetchone() != (None,)


def _require_stays(statement: str) -> None:
    """A live tool may not end the transaction it runs in: it could not be undone."""
    word = _first_word(statement)
    if word in _ENDS_IT:
        raise MisuseError(f"a live tool may not say {word.upper()}: its transaction decides that")


def _first_word(statement: str) -> str:
    """Behind empty statements and comments, which may be nested."""
    at = 0
    while True:
        if statement.startswith("/*", at):
            at = _behind_comment(statement, at)
        elif (skipped := _NOT_YET.match(statement, at)) is not None:
            at = skipped.end()
        else:
            found = _WORD.match(statement, at)
            return "" if found is None else found[0].lower()


def _behind_comment(statement: str, at: int) -> int:
    depth = 0
    for mark in re.finditer(r"/\*|\*/", statement[at:]):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return at + mark.end()
    return len(statement)
