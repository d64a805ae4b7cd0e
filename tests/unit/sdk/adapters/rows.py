"""Databases with orders and lines, and the state diff of a transaction."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg

from countersign.adapters import LiveCall, SQLiteAdapter
from countersign.adapters.postgres import PostgresAdapter
from countersign.adapters.protocol import LiveSession

CALL = LiveCall("act", {}, "e-1")

Say = Callable[..., object]

TABLES = (
    "CREATE TABLE orders (id integer PRIMARY KEY, state text)",
    "CREATE TABLE lines (order_id integer REFERENCES orders ON DELETE CASCADE, sku text, n integer,"
    " PRIMARY KEY (order_id, sku))",
    "INSERT INTO orders VALUES (1, 'new'), (2, 'new'), (3, 'new')",
    "INSERT INTO lines VALUES (1, 'a', 1), (1, 'b', 2), (2, 'a', 3)",
)


class Database:
    """One database, what the transaction says to it, and what everybody else does."""

    def __init__(self, outside: Say, adapter: SQLiteAdapter | PostgresAdapter, say: Say) -> None:
        self.outside, self.adapter, self.say = outside, adapter, say
        outside(*TABLES)

    @contextmanager
    def session(self) -> Iterator[LiveSession]:
        session = self.adapter.begin("t-1")
        try:
            yield session
        finally:
            session.undo()

    def run(self, session: LiveSession, *statements: str) -> None:
        """An effect for each statement."""
        for statement in statements:
            with session.effect(CALL):
                self.say(statement)


def on_sqlite(folder: Path) -> Database:
    path = folder / "rows.db"
    adapter = SQLiteAdapter(path)

    def outside(*statements: str) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    def say(statement: str) -> None:
        adapter.connection.execute(statement)

    return Database(outside, adapter, say)


def on_postgres(conninfo: str) -> Database:
    adapter = PostgresAdapter(conninfo)

    def outside(*statements: str) -> None:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    outside("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return Database(outside, adapter, adapter.execute)


def diff_of(database: Database, *statements: str) -> dict | None:
    with database.session() as session:
        database.run(session, *statements)
        changes = session.changes()
        return None if changes is None else {one.key: (one.before, one.after) for one in changes}


def order(number: int, state: str) -> dict:
    return {"id": number, "state": state}


Expected = dict | set | None


def assert_diff(database: Database, before: list[str], said: list[str], expected: Expected) -> None:
    """After these definitions, these statements of a transaction change these rows, or the rows of these keys."""
    database.outside(*before)
    found = diff_of(database, *said)
    assert (set(found) if found is not None and isinstance(expected, set) else found) == expected
