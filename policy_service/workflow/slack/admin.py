"""Slack for operators: its health, checking the setup, retrying messages, and dropping a place."""

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
"""How long undelivered messages are reported. Nothing repairs them, and the audit log keeps them."""

_MAX_COUNTED: Final = 10_000  # rows counted

_outbox = table(OutboxRow)


@dataclass(frozen=True, slots=True)
class SlackHealth:
    """The state of deliveries to Slack."""

    waiting: int
    dead: int  # recently, without ephemeral answers, which expire
    oldest: datetime | None
    failures: int
    last_error: str | None
    since: datetime | None
    not_before: datetime | None
    resting: tuple[SlackPlaceRow, ...]  # places whose last delivery failed, with messages waiting


def slack_health(conn: Connection, app: SlackApp, now: datetime) -> SlackHealth | None:
    """The health; None before the service has connected to the app."""
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
    since = some.order_by(_outbox.c.created_at).limit(_MAX_COUNTED).subquery()
    count, oldest = conn.execute(select(func.count(), func.min(since.c.since))).one()
    return count, oldest


@dataclass(frozen=True, slots=True)
class ApiFailure:
    """A failed API call: its method, the error code, and the remedy."""

    method: str
    error: str
    remedy: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a setup check. ``socket_mode`` is None if the settings do not use it."""

    team_id: str | None
    bot_user: str | None
    posted: bool
    socket_mode: bool | None
    failures: tuple[ApiFailure, ...]


_cards, _places = table(SlackCardRow), table(SlackPlaceRow)

_AWAKE: Final[dict[str, object]] = {"failures": 0, "last_error": None, "not_before": None}
"""`since` is not reset until a delivery succeeds, so that an operator whose retry fails still sees it."""

_DEAD = _outbox.c.state == "dead"


def retry(tx: Tx, app: SlackApp) -> int:
    """Resume all paused places and retry undelivered messages; returns how many. Channel names are resolved again."""
    update_rows(tx.conn, SlackStatusRow, {"team_id": app.team_id}, _AWAKE)
    until, revived = tx.now + MESSAGE_LIFETIME, 0
    for place in _undelivered_places(tx.conn):
        anew = {"channel": None} if place.startswith("#") else {}
        update_rows(tx.conn, SlackPlaceRow, {"place": place}, _AWAKE | anew)
        revived += outbox.retry_dead(tx, lane_of(place), until, but=EPHEMERAL, attempts=1)
    append(tx, "slack_retried", actor=OPERATOR, body={"team": app.team_id, "messages": revived})
    return revived


def _undelivered_places(conn: Connection) -> list[str]:
    """Places with waiting or undelivered messages, apart from ephemeral answers, which have expired."""
    undelivered = IS_WAITING | (_DEAD & (_outbox.c.kind != EPHEMERAL))
    return list(
        conn.scalars(select(_places.c.place).where(has_message(undelivered)).order_by(_places.c.place))
    )


@dataclass(frozen=True, slots=True)
class DroppedPlace:
    """What was deleted with a place."""

    messages: int  # waiting or undelivered
    cards: int  # posted there, or to be posted


def drop_place(tx: Tx, app: SlackApp, place: str, reason: str) -> DroppedPlace:
    """Drop a place that accepts no messages, with its messages and cards.

    An open review that has no card elsewhere gets an audit row. Its card is then posted to another place that policy
    or the settings name (`projection`).

    Raises:
        NotFoundError: nothing was ever sent to this place.
        ConflictError: the place accepts messages; its cards would show outdated states forever.
    """
    # Creating cards updates this row first as well, so one unit waits for the other.
    update_rows(tx.conn, SlackStatusRow, {"team_id": app.team_id}, {"team_id": app.team_id})
    row = find_one(tx.conn, SlackPlaceRow, place=place)
    if row is None:
        raise NotFoundError(
            f"nothing was ever sent to {place!r} in Slack; `policy-service slack status` lists what fails"
        )
    if row.since is None:
        raise ConflictError(
            f"{place!r} accepts messages; name another channel in the policies, or as default_channel. Reviews "
            "already posted to this one are updated there until they settle"
        )
    orphaned = _reviews_only_at(tx.conn, place)
    gone = delete(_outbox).where(_outbox.c.lane == lane_of(place), IS_WAITING | _DEAD)
    messages = tx.conn.execute(gone).rowcount
    cards = tx.conn.execute(delete(_cards).where(_cards.c.place == place)).rowcount
    tx.conn.execute(delete(_places).where(_places.c.place == place))
    body = {"team": app.team_id, "place": place, "messages": messages, "cards": cards, "reason": reason}
    append(tx, "slack_place_dropped", actor=OPERATOR, body=body)
    for review in orphaned:
        append(
            tx, ASKED_NOWHERE, actor=OPERATOR, body={"place": place}, txn=review.txn, effect_id=review.effect_id,
            rev=review.rev, agent=review.agent,
        )  # fmt: skip
    return DroppedPlace(messages, cards)


def _reviews_only_at(conn: Connection, place: str) -> list[ReviewRow]:
    review, other = table(ReviewRow), _cards.alias()
    here = (_cards.c.review_id == review.c.review_id, _cards.c.place == place)
    elsewhere = (other.c.review_id == review.c.review_id, other.c.place != place)
    query = select(*review.columns).where(
        review.c.state == "open", exists().where(*here), ~exists().where(*elsewhere)
    )
    return rows_of(ReviewRow, conn.execute(query.order_by(review.c.review_id)))
