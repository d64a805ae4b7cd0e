"""How it stands with Slack: what waits, since when, and which places take nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, Connection, func, select

from policy_service.slack import SlackApp
from policy_service.storage.core import find_one, rows_of, table
from policy_service.storage.plumbing import OutboxRow
from policy_service.storage.slack_tables import SlackPlaceRow, SlackStandingRow
from policy_service.workflow.slack.following import EPHEMERAL

SAID_FOR: Final = timedelta(days=1)
"""How long what was set aside is said aloud: nothing mends it, and the log has it for ever."""

_MOST: Final = 10_000  # counted
_RESTING: Final = 20  # named

_outbox, _places = table(OutboxRow).c, table(SlackPlaceRow)


@dataclass(frozen=True, slots=True)
class Standing:
    """How Slack takes what it is sent."""

    waiting: int
    dead: int  # lately, but for answers to a press, which are worth nothing later
    oldest: datetime | None
    failures: int
    last_error: str | None
    since: datetime | None
    not_before: datetime | None
    resting: tuple[SlackPlaceRow, ...]  # places that failed the last time, and have something waiting


def standing_of(conn: Connection, app: SlackApp, now: datetime) -> Standing | None:
    """How it stands; None before the service has met the app."""
    row = find_one(conn, SlackStandingRow, team_id=app.team_id)
    if row is None:
        return None
    waiting, oldest = _count(conn, _outbox.state == "waiting")
    dead, _ = _count(
        conn, _outbox.state == "dead", _outbox.kind != EPHEMERAL, _outbox.next_at >= now - SAID_FOR
    )
    return Standing(
        waiting=waiting,
        dead=dead,
        oldest=oldest,
        failures=row.failures,
        last_error=row.last_error,
        since=row.since,
        not_before=row.not_before,
        resting=_resting(conn),
    )


def _count(conn: Connection, *where: ColumnElement[bool]) -> tuple[int, datetime | None]:
    # by name, so that the index of lanes serves: what begins alike is not next to each other in every collation
    lanes = select("slack " + _places.c.place)
    some = select(_outbox.created_at.label("since")).where(_outbox.lane.in_(lanes), *where)
    since = some.order_by(_outbox.created_at).limit(_MOST).subquery()
    count, oldest = conn.execute(select(func.count(), func.min(since.c.since))).one()
    return count, oldest


def _resting(conn: Connection) -> tuple[SlackPlaceRow, ...]:
    waits = (_outbox.lane == "slack " + _places.c.place, _outbox.state == "waiting")
    some = select(_outbox.outbox_id).where(*waits).exists()
    failed = select(*_places.columns).where(_places.c.failures > 0, some).order_by(_places.c.place)
    return tuple(rows_of(SlackPlaceRow, conn.execute(failed.limit(_RESTING))))
