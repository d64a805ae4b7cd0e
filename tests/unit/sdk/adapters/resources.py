"""The resources that the contract examines, each with its own way to look from outside."""

import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path

import psycopg

from countersign.adapters import LiveAdapter, LiveCall, SQLiteAdapter
from countersign.adapters.contract_suite import ContractResource
from countersign.adapters.files import FilesAdapter
from countersign.adapters.memory import MemoryAdapter
from countersign.adapters.postgres import PostgresAdapter
from countersign.adapters.protocol import Change

UPSERT = "INSERT INTO rows VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
SELECT = "SELECT value FROM rows WHERE key = %s"


class Rows(ContractResource):
    """A table of keys and values. A transaction holds a lock, so others cannot write meanwhile.

    A subclass has `execute` for a statement in the session and `execute_outside` for one of somebody else; both answer
    the first row.
    """

    reports_changes = True

    def write(self, adapter: LiveAdapter, key: str, value: str) -> None:
        self.execute(adapter, UPSERT, key, value)

    def read(self, adapter: LiveAdapter, key: str) -> str | None:
        row = self.execute(adapter, SELECT, key)
        return row and row[0]

    def remove(self, adapter: LiveAdapter, key: str) -> None:
        self.execute(adapter, "DELETE FROM rows WHERE key = %s", key)

    def outside(self, key: str) -> str | None:
        row = self.execute_outside(SELECT, key)
        return row and row[0]

    def change_outside(self, key: str, value: str) -> bool:
        try:
            self.execute_outside(UPSERT, key, value)
        except (sqlite3.OperationalError, psycopg.errors.LockNotAvailable):
            return False
        return True

    def normalize(self, change: Change) -> tuple[str, object, object]:
        """`rows[k]`, with the row before and after."""
        values = [None if row is None else row["value"] for row in (change.before, change.after)]
        return change.key.removeprefix("rows[").removesuffix("]"), *values


class SQLiteRows(Rows):
    def __init__(self, folder: Path) -> None:
        self._path = folder / "rows.db"
        self.execute_outside("CREATE TABLE rows (key TEXT PRIMARY KEY, value TEXT)")

    def adapter(self) -> LiveAdapter:
        return SQLiteAdapter(self._path, busy_seconds=0.1)

    def execute(self, adapter, statement: str, *params: str):
        return adapter.connection.execute(statement.replace("%s", "?"), params).fetchone()

    def execute_outside(self, statement: str, *params: str):
        with closing(sqlite3.connect(self._path, timeout=0, isolation_level=None)) as connection:
            return connection.execute(statement.replace("%s", "?"), params).fetchone()

    def end(self, adapter) -> bool:
        with suppress(sqlite3.IntegrityError):
            adapter.connection.execute("INSERT OR ROLLBACK INTO rows SELECT * FROM rows")
        return True

    def away(self) -> LiveAdapter:
        return SQLiteAdapter(self._path.parent / "gone" / "rows.db")


class FilesBelow(ContractResource):
    """A folder of small files."""

    detects_conflicts = reports_changes = survives_process = True

    def __init__(self, folder: Path) -> None:
        self._root = folder / "root"
        self._root.mkdir()

    def adapter(self) -> LiveAdapter:
        return FilesAdapter(self._root)

    def write(self, adapter, key: str, value: str) -> None:
        adapter.write(key, value)

    def read(self, adapter, key: str):
        try:
            return adapter.read(key).decode()
        except FileNotFoundError:
            return None

    def remove(self, adapter, key: str) -> None:
        adapter.remove(key)

    def outside(self, key: str) -> str | None:
        path = self._root / key
        return path.read_text() if path.exists() else None

    def change_outside(self, key: str, value: str) -> bool:
        (self._root / key).write_text(value)
        return True

    def change_irreversibly(self, adapter) -> bool:
        (self._root / "folder").mkdir()
        adapter.remove("folder")
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

    def read(self, adapter: LiveAdapter, key: str):
        return self._memory.get(key)

    def remove(self, adapter: LiveAdapter, key: str) -> None:
        del self._memory[key]

    def outside(self, key: str):
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
    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self.execute_outside("DROP TABLE IF EXISTS rows, countersign_landed")
        self.execute_outside("CREATE TABLE rows (key text PRIMARY KEY, value text)")

    def adapter(self) -> PostgresAdapter:
        return PostgresAdapter(self._conninfo, name="rows", locks=("rows",), wait_seconds=1.0)

    def execute(self, adapter, statement: str, *params: str):
        done = adapter.execute(statement, params)
        return done.fetchone() if done.description else None

    def execute_outside(self, statement: str, *params: str):
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            connection.execute("SET lock_timeout = '50ms'")
            done = connection.execute(statement.encode(), params)
            return done.fetchone() if done.description else None

    def end(self, adapter: LiveAdapter) -> bool:
        mine = self.execute(adapter, "SELECT pg_backend_pid()")
        with psycopg.connect(self._conninfo) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 5000)", mine)
        return True

    def away(self) -> LiveAdapter:
        return PostgresAdapter("host=127.0.0.1 port=1 user=none dbname=gone", wait_seconds=0.2)
