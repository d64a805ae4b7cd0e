"""Reading the log: its lines by index, and what a leaf of the tree is made of.

Lines are written by :func:`append`, in the unit of work whose change they tell; see ``storage/logbook.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, select, update

from countersign.contract import canonicalize
from policy_service.storage.audit_writer import append, write_lines
from policy_service.storage.core import table
from policy_service.storage.system_tables import AuditRow
from policy_service.storage.tables import TransactionRow
from policy_service.storage.types import time_text
from policy_service.storage.unit_of_work import Tx

__all__ = [
    "Entry",
    "append",
    "append_above",
    "canonical_record",
    "entries_after",
    "highest_index",
    "parties_by_txn",
]

_audit = table(AuditRow)
_row = _audit.c
_AFTER = select(_audit).where(_row.idx > bindparam("after")).order_by(_row.idx).limit(bindparam("most"))
_HIGHEST = select(func.max(_row.idx))
_txn = table(TransactionRow).c
_PARTIES = select(_txn.txn, _txn.agent, _txn.aud).where(_txn.txn.in_(bindparam("txns", expanding=True)))


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the log that has its index. The first index is 1."""

    index: int
    audit_id: str
    kind: str
    actor: str
    body: Mapping[str, Any]
    at: datetime
    txn: str | None = None
    effect_id: str | None = None
    rev: int | None = None


def canonical_record(entry: Entry) -> bytes:
    """The whole line as canonical bytes: what a leaf of the tree is made of."""
    members = {
        "actor": entry.actor, "at": time_text(entry.at), "body": dict(entry.body), "id": entry.audit_id,
        "effect_id": entry.effect_id, "kind": entry.kind, "rev": entry.rev, "txn": entry.txn, "v": 1,
    }  # fmt: skip
    return canonicalize({name: value for name, value in members.items() if value is not None})


def entries_after(conn: Connection, index: int, limit: int) -> list[Entry]:
    """Lines that have an index above ``index``, in order."""
    return [_entry(row) for row in conn.execute(_AFTER, {"after": index, "most": limit})]


def parties_by_txn(conn: Connection, txns: Set[str]) -> dict[str, frozenset[str]]:
    """Whose these transactions are: who submitted them, and who may redeem them."""
    found: dict[str, frozenset[str]] = {}
    for txn, agent, aud in conn.execute(_PARTIES, {"txns": sorted(txns)}) if txns else ():
        found[txn] = found.get(txn, frozenset()) | {agent, aud}
    return found


def highest_index(conn: Connection) -> int:
    """The index of the newest line; 0 while there is none."""
    found: int | None = conn.execute(_HIGHEST).scalar_one()
    return found or 0


def newest_entry(conn: Connection) -> Entry | None:
    """The line with the highest index; None while there is none."""
    row = conn.execute(select(_audit).where(_row.idx == highest_index(conn))).first()
    return None if row is None else _entry(row)


def append_above(tx: Tx, index: int, kind: str, *, actor: str, body: Mapping[str, Any]) -> None:
    """Write a line and give it this index at once: the log goes on above it, and what is in between is nobody's.

    Raises:
        ValueError: the index is not above every other.
    """
    if index <= highest_index(tx.conn):
        raise ValueError(f"the log has reached {index} already")
    append(tx, kind, actor=actor, body=body)
    write_lines(tx)
    line = select(func.max(_row.audit_id)).where(_row.kind == kind, _row.idx.is_(None)).scalar_subquery()
    tx.conn.execute(update(_audit).where(_row.audit_id == line).values(idx=index))


def _entry(row: Row[Any]) -> Entry:
    return Entry(
        row.idx,
        row.audit_id,
        row.kind,
        row.actor,
        json.loads(row.body),
        row.at,
        row.txn,
        row.effect_id,
        row.rev,
    )
