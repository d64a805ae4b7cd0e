"""The rows and definitions that a transaction on SQLite would change, and its deferred foreign keys.

The authorizer has recorded which tables it touched, by triggers and cascades too, as each statement was compiled. Their
previous content is read from the same file, as other connections still see it. SQLite itself pairs rows by key and
compares them one by one, so unchanged rows are not kept in memory.

The transaction holds the write lock meanwhile. Comparing therefore takes at most half the time that its adapter would
wait for that lock, and waits for no lock itself: only this transaction could block it, once it has outgrown SQLite's
page cache outside WAL mode, because the file is then unreadable for others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from countersign.adapters.protocol import Change
from countersign.adapters.row_diff import DiffBudget, DiffUnavailable, require_bounded, row_label

WRITES: Final = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
"""Authorizer actions of statements that may change a table."""

Touched = Iterable[tuple[str, str]]
"""(database, table) pairs with the names the authorizer uses."""

_BEFORE: Final = "countersign_before"
_AFTER: Final = "main"
_SCHEMAS: Final = (_BEFORE, _AFTER)
_STEPS: Final = 1_000  # virtual machine steps between two checks of the clock; one may read megabytes
_NUMBERS: Final = ("rowid", "oid", "_rowid_")


def changes_of(connection: sqlite3.Connection, touched: Touched) -> tuple[Change, ...] | None:
    """What this transaction would change. None if that cannot be determined: a table was altered or belongs to another
    database, the previous state cannot be read, or it is too much. Call it only for a transaction that is undone
    afterwards.
    """
    connection.row_factory, connection.text_factory = None, str  # independent of the tools' settings
    try:
        allowance = DiffBudget(_lock_timeout_seconds(connection) / 2)
        connection.execute("PRAGMA busy_timeout = 0")
        connection.set_progress_handler(lambda: allowance.is_over, _STEPS)
        return _changes(connection, touched, allowance)
    except (sqlite3.Error, DiffUnavailable):
        return None
    finally:
        connection.set_progress_handler(None, _STEPS)


def _lock_timeout_seconds(connection: sqlite3.Connection) -> float:
    """How long the connection waits for a lock, as others with the same adapter do."""
    ((milliseconds,),) = connection.execute("PRAGMA busy_timeout")
    return float(milliseconds) / 1000


def _changes(connection: sqlite3.Connection, touched: Touched, allowance: DiffBudget) -> tuple[Change, ...]:
    databases = {name: file for _, name, file in connection.execute("PRAGMA database_list")}
    names = {name for _, name in touched}
    if {database for database, _ in touched} - {_AFTER, "temp"} or not databases[_AFTER]:
        raise DiffUnavailable
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
            continue  # a view, whose triggers write to tables, or an internal table of SQLite
        if sql[:14].upper() == "CREATE VIRTUAL":
            raise DiffUnavailable
        changes += _Table(connection, name, allowance).changes()
        require_bounded(changes)
    return tuple(changes)


def _definitions(connection: sqlite3.Connection, schema: str) -> dict[tuple[str, str], str]:
    """The user-defined tables, views, indexes and triggers, by type and name."""
    found = connection.execute(f"SELECT type, name, sql FROM {schema}.sqlite_master WHERE sql IS NOT NULL")  # noqa: S608 - ours
    return {(kind, name): sql for kind, name, sql in found if not name.startswith("sqlite_")}


class _Table:
    """One touched table; `a` and `b` are the two sides of a query."""

    def __init__(self, connection: sqlite3.Connection, name: str, allowance: DiffBudget) -> None:
        self._connection, self._name, self._allowance = connection, name, allowance
        columns = {schema: _columns(connection, schema, name) for schema in _SCHEMAS}
        shapes = [shape for shape in columns.values() if shape]
        if not shapes or any(shape != shapes[0] for shape in shapes):
            raise DiffUnavailable
        self._schemas = [schema for schema, shape in columns.items() if shape]
        self._names, self._key = shapes[0]
        if any(_has_nulls(connection, schema, name, self._key) for schema in self._schemas):
            self._key = _rowid_alias(self._names)  # SQLite allows NULL in most keys, any number of times

    def changes(self) -> Iterator[Change]:
        """The removed, changed and new rows."""
        for key, before in self._only_in(_BEFORE, _AFTER):
            yield Change(row_label(self._name, key), before, None)
        for key, before, after in self._in_both():
            yield Change(row_label(self._name, key), before, after)
        for key, after in self._only_in(_AFTER, _BEFORE):
            yield Change(row_label(self._name, key), None, after)

    def _only_in(self, schema: str, other: str) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        if schema not in self._schemas:
            return
        selection = f"{_listed('a', self._key)}, {_listed('a', self._names)} FROM {self._side(schema, 'a')}"
        if other in self._schemas:
            nothing = f"b.{_quoted(self._key[0])} IS NULL"
            selection += f" LEFT JOIN {self._side(other, 'b')} ON {_same_key(self._key)} WHERE {nothing}"
        for key, values in self._query(selection):
            yield key, dict(zip(self._names, values, strict=True))

    def _in_both(self) -> Iterator[tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]]:
        """Rows with the same key and other values."""
        if len(self._schemas) < len(_SCHEMAS):
            return
        selection = (
            f"{_listed('a', self._key)}, {_listed('a', self._names)}, {_listed('b', self._names)}"
            f" FROM {self._side(_BEFORE, 'a')} JOIN {self._side(_AFTER, 'b')} ON {_same_key(self._key)}"
            f" WHERE {_differs(self._names)}"
        )
        for key, values in self._query(selection):
            before, after = values[: len(self._names)], values[len(self._names) :]
            yield key, dict(zip(self._names, before, strict=True)), dict(zip(self._names, after, strict=True))

    def _query(self, wanted: str) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Run a query for keys and values."""
        answer = self._connection.execute(f"SELECT {wanted}")  # the names come from the schema and are quoted
        for row in self._allowance.rows(answer):
            yield row[: len(self._key)], row[len(self._key) :]

    def _side(self, schema: str, alias: str) -> str:
        return f"{schema}.{_quoted(self._name)} AS {alias}"


def _listed(alias: str, names: Sequence[str]) -> str:
    return ", ".join(f"{alias}.{_quoted(name)}" for name in names)


def _same_key(key: Sequence[str]) -> str:
    """First compare as the column does, so that an index can be used; then exactly. A key that changed its value is one
    removed and one new row, even if the column's collation finds both equal.
    """
    return " AND ".join(
        f"a.{one} = b.{one} AND a.{one} = b.{one} COLLATE BINARY AND typeof(a.{one}) = typeof(b.{one})"
        for one in map(_quoted, key)
    )


def _differs(names: Sequence[str]) -> str:
    """Compare row values: an OR over many columns would be too deep for SQLite."""
    before = ", ".join(f"a.{one} COLLATE BINARY, typeof(a.{one})" for one in map(_quoted, names))
    after = ", ".join(f"b.{one}, typeof(b.{one})" for one in map(_quoted, names))
    return f"({before}) IS NOT ({after})"


def _columns(
    connection: sqlite3.Connection, schema: str, table: str
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The columns and the key columns of a table; None if there is no such table."""
    found = connection.execute(f"PRAGMA {schema}.table_info({_quoted(table)})").fetchall()
    if not found:
        return None
    names = tuple(name for _, name, *_ in found)
    key = tuple(name for _, name, _, _, _, place in sorted(found, key=lambda one: one[5]) if place)
    return names, key or _rowid_alias(names)


def _rowid_alias(names: Sequence[str]) -> tuple[str]:
    """A name of SQLite's rowid that no column uses."""
    number = next((one for one in _NUMBERS if one not in {name.lower() for name in names}), None)
    if number is None:
        raise DiffUnavailable
    return (number,)


def _has_nulls(connection: sqlite3.Connection, schema: str, table: str, key: Sequence[str]) -> bool:
    nothing = " OR ".join(f"{_quoted(one)} IS NULL" for one in key)
    found = connection.execute(f"SELECT 1 FROM {schema}.{_quoted(table)} WHERE {nothing} LIMIT 1")  # noqa: S608 - quoted
    return found.fetchone() is not None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_REFERENCES: Final = (
    'SELECT m.name, m.sql, f."table" FROM {}.sqlite_master AS m, pragma_foreign_key_list(m.name, ?) AS f'
    " WHERE m.type = 'table'"
)
_OF_TABLES: Final = frozenset({"sqlite_master", "sqlite_temp_master"})


def require_references(connection: sqlite3.Connection, touched: Touched, *, all_wait: bool) -> None:
    """Check foreign keys. `all_wait`: a tool may have deferred those that are not deferred in the schema.

    Raises:
        sqlite3.IntegrityError: a COMMIT would fail, naming the reference.
    """
    connection.row_factory, connection.text_factory = None, str  # independent of the tools' settings
    if connection.execute("PRAGMA foreign_keys").fetchone() != (1,):
        return
    for database in {database for database, _ in touched}:
        names = {name.lower() for one, name in touched if one == database}
        for table in sorted(set(_deferred_references(connection, database, names, all_wait=all_wait))):
            _require_whole(connection, database, table)


def _deferred_references(
    connection: sqlite3.Connection, database: str, touched: set[str], *, all_wait: bool
) -> Iterator[str]:
    found = connection.execute(_REFERENCES.format(_quoted(database)), (database,))
    for table, sql, parent in found.fetchall():
        # The word may mean something else, and then one table too many is read; it can never be one too few.
        waits = all_wait or "deferred" in sql.lower()
        if waits and (touched & {table.lower(), parent.lower()} or touched & _OF_TABLES):
            yield table


def _require_whole(connection: sqlite3.Connection, database: str, table: str) -> None:
    broken = connection.execute(f"PRAGMA {_quoted(database)}.foreign_key_check({_quoted(table)})").fetchone()
    if broken is not None:
        _, number, parent, _ = broken
        raise sqlite3.IntegrityError(
            f"FOREIGN KEY constraint failed: row {number} of {table} refers to what is not in {parent}"
        )
