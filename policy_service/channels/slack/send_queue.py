"""Which message to send to Slack next, and how its result affects retries.

One process at a time sends, by lease. Each place (a channel or direct message) gets one message after the other, in the
order of the audit log, within Slack's rate limit. The result of a call decides what is paused:

- Slack's rate limit, or an unusable channel: the place is paused and its messages wait.
- An invalid token, or no response: everything is paused and retried.
- A message refused for its content: it is abandoned and logged, because retries cannot succeed.
- An unexplained error: the place is paused; after many attempts the message is abandoned and logged.

A paused place keeps its order: a failed message returns to its position.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final

from sqlalchemy import Connection, select

from policy_service.queries.context import Context
from policy_service.slack import UNHEALTHY_FAILURES, SlackApp
from policy_service.storage import advisory_locks, outbox
from policy_service.storage.core import find_one, rows_of, table, update_rows
from policy_service.storage.database import Tx
from policy_service.storage.outbox import Message, RetryPolicy
from policy_service.storage.slack_tables import (
    IS_WAITING,
    SlackCardRow,
    SlackPlaceRow,
    SlackStatusRow,
    has_message,
    lane_of,
)
from policy_service.storage.system_tables import LeaseRow, OutboxRow
from policy_service.workflow.slack.enqueue import CARD, EPHEMERAL, REPLY, enqueue_replacement

SEND_INTERVAL: Final = timedelta(seconds=1.1)
"""Interval between two messages in one place. Slack allows about one per second and channel, with short bursts."""

_LEASE: Final = "slack"
_LEASE_FOR: Final = timedelta(seconds=60)  # longer than all calls of one message
_CLAIM: Final = RetryPolicy(claim_s=90)
_SLACK_RETRY: Final = RetryPolicy(backoff_s=1, max_backoff_s=60)  # for all of Slack
_CHANNEL_RETRY: Final = RetryPolicy(backoff_s=5, max_backoff_s=300)
MAX_PAUSE: Final = timedelta(hours=1)  # the longest Retry-After that is honoured
_CHANNELS_PER_ROUND: Final = 20  # places in one round

_outbox = table(OutboxRow).c
_places = table(SlackPlaceRow)


class SendStatus(Enum):
    """The result of sending a message."""

    SENT = "sent"
    UNCHANGED = "nothing_to_say"
    RATE_LIMITED = "patience"  # with Slack's Retry-After
    PLACE = "place"  # the channel is archived or deleted, or the app is not a member
    APP = "app"  # the token is not valid any more
    WORLD = "world"  # no response, or one unrelated to the message
    REFUSED = "refused"  # for its content
    GONE = "gone"  # the message to update no longer exists
    LOST = "lost"  # an ephemeral message that may have been shown, so it is not sent again


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of sending one message, and its location in Slack. ``error`` is Slack's code, never its text."""

    status: SendStatus
    error: str | None = None
    rest: timedelta | None = None
    channel: str | None = None
    ts: str | None = None
    drawn: str | None = None
    at: datetime | None = None  # when its content was read
    unsent: bool = False  # Slack has certainly not acted on it
    unexplained: bool = False  # the cause is unknown and may be permanent


async def due_places(ctx: Context, app: SlackApp, busy: Sequence[str] = ()) -> list[SlackPlaceRow]:
    """The places with due messages except the ``busy`` ones, the longest waiting first; none while Slack is paused."""
    now = ctx.clock()
    return await ctx.db.read(lambda conn: _due(conn, app, now, busy))


def _due(conn: Connection, app: SlackApp, now: datetime, busy: Sequence[str]) -> list[SlackPlaceRow]:
    status = find_one(conn, SlackStatusRow, team_id=app.team_id)
    if status is None or (status.not_before is not None and now < status.not_before):
        return []
    awake = (_places.c.not_before.is_(None)) | (_places.c.not_before <= now)
    free = (awake, has_message(IS_WAITING, _outbox.next_at <= now), _places.c.place.not_in(busy))
    query = select(*_places.columns).where(*free)
    query = query.order_by(_places.c.not_before.nulls_first(), _places.c.place)
    return rows_of(SlackPlaceRow, conn.execute(query.limit(_CHANNELS_PER_ROUND)))


async def claim_message(ctx: Context, place: str, holder: str) -> Message | None:
    """Claim the next message of a place; None while another process sends."""
    return await ctx.db.write(lambda tx: _claim_message(tx, place, holder))


def _claim_message(tx: Tx, place: str, holder: str) -> Message | None:
    if advisory_locks.acquire_lease(tx, _LEASE, holder, _LEASE_FOR) is None:
        return None
    lane = lane_of(place)
    outbox.delete_expired(tx, lane, EPHEMERAL)
    outbox.expire_messages(tx, lane)
    return outbox.claim_first(tx, _CLAIM, lane)


async def holds_lease(ctx: Context, holder: str) -> bool:
    """Whether this process holds the lease for sending; checked once per round."""
    return await ctx.db.write(
        lambda tx: advisory_locks.acquire_lease(tx, _LEASE, holder, _LEASE_FOR) is not None
    )


async def release_lease(ctx: Context, holder: str) -> None:
    """Release the lease, so that another process need not wait until it expires."""
    await ctx.db.write(lambda tx: advisory_locks.release_lease(tx, _LEASE, holder))


async def save_channel_id(ctx: Context, place: str, channel: str) -> None:
    """Store Slack's channel id of a place."""
    await ctx.db.write(lambda tx: update_rows(tx.conn, SlackPlaceRow, {"place": place}, {"channel": channel}))


async def record_result(
    ctx: Context, app: SlackApp, place: str, message: Message, outcome: SendResult
) -> None:
    """Record the result of a message."""
    spread = random.uniform(0.75, 1)  # noqa: S311  jitter, so that replicas and places do not retry together
    await ctx.db.write(lambda tx: _record_result(tx, app, place, message, outcome, spread))


def _record_result(
    tx: Tx, app: SlackApp, place: str, message: Message, outcome: SendResult, spread: float
) -> None:
    status = outcome.status
    if not _settle(tx, message, outcome):
        return  # the claim had expired: the process that claimed the message since records its result
    if message.kind != EPHEMERAL and (status in (SendStatus.SENT, SendStatus.GONE) or outcome.ts is not None):
        _update_card(tx, message, outcome)
    elif message.kind == CARD and outcome.error is not None and (message.attempt > 1 or not outcome.unsent):
        # Slack may show this attempt or an earlier one, so the rendered digest is unknown
        update_rows(tx.conn, SlackCardRow, {"card_id": message.payload["card_id"]}, {"drawn": None})
    if status in (SendStatus.SENT, SendStatus.GONE, SendStatus.REFUSED):
        update_rows(
            tx.conn, SlackPlaceRow, {"place": place}, _HEALTHY | {"not_before": tx.now + SEND_INTERVAL}
        )
        update_rows(tx.conn, SlackStatusRow, {"team_id": app.team_id}, _HEALTHY | {"not_before": None})
    elif status is SendStatus.RATE_LIMITED:
        rest = min(outcome.rest or SEND_INTERVAL, MAX_PAUSE)
        update_rows(tx.conn, SlackPlaceRow, {"place": place}, {"not_before": tx.now + rest})
    elif status is SendStatus.PLACE:
        _record_channel_failure(tx, place, outcome, spread)
    elif status not in (SendStatus.UNCHANGED, SendStatus.LOST):
        _record_slack_failure(tx, app, outcome, spread)


def _settle(tx: Tx, message: Message, outcome: SendResult) -> bool:
    """Update the outbox row. Returns whether this attempt still held the claim."""
    outbox_id, attempt = message.outbox_id, message.attempt
    if outcome.status in (SendStatus.SENT, SendStatus.UNCHANGED, SendStatus.GONE, SendStatus.LOST):
        return outbox.mark_sent(tx, outbox_id, attempt)
    if outcome.status is SendStatus.REFUSED:
        return outbox.mark_dead(tx, outbox_id, outcome.error, attempt)
    return outbox.requeue(tx, outbox_id, outcome.error, untried=outcome.unsent, attempt=attempt)


_HEALTHY: Final[dict[str, object]] = {"failures": 0, "last_error": None, "since": None}


def _record_channel_failure(tx: Tx, place: str, outcome: SendResult, spread: float) -> None:
    row = find_one(tx.conn, SlackPlaceRow, place=place)
    if row is not None:
        failed = _failure_fields(tx, row, outcome, _CHANNEL_RETRY, spread)
        update_rows(tx.conn, SlackPlaceRow, {"place": place}, failed)


def _record_slack_failure(tx: Tx, app: SlackApp, outcome: SendResult, spread: float) -> None:
    row = find_one(tx.conn, SlackStatusRow, team_id=app.team_id)
    if row is not None:
        failed = _failure_fields(tx, row, outcome, _SLACK_RETRY, spread)
        if outcome.status is SendStatus.APP:
            failed["failures"] = max(row.failures + 1, UNHEALTHY_FAILURES)
        update_rows(tx.conn, SlackStatusRow, {"team_id": app.team_id}, failed)


def _failure_fields(
    tx: Tx, row: SlackPlaceRow | SlackStatusRow, outcome: SendResult, retry: RetryPolicy, spread: float
) -> dict[str, object]:
    rest = max(outcome.rest or timedelta(), retry.pause(row.failures + 1) * spread)
    return {
        "failures": row.failures + 1,
        "not_before": tx.now + min(rest, MAX_PAUSE),
        "last_error": outcome.error,
        "since": row.since or tx.now,
    }


def _update_card(tx: Tx, message: Message, outcome: SendResult) -> None:
    """Store the location of a card: a posted message exists, even if updating it failed."""
    card = find_one(tx.conn, SlackCardRow, card_id=message.payload["card_id"])
    if card is not None and message.kind == REPLY:
        if outcome.status is not SendStatus.GONE:
            return  # a thread reply does not change the card's location
        card = card if card.digest_id is None else find_one(tx.conn, SlackCardRow, card_id=card.digest_id)
    if card is None:
        return
    location: dict[str, Any] = {"channel": outcome.channel, "ts": outcome.ts, "drawn": outcome.drawn}
    if outcome.status is SendStatus.GONE:
        location = {"channel": None, "ts": None, "drawn": None, "posted_at": None}
        enqueue_replacement(tx, card, message)
    else:
        location["posted_at"] = card.posted_at or outcome.at or tx.now
    update_rows(tx.conn, SlackCardRow, {"card_id": card.card_id}, location)


async def record_auth_test(ctx: Context, app: SlackApp, outcome: SendResult, holder: str) -> None:
    """Record the result of auth.test. It is ignored while another process sends, because this one may have an old
    token."""
    await ctx.db.write(lambda tx: _record_auth_test(tx, app, outcome, holder))


def _record_auth_test(tx: Tx, app: SlackApp, outcome: SendResult, holder: str) -> None:
    lease = find_one(tx.conn, LeaseRow, name=_LEASE)
    if lease is not None and lease.holder != holder and lease.expires_at > tx.now:
        return
    if outcome.status is SendStatus.SENT:
        update_rows(tx.conn, SlackStatusRow, {"team_id": app.team_id}, _HEALTHY | {"not_before": None})
    else:
        _record_slack_failure(tx, app, outcome, 1.0)


async def record_app_removed(ctx: Context, app: SlackApp, error: str) -> None:
    """Record that the app was removed from the workspace. Sending is still retried, in case it is installed again."""
    outcome = SendResult(SendStatus.APP, error)
    await ctx.db.write(lambda tx: _record_slack_failure(tx, app, outcome, 1.0))
