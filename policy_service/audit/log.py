"""The audit log: reading its lines, and the sequencer that assigns their indexes on PostgreSQL.

Lines are written by :func:`append`, in the unit of work that makes the change; see ``storage/unit_of_work.py``. They
are numbered 1, 2, 3, without gaps or repeats. SQLite has one writer, which numbers a line as it inserts it.

On PostgreSQL units run concurrently. The sequencer sees only committed lines, so an index is
never given to one that may be rolled back. One unit of work takes the lease row (locked until its commit), reads the
highest index, and numbers the lines without one in the order they were written. Two sequencers queue for the row; a
dead one is replaced when its lease expires. A repeated pass does nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import sqlalchemy as sa
import structlog
from sqlalchemy import Connection, bindparam, func, select, union_all

from countersign.contract import canonicalize
from policy_service.health import Signal
from policy_service.storage import advisory_locks
from policy_service.storage.archive_tables import ArchivedTransactionRow
from policy_service.storage.core import fetch, fetch_rows, find_one, table
from policy_service.storage.database import Database
from policy_service.storage.system_tables import AuditRow
from policy_service.storage.tables import TransactionRow
from policy_service.storage.types import time_text
from policy_service.storage.unit_of_work import Tx, append, highest_index, write_lines

__all__ = [
    "Entry",
    "append",
    "append_above",
    "canonical_record",
    "entries_after",
    "highest_index",
    "parties_by_txn",
]

log = structlog.get_logger(__name__)

_audit = table(AuditRow)
_row = _audit.c
_AFTER = select(_audit).where(_row.idx > bindparam("after")).order_by(_row.idx).limit(bindparam("most"))
_PARTIES = union_all(
    *(
        select(row.txn, row.agent, row.aud).where(row.txn.in_(bindparam("txns", expanding=True)))
        for row in (table(TransactionRow).c, table(ArchivedTransactionRow).c)
    )
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A numbered audit line. The first index is 1."""

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
    """The whole line as canonical bytes: the input of a Merkle tree leaf."""
    members = {
        "actor": entry.actor, "at": time_text(entry.at), "body": dict(entry.body), "id": entry.audit_id,
        "effect_id": entry.effect_id, "kind": entry.kind, "rev": entry.rev, "txn": entry.txn, "v": 1,
    }  # fmt: skip
    return canonicalize({name: value for name, value in members.items() if value is not None})


def entries_after(conn: Connection, index: int, limit: int) -> list[Entry]:
    """Lines with an index above ``index``, in order."""
    return [_entry(row) for row in fetch_rows(conn, AuditRow, _AFTER, after=index, most=limit)]


def parties_by_txn(conn: Connection, txns: Set[str]) -> dict[str, frozenset[str]]:
    """The principals of these transactions: their agent and their ``aud``."""
    found: dict[str, frozenset[str]] = {}
    for txn, agent, aud in conn.execute(_PARTIES, {"txns": sorted(txns)}) if txns else ():
        found[txn] = found.get(txn, frozenset()) | {agent, aud}
    return found


def newest_entry(conn: Connection) -> Entry | None:
    """The line with the highest index; None for an empty log."""
    row = find_one(conn, AuditRow, idx=highest_index(conn))
    return None if row is None else _entry(row)


def append_above(tx: Tx, index: int, kind: str, *, actor: str, body: Mapping[str, Any]) -> None:
    """Write a line with this index at once. The indexes in between stay unused: the log continues above it, first with
    the lines that have no index yet.

    Raises:
        ValueError: the index is not above every other.
    """
    write_lines(tx)
    if index <= highest_index(tx.conn):
        raise ValueError(f"the log has reached {index} already")
    append(tx, kind, actor=actor, body=body)
    write_lines(tx, number=False)  # the database refuses a gap in an INSERT
    line = select(func.max(_row.audit_id)).where(_row.kind == kind, _row.idx.is_(None)).scalar_subquery()
    tx.conn.execute(sa.update(_audit).where(_row.audit_id == line).values(idx=index))
    if tx.conn.dialect.name == "sqlite":  # elsewhere the sequencer does it
        tx.conn.execute(_numbering(), {"highest": index, "most": _EVERY})


def _entry(row: AuditRow) -> Entry:
    return Entry(
        row.idx or 0,
        row.audit_id,
        row.kind,
        row.actor,
        json.loads(row.body),
        row.at,
        row.txn,
        row.effect_id,
        row.rev,
    )


# -- the sequencer -------------------------------------------------------------------------------------------

SEQUENCER_LEASE = "audit-sequencer"


@dataclass(frozen=True, slots=True)
class SequencerLimits:
    """Polling and batch limits. ``settings.py`` gives the reason for each."""

    poll_s: float = 0.5
    spacing_s: float = 0.02  # under load, one pass numbers many commits
    batch: int = 500
    lease: timedelta = timedelta(seconds=15)


class Sequencer:
    """Numbers audit lines on PostgreSQL while :meth:`run` runs."""

    def __init__(
        self,
        db: Database,
        *,
        holder: str,
        pace: SequencerLimits | None = None,
        on_index: Callable[[int], Awaitable[None]] | None = None,
        signal: Signal | None = None,
    ) -> None:
        self._db = db
        self._holder = holder
        self._pace = pace or SequencerLimits()
        self._on_index = on_index
        self._nudged = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.errors = 0
        self.signal = signal or Signal()

    def nudge(self) -> None:
        """Signal a commit, from any thread. Only a hint: without it the next pass comes after ``poll_s``."""
        loop = self._loop
        if loop is not None and not self._nudged.is_set() and not loop.is_closed():
            loop.call_soon_threadsafe(self._nudged.set)

    async def run(self) -> None:
        """Number committed lines until cancelled. A failed pass is logged and retried."""
        self._loop = asyncio.get_running_loop()
        while True:
            self._nudged.clear()
            try:
                await self.number()
                self.signal.good()
            except Exception:
                # Waiting readers depend on the index, so this loop ends only with the service.
                self.errors += 1
                self.signal.bad("the audit log is not being numbered, so waiting clients get no news")
                log.exception("sequencer_pass_failed", errors=self.errors)
                await asyncio.sleep(self._pace.poll_s)
            await asyncio.sleep(self._pace.spacing_s)
            await self._rest()

    async def number(self) -> int:
        """Number all lines committed so far. Returns how many this call numbered."""
        total = 0
        while await self._db.read(_has_unnumbered):
            given, highest = await self._db.write(self._assign)
            if not given:
                break  # another process holds the lease
            total += given
            if self._on_index is not None:
                await self._on_index(highest)
        return total

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(self._pace.poll_s):
                await self._nudged.wait()
        except TimeoutError:
            return

    def _assign(self, tx: Tx) -> tuple[int, int]:
        if advisory_locks.acquire_lease(tx, SEQUENCER_LEASE, self._holder, self._pace.lease) is None:
            return 0, 0
        highest = highest_index(tx.conn)
        given = tx.conn.execute(_numbering(), {"highest": highest, "most": self._pace.batch}).rowcount
        return given, highest + given


# A pass follows nearly every commit of an idle service, so its statements are built once.


@cache
def _numbering() -> sa.Update:
    """Number lines in the order of writing, which is the order of their ids."""
    line = _audit.alias("line")
    place = func.row_number().over(order_by=line.c.audit_id).label("place")
    unnumbered = select(line.c.audit_id, place).where(line.c.idx.is_(None)).order_by(line.c.audit_id)
    waiting = unnumbered.limit(bindparam("most", type_=sa.Integer)).subquery("waiting")
    index = bindparam("highest", type_=sa.BigInteger) + waiting.c.place
    return sa.update(_audit).values(idx=index).where(_row.audit_id == waiting.c.audit_id)


_EVERY = 2**31  # more lines than a restore writes
_UNNUMBERED = select(sa.exists().where(_row.idx.is_(None)))


def _has_unnumbered(conn: Connection) -> bool:
    ((found,),) = fetch(conn, _UNNUMBERED, {})
    return bool(found)
