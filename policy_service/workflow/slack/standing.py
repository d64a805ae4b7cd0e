"""How it stands with Slack: what waits, since when, and which places take nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, Connection, func, select

from policy_service.slack import SlackApp
from policy_service.storage.core import find_one, table
from policy_service.storage.plumbing import OutboxRow
from policy_service.storage.slack_lanes import WAITS, lanes, resting
from policy_service.storage.slack_tables import SlackPlaceRow, SlackStandingRow
from policy_service.workflow.slack.owing import EPHEMERAL

SAID_FOR: Final = timedelta(days=1)
"""How long what was set aside is said aloud: nothing mends it, and the log has it for ever."""

_MOST: Final = 10_000  # counted

_outbox = table(OutboxRow).c


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
    waiting, oldest = _count(conn, WAITS)
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
        resting=resting(conn),
    )


def _count(conn: Connection, *where: ColumnElement[bool]) -> tuple[int, datetime | None]:
    some = select(_outbox.created_at.label("since")).where(_outbox.lane.in_(lanes()), *where)
    since = some.order_by(_outbox.created_at).limit(_MOST).subquery()
    count, oldest = conn.execute(select(func.count(), func.min(since.c.since))).one()
    return count, oldest
