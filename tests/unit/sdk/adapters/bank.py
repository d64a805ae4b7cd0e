"""A SQLite database with accounts and notes: what tools say to it, and what everybody else sees of it."""

import sqlite3
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path

from countersign.adapters.protocol import LiveSession
from countersign.adapters.sqlite import SQLiteAdapter, SQLiteSession
from tests.unit.sdk.adapters.rows import CALL

TABLES = """
    CREATE TABLE accounts (id TEXT PRIMARY KEY, cents INT);
    CREATE TABLE booked (id TEXT PRIMARY KEY ON CONFLICT ROLLBACK);
    CREATE TABLE guarded (id TEXT);
    CREATE TRIGGER guard BEFORE INSERT ON guarded BEGIN SELECT RAISE(ROLLBACK, 'no'); END;
    CREATE TABLE notes (t TEXT UNIQUE);
    INSERT INTO accounts VALUES ('a', 100), ('b', 100);
    INSERT INTO booked VALUES ('o-1');
"""
CREDIT = "UPDATE accounts SET cents = cents + 1 WHERE id = ?"
BOOK_AGAIN = "INSERT INTO booked VALUES ('o-1')"
"""SQLite answers it by ending the transaction."""


def balances(path: Path) -> list[int]:
    """What everybody else sees of the two accounts."""
    with closing(sqlite3.connect(path)) as connection:
        return [cents for (cents,) in connection.execute("SELECT cents FROM accounts ORDER BY id")]


def credit(connection: sqlite3.Connection, account: str = "a") -> None:
    connection.execute(CREDIT, (account,))


def write_blob(connection: sqlite3.Connection) -> None:
    """Past every statement."""
    with connection.blobopen("accounts", "id", 1) as blob:
        blob.write(b"z")


def commit(session: LiveSession) -> None:
    session.prepare("a-1")
    session.commit("a-1")


@dataclass
class Bank:
    """The bank, with a transaction of ours that is open."""

    path: Path
    adapter: SQLiteAdapter
    session: SQLiteSession

    @property
    def connection(self) -> sqlite3.Connection:
        return self.adapter.connection

    def effect(self) -> AbstractContextManager[None]:
        return self.session.effect(CALL)

    def commit(self) -> None:
        commit(self.session)

    def balances(self) -> list[int]:
        return balances(self.path)

    def noted(self) -> list[str]:
        """What everybody else sees of the notes."""
        with closing(sqlite3.connect(self.path)) as connection:
            return [text for (text,) in connection.execute("SELECT t FROM notes ORDER BY t")]
