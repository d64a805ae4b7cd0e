"""The PostgreSQL adapter: live effects run in one database transaction, each in a savepoint.

It needs the extra `postgres`. Undo is ROLLBACK, and the server rolls back when the process dies. The isolation level is
REPEATABLE READ: changed rows are locked until the end, and a concurrent change of such a row raises `IsolationConflict`
at once. So does a deadlock that the server ends, and a lock held by others for all of `wait_seconds`. Rows that are
only read may change, unless the statement says FOR SHARE or the table is one of `locks`, which no other transaction
writes to meanwhile. SERIALIZABLE is not used: the server may detect a conflict only at COMMIT, when staged effects have
fired; the two options above lock others out before the redemption. PREPARE TRANSACTION is not used, because servers
disable it by default: `prepare` checks the deferred constraints and writes the mark. A COMMIT can still fail; if its
answer is lost, the mark shows the result.

The mark is a row of `countersign_landed`, a table created on first use. Its schema is resolved before any tool can
change the search path. A tool runs one statement at a time and may not end its transaction (`postgres_statements.py`).
If it ended all the same, the session is lost: nothing more runs, and the error says whether what was written may be
permanent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from countersign.adapters.postgres_diff import changes_of
from countersign.adapters.postgres_statements import StatementResult, require_no_transaction_end
from countersign.adapters.protocol import Change, EffectContext, LiveAdapter, LiveCall, LiveSession, Savepoint
from countersign.errors import CommitUnknown, IsolationConflict, NotStageable, SessionLost, SettingsError

if TYPE_CHECKING:
    import psycopg

_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS countersign_landed"
    " (attempt_id text PRIMARY KEY, landed_at timestamptz NOT NULL DEFAULT now())"
)
_TABLES: Final = (
    "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " JOIN unnest(current_schemas(false)) WITH ORDINALITY AS s (name, place) ON s.name = n.nspname"
    " WHERE c.relname = 'countersign_landed' AND c.relkind IN ('r', 'p') ORDER BY s.place"
)
_MARK: Final = (
    "INSERT INTO {} (attempt_id) VALUES (%s) ON CONFLICT (attempt_id) DO UPDATE SET landed_at = now()"
)
_PROBE_MARK: Final = "INSERT INTO {} (attempt_id) VALUES (%s) ON CONFLICT DO NOTHING"
_EFFECT: Final = "countersign_effect"
_BLOCK: Final = "countersign_block"
_LOCKED: Final = "55P03"  # SQLSTATE: lock timeout
# SQLSTATE: a concurrent update; a deadlock
_CONFLICTS: Final = frozenset({"40001", "40P01", _LOCKED})
_TRANSACTION_GONE: Final = frozenset({"25P01", "3B001"})  # SQLSTATE: no transaction; unknown savepoint


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
        self._inside: EffectContext[PostgresSession] = EffectContext(self._name)

    @property
    def name(self) -> str:
        """Its name in the journal and in errors."""
        return self._name

    def execute(self, statement: str, params: Sequence[Any] = ()) -> StatementResult:
        """Run one statement in the live effect that is running.

        Raises:
            OutsideTransaction: none is running here, or it has ended; open your own connection to read.
            MisuseError: the statement would end the transaction.
            SessionLost: the transaction has ended, and the statement would be permanent by itself.
        """
        otherwise = f"{self.name}.execute was used outside a live tool; only there can its work be undone"
        with self._inside.use(otherwise) as session:
            require_no_transaction_end(statement)
            return session.run(statement, params)

    def begin(self, txn: str) -> PostgresSession:
        """Open a connection for the transaction.

        Raises:
            NotStageable: there is no such database, or its server cannot be reached.
            IsolationConflict: others held a lock on one of `locks` for all of `wait_seconds`.
        """
        try:
            connection = self.connect()
        except self._driver.OperationalError as error:
            raise NotStageable(f"the database of {self.name!r} cannot be reached: {error}") from error
        try:
            table = self._table(connection)
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            for locked in self._locks:
                self._lock(connection, locked)
        except BaseException:
            connection.close()
            raise
        return PostgresSession(self, connection, self._inside, table)

    def _lock(self, connection: psycopg.Connection[Any], table: str) -> None:
        sql = self._driver.sql
        named = sql.Identifier(*table.split("."))
        try:
            connection.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(named))
        except self._driver.Error as error:
            self.require_no_conflict(error, key=table)
            raise

    def require_no_conflict(self, error: BaseException, *, key: str = "", during: str = "") -> None:
        """Raise `IsolationConflict` for the server's conflict errors. The server does not say which row conflicted."""
        if not isinstance(error, self._driver.Error) or error.sqlstate not in _CONFLICTS:
            return
        said = error.diag.message_primary or error.sqlstate
        if error.sqlstate == _LOCKED:
            said += (
                f", wait_seconds={self._wait_seconds:g}; have it run again by isolation=Retry(), or give "
                "PostgresAdapter more wait_seconds"
            )
        said = f"{during}: {said}" if during else said
        raise IsolationConflict(self.name, key, read=False, expected=None, now=None, said=said) from error

    def landed(self, attempt_id: str) -> bool | None:
        """Whether the attempt's mark is in the database; None if the server cannot be reached.

        Inserting the mark and rolling back waits for a COMMIT that is still in flight; reading would not. If a schema
        with another such table was put first in the search path, all of them are checked.
        """
        try:
            with self.connect() as connection:
                return any(_has_mark(connection, table, attempt_id) for table in _tables(connection))
        except self._driver.Error:
            return None

    def _table(self, connection: psycopg.Connection[Any]) -> str:
        """The table of marks, with its schema, created before any attempt so that `landed` can rely on it. If two
        processes create it at once, the later one gets an error about the table, its row type or their names.
        """
        if found := _tables(connection):
            return found[0]
        errors = self._driver.errors
        try:
            connection.execute(_TABLE.encode())
        except (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject):
            if not _tables(connection):
                raise
        except self._driver.Error as error:
            self.require_no_conflict(error, during="making the table of marks")
            raise
        return _tables(connection)[0]

    def connect(self) -> psycopg.Connection[Any]:
        """A second connection."""
        milliseconds = int(self._wait_seconds * 1000)
        connection: psycopg.Connection[Any] = self._driver.connect(
            self._conninfo, autocommit=True, connect_timeout=max(2, int(self._wait_seconds))
        )
        try:
            connection.execute("SELECT set_config('lock_timeout', %s, false)", (str(milliseconds),))
        except BaseException:
            connection.close()
            raise
        return connection


class PostgresSession(LiveSession):
    """One open database transaction; `table` is where its mark goes."""

    def __init__(
        self,
        adapter: PostgresAdapter,
        connection: psycopg.Connection[Any],
        inside: EffectContext[PostgresSession],
        table: str,
    ) -> None:
        self._adapter, self._connection, self._inside = adapter, connection, inside
        self._table = table
        self._lost: SessionLost | None = None

    def run(self, statement: str, params: Sequence[Any]) -> StatementResult:
        """Run a tool's statement."""
        self._require_open()
        # Prepared statements are single statements: the server refuses a second one after a semicolon.
        return StatementResult(self._connection.execute(statement.encode(), params, prepare=True))

    @contextmanager
    def effect(self, call: LiveCall) -> Iterator[None]:
        """Run one effect in a savepoint. A tool that swallows a database error has failed all the same."""
        self._require_open()
        self._connection.execute(f"SAVEPOINT {_EFFECT}")
        try:
            with self._inside.effect(self):
                yield
            self._connection.execute(f"RELEASE SAVEPOINT {_EFFECT}")
        except BaseException as error:
            self._rollback_to(_EFFECT)
            if self._lost is not None and isinstance(error, Exception):
                raise self._lost from (None if error is self._lost else error)
            self._adapter.require_no_conflict(error, during=repr(call.tool))
            raise

    def savepoint(self) -> Savepoint:
        """A savepoint outside those of the effects."""
        self._require_open()
        self._connection.execute(f"SAVEPOINT {_BLOCK}")
        return Savepoint(self._release, self._rollback)

    def _release(self) -> None:
        self._require_open()
        self._connection.execute(f"RELEASE SAVEPOINT {_BLOCK}")

    def _rollback(self) -> None:
        self._rollback_to(_BLOCK)
        self._require_open()

    def _rollback_to(self, savepoint: str) -> None:
        """Roll back to a savepoint, or lose the session: a server that does not know the savepoint has ended the
        transaction.
        """
        try:
            self._connection.execute(f"ROLLBACK TO SAVEPOINT {savepoint}")
            # without this, all that follows would be inside it
            self._connection.execute(f"RELEASE SAVEPOINT {savepoint}")
        except _driver().Error as error:
            self._mark_lost(str(error), ended=error.sqlstate in _TRANSACTION_GONE)

    def _require_open(self) -> None:
        """Refuse statements after the end of the transaction.

        Raises:
            SessionLost: it has ended.
        """
        if self._connection.closed:
            self._mark_lost("its connection is closed", ended=False)
        elif self._connection.info.transaction_status == _driver().pq.TransactionStatus.IDLE:
            self._mark_lost("no transaction is open", ended=True)
        if self._lost is not None:
            raise self._lost

    def _mark_lost(self, why: str, *, ended: bool) -> None:
        """Raise SessionLost. `ended`: possibly by a COMMIT. Otherwise the server rolls back with the connection."""
        said = f"a tool has ended its transaction ({why})" if ended else f"its transaction broke off ({why})"
        self._lost = self._lost or SessionLost(self._adapter.name, said, may_stand=ended)

    def verify_isolation(self) -> None:
        """Only check that the transaction is open: reads may change as far as the server allows it."""
        self._require_open()

    def changes(self) -> tuple[Change, ...] | None:
        """The rows that a commit would change, as `table[key]`, before and after. What `prepare` would refuse is
        raised. The queries may fail the transaction, so use it only for one that is undone.
        """
        self._check_deferred()
        try:
            return changes_of(self._connection, self._adapter.connect)
        except _driver().Error:
            return None

    def prepare(self, attempt_id: str) -> None:
        """Check what COMMIT would check, and write the mark."""
        self._check_deferred()
        self._connection.execute(_MARK.format(self._table).encode(), (attempt_id,))

    def _check_deferred(self) -> None:
        """Run deferred constraints and triggers now."""
        self._require_open()
        try:
            self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except _driver().Error as error:
            self._adapter.require_no_conflict(error, during="a deferred constraint")
            raise

    def commit(self, attempt_id: str) -> None:
        """Commit. A lost answer is looked up; a COMMIT that the server turns into a ROLLBACK is an error.

        Raises:
            CommitUnknown: it cannot be looked up now.
        """
        driver = _driver()
        try:
            done = self._connection.execute("COMMIT")
        except driver.Error as error:
            self._end()
            landed = self._adapter.landed(attempt_id)
            if landed is None:  # the server may be unreachable after receiving the COMMIT
                raise CommitUnknown(self._adapter.name, type(error).__name__) from error
            if landed:
                return
            raise
        self._connection.close()
        if done.statusmessage != "COMMIT":
            raise driver.InterfaceError(f"the server answered COMMIT with {done.statusmessage}")

    def undo(self) -> None:
        """Roll back, so that no lock outlives this call, and close.

        Raises:
            SessionLost: what was written before its transaction was ended may be permanent.
        """
        if self._connection.closed:
            return
        with suppress(SessionLost):
            self._require_open()
        self._end()
        if self._lost is not None and self._lost.may_stand:
            raise self._lost

    def _end(self) -> None:
        with suppress(_driver().Error):  # a broken connection: the server rolls back
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


def _tables(connection: psycopg.Connection[Any]) -> list[str]:
    """The tables of marks in the search path, in its order; quoted, with their schemas."""
    return [str(name) for (name,) in connection.execute(_TABLES.encode())]


def _has_mark(connection: psycopg.Connection[Any], table: str, attempt_id: str) -> bool:
    connection.execute("BEGIN")
    done = connection.execute(_PROBE_MARK.format(table).encode(), (attempt_id,))
    connection.execute("ROLLBACK")
    return done.rowcount == 0
