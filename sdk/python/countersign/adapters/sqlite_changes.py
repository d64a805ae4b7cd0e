"""The rows and definitions that a transaction on SQLite would change.

Which tables it touched the authorizer has heard, of triggers and cascades too, as each statement was compiled; what
stood in them before is read from the same file, where everybody else still sees it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from countersign.adapters.protocol import Change
from countersign.adapters.row_changes import LONGEST_S, MOST_ROWS, Row, changed_rows

WRITES: Final = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
"""What the authorizer hears of a statement that may change a table."""

Touched = Iterable[tuple[str, str]]
"""Databases and tables, by the names that the authorizer has for them."""

_BEFORE: Final = "countersign_before"
_AFTER: Final = "main"
_SCHEMAS: Final = (_BEFORE, _AFTER)
_STEPS: Final = 10_000  # of SQLite's machine between two looks at the clock
_NUMBERS: Final = ("rowid", "oid", "_rowid_")


class _CannotTell(Exception):
    """What would change is not to be found out, or too much."""


def changes_of(connection: sqlite3.Connection, touched: Touched) -> tuple[Change, ...] | None:
    """What this transaction would change; None where that cannot be told: a table has another shape now or belongs to
    another database, the other state cannot be read, or it is too much. Only for a transaction that is undone then.
    """
    ends = time.monotonic() + LONGEST_S
    connection.row_factory, connection.text_factory = None, str  # whatever the tools have set
    connection.set_progress_handler(lambda: time.monotonic() > ends, _STEPS)
    try:
        return _changes(connection, touched)
    except (sqlite3.Error, _CannotTell):
        return None
    finally:
        connection.set_progress_handler(None, _STEPS)


def _changes(connection: sqlite3.Connection, touched: Touched) -> tuple[Change, ...]:
    databases = {name: file for _, name, file in connection.execute("PRAGMA database_list")}
    names = {name for _, name in touched}
    if {database for database, _ in touched} - {_AFTER, "temp"} or not databases[_AFTER]:
        raise _CannotTell
    connection.execute(f"ATTACH ? AS {_BEFORE}", (databases[_AFTER],))
    before, after = (_definitions(connection, schema) for schema in _SCHEMAS)
    changes = [
        Change(" ".join(one), before.get(one), after.get(one))
        for one in {**before, **after}
        if before.get(one) != after.get(one)
    ]
    made = {one.key.removeprefix("table ") for one in changes if one.key.startswith("table ")}
    for name in sorted(names | made):
        sql = after.get(("table", name), before.get(("table", name)))
        if sql is None:
            continue  # a view, whose triggers write to tables, or a table of SQLite's own
        if sql[:14].upper() == "CREATE VIRTUAL":
            raise _CannotTell
        changes += _rows_of(connection, name)
        if len(changes) > MOST_ROWS:
            raise _CannotTell
    return tuple(changes)


def _definitions(connection: sqlite3.Connection, schema: str) -> dict[tuple[str, str], str]:
    """Of tables, views, indexes and triggers that somebody has defined, by kind and name."""
    found = connection.execute(f"SELECT type, name, sql FROM {schema}.sqlite_master WHERE sql IS NOT NULL")  # noqa: S608 - ours
    return {(kind, name): sql for kind, name, sql in found if not name.startswith("sqlite_")}


def _rows_of(connection: sqlite3.Connection, table: str) -> list[Change]:
    columns = {schema: _columns(connection, schema, table) for schema in _SCHEMAS}
    shapes = [shape for shape in columns.values() if shape]
    if not shapes or any(shape != shapes[0] for shape in shapes):
        raise _CannotTell
    names, key = shapes[0]
    if any(_has_nulls(connection, schema, table, key) for schema in _SCHEMAS if columns[schema]):
        key = _number(names)  # SQLite lets most keys be NULL, and as often as they like
    before, after = (
        _only_in(connection, schema, other if columns[other] else None, table, names, key)
        if columns[schema]
        else {}
        for schema, other in ((_BEFORE, _AFTER), (_AFTER, _BEFORE))
    )
    return changed_rows(table, before, after)


def _columns(
    connection: sqlite3.Connection, schema: str, table: str
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The columns, and those that name a row; None where there is no such table."""
    found = connection.execute(f"PRAGMA {schema}.table_info({_quoted(table)})").fetchall()
    if not found:
        return None
    names = tuple(name for _, name, *_ in found)
    key = tuple(name for _, name, _, _, _, place in sorted(found, key=lambda one: one[5]) if place)
    return names, key or _number(names)


def _number(names: Sequence[str]) -> tuple[str]:
    """What SQLite calls the number of a row, where no column is called so."""
    number = next((one for one in _NUMBERS if one not in {name.lower() for name in names}), None)
    if number is None:
        raise _CannotTell
    return (number,)


def _has_nulls(connection: sqlite3.Connection, schema: str, table: str, key: Sequence[str]) -> bool:
    nothing = " OR ".join(f"{_quoted(one)} IS NULL" for one in key)
    found = connection.execute(f"SELECT 1 FROM {schema}.{_quoted(table)} WHERE {nothing} LIMIT 1")  # noqa: S608 - as below
    return found.fetchone() is not None


def _only_in(
    connection: sqlite3.Connection,
    schema: str,
    other: str | None,
    table: str,
    names: Sequence[str],
    key: Sequence[str],
) -> dict[str, Row]:
    """The rows that stand here and not there, or not like this."""
    columns = [_quoted(name) for name in (*key, *names)]
    wanted = ", ".join([_exact(columns[: len(key)]), _exact(columns[len(key) :]), *columns])
    here = f"SELECT {wanted} FROM {schema}.{_quoted(table)}"  # noqa: S608 - names from the schema, quoted
    there = f" EXCEPT SELECT {wanted} FROM {other}.{_quoted(table)}" if other else ""  # noqa: S608 - as above
    found: list[tuple[Any, ...]] = connection.execute(f"{here}{there} LIMIT {MOST_ROWS + 1}").fetchall()
    return {
        exact_key: Row(tuple(rest[: len(key)]), exact, dict(zip(names, rest[len(key) :], strict=True)))
        for exact_key, exact, *rest in found
    }


def _exact(columns: Sequence[str]) -> str:
    """An expression for the exact text of these columns: with their types, and what stands behind a NUL."""
    return " || ',' || ".join(
        f"CASE typeof({one}) WHEN 'text' THEN 't' || hex(CAST({one} AS BLOB)) WHEN 'blob' THEN 'b' || hex({one}) "
        f"WHEN 'real' THEN printf('r%!.17g', {one}) ELSE quote({one}) END"
        for one in columns
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
