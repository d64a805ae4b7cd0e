"""Counts of calls: SQL statements, commits, parsed JSON, canonical forms, signatures made and verified.

Everything is counted where it happens, at the driver and in the contract, in every thread.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest

from countersign.contract import PrivateKey, PublicKey, canonicalize
from countersign.contract.admission import admitted_bytes, load
from countersign.journal.sqlite import SQLiteConnection

COLUMNS = ("statements", "commits", "loads", "canonicalized", "signed", "verified")
TABLE = Path(__file__).with_name("counts.txt")
_PACKAGES = {"policy_service", "countersign", "json", "orjson"}
_STATEMENTS = {"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"}  # not BEGIN, SAVEPOINT or PRAGMA

Row = tuple[int, ...]


class Calls:
    """What was counted so far; `patch` undoes the counting."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._found: Counter[str] = Counter()
        self._on = False
        self._inside = threading.local()
        self._patch = patch
        self._functions("loads", load, json.loads, orjson.loads)
        patch.setattr("psycopg.types.json._JsonLoader._loads", json.loads)  # it keeps a reference
        patch.setattr("policy_service.storage.core._known", {})  # compiled statements keep one too
        self._functions("canonicalized", canonicalize, admitted_bytes)
        self._methods("signed", PrivateKey, "sign")
        self._methods("verified", PublicKey, "verify")
        self._statements()

    def so_far(self) -> Row:
        """The counts, in the order of the columns."""
        return tuple(self._found[column] for column in COLUMNS)

    @contextmanager
    def counting(self, on: bool = True) -> Iterator[None]:
        """Count inside, or not."""
        before, self._on = self._on, on
        try:
            yield
        finally:
            self._on = before

    def _count(self, column: str) -> None:
        if self._on:
            self._found[column] += 1

    def _counted(self, column: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def counted(*args: Any, **options: Any) -> Any:
            if getattr(self._inside, column, False):  # `load` itself calls json.loads
                return function(*args, **options)
            self._count(column)
            setattr(self._inside, column, True)
            try:
                return function(*args, **options)
            finally:
                setattr(self._inside, column, False)

        return counted

    def _functions(self, column: str, *functions: Callable[..., Any]) -> None:
        """Replace them in every module that has imported them."""
        modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in _PACKAGES]
        for function in functions:
            counted = self._counted(column, function)
            for module in modules:
                for name in [name for name, value in vars(module).items() if value is function]:
                    self._patch.setattr(module, name, counted)

    def _methods(self, column: str, owner: type, *names: str) -> None:
        for name in names:
            self._patch.setattr(owner, name, self._counted(column, getattr(owner, name)))

    def _statements(self) -> None:
        class Cursor(sqlite3.Cursor):
            def execute(cursor, sql: str, *values: Any) -> Any:  # noqa: N805
                self._sent(sql)
                return super().execute(sql, *values)

        class Connection(sqlite3.Connection):
            def cursor(self, factory: Any = Cursor) -> Any:
                return super().cursor(factory)

            def execute(self, *values: Any) -> Any:  # SQLite's own would take its own cursor
                return self.cursor().execute(*values)

        class JournalConnection(Connection, SQLiteConnection):
            """The journal's own, counted."""

        execute = psycopg.Cursor.execute

        @wraps(execute)
        def heard(cursor: Any, query: Any, *args: Any, **options: Any) -> Any:
            self._sent(query.decode() if isinstance(query, bytes) else str(query))
            return execute(cursor, query, *args, **options)

        connect = partial(sqlite3.connect, factory=Connection)
        self._patch.setattr(sqlite3, "connect", connect)
        self._patch.setattr("sqlite3.dbapi2.connect", connect)
        self._patch.setattr("countersign.journal.sqlite.SQLiteConnection", JournalConnection)
        self._methods("statements", Cursor, "executemany")
        self._patch.setattr(psycopg.Cursor, "execute", heard)
        self._methods("statements", psycopg.Cursor, "executemany")
        self._methods("commits", psycopg.Connection, "commit")

    def _sent(self, statement: str) -> None:
        word = "".join(statement.split(maxsplit=1)[:1])
        if word == "COMMIT":
            self._count("commits")
        elif word in _STATEMENTS:
            self._count("statements")


def difference(after: Row, before: Row) -> Row:
    """What came between."""
    return tuple(one - other for one, other in zip(after, before, strict=True))


def require_unchanged(engine: str, rows: dict[str, Row]) -> None:
    """Compare the rows of an engine with the table; the failure prints the rows to write there."""
    lines = [line.split() for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    assert tuple(lines[0][2:]) == COLUMNS
    kept = {(line[0], line[1]): tuple(map(int, line[2:])) for line in lines[1:]}
    changed = [
        f"{engine:12}{verb:12}"
        + "".join(f"{count:{len(column) + 2}}" for count, column in zip(row, COLUMNS, strict=True))
        for verb, row in rows.items()
        if kept.get((engine, verb)) != row
    ]
    assert not changed, f"the cost of a verb changed; if on purpose, write into {TABLE.name}:\n" + "\n".join(
        changed
    )
