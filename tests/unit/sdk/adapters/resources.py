"""The resources that the contract examines, each with its own way to look from outside."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import psycopg

from countersign.adapters import LiveAdapter, LiveCall, SQLiteAdapter
from countersign.adapters.contract_suite import ContractResource
from countersign.adapters.files import FilesAdapter
from countersign.adapters.memory import MemoryAdapter
from countersign.adapters.postgres import PostgresAdapter
from countersign.adapters.protocol import Change


class Rows(ContractResource):
    """A table of keys and values."""

    reports_changes = True

    def normalize(self, change: Change) -> tuple[str, object, object]:
        """`rows[k]`, with the row before and after."""
        values = [None if row is None else row["value"] for row in (change.before, change.after)]
        return change.key.removeprefix("rows[").removesuffix("]"), *values


class SQLiteRows(Rows):
    """A transaction holds the write lock, so others cannot write meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "rows.db"
        with closing(sqlite3.connect(self._path)) as connection:
            connection.execute("CREATE TABLE rows (key TEXT PRIMARY KEY, value TEXT)")

    def adapter(self) -> LiveAdapter:
        return SQLiteAdapter(self._path, busy_seconds=0.1)

    def write(self, adapter: LiveAdapter, key: str, value: str) -> None:
        _connection(adapter).execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", (key, value))

    def read(self, adapter: LiveAdapter, key: str) -> str | None:
        return _value(_connection(adapter), key)

    def remove(self, adapter: LiveAdapter, key: str) -> None:
        _connection(adapter).execute("DELETE FROM rows WHERE key = ?", (key,))

    def outside(self, key: str) -> str | None:
        with closing(sqlite3.connect(self._path)) as connection:
            return _value(connection, key)

    def change_outside(self, key: str, value: str) -> bool:
        with closing(sqlite3.connect(self._path, timeout=0, isolation_level=None)) as connection:
            try:
                connection.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", (key, value))
            except sqlite3.OperationalError:
                return False
            return True

    def end(self, adapter: LiveAdapter) -> bool:
        with suppress(sqlite3.IntegrityError):
            _connection(adapter).execute("INSERT OR ROLLBACK INTO rows SELECT * FROM rows")
        return True

    def away(self) -> LiveAdapter:
        return SQLiteAdapter(self._path.parent / "gone" / "rows.db")


def _connection(adapter: LiveAdapter) -> sqlite3.Connection:
    return cast(SQLiteAdapter, adapter).connection


def _value(connection: sqlite3.Connection, key: str) -> str | None:
    row = connection.execute("SELECT value FROM rows WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


class FilesBelow(ContractResource):
    """A folder of small files."""

    detects_conflicts = reports_changes = survives_process = True

    def __init__(self, folder: Path) -> None:
        self._root = folder / "root"
        self._root.mkdir()

    def adapter(self) -> LiveAdapter:
        return FilesAdapter(self._root)

    def write(self, adapter: LiveAdapter, key: str, value: str) -> None:
        cast(FilesAdapter, adapter).write(key, value)

    def read(self, adapter: LiveAdapter, key: str) -> str | None:
        try:
            return cast(FilesAdapter, adapter).read(key).decode()
        except FileNotFoundError:
            return None

    def remove(self, adapter: LiveAdapter, key: str) -> None:
        cast(FilesAdapter, adapter).remove(key)

    def outside(self, key: str) -> str | None:
        path = self._root / key
        return path.read_text() if path.exists() else None

    def change_outside(self, key: str, value: str) -> bool:
        (self._root / key).write_text(value)
        return True

    def change_irreversibly(self, adapter: LiveAdapter) -> bool:
        (self._root / "folder").mkdir()
        cast(FilesAdapter, adapter).remove("folder")
        return True

    def away(self) -> LiveAdapter:
        return FilesAdapter(self._root.parent / "gone")


class MemoryValues(ContractResource):
    """Values in this process."""

    detects_conflicts = reports_changes = in_process_only = True

    def __init__(self) -> None:
        self._memory = MemoryAdapter()

    def adapter(self) -> LiveAdapter:
        return self._memory

    def write(self, adapter: LiveAdapter, key: str, value: str) -> None:
        self._memory[key] = value

    def read(self, adapter: LiveAdapter, key: str) -> Any:
        return self._memory.get(key)

    def remove(self, adapter: LiveAdapter, key: str) -> None:
        del self._memory[key]

    def outside(self, key: str) -> Any:
        return self._memory.snapshot().get(key)

    def change_outside(self, key: str, value: str) -> bool:
        session = self._memory.begin("theirs")
        with session.effect(LiveCall("theirs", {}, "e-9")):
            self._memory[key] = value
        session.prepare("theirs")
        session.commit("theirs")
        return True

    def change_irreversibly(self, adapter: LiveAdapter) -> bool:
        self._memory["lock"] = threading.Lock()
        return True

    def away(self) -> None:
        return None


class PostgresRows(Rows):
    """Others cannot write to it while a transaction is open."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._say("DROP TABLE IF EXISTS rows, countersign_landed")
        self._say("CREATE TABLE rows (key text PRIMARY KEY, value text)")

    def adapter(self) -> PostgresAdapter:
        return PostgresAdapter(self._conninfo, name="rows", locks=("rows",), wait_seconds=1.0)

    def write(self, adapter: LiveAdapter, key: str, value: str) -> None:
        _postgres(adapter).execute(_UPSERT, (key, value))

    def read(self, adapter: LiveAdapter, key: str) -> str | None:
        return _first(_postgres(adapter).execute("SELECT value FROM rows WHERE key = %s", (key,)).fetchone())

    def remove(self, adapter: LiveAdapter, key: str) -> None:
        _postgres(adapter).execute("DELETE FROM rows WHERE key = %s", (key,))

    def outside(self, key: str) -> str | None:
        return _first(self._say("SELECT value FROM rows WHERE key = %s", key))

    def change_outside(self, key: str, value: str) -> bool:
        try:
            self._say(_UPSERT, key, value)
        except psycopg.errors.LockNotAvailable:
            return False
        return True

    def end(self, adapter: LiveAdapter) -> bool:
        (mine,) = _postgres(adapter).execute("SELECT pg_backend_pid()").fetchone()
        with psycopg.connect(self._conninfo) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 5000)", (mine,))
        return True

    def away(self) -> LiveAdapter:
        return PostgresAdapter("host=127.0.0.1 port=1 user=nobody dbname=gone", wait_seconds=0.2)

    def _say(self, statement: str, *params: str) -> Any:
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            connection.execute("SET lock_timeout = '50ms'")
            done = connection.execute(statement.encode(), params)
            return done.fetchone() if done.description else None


_UPSERT = "INSERT INTO rows VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


def _postgres(adapter: LiveAdapter) -> PostgresAdapter:
    return cast(PostgresAdapter, adapter)


def _first(row: Any) -> str | None:
    return None if row is None else str(row[0])
