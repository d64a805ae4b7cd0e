"""The rows that a transaction on PostgreSQL would change.

Its locks show which tables it has written to. Their previous content is read over a second connection with the
transaction's own snapshot. Its own rows are recognised by `xmin` and `xmax`, which are not older than its id: of other
transactions only older rows are visible in that snapshot. Grants, functions and large objects are not rows of tables
and are not reported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from countersign.adapters.protocol import Change
from countersign.adapters.row_diff import DiffBudget, DiffUnavailable, Row, changed_rows, require_bounded

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]

_WRITTEN: Final = (
    "SELECT DISTINCT c.oid, c.oid::regclass::text, format('%I.%I', n.nspname, c.relname), c.relkind::text,"
    " row_security_active(c.oid)"
    " FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.mode = 'RowExclusiveLock'"
    " AND c.oid >= 16384 AND c.relpersistence <> 't' AND c.relkind IN ('r', 'm', 'f') ORDER BY 2"
)
_SCHEMA_LOCKS: Final = (
    "SELECT 1 FROM pg_locks l LEFT JOIN pg_class c ON c.oid = l.relation"
    " WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'"
    " AND l.relation >= 16384 AND c.relpersistence IS DISTINCT FROM 't' LIMIT 1"
)
"""Any table that was created, altered, truncated or dropped. A dropped one is no longer in `pg_class`, only its lock
shows it.
"""
_KEY: Final = (
    "SELECT quote_ident(a.attname) FROM pg_index i"
    " JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place) ON k.place <= i.indnkeyatts"
    " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum"
    " WHERE i.indrelid = %s AND i.indisprimary ORDER BY k.place"
)
_WRITING: Final = ("TimeZone", "DateStyle", "IntervalStyle", "bytea_output")
"""Settings that affect how a value is written; both sides must use the same."""


class _BoundedReader:
    """A connection whose statements share one time budget."""

    def __init__(self, connection: Connection, allowance: DiffBudget) -> None:
        self.connection, self._allowance = connection, allowance

    def ask(self, statement: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._cursor() as cursor:
            cursor.execute(statement.encode(), params or None)
            return [] if cursor.description is None else cursor.fetchall()

    def rows(self, statement: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Read a possibly large result row by row, within the budget."""
        with self._cursor() as cursor:
            answer = cast("Generator[tuple[Any, ...]]", cursor.stream(statement.encode(), params))
            with closing(answer):  # discard the rest of the result
                return list(self._allowance.rows(answer))

    @contextmanager
    def _cursor(self) -> Iterator[psycopg.Cursor[tuple[Any, ...]]]:
        plain = import_module("psycopg.rows").tuple_row  # independent of the tools' settings
        with self.connection.cursor(row_factory=plain) as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = {self._allowance.milliseconds()}".encode())
            yield cursor


def changes_of(mine: Connection, connect: Callable[[], Connection]) -> tuple[Change, ...] | None:
    """What this transaction would change. None if that cannot be determined: it created, altered, truncated or dropped
    a table; a table it wrote to has no primary key, is foreign or has row security; or it is too much. Call it only
    for a transaction that is undone afterwards and whose deferred triggers have run, because triggers write too.

    Raises:
        psycopg.Error: the server refuses a query; the transaction is unusable after that.
    """
    try:
        return _changes(mine, connect, DiffBudget())
    except DiffUnavailable:
        return None


def _changes(
    connection: Connection, connect: Callable[[], Connection], allowance: DiffBudget
) -> tuple[Change, ...]:
    mine = _BoundedReader(connection, allowance)
    tables = mine.ask(_WRITTEN)
    if any(kind != "r" or guarded for *_, kind, guarded in tables) or mine.ask(_SCHEMA_LOCKS):
        raise DiffUnavailable
    if not tables:
        return ()
    ((own, snapshot),) = mine.ask("SELECT (txid_current() % (2^32)::bigint)::text, pg_export_snapshot()")
    changes: list[Change] = []
    with closing(connect()) as second:
        others = _BoundedReader(second, allowance)
        second.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        others.ask(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        for name in _WRITING:
            ((value,),) = mine.ask("SELECT current_setting(%s)", (name,))
            others.ask("SELECT set_config(%s, %s, true)", (name, value))
        for side in (mine, others):
            side.ask("SET LOCAL extra_float_digits = 1")  # full precision
        for number, shown, named, *_ in tables:
            changes += _Table(number, shown, named, own).changes(mine, others)
            require_bounded(changes)
    return tuple(changes)


class _Table:
    """One table that the transaction has written to. `named` is already quoted."""

    def __init__(self, number: int, shown: str, named: str, own: str) -> None:
        self._number, self._shown, self._own = number, shown, own
        self._from = f"FROM ONLY {named.replace('%', '%%')} AS whole_row"
        self._key: list[str] = []

    def changes(self, mine: _BoundedReader, others: _BoundedReader) -> list[Change]:
        """The rows that differ between the two sides.

        A row may be locked but unchanged, or our own and new, so each side is queried for what the other has found. A
        lock that is shared with others hides an `xmax`: then the row counts do not match.
        """
        self._key = [
            f"whole_row.{column}".replace("%", "%%") for (column,) in mine.ask(_KEY, (self._number,))
        ]
        # the connection may have another role
        guarded = others.ask("SELECT row_security_active(%s::oid)", (self._number,))
        if not self._key or guarded != [(False,)]:
            raise DiffUnavailable
        after = self._rows(mine, "age(whole_row.xmin) <= age(%s::xid)", (self._own,))
        before = self._rows(others, "age(whole_row.xmax) <= age(%s::xid)", (self._own,))
        ours, theirs = dict(after), dict(before)
        before |= self._named(others, [ours[key] for key in ours.keys() - theirs.keys()])
        after |= self._named(mine, [theirs[key] for key in theirs.keys() - ours.keys()])
        found = changed_rows(self._shown, before, after)
        grown = sum(one.before is None for one in found) - sum(one.after is None for one in found)
        if self._count(mine) - self._count(others) != grown:
            raise DiffUnavailable
        return found

    def _named(self, side: _BoundedReader, rows: Sequence[Row]) -> dict[str, Row]:
        """The rows with the same keys on this side."""
        if not rows:
            return {}
        columns = ", ".join(f"{column}::text" for column in self._key)
        lists = ", ".join("%s::text[]" for _ in self._key)
        same = f"({columns}) IN (SELECT * FROM unnest({lists}))"  # noqa: S608 - quoted by the server
        return self._rows(side, same, [[row.key[place] for row in rows] for place in range(len(self._key))])

    def _rows(self, side: _BoundedReader, where: str, params: Sequence[Any]) -> dict[str, Row]:
        columns = ", ".join(f"{column}::text" for column in self._key)
        found = side.rows(
            f"SELECT ROW(whole_row.*)::text, to_jsonb(whole_row.*)::text, {columns} {self._from} WHERE {where}",
            params,
        )
        return {json.dumps(key): Row(tuple(key), exact, _read(values)) for exact, values, *key in found}

    def _count(self, side: _BoundedReader) -> int:
        ((number,),) = side.ask(f"SELECT count(*) {self._from}".replace("%%", "%"))
        return int(number)


def _read(values: str) -> dict[str, Any]:
    try:
        read: dict[str, Any] = json.loads(values, parse_float=Decimal)
    except (ValueError, RecursionError):  # a number too long, or a value too deep, for Python
        raise DiffUnavailable from None
    return read
