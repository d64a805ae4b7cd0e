"""Facts the database keeps about itself: its epoch, and for each epoch that a restore began, what was lost before it.

Nothing here decides whether a database may be used; ``tokens/epoch.py`` compares it with the mark outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select
from sqlmodel import col

from policy_service.storage.core import change, insert_row, table
from policy_service.storage.database import Tx
from policy_service.storage.plumbing import MetaRow
from policy_service.storage.types import time_text

_EPOCH = "epoch"
_LOST_AFTER = "lost_after:"
_FIRST = 1
_ALL = select(*table(MetaRow).columns).where(col(MetaRow.name).startswith(_LOST_AFTER))


@dataclass(frozen=True, slots=True)
class Restore:
    """An epoch that a restore began, and from when on things may have been forgotten."""

    epoch: int
    lost_after: datetime


def read_epoch(conn: Connection) -> int | None:
    """The incarnation of this database; None before its first start."""
    found = conn.execute(select(col(MetaRow.value)).where(col(MetaRow.name) == _EPOCH)).scalar()
    return None if found is None else int(found)


def first_epoch(tx: Tx) -> int:
    """The epoch, begun here if there is none."""
    found = read_epoch(tx.conn)
    if found is None:
        insert_row(tx.conn, MetaRow(name=_EPOCH, value=str(_FIRST)))
    return found or _FIRST


def begin_epoch(tx: Tx, epoch: int, lost_after: datetime) -> None:
    """This database goes on as another incarnation: what came after ``lost_after`` may be forgotten."""
    first_epoch(tx)
    change(tx.conn, MetaRow, {"name": _EPOCH}, {"value": str(epoch)})
    insert_row(tx.conn, MetaRow(name=f"{_LOST_AFTER}{epoch}", value=time_text(lost_after)))


def restores(conn: Connection) -> list[Restore]:
    """Every restore this database has been through, by epoch."""
    found = [
        Restore(int(row.name.removeprefix(_LOST_AFTER)), datetime.fromisoformat(row.value))
        for row in conn.execute(_ALL)
    ]
    return sorted(found, key=lambda restore: restore.epoch)
