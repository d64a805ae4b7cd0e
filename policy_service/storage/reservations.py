"""Reservations: what effects hold of meters, and the queries over them.

A row says how much one effect takes by one field. It is stored per field, not per meter, so any window and any subject
is a sum over the same rows by one index. Of two rows that share an agent or a resource, the later one has the higher
ordinal, independent of clocks: it is assigned while the unit holds the locks of both (``advisory_locks.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, Literal

import sqlalchemy as sa
from sqlalchemy import Connection, bindparam, func, select
from sqlalchemy import text as sql
from sqlmodel import Field

from policy_service.storage.core import Row, execute_write, fetch_rows, parameters, partial, table
from policy_service.storage.types import UtcDateTime
from policy_service.storage.unit_of_work import Tx

_HELD = sql("given_back_at IS NULL")
_ORDINAL: Any = sa.BigInteger().with_variant(
    sa.Integer, "sqlite"
)  # on SQLite only an INTEGER primary key autoincrements


def _by(subject: str) -> sa.Index:
    """An index that finds and sums what one subject holds; it excludes released rows."""
    columns = (subject, "field", "tool", "reserved_at", "amount")
    return sa.Index(f"ix_reservations_{subject}", *columns, **partial(_HELD))


class ReservationRow(Row, table=True):
    """What one effect at one revision takes, by one field of its arguments."""

    __tablename__: ClassVar[Any] = "reservations"
    __table_args__ = (
        sa.UniqueConstraint("effect_id", "rev", "field", name="uq_reservations_effect"),
        sa.CheckConstraint("amount >= 0", name="amount_not_negative"),
        _by("agent"),
        _by("resource"),
        {"sqlite_autoincrement": True},  # an ordinal is never reused
    )

    ordinal: int | None = Field(default=None, primary_key=True, sa_type=_ORDINAL)
    effect_id: str
    rev: int
    field: str  # JSON pointer into the arguments; empty: the effect itself, with amount 1
    tool: str
    agent: str
    resource: str  # digest of its type and id: an id may exceed an index's limit
    amount: int = Field(sa_type=sa.BigInteger)
    reserved_at: datetime = Field(sa_type=UtcDateTime)
    given_back_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


Subject = Literal["agent", "resource"]
NEWEST: Final = 2**63 - 1
"""Above every ordinal: all reservations count."""

_LOW_BITS: Final = 26


def _long(text: str) -> sa.ColumnElement[int]:
    return sa.literal_column(text, sa.BigInteger)


def _total(subject: Subject) -> sa.Select[int, int]:
    # In two halves: a sum of whole amounts leaves 64 bits after a thousand of the largest, and would err on SQLite.
    c = table(ReservationRow).c
    high, low = _long(f"amount >> {_LOW_BITS}"), _long(f"amount & {2**_LOW_BITS - 1}")
    return (
        select(func.coalesce(func.sum(high), 0), func.coalesce(func.sum(low), 0))
        .where(c[subject] == bindparam("who"), c.field == bindparam("counted"))
        .where(c.tool.in_(bindparam("tools", expanding=True)), c.reserved_at >= bindparam("first"))
        .where(_HELD, c.ordinal < bindparam("before"))
    )


_TOTALS: Final = {"agent": _total("agent"), "resource": _total("resource")}
_INSERT: Final = sa.insert(table(ReservationRow)).values(parameters(ReservationRow, "ordinal"))
_OF_EFFECT: Final = select(*table(ReservationRow).columns).where(
    table(ReservationRow).c.effect_id == bindparam("of_effect"),
    table(ReservationRow).c.rev == bindparam("of_rev"),
    _HELD,
)


def reserved_total(
    conn: Connection,
    subject: Subject,
    name: str,
    field: str,
    tools: Sequence[str],
    *,
    first: datetime,
    before: int = NEWEST,
) -> int:
    """The sum this subject holds since ``first``, over rows below the ordinal ``before``. Exact at any size."""
    values = {"who": name, "counted": field, "tools": tools, "first": first, "before": before}
    high, low = conn.execute(_TOTALS[subject], values).one()
    return (int(high) << _LOW_BITS) + int(low)


def reservations_of(conn: Connection, effect_id: str, rev: int) -> dict[str, ReservationRow]:
    """The reservations of an effect, by field."""
    found = fetch_rows(conn, ReservationRow, _OF_EFFECT, of_effect=effect_id, of_rev=rev)
    return {row.field: row for row in found}


def add_reservation(tx: Tx, **columns: Any) -> None:
    """Insert one reservation. The unit holds the locks of its subjects."""
    execute_write(tx.conn, _INSERT, columns)


def release_reservations(tx: Tx, effect_id: str, rev: int) -> None:
    """Release the reservations of an effect."""
    c = table(ReservationRow).c
    mine = (c.effect_id == effect_id, c.rev == rev, _HELD)
    tx.conn.execute(sa.update(table(ReservationRow)).where(*mine).values(given_back_at=tx.now))
