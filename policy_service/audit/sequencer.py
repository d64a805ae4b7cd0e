"""Gives every committed line of the log its place: 1, 2, 3, with no gap and never twice.

Only committed lines can be seen, so an index is never given to one that may still vanish. One unit of work
takes the lease row (which stays locked until its commit), looks up the highest index and numbers what has
none, in the order it was written. Two sequencers therefore line up behind the row; a dead one is replaced
when its lease ends. Doing it again does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

import structlog
from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Update,
    bindparam,
    exists,
    func,
    literal_column,
    select,
    update,
)

from policy_service.audit.log import highest_index
from policy_service.health import Signal
from policy_service.storage import advisory_locks
from policy_service.storage.core import table
from policy_service.storage.database import Database
from policy_service.storage.system_tables import AuditRow
from policy_service.storage.unit_of_work import Tx

log = structlog.get_logger(__name__)

LEASE = "audit-sequencer"
_audit = table(AuditRow)
_row = _audit.c


@dataclass(frozen=True, slots=True)
class SequencerLimits:
    """How often, and how much at once. ``settings.py`` says why."""

    poll_s: float = 0.5
    spacing_s: float = 0.02  # at full load the log is numbered in strides, not after every commit
    batch: int = 500
    lease: timedelta = timedelta(seconds=15)


class Sequencer:
    """Numbers the log for as long as :meth:`run` runs."""

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
        """Something was committed; from any thread. A hint: the next look comes in half a second anyway."""
        loop = self._loop
        if loop is not None and not self._nudged.is_set() and not loop.is_closed():
            loop.call_soon_threadsafe(self._nudged.set)

    async def run(self) -> None:
        """Number what is committed, until cancelled. A pass that fails is said aloud and tried again."""
        self._loop = asyncio.get_running_loop()
        while True:
            self._nudged.clear()
            try:
                await self.number()
                self.signal.good()
            except Exception:
                # Without an index nobody who waits is ever told, so this loop ends only with the service.
                self.errors += 1
                self.signal.bad("the log is not being numbered, so nobody who waits is told anything")
                log.exception("sequencer_pass_failed", errors=self.errors)
                await asyncio.sleep(self._pace.poll_s)
            await asyncio.sleep(self._pace.spacing_s)
            await self._rest()

    async def number(self) -> int:
        """Number everything committed until now. The answer is how many lines got an index from here."""
        total = 0
        while await self._db.read(_has_unnumbered):
            given, highest = await self._db.write(self._assign)
            if not given:
                break  # another process leads
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
        if advisory_locks.acquire_lease(tx, LEASE, self._holder, self._pace.lease) is None:
            return 0, 0
        highest = highest_index(tx.conn)
        numbering = _numbering(tx.conn.dialect.name)
        given = tx.conn.execute(numbering, {"highest": highest, "most": self._pace.batch}).rowcount
        return given, highest + given


# A pass follows nearly every commit of a quiet service: its statements are built once.


@cache
def _numbering(dialect: str) -> Update:
    """Number lines as they were written: SQLite's one writer counts its rows, PostgreSQL's ids sort."""
    line = _audit.alias("line")
    written = literal_column("line.rowid") if dialect == "sqlite" else line.c.audit_id
    place = func.row_number().over(order_by=written).label("place")
    unnumbered = select(line.c.audit_id, place).where(line.c.idx.is_(None)).order_by(written)
    waiting = unnumbered.limit(bindparam("most", type_=Integer)).subquery("waiting")
    index = bindparam("highest", type_=BigInteger) + waiting.c.place
    return update(_audit).values(idx=index).where(_row.audit_id == waiting.c.audit_id)


_UNNUMBERED = select(exists().where(_row.idx.is_(None)))


def _has_unnumbered(conn: Connection) -> bool:
    return bool(conn.execute(_UNNUMBERED).scalar_one())
