"""Slack for operators: its status, the result of a trial, retrying what rests, and giving up a place."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, Connection, delete, exists, func, select

from policy_service.audit.log import append
from policy_service.errors import ConflictError, NotFoundError
from policy_service.identity.agents import OPERATOR
from policy_service.slack import SlackApp
from policy_service.storage import outbox
from policy_service.storage.core import find_one, rows_of, table, update_rows
from policy_service.storage.slack_tables import (
    IS_WAITING,
    SlackCardRow,
    SlackPlaceRow,
    SlackStatusRow,
    all_lanes,
    has_message,
    lane_of,
    list_failing_places,
)
from policy_service.storage.system_tables import OutboxRow
from policy_service.storage.tables import ReviewRow
from policy_service.storage.unit_of_work import Tx
from policy_service.workflow.slack.enqueue import ASKED_NOWHERE, EPHEMERAL, MESSAGE_LIFETIME

DEAD_MESSAGES_REPORTED_FOR: Final = timedelta(days=1)
"""How long what was set aside is said aloud: nothing mends it, and the log has it for ever."""

_MOST: Final = 10_000  # counted

_outbox = table(OutboxRow)


@dataclass(frozen=True, slots=True)
class SlackHealth:
    """How Slack takes what it is sent."""

    waiting: int
    dead: int  # lately, but for answers to a press, which are worth nothing later
    oldest: datetime | None
    failures: int
    last_error: str | None
    since: datetime | None
    not_before: datetime | None
    resting: tuple[SlackPlaceRow, ...]  # places that failed the last time, and have something waiting


def slack_health(conn: Connection, app: SlackApp, now: datetime) -> SlackHealth | None:
    """How it stands; None before the service has met the app."""
    row = find_one(conn, SlackStatusRow, team_id=app.team_id)
    if row is None:
        return None
    waiting, oldest = _count(conn, IS_WAITING)
    dead, _ = _count(
        conn,
        _outbox.c.state == "dead",
        _outbox.c.kind != EPHEMERAL,
        _outbox.c.next_at >= now - DEAD_MESSAGES_REPORTED_FOR,
    )
    return SlackHealth(
        waiting=waiting,
        dead=dead,
        oldest=oldest,
        failures=row.failures,
        last_error=row.last_error,
        since=row.since,
        not_before=row.not_before,
        resting=list_failing_places(conn),
    )


def _count(conn: Connection, *where: ColumnElement[bool]) -> tuple[int, datetime | None]:
    some = select(_outbox.c.created_at.label("since")).where(_outbox.c.lane.in_(all_lanes()), *where)
    since = some.order_by(_outbox.c.created_at).limit(_MOST).subquery()
    count, oldest = conn.execute(select(func.count(), func.min(since.c.since))).one()
    return count, oldest


@dataclass(frozen=True, slots=True)
class ApiFailure:
    """A call that Slack did not take: its method, the code, and what to do about it."""

    method: str
    error: str
    remedy: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of it. ``socket_mode`` is None where the settings do not have it."""

    team_id: str | None
    bot_user: str | None
    posted: bool
    socket_mode: bool | None
    failures: tuple[ApiFailure, ...]


_cards, _places = table(SlackCardRow), table(SlackPlaceRow)

_AWAKE: Final[dict[str, object]] = {"failures": 0, "last_error": None, "not_before": None}
"""Since when it has failed stays, until something has really left: an operator who tries in vain still sees it."""

_DEAD = _outbox.c.state == "dead"


def retry(tx: Tx, app: SlackApp) -> int:
    """Whatever rests is awake, and what was set aside may leave after all; how many messages that were. A name is
    looked up anew: another channel may have it by now."""
    update_rows(tx.conn, SlackStatusRow, {"team_id": app.team_id}, _AWAKE)
    until, revived = tx.now + MESSAGE_LIFETIME, 0
    for place in _owed(tx.conn):
        anew = {"channel": None} if place.startswith("#") else {}
        update_rows(tx.conn, SlackPlaceRow, {"place": place}, _AWAKE | anew)
        revived += outbox.retry_dead(tx, lane_of(place), until, but=EPHEMERAL, attempts=1)
    append(tx, "slack_retried", actor=OPERATOR, body={"team": app.team_id, "messages": revived})
    return revived


def _owed(conn: Connection) -> list[str]:
    """Places where something waits or was set aside, but for answers to a press, which are worth nothing now."""
    owed = IS_WAITING | (_DEAD & (_outbox.c.kind != EPHEMERAL))
    return list(conn.scalars(select(_places.c.place).where(has_message(owed)).order_by(_places.c.place)))


@dataclass(frozen=True, slots=True)
class DroppedPlace:
    """What was let go with a place."""

    messages: int  # that waited or were set aside
    cards: int  # that stand there, or were to


def drop_place(tx: Tx, app: SlackApp, place: str, reason: str) -> DroppedPlace:
    """Give up a place that takes nothing: what is for it is let go, and its cards are followed no more. What is open
    and asked nowhere else has a line in the log, after which it is asked where policy and settings name another place
    (`following`).

    Raises:
        NotFoundError: nothing was ever for this place.
        ConflictError: it takes messages; what stands there would show for ever what is not so any more.
    """
    # whoever makes cards moves the cursor first: one of us waits for the other
    update_rows(tx.conn, SlackStatusRow, {"team_id": app.team_id}, {"team_id": app.team_id})
    row = find_one(tx.conn, SlackPlaceRow, place=place)
    if row is None:
        raise NotFoundError(
            f"nothing was ever for {place!r} in Slack; `policy-service slack status` names what fails"
        )
    if row.since is None:
        raise ConflictError(
            f"{place!r} takes messages; name another channel in the rules, or as default_channel, and what is asked in "
            "this one is followed there to its end"
        )
    left = _asked_there_alone(tx.conn, place)
    gone = delete(_outbox).where(_outbox.c.lane == lane_of(place), IS_WAITING | _DEAD)
    messages = tx.conn.execute(gone).rowcount
    cards = tx.conn.execute(delete(_cards).where(_cards.c.place == place)).rowcount
    tx.conn.execute(delete(_places).where(_places.c.place == place))
    body = {"team": app.team_id, "place": place, "messages": messages, "cards": cards, "reason": reason}
    append(tx, "slack_place_dropped", actor=OPERATOR, body=body)
    for review in left:
        append(
            tx, ASKED_NOWHERE, actor=OPERATOR, body={"place": place}, txn=review.txn, effect_id=review.effect_id,
            rev=review.rev, agent=review.agent,
        )  # fmt: skip
    return DroppedPlace(messages, cards)


def _asked_there_alone(conn: Connection, place: str) -> list[ReviewRow]:
    review, other = table(ReviewRow), _cards.alias()
    here = (_cards.c.review_id == review.c.review_id, _cards.c.place == place)
    elsewhere = (other.c.review_id == review.c.review_id, other.c.place != place)
    query = select(*review.columns).where(
        review.c.state == "open", exists().where(*here), ~exists().where(*elsewhere)
    )
    return rows_of(ReviewRow, conn.execute(query.order_by(review.c.review_id)))
