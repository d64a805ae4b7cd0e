"""The health monitor: checks every few seconds what would otherwise be found only by a failing request.

It checks that the database answers, that a unit of work commits, that the clocks agree, that nothing waits too long,
and that the keys can still be read. It changes nothing. If the monitor itself stops, that is a finding too
(``health.py`` knows its last run).

Counts are read in one snapshot and stop at ``COUNT_LIMIT``: a gauge only needs "many", and a check must stay cheap.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import Connection, delete, func, insert, select
from sqlalchemy.exc import SQLAlchemyError

from countersign.contract import TaskKind
from policy_service import metrics
from policy_service.audit.log import highest_index
from policy_service.errors import StartError, StorageUnavailableError
from policy_service.health import Health
from policy_service.jobs.scheduler import Scheduler
from policy_service.queries.stops import Stop, list_stops
from policy_service.settings import Settings
from policy_service.storage.core import table
from policy_service.storage.database import Database, Tx
from policy_service.storage.system_tables import AuditRow, MetaRow, OutboxRow
from policy_service.storage.tables import ReviewRow, TaskRow
from policy_service.storage.types import new_id
from policy_service.storage.unit_of_work import Clock
from policy_service.tokens.keys import read_keys

COUNT_LIMIT = 10_000
_DAY = timedelta(days=1)
_TASKS = tuple(kind.value for kind in TaskKind)

_audit, _outbox = table(AuditRow).c, table(OutboxRow).c
_own = _outbox.lane == ""  # webhook receivers have their own lanes and metrics
_reviews, _tasks = table(ReviewRow).c, table(TaskRow).c


@dataclass(frozen=True, slots=True)
class Backlog:
    """A count, and the time of the oldest."""

    count: int
    oldest: datetime | None

    def age(self, now: datetime) -> float:
        """Seconds since the oldest; 0 if there is none."""
        return 0.0 if self.oldest is None else max(0.0, (now - self.oldest).total_seconds())


@dataclass(frozen=True, slots=True)
class DatabaseMeasurement:
    """The result of one check of the database."""

    reviews: Backlog
    tasks: dict[str, int]
    outbox: Backlog
    dead: int
    unnumbered: Backlog
    index: int
    newest: datetime | None  # time of the newest numbered line
    stops: list[Stop]


def measure(conn: Connection, now: datetime) -> DatabaseMeasurement:
    """Read the counts."""
    index = highest_index(conn)
    return DatabaseMeasurement(
        reviews=_backlog(conn, _reviews.opened_at, _reviews.state == "open"),
        tasks=_by_kind(conn),
        outbox=_backlog(conn, _outbox.created_at, _own, _outbox.state == "waiting"),
        dead=_backlog(
            conn, _outbox.created_at, _own, _outbox.state == "dead", _outbox.next_at > now - _DAY
        ).count,
        unnumbered=_backlog(conn, _audit.at, _audit.idx.is_(None)),
        index=index,
        newest=conn.execute(select(_audit.at).where(_audit.idx == index)).scalar(),
        stops=list_stops(conn),
    )


def export_metrics(found: DatabaseMeasurement, now: datetime) -> None:
    """Set the gauges."""
    metrics.REVIEWS_OPEN.set(found.reviews.count)
    metrics.OLDEST_REVIEW.set(found.reviews.age(now))
    for kind in {*_TASKS, *found.tasks}:
        metrics.TASKS_OPEN.labels(kind).set(found.tasks.get(kind, 0))
    metrics.FROZEN.labels("everything").set(sum(stop.tool is None for stop in found.stops))
    metrics.FROZEN.labels("tool").set(sum(stop.tool is not None for stop in found.stops))
    metrics.OUTBOX_WAITING.set(found.outbox.count)
    metrics.OUTBOX_DEAD.set(found.dead)
    metrics.OLDEST_MESSAGE.set(found.outbox.age(now))
    metrics.LOG_UNNUMBERED.set(found.unnumbered.count)
    metrics.LOG_LAG.set(found.unnumbered.age(now))
    metrics.LOG_INDEX.set(found.index)


def _backlog(conn: Connection, since: Any, *where: Any) -> Backlog:
    some = select(since.label("since")).where(*where).limit(COUNT_LIMIT).subquery()
    count, oldest = conn.execute(select(func.count(), func.min(some.c.since))).one()
    return Backlog(count, oldest)


def _by_kind(conn: Connection) -> dict[str, int]:
    some = select(_tasks.kind).where(_tasks.state == "open").limit(COUNT_LIMIT).subquery()
    rows = conn.execute(select(some.c.kind, func.count().label("open_tasks")).group_by(some.c.kind))
    return {row.kind: row.open_tasks for row in rows}


log = structlog.get_logger(__name__)

_TIMEOUT_S = 10.0  # for one response of the database; exceeds its longest lock timeout
_PROBE_BYTES = 32_768  # enough to fail on a full disk
_MB = 1_000_000
_meta = table(MetaRow)


class HealthMonitor:
    """Monitors one service."""

    def __init__(
        self,
        db: Database,
        health: Health,
        settings: Settings,
        *,
        scheduler: Scheduler,
        kid: str,
        clock: Clock,
        patience_s: float = _TIMEOUT_S,
    ) -> None:
        """``kid``: the key this process signs with; ``clock``: this host's."""
        self._db = db
        self._health = health
        self._settings = settings
        self._scheduler = scheduler
        self._kid = kid
        self._clock = clock
        self._patience_s = patience_s
        self._began: datetime | None = None  # the first check
        self._one_at_a_time = asyncio.Lock()  # an earlier check must not report after a later one

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("watch_failed")  # the missing check is itself reported
            await asyncio.sleep(self._settings.watch_s)

    async def look(self) -> None:
        """Run all checks once."""
        async with self._one_at_a_time:
            await self._look()

    async def _look(self) -> None:
        times = await self._writer()
        found = await self._database()
        now = self._clock() if times is None else times[1]
        if found is not None:
            export_metrics(found, now)
            self._log(found, now)
            self._outbox(found, now)
            self._frozen(found)
        if times is not None:
            self._health.say("clock", self._clock_fault(*times, None if found is None else found.newest))
        for check, ask in (("disk", self._disk_fault), ("keys", self._keys_fault)):
            self._health.say(check, await asyncio.to_thread(ask))
        self._scheduler.look()
        self._health.looked()

    async def _writer(self) -> tuple[datetime, datetime, datetime] | None:
        """The database's time between two readings of this host's clock, from a committed unit. After a failed commit
        the unit also writes.
        """
        failed, before = self._db.failed, self._clock()
        try:
            async with asyncio.timeout(self._patience_s):
                now = await self._db.write(_read_time if failed is None else _write_probe)
        except (StorageUnavailableError, SQLAlchemyError, TimeoutError):
            what = "no unit of work comes back" if failed is None else f"commits fail ({failed[0]})"
            self._health.bad("writer", what, since=None if failed is None else failed[1])
            return None
        self._db.clear_failure()
        self._health.good("writer")
        return before, now, self._clock()

    async def _database(self) -> DatabaseMeasurement | None:
        now = self._clock()
        try:
            async with asyncio.timeout(self._patience_s):
                found = await self._db.read(lambda conn: measure(conn, now))
        except (StorageUnavailableError, SQLAlchemyError, TimeoutError):
            self._health.bad("database", "it does not respond")
            return None
        self._health.good("database")
        return found

    def _log(self, found: DatabaseMeasurement, now: datetime) -> None:
        # Operator commands write lines while no service runs, `restored` many. They are late only after a running
        # service had time to number them.
        self._began = min(now, self._began or now)
        waited_s = min(found.unnumbered.age(now), (now - self._began).total_seconds())
        late = waited_s > self._settings.log_lag_s
        fault = f"{found.unnumbered.count} lines of the log have no index" if late else None
        self._health.say("log", fault, "lag", found.unnumbered.oldest)

    def _outbox(self, found: DatabaseMeasurement, now: datetime) -> None:
        fault = None
        if found.dead:
            fault = f"{found.dead} messages of the last day were given up"
        elif found.outbox.age(now) > self._settings.outbox_late_s:
            fault = f"{found.outbox.count} messages wait"
        self._health.say("outbox", fault, since=found.outbox.oldest)

    def _frozen(self, found: DatabaseMeasurement) -> None:
        tools = sum(stop.tool is not None for stop in found.stops)
        everything = ["everything"] if tools < len(found.stops) else []
        parts = [*everything, *([f"{tools} tool{'s' if tools > 1 else ''}"] if tools else [])]
        since = min((stop.since for stop in found.stops), default=None)
        fault = f"stopped by an operator: {' and '.join(parts)}" if parts else None
        self._health.say("frozen", fault, since=since)

    def _clock_fault(
        self, before: datetime, now: datetime, after: datetime, newest: datetime | None
    ) -> str | None:
        """Expiry depends on the clock: behind, it accepts what has expired."""
        leeway = timedelta(seconds=self._settings.clock_leeway_s)
        difference = max(before - now, now - after)
        if difference > leeway:
            return f"this host's clock and the database's are {difference.total_seconds():.0f} s apart"
        if newest is not None and newest - now > leeway:
            return f"the clock is {(newest - now).total_seconds():.0f} s behind the newest line of the log"
        return None

    def _disk_fault(self) -> str | None:
        folders = {"keys": self._settings.key_dir}
        if self._db.dialect == "sqlite":
            folders["data"] = Path(str(self._db.url.database)).parent
        try:
            free = {name: shutil.disk_usage(folder).free // _MB for name, folder in folders.items()}
        except OSError as error:
            return f"the disk space cannot be read ({error.strerror})"
        name, least = min(free.items(), key=lambda one: one[1])
        return f"the {name} folder's disk has {least} MB left" if least < self._settings.disk_low_mb else None

    def _keys_fault(self) -> str | None:
        try:
            ring = read_keys(self._settings.key_dir)
        except (StartError, OSError):
            return "the keys folder cannot be read as it is: the service would not start again"
        if ring.current.public.kid != self._kid:
            return f"the folder's current key is {ring.current.public.kid}, but {self._kid} still signs here"
        return None


def _read_time(tx: Tx) -> datetime:
    return tx.now


def _write_probe(tx: Tx) -> datetime:
    """Write a value of some size and delete it in the same commit."""
    name = new_id("probe", tx.now)
    tx.conn.execute(insert(_meta).values(name=name, value=secrets.token_hex(_PROBE_BYTES)))
    tx.conn.execute(delete(_meta).where(_meta.c.name == name))
    return tx.now
