"""What Slack is sent next, and what came of it.

One process at a time sends, by lease; in each place one message after the other, in the order of the log, not faster
than Slack takes them. What came of a call decides who rests:

- Slack asks for patience, or the place is gone: the place rests, and its messages wait;
- the app is not let in any more, or Slack does not answer: everything rests, and is tried again;
- a message is refused for what it says: it is set aside and told, because it would be refused for ever;
- nobody knows why it failed: its place rests, and after many attempts the message is set aside and told.

A place that rests keeps its order: a message that failed goes back to where it stood.
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
"""Between two messages in one place: Slack takes about one a second in a channel, and bursts only now and then."""

_LEASE: Final = "slack"
_LEASE_FOR: Final = timedelta(seconds=60)  # outlasts all calls of a message that was taken under it
_CLAIM: Final = RetryPolicy(claim_s=90)
_SLACK_RETRY: Final = RetryPolicy(backoff_s=1, max_backoff_s=60)  # for Slack as a whole
_CHANNEL_RETRY: Final = RetryPolicy(backoff_s=5, max_backoff_s=300)
MAX_PAUSE: Final = timedelta(hours=1)  # that Slack may ask for
_CHANNELS_PER_ROUND: Final = 20  # places in one round

_outbox = table(OutboxRow).c
_places = table(SlackPlaceRow)


class SendStatus(Enum):
    """What came of a message."""

    SENT = "sent"
    UNCHANGED = "nothing_to_say"
    RATE_LIMITED = "patience"  # Slack names a time
    PLACE = "place"  # the channel is archived, gone, or the app is not in it
    APP = "app"  # the token is not taken any more
    WORLD = "world"  # no answer, or one that says nothing of the message
    REFUSED = "refused"  # for what it says
    GONE = "gone"  # the message that was to change is not there any more
    LOST = "lost"  # an answer to a press: nobody knows whether it was shown, and it is not said twice


@dataclass(frozen=True, slots=True)
class SendResult:
    """What came of one message, and where it stands now. ``error`` is Slack's code, never its words."""

    came: SendStatus
    error: str | None = None
    rest: timedelta | None = None
    channel: str | None = None
    ts: str | None = None
    drawn: str | None = None
    at: datetime | None = None  # when what it shows was read
    unsent: bool = False  # Slack has certainly not acted on it
    unexplained: bool = False  # nobody knows why, and it may be so for ever


async def due_places(ctx: Context, app: SlackApp, busy: Sequence[str] = ()) -> list[SlackPlaceRow]:
    """Where something may be sent now, those that have waited longest first, without the ``busy`` ones; nowhere while
    everything rests."""
    now = ctx.clock()
    return await ctx.db.read(lambda conn: _due(conn, app, now, busy))


def _due(conn: Connection, app: SlackApp, now: datetime, busy: Sequence[str]) -> list[SlackPlaceRow]:
    standing = find_one(conn, SlackStatusRow, team_id=app.team_id)
    if standing is None or (standing.not_before is not None and now < standing.not_before):
        return []
    awake = (_places.c.not_before.is_(None)) | (_places.c.not_before <= now)
    free = (awake, has_message(IS_WAITING, _outbox.next_at <= now), _places.c.place.not_in(busy))
    query = select(*_places.columns).where(*free)
    query = query.order_by(_places.c.not_before.nulls_first(), _places.c.place)
    return rows_of(SlackPlaceRow, conn.execute(query.limit(_CHANNELS_PER_ROUND)))


async def claim_message(ctx: Context, place: str, holder: str) -> Message | None:
    """The next message of a place, claimed for this process; None while another one sends."""
    return await ctx.db.write(lambda tx: _claim_message(tx, place, holder))


def _claim_message(tx: Tx, place: str, holder: str) -> Message | None:
    if advisory_locks.acquire_lease(tx, _LEASE, holder, _LEASE_FOR) is None:
        return None
    lane = lane_of(place)
    outbox.delete_expired(tx, lane, EPHEMERAL)
    outbox.expire_messages(tx, lane)
    return outbox.claim_first(tx, _CLAIM, lane)


async def holds_lease(ctx: Context, holder: str) -> bool:
    """Whether this process is the one that sends; asked once for all places of a round."""
    return await ctx.db.write(
        lambda tx: advisory_locks.acquire_lease(tx, _LEASE, holder, _LEASE_FOR) is not None
    )


async def release_lease(ctx: Context, holder: str) -> None:
    """This process sends no more; another one need not wait for the end of the lease."""
    await ctx.db.write(lambda tx: advisory_locks.release_lease(tx, _LEASE, holder))


async def save_channel_id(ctx: Context, place: str, channel: str) -> None:
    """Slack's own id of a place."""
    await ctx.db.write(lambda tx: update_rows(tx.conn, SlackPlaceRow, {"place": place}, {"channel": channel}))


async def record_result(
    ctx: Context, app: SlackApp, place: str, message: Message, outcome: SendResult
) -> None:
    """Write down what came of a message."""
    spread = random.uniform(0.75, 1)  # noqa: S311  so that replicas and places do not come back together
    await ctx.db.write(lambda tx: _record_result(tx, app, place, message, outcome, spread))


def _record_result(
    tx: Tx, app: SlackApp, place: str, message: Message, outcome: SendResult, spread: float
) -> None:
    came = outcome.came
    if not _settle(tx, message, outcome):
        return  # this process was away for longer than its claim: who took the message since says what came of it
    if message.kind != EPHEMERAL and (came in (SendStatus.SENT, SendStatus.GONE) or outcome.ts is not None):
        _update_card(tx, message, outcome)
    elif message.kind == CARD and outcome.error is not None and (message.attempt > 1 or not outcome.unsent):
        # Slack may show what this attempt drew, or one before it: nobody may take it for what was drawn last
        update_rows(tx.conn, SlackCardRow, {"card_id": message.payload["card_id"]}, {"drawn": None})
    if came in (SendStatus.SENT, SendStatus.GONE, SendStatus.REFUSED):
        update_rows(
            tx.conn, SlackPlaceRow, {"place": place}, _HEALTHY | {"not_before": tx.now + SEND_INTERVAL}
        )
        update_rows(tx.conn, SlackStatusRow, {"team_id": app.team_id}, _HEALTHY | {"not_before": None})
    elif came is SendStatus.RATE_LIMITED:
        rest = min(outcome.rest or SEND_INTERVAL, MAX_PAUSE)
        update_rows(tx.conn, SlackPlaceRow, {"place": place}, {"not_before": tx.now + rest})
    elif came is SendStatus.PLACE:
        _record_channel_failure(tx, place, outcome, spread)
    elif came not in (SendStatus.UNCHANGED, SendStatus.LOST):
        _record_slack_failure(tx, app, outcome, spread)


def _settle(tx: Tx, message: Message, outcome: SendResult) -> bool:
    """Whether this attempt was the last one begun, as whose outcome this is written down."""
    outbox_id, attempt = message.outbox_id, message.attempt
    if outcome.came in (SendStatus.SENT, SendStatus.UNCHANGED, SendStatus.GONE, SendStatus.LOST):
        return outbox.mark_sent(tx, outbox_id, attempt)
    if outcome.came is SendStatus.REFUSED:
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
        if outcome.came is SendStatus.APP:
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
    """Where a card stands now: what was posted stands there, even where it could not be brought up to date."""
    card = find_one(tx.conn, SlackCardRow, card_id=message.payload["card_id"])
    if card is not None and message.kind == REPLY:
        if outcome.came is not SendStatus.GONE:
            return  # its thread tells nothing of where it stands
        card = card if card.digest_id is None else find_one(tx.conn, SlackCardRow, card_id=card.digest_id)
    if card is None:
        return
    stands: dict[str, Any] = {"channel": outcome.channel, "ts": outcome.ts, "drawn": outcome.drawn}
    if outcome.came is SendStatus.GONE:
        stands = {"channel": None, "ts": None, "drawn": None, "posted_at": None}
        enqueue_replacement(tx, card, message)
    else:
        stands["posted_at"] = card.posted_at or outcome.at or tx.now
    update_rows(tx.conn, SlackCardRow, {"card_id": card.card_id}, stands)


async def record_auth_test(ctx: Context, app: SlackApp, outcome: SendResult, holder: str) -> None:
    """Slack was asked how it is, where no message told. While another process sends, what it is told counts: this one
    may have an old token."""
    await ctx.db.write(lambda tx: _record_auth_test(tx, app, outcome, holder))


def _record_auth_test(tx: Tx, app: SlackApp, outcome: SendResult, holder: str) -> None:
    lease = find_one(tx.conn, LeaseRow, name=_LEASE)
    if lease is not None and lease.holder != holder and lease.expires_at > tx.now:
        return
    if outcome.came is SendStatus.SENT:
        update_rows(tx.conn, SlackStatusRow, {"team_id": app.team_id}, _HEALTHY | {"not_before": None})
    else:
        _record_slack_failure(tx, app, outcome, 1.0)


async def record_app_removed(ctx: Context, app: SlackApp, error: str) -> None:
    """Slack says that the app is not let in any more. It is tried again all the same: somebody may let it in."""
    outcome = SendResult(SendStatus.APP, error)
    await ctx.db.write(lambda tx: _record_slack_failure(tx, app, outcome, 1.0))
