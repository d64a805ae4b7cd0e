"""The journal in a PostgreSQL database: for agents and workers on any number of hosts.

Rules: every writing unit first takes one lock of the journal and holds it until it ends, so units are serialized as in
a file. That costs each unit the time of the others, and no extra round trip. COMMIT counts once the server confirmed
it: a connection lost meanwhile leaves a unit in doubt, and the error says so. `durable` commits wait for the server's
disk (and for its synchronous standbys), under any server default; the others do not wait. A lost connection is
replaced at the next use, never inside a unit. Needs the extra `postgres`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from countersign.errors import JournalError, SettingsError
from countersign.journal.database import (
    Columns,
    Cursor,
    Database,
    Names,
    Parameters,
    Row,
    Updated,
    Values,
    update_statements,
)  # fmt: skip
from countersign.journal.location import LOCATION_HELP, JournalUrl
from countersign.journal.postgres_schema import lock_key, prepare, schema_exists, schema_of

_TOKEN: Final = re.compile(r"'(?:[^']|'')*'|\?|:([a-z_]+)|%")


@cache
def translate_sql(sql: str) -> bytes:
    """Convert one statement's placeholders. Quoted text is kept; statements are constants of this package."""

    def mark(found: re.Match[str]) -> str:
        if found[1] is not None:
            return f"%({found[1]})s"
        return "%s" if found[0] == "?" else found[0].replace("%", "%%")

    return _TOKEN.sub(mark, sql).encode()


if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

_WAIT_MS: Final = 5_000  # for the lock, which others hold for one short transaction
_IDLE_MS: Final = 30_000  # a unit computes for milliseconds; one that is idle so long hangs and is ended
_SILENCE_SECONDS: Final = 10  # before a keepalive probe, and between two
_PLACEHOLDERS: Final = 2  # unanswered probes before the connection is lost
_FOR_STANDBYS: Final = "remote_apply"  # the one level above `on`
_SOCKET: Final = {
    "connect_timeout": _SILENCE_SECONDS,
    "keepalives": 1,
    "keepalives_idle": _SILENCE_SECONDS,
    "keepalives_interval": _SILENCE_SECONDS,
    "keepalives_count": _PLACEHOLDERS,
    "tcp_user_timeout": (1 + _PLACEHOLDERS) * _SILENCE_SECONDS * 1_000,
    "application_name": "countersign-journal",
}


class PostgresRow:
    """One row, by name or by position, like SQLite's."""

    __slots__ = ("_at", "_values")

    def __init__(self, at: dict[str, int], values: Sequence[Any]) -> None:
        self._at, self._values = at, values

    def __getitem__(self, key: int | str, /) -> Any:
        return self._values[key if isinstance(key, int) else self._at[key]]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def keys(self) -> list[str]:
        return list(self._at)


class PostgresConnection:
    """An open connection that accepts the journal's statements."""

    def __init__(self, connection: psycopg.Connection[PostgresRow], durable: str) -> None:
        self.connection = connection
        self.durable = durable  # the level of a durable commit
        self.lock = lock_key(connection)

    @property
    def is_lost(self) -> bool:
        """Whether the connection is unusable."""
        return self.connection.closed or self.connection.broken

    def begin(self, *, durable: bool) -> None:
        """Begin in one round trip. READ COMMITTED: each statement sees what was committed before it, so all of them
        see what was committed before the lock. Any other isolation would fix the view at the first statement, which
        still waits for the lock.
        """
        self.connection.execute(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; "
            f"SET LOCAL synchronous_commit = {self.durable if durable else 'off'}; "
            f"SELECT pg_advisory_xact_lock({self.lock})".encode()
        )

    def execute(self, sql: str, parameters: Parameters = (), /) -> Cursor:
        if isinstance(parameters, Mapping):
            values: Any = {name: _storable(value) for name, value in parameters.items()}
        else:
            values = [_storable(value) for value in parameters]
        return self.connection.execute(translate_sql(sql), values)

    def update(self, table: str, key: Names, columns: Columns, where: str, parameters: Values) -> Updated:
        """As `Unit.update`, in one round trip."""
        sql, _ = update_statements(table, key, tuple(columns), where)
        returning = f" RETURNING {', '.join(key)}" if key else ""
        done = self.execute(sql + returning, (*columns.values(), *parameters))
        found = [tuple(row) for row in done] if key else [()] * done.rowcount
        return found, {name: _storable(value) for name, value in columns.items()}


class PostgresDatabase(Database):
    """One journal: a schema of its own in a database."""

    def __init__(self, url: JournalUrl) -> None:
        super().__init__(str(url))
        self._driver = load_driver()
        self._url = url
        self._session: PostgresConnection | None = None

    def exists(self) -> bool:
        with self.translate_errors(), self.connect() as connection:
            return schema_exists(connection, self.use_schema(connection))

    def connect(self) -> psycopg.Connection[PostgresRow]:
        """A new connection, with nothing done on it yet.

        Raises:
            JournalError: the address is invalid. The driver's own message would quote a part of it.
        """
        try:
            given = self._driver.conninfo.conninfo_to_dict(self._url.secret)
        except self._driver.ProgrammingError:
            raise JournalError(
                f"the journal's address {self.name!r} cannot be read; {LOCATION_HELP}"
            ) from None
        connection: psycopg.Connection[PostgresRow] = self._driver.connect(
            autocommit=True, row_factory=_record_factory, client_encoding="UTF8", **(_SOCKET | given)
        )
        return connection

    def use_schema(self, connection: psycopg.Connection[PostgresRow]) -> str:
        """Set the connection's search path to the journal's schema only, and return its name."""
        given = self._driver.conninfo.conninfo_to_dict(self._url.secret)
        schema = schema_of(connection, str(given.get("options") or ""))
        connection.execute(
            f"SET lock_timeout = {_WAIT_MS}; SET idle_in_transaction_session_timeout = {_IDLE_MS}; "
            f"SET search_path = \"{schema}\", pg_temp; SET default_transaction_isolation = 'read committed'".encode()
        )
        return schema

    def _disconnect(self) -> None:
        if self._session is not None:
            self._session.connection.close()
        self._leave()

    def _connected(self) -> PostgresConnection:
        if self._session is None or self._session.is_lost:
            if self._open_unit is not None:
                raise JournalError(
                    f"the connection to the journal {self.name!r} was lost in the middle of a unit; nothing of "
                    "it is kept"
                )
            self._disconnect()
            self._session = self._open()
        return self._session

    def _leave(self) -> object:
        left, self._session = self._session, None
        return left

    def _open(self) -> PostgresConnection:
        connection = self.connect()
        try:
            prepare(connection, self.use_schema(connection))
            found = connection.execute("SHOW synchronous_commit").fetchone()
            default = "" if found is None else found[0]
            return PostgresConnection(connection, default if default == _FOR_STANDBYS else "on")
        except BaseException:
            connection.close()
            raise

    def _begin(self, durable: bool) -> None:
        self._once_more(lambda session: session.begin(durable=durable))

    def _read(self, sql: str, parameters: Parameters) -> list[Row]:
        def query(session: PostgresConnection) -> list[Row]:
            found: list[Row] = session.execute(sql, parameters).fetchall()
            return found

        return query(self._connected()) if self._open_unit is not None else self._once_more(query)

    def _once_more(self, do: Callable[[PostgresConnection], T]) -> T:
        """Repeat once, after a reconnect, what nothing depends on yet: an idle connection may have been lost long
        ago.
        """
        used = self._session is not None
        try:
            return do(self._connected())
        except self._driver.OperationalError:
            if not used or self._session is None or not self._session.is_lost:
                raise
        return do(self._connected())

    def _commit(self) -> None:
        session = self._connected()
        try:
            done = session.connection.execute("COMMIT")
        except self._driver.Error as error:
            if session.is_lost:
                raise JournalError(
                    f"the connection to the journal {self.name!r} was lost while a unit was being committed: it "
                    "is unknown whether it was written, and nothing depends on it"
                ) from error
            raise
        if done.statusmessage != "COMMIT":
            raise JournalError(
                f"the journal {self.name!r} answered COMMIT with {done.statusmessage}; nothing of this unit is kept"
            )

    def _undo(self) -> None:
        """If the connection is lost, the server rolls back by itself."""
        if self._session is None:
            return
        with suppress(self._driver.Error):
            self._session.connection.execute("ROLLBACK")
            return
        self._disconnect()

    def _translated(self, error: BaseException) -> JournalError | None:
        if not isinstance(error, self._driver.Error):
            return None
        reason = " ".join((error.diag.message_primary or str(error) or type(error).__name__).split())
        return JournalError(f"the journal {self.name!r} cannot be used: {reason}. Nothing fires without it")


def load_driver() -> Any:
    """The psycopg module.

    Raises:
        SettingsError: it is not installed.
    """
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError as error:
        raise SettingsError(
            "a journal on PostgreSQL needs psycopg: pip install 'countersign-sdk[postgres]'"
        ) from error
    return psycopg


def _record_factory(cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], PostgresRow]:
    at = {column.name: n for n, column in enumerate(cursor.description or ())}
    return lambda values: PostgresRow(at, values)


def _storable(value: Any) -> Any:
    """PostgreSQL text has no U+0000, but a tool's error may. Arguments and results are bytes."""
    return value.replace("\x00", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value
