"""What waits in the database, as numbers: read in one snapshot, for the metrics and for whoever watches.

Counting stops at ``MOST``: what a gauge needs to say is "many", and a look must stay cheap however much waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, select

from countersign.contract import TaskKind
from policy_service import metrics
from policy_service.audit.log import highest_index
from policy_service.queries.stops import Stop, list_stops
from policy_service.storage.core import table
from policy_service.storage.plumbing import AuditRow, OutboxRow
from policy_service.storage.tables import ReviewRow, TaskRow

MOST = 10_000
_DAY = timedelta(days=1)
_TASKS = tuple(kind.value for kind in TaskKind)

_audit, _outbox = table(AuditRow).c, table(OutboxRow).c
_own = _outbox.lane == ""  # each receiver of webhooks has a lane and numbers of its own
_reviews, _tasks = table(ReviewRow).c, table(TaskRow).c


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many there are, and since when the oldest is."""

    count: int
    oldest: datetime | None

    def age(self, now: datetime) -> float:
        """Seconds since the oldest; 0 when there is none."""
        return 0.0 if self.oldest is None else max(0.0, (now - self.oldest).total_seconds())


@dataclass(frozen=True, slots=True)
class Measured:
    """One look at the database."""

    reviews: Waiting
    tasks: dict[str, int]
    outbox: Waiting
    dead: int
    unnumbered: Waiting
    index: int
    newest: datetime | None  # when the newest numbered line was written
    stops: list[Stop]


def measure(conn: Connection, now: datetime) -> Measured:
    """Look."""
    index = highest_index(conn)
    return Measured(
        reviews=_waiting(conn, _reviews.opened_at, _reviews.state == "open"),
        tasks=_by_kind(conn),
        outbox=_waiting(conn, _outbox.created_at, _own, _outbox.state == "waiting"),
        dead=_waiting(
            conn, _outbox.created_at, _own, _outbox.state == "dead", _outbox.next_at > now - _DAY
        ).count,
        unnumbered=_waiting(conn, _audit.at, _audit.idx.is_(None)),
        index=index,
        newest=conn.execute(select(_audit.at).where(_audit.idx == index)).scalar(),
        stops=list_stops(conn),
    )


def show(found: Measured, now: datetime) -> None:
    """Put a look into the metrics."""
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


def _waiting(conn: Connection, since: Any, *where: Any) -> Waiting:
    some = select(since.label("since")).where(*where).limit(MOST).subquery()
    count, oldest = conn.execute(select(func.count(), func.min(some.c.since))).one()
    return Waiting(count, oldest)


def _by_kind(conn: Connection) -> dict[str, int]:
    some = select(_tasks.kind).where(_tasks.state == "open").limit(MOST).subquery()
    rows = conn.execute(select(some.c.kind, func.count().label("open_tasks")).group_by(some.c.kind))
    return {row.kind: row.open_tasks for row in rows}
