"""Databases with orders and lines, and the state diff of a transaction."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import psycopg

from countersign.adapters import LiveCall, SQLiteAdapter
from countersign.adapters.postgres import PostgresAdapter
from countersign.adapters.protocol import LiveSession

CALL = LiveCall("act", {}, "e-1")

TABLES = (
    "CREATE TABLE orders (id integer PRIMARY KEY, state text)",
    "CREATE TABLE lines (order_id integer REFERENCES orders ON DELETE CASCADE, sku text, n integer,"
    " PRIMARY KEY (order_id, sku))",
    "INSERT INTO orders VALUES (1, 'new'), (2, 'new'), (3, 'new')",
    "INSERT INTO lines VALUES (1, 'a', 1), (1, 'b', 2), (2, 'a', 3)",
)


class Database:
    """One database: what a transaction executes, and what everybody else does outside."""

    def __init__(self, connect, adapter: SQLiteAdapter | PostgresAdapter, say, *first: str) -> None:
        self.connect, self.adapter, self.say = connect, adapter, say
        self.outside(*first, *TABLES)

    def outside(self, *statements: str) -> None:
        with closing(self.connect()) as connection:
            for statement in statements:
                connection.execute(statement)

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
    adapter, connect = SQLiteAdapter(path), partial(sqlite3.connect, path, isolation_level=None)

    def say(statement: str) -> None:
        adapter.connection.execute(statement)

    return Database(connect, adapter, say)


def on_postgres(conninfo: str) -> Database:
    adapter, connect = PostgresAdapter(conninfo), partial(psycopg.connect, conninfo, autocommit=True)
    first = "DROP SCHEMA public CASCADE", "CREATE SCHEMA public"
    return Database(connect, adapter, adapter.execute, *first)


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
