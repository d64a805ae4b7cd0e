"""One SQL source: a read-only question to a database of the operator's, with a time limit.

Rules kept here: the connection cannot write (SQLite is opened `mode=ro` with `query_only`, PostgreSQL reads
only by default and in this transaction); the database itself stops a statement that takes too long; every
value is a bound parameter. Any other kind of database is refused, because we do not know how to keep these
promises there.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from sqlalchemy import URL, Engine, NullPool, create_engine, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

Rows: TypeAlias = Sequence[Mapping[str, Any]]

ENOUGH_ROWS: Final = 2
"""How many rows are fetched at most: the second one already makes the answer wrong."""

_STEPS: Final = 2_000  # SQLite virtual machine steps between two looks at the clock: well under a millisecond
_POOL: Final = 4  # connections a PostgreSQL source keeps; further reads wait for one of them


class SourceFailedError(Exception):
    """A source gave no usable answer. The text is for the operator; an agent only learns that it failed."""


class SqlReader:
    """Asks one query of one database. Blocking: callers run it in a thread.

    Raises:
        SourceFailedError: the URL is none, or names a kind of database we cannot hold to reading.
    """

    def __init__(self, url: str, query: str, timeout: timedelta) -> None:
        self._engine = _engine(url, timeout)
        self._query = text(query)
        self._binds = tuple(self._query.compile().params)

    def read(self, values: Mapping[str, str]) -> Rows:
        """The rows of the answer, at most `ENOUGH_ROWS`.

        Raises:
            SourceFailedError: the database could not be asked, refused, or took too long.
        """
        try:
            with self._engine.connect() as connection:
                answer = connection.execute(self._query, {name: values[name] for name in self._binds})
                return [dict(row) for row in answer.mappings().fetchmany(ENOUGH_ROWS)]
        except SQLAlchemyError as error:
            # `orig` is the driver's sentence; SQLAlchemy's own would repeat the statement and its parameters
            cause = getattr(error, "orig", None) or error
            raise SourceFailedError(f"{type(cause).__name__}: {cause}") from error

    def close(self) -> None:
        """Let go of the connections; one that is in use is closed when it comes back."""
        self._engine.dispose()


def _engine(url: str, timeout: timedelta) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise SourceFailedError(
            "its URL is not a database URL; write sqlite:///FILE or postgresql://..."
        ) from error
    match parsed.get_backend_name():
        case "sqlite":
            return _sqlite(parsed, timeout.total_seconds())
        case "postgresql":
            return _postgresql(parsed, timeout.total_seconds())
    raise SourceFailedError(
        f"{parsed.get_backend_name()!r} databases are not supported; use sqlite or postgresql"
    )


def _sqlite(url: URL, seconds: float) -> Engine:
    """Opens the file for each question: a kept connection would go on reading a file that was replaced
    meanwhile.
    """
    if not url.database or url.database == ":memory:":
        raise SourceFailedError("a SQLite source needs a file; write sqlite:///FILE")
    uri = f"file:{quote(str(Path(url.database).absolute()))}?mode=ro"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(uri, uri=True, timeout=seconds, check_same_thread=False)
        connection.execute("PRAGMA query_only = ON")
        deadline = time.monotonic() + seconds
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
        return connection

    return create_engine("sqlite://", creator=connect, poolclass=NullPool, hide_parameters=True)


def _postgresql(url: URL, seconds: float) -> Engine:
    options = (
        f"-c timezone=UTC -c default_transaction_read_only=on -c statement_timeout={int(seconds * 1000)}"
    )
    return create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_size=_POOL,
        max_overflow=0,
        pool_pre_ping=True,
        pool_timeout=seconds,
        hide_parameters=True,
        connect_args={
            "connect_timeout": max(2, int(seconds)),  # libpq takes no less than 2 s
            "options": options,
        },
    )
