"""One line in the log for one thing that happened, in the unit of work that made it happen.

No audit row, no change: a line that cannot be written undoes its unit. A line is canonical JSON, so no actor
and no reason can forge another line. A unit's lines go to the database together, as the last thing it does, and
without an index; the sequencer gives each one after the commit. Lines hold ids, digests and codes; a person's own
words and an agent's args stay in their tables.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Insert, String, bindparam, cast, func, insert

from countersign.contract import canonicalize
from policy_service.storage.core import execute_write, table
from policy_service.storage.system_tables import AuditRow
from policy_service.storage.unit_of_work import AuditLine, T, Tx, Unit

_audit = table(AuditRow)
_counter = itertools.count()
_MICROSECONDS = 1_000_000
_MAX_LINES = 16  # lines in a statement: each number of them is a statement of its own that is kept


def append(
    tx: Tx,
    kind: str,
    *,
    actor: str,
    body: Mapping[str, Any],
    txn: str | None = None,
    effect_id: str | None = None,
    rev: int | None = None,
    agent: str | None = None,
) -> None:
    """Write a line. ``agent`` is whose it is, for those who search.

    Raises:
        AdmissionError: the body is no plain JSON; the unit must not go on.
    """
    rest = f"{next(_counter) & 0xFFFF_FFFF:08x}{secrets.token_hex(4)}"
    tx.unwritten.append(
        {
            "audit_id": f"{int(tx.now.timestamp() * _MICROSECONDS):014x}{rest}", "rest": rest, "kind": kind,
            "actor": actor, "txn": txn, "effect_id": effect_id, "rev": rev, "agent": agent,
            "body": canonicalize(dict(body)), "at": tx.now,
        }
    )  # fmt: skip
    tx.lines.append(AuditLine(kind, txn, effect_id, rev, tx.now, body))


def run_unit(unit: Unit[T], tx: Tx) -> T:
    """What a unit answers, with its lines written: what a writer runs."""
    answer = unit(tx)
    write_lines(tx)
    return answer


def write_lines(tx: Tx) -> None:
    """Write the lines that wait, in one statement where there are few: each costs its way to the driver and back."""
    for first in range(0, len(tx.unwritten), _MAX_LINES):
        lines = tx.unwritten[first : first + _MAX_LINES]
        values = {f"{name}_{n}": value for n, line in enumerate(lines) for name, value in line.items()}
        execute_write(tx.conn, _insert(len(lines), tx.conn.dialect.name), values, explicit_columns=True)
    tx.unwritten.clear()


# An id is microseconds, a count, then chance: 30 hex digits that sort as they were written. On PostgreSQL the
# time is the server's at this very statement, after every row lock the unit has waited for: of two units where
# one depends on the other, the later line sorts later whichever replica wrote it.
_SERVER_TIME = cast(func.extract("epoch", func.clock_timestamp()) * _MICROSECONDS, BigInteger)
_WRITTEN = tuple(column for column in _audit.c if column.name not in {"audit_id", "idx"})


@cache
def _insert(lines: int, dialect: str) -> Insert:
    """So many lines at once, each value under its column's name and the line's number."""
    return insert(_audit).values([_line(n, dialect) for n in range(lines)])


def _line(n: int, dialect: str) -> dict[str, ColumnElement[Any]]:
    line: dict[str, ColumnElement[Any]] = {
        column.name: bindparam(f"{column.name}_{n}", type_=column.type) for column in _WRITTEN
    }
    if dialect == "sqlite":
        return line | {"audit_id": bindparam(f"audit_id_{n}", type_=String)}
    rest: ColumnElement[str] = bindparam(f"rest_{n}", type_=String)
    return line | {"audit_id": func.lpad(func.to_hex(_SERVER_TIME), 14, "0").concat(rest)}
