"""Webhooks: enqueue audit events for each receiver, and deliver them.

Each receiver has a cursor in the audit log and a lane in the outbox. One unit of work moves the cursor and writes the
messages, so no event is lost or duplicated on any replica. A message holds ids and codes. Its id is derived
from the receiver and the index, so a receiver recognizes repeats. Several messages are sent at once, so order is not
guaranteed; the index gives it. One process at a time sends to a receiver, by lease. A failing receiver is paused and
then tried with one message at a time.

A delivery is signed and sent to exactly the address that was checked. Only its status counts: 2xx is success, 410
disables the receiver, and everything else, also a redirect, is a failure. The response body is never read, so its size
and speed do not matter. Error reports quote neither the address nor the response.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx2
from sqlalchemy import Connection, func, select, update

from countersign.contract import canonicalize
from policy_service.audit.log import Entry, append, entries_after, highest_index
from policy_service.audit.telemetry import EXPORTED_MEMBERS
from policy_service.errors import NotFoundError
from policy_service.http_clients import Resolve, UnreachableError, open_response, resolve
from policy_service.identity.agents import OPERATOR
from policy_service.queries.context import Context
from policy_service.remote_hosts import Webhook
from policy_service.settings import Settings
from policy_service.storage import advisory_locks, outbox
from policy_service.storage.core import find_one, insert_row_or_ignore, table, update_rows
from policy_service.storage.database import Tx
from policy_service.storage.outbox import Message, RetryPolicy
from policy_service.storage.system_tables import OutboxRow, WebhookRow
from policy_service.storage.types import time_text
from policy_service.tokens.keys import WebhookKey, sign_webhook
from policy_service.workflow.transitions import SERVICE

_BATCH_ROWS: Final = 500  # audit rows read at once
_MAX_CONCURRENT: Final = 8  # requests to one receiver at the same time
_LEASE: Final = timedelta(seconds=60)  # longer than any request started under it (30 s at most)
_RETRY: Final = RetryPolicy(backoff_s=5, max_backoff_s=14_400, claim_s=60)  # 5 s, 10 s, ... four hours
_RECEIVER_PAUSE: Final = RetryPolicy(
    backoff_s=1, max_backoff_s=60
)  # the pause of a failing receiver, for all its messages
_MAX_REQUESTED_PAUSE: Final = timedelta(hours=4)  # that a receiver may request

_outbox, _hooks = table(OutboxRow).c, table(WebhookRow).c
_MEMBERS: Final = EXPORTED_MEMBERS | {"agent", "what"}
_PAGES: Final = {"review_id": "reviews", "task_id": "tasks"}


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The result of one request. ``error`` is None on success, and never quotes the response."""

    status: int | None = None
    error: str | None = None
    gone: bool = False
    rest: timedelta | None = None  # the pause it requested


@dataclass(frozen=True, slots=True)
class ReceiverStatus:
    """The delivery status of a receiver."""

    upto: int
    behind: int  # audit rows not enqueued yet
    waiting: int
    oldest: datetime | None
    dead: int
    failures: int
    last_error: str | None
    not_before: datetime | None
    disabled_at: datetime | None


def webhook_lane(name: str) -> str:
    """The outbox lane of a receiver."""
    return f"webhook {name}"


def webhook_id(issuer: str, name: str, index: int) -> str:
    """The message id: the same for the same event and receiver, on any replica and for any repeat."""
    content = canonicalize({"index": index, "iss": issuer, "webhook": name})
    digest = hashlib.sha256(b"countersign/webhook/v1\n" + content).hexdigest()
    return f"evt_{digest[:32]}"


def webhook_event(settings: Settings, entry: Entry) -> dict[str, Any]:
    """The event of an audit row: ids, codes and links, without arguments or people's texts."""
    about = {"txn": entry.txn, "effect_id": entry.effect_id, "rev": entry.rev}
    members = about | {name: value for name, value in entry.body.items() if name in _MEMBERS}
    links = {
        name.removesuffix("_id"): f"{settings.public_url}/{page}/{members[name]}"
        for name, page in _PAGES.items()
        if name in members
    }
    data = {"iss": settings.public_url, "index": entry.index, **members, "links": links}
    return {
        "type": entry.kind,
        "timestamp": time_text(entry.at),
        "data": {name: value for name, value in data.items() if value is not None},
    }


# -- enqueueing --------------------------------------------------------------------------------------------------------


async def enqueue_events(ctx: Context, webhook: Webhook) -> bool:
    """Enqueue the events since the receiver's cursor; whether there were any. A new receiver starts at the newest."""
    row, entries = await ctx.db.read(lambda conn: _read_cursor(conn, webhook.name))
    if row is None:
        await ctx.db.write(lambda tx: _start_cursor(tx, webhook.name))
        return True
    if not entries:
        return False
    return await ctx.db.write(lambda tx: _enqueue_batch(tx, ctx.settings, webhook, row.upto, entries))


def _read_cursor(conn: Connection, name: str) -> tuple[WebhookRow | None, list[Entry]]:
    row = find_one(conn, WebhookRow, name=name)
    blind = row is None or row.disabled_at is not None
    return row, [] if row is None or blind else entries_after(conn, row.upto, _BATCH_ROWS)


def _start_cursor(tx: Tx, name: str) -> None:
    insert_row_or_ignore(tx.conn, WebhookRow(name=name, upto=highest_index(tx.conn)))


def _enqueue_batch(
    tx: Tx, settings: Settings, webhook: Webhook, cursor: int, entries: Sequence[Entry]
) -> bool:
    if not update_rows(
        tx.conn, WebhookRow, {"name": webhook.name, "upto": cursor}, {"upto": entries[-1].index}
    ):
        return False  # another replica was first
    until = tx.now + timedelta(hours=settings.webhook_give_up_hours)
    for entry in entries:
        if webhook.wants(entry.kind):
            message_id = webhook_id(settings.public_url, webhook.name, entry.index)
            event = webhook_event(settings, entry)
            outbox.enqueue_once(
                tx, message_id, entry.kind, event, lane=webhook_lane(webhook.name), give_up_at=until
            )
    return True


# -- sending -----------------------------------------------------------------------------------------------------------


async def claim_messages(ctx: Context, name: str, holder: str) -> list[Message]:
    """Claim the messages to send to a receiver now; none while another process sends to it."""
    now = ctx.clock()
    if not await ctx.db.read(lambda conn: _is_due(conn, name, now)):
        return []  # the usual case, without a write
    return await ctx.db.write(lambda tx: _claim(tx, name, holder))


def _is_due(conn: Connection, name: str, now: datetime) -> bool:
    if not _is_awake(find_one(conn, WebhookRow, name=name), now):
        return False
    due = (_outbox.lane == webhook_lane(name), _outbox.state == "waiting", _outbox.next_at <= now)
    return conn.execute(select(_outbox.outbox_id).where(*due).limit(1)).first() is not None


def _is_awake(row: WebhookRow | None, now: datetime) -> bool:
    if row is None or row.disabled_at is not None:
        return False
    return row.not_before is None or now >= row.not_before


def _claim(tx: Tx, name: str, holder: str) -> list[Message]:
    if advisory_locks.acquire_lease(tx, webhook_lane(name), holder, _LEASE) is None:
        return []
    row = find_one(tx.conn, WebhookRow, name=name)
    if row is None or not _is_awake(row, tx.now):
        return []
    return outbox.claim(tx, 1 if row.failures else _MAX_CONCURRENT, _RETRY, webhook_lane(name))


async def record_result(ctx: Context, name: str, message: Message, answer: DeliveryResult) -> int:
    """Record the result of a delivery; returns how many messages were given up."""
    spread = random.uniform(0.5, 1)  # noqa: S311  jitter, so that retries spread out
    return await ctx.db.write(lambda tx: _record_attempt(tx, name, message, answer, spread))


def _record_attempt(tx: Tx, name: str, message: Message, answer: DeliveryResult, spread: float) -> int:
    mine = update(table(WebhookRow)).where(_hooks.name == name)
    if answer.error is None:
        outbox.mark_sent(tx, message.outbox_id)
        tx.conn.execute(mine.where(_hooks.failures > 0).values(failures=0, not_before=None, last_error=None))
        return 0
    failures = tx.conn.execute(
        mine.values(failures=_hooks.failures + 1).returning(_hooks.failures)
    ).scalar_one()
    requested = min(answer.rest or timedelta(), _MAX_REQUESTED_PAUSE)
    rest = max(requested, _RECEIVER_PAUSE.pause(failures) * spread)
    delay = max(requested, _RETRY.pause(message.attempt) * spread)
    outbox.reschedule(tx, message.outbox_id, tx.now + delay, answer.error)
    tx.conn.execute(mine.values(not_before=tx.now + rest, last_error=answer.error))
    if answer.gone:
        _disable(tx, name)
    dead = outbox.expire_messages(tx, webhook_lane(name))
    if dead:
        append(tx, "webhook_given_up", actor=SERVICE, body={"webhook": name, "messages": dead})
    return dead


def _disable(tx: Tx, name: str) -> None:
    mine = update(table(WebhookRow)).where(_hooks.name == name, _hooks.disabled_at.is_(None))
    if tx.conn.execute(mine.values(disabled_at=tx.now)).rowcount:
        append(tx, "webhook_disabled", actor=SERVICE, body={"webhook": name})


# -- for operators -----------------------------------------------------------------------------------------------------


def receiver_status(conn: Connection, name: str, most: int = 10_000) -> ReceiverStatus | None:
    """The status of a receiver, or None before the service has run with it. Counting stops at ``most``."""
    row = find_one(conn, WebhookRow, name=name)
    if row is None:
        return None
    waiting, oldest = _count(conn, name, "waiting", most)
    dead, _ = _count(conn, name, "dead", most)
    return ReceiverStatus(
        row.upto, max(0, highest_index(conn) - row.upto), waiting, oldest, dead,
        row.failures, row.last_error, row.not_before, row.disabled_at,
    )  # fmt: skip


def _count(conn: Connection, name: str, state: str, most: int) -> tuple[int, datetime | None]:
    where = (_outbox.lane == webhook_lane(name), _outbox.state == state)
    some = select(_outbox.created_at.label("since")).where(*where).limit(most).subquery()
    count, oldest = conn.execute(select(func.count(), func.min(some.c.since))).one()
    return count, oldest


def retry_deliveries(tx: Tx, settings: Settings, name: str) -> int:
    """Retry messages that were given up, and enable a disabled receiver; returns how many messages.

    Raises:
        NotFoundError: there is no such receiver, or the service has not run with it yet.
    """
    known = {webhook.name for webhook in settings.webhooks}
    mine = update(table(WebhookRow)).where(_hooks.name == name)
    enabled = mine.values(failures=0, not_before=None, disabled_at=None)
    if name in known and not tx.conn.execute(enabled).rowcount:
        raise NotFoundError(
            f"the service has not run with the webhook {name!r} yet; start it with these settings"
        )
    if name not in known:
        raise NotFoundError(
            f"there is no webhook {name!r}; the settings have {', '.join(sorted(known)) or 'none'}"
        )
    until = tx.now + timedelta(hours=settings.webhook_give_up_hours)
    revived = outbox.retry_dead(tx, webhook_lane(name), until)
    append(tx, "webhook_retried", actor=OPERATOR, body={"webhook": name, "messages": revived})
    return revived


_GONE: Final = 410
_BUSY: Final = frozenset({429, 503})  # statuses with a Retry-After (RFC 9110 section 10.2.3)


async def deliver(
    webhook: Webhook,
    keys: Sequence[WebhookKey],
    message_id: str,
    event: Mapping[str, Any],
    now: datetime,
    resolve: Resolve = resolve,
) -> DeliveryResult:
    """Send one event; returns the result."""
    body = canonicalize(dict(event))
    headers = {"Content-Type": "application/json", "User-Agent": "countersign"}
    headers |= sign_webhook(keys, message_id, int(now.timestamp()), body)
    try:
        async with (
            asyncio.timeout(webhook.timeout_s),
            open_response(
                "POST", webhook.url, webhook, headers=headers, body=body, resolve=resolve
            ) as response,
        ):
            return _result_of(response, now)
    except TimeoutError:
        return DeliveryResult(error=f"no answer within {webhook.timeout_s:g} s")
    except UnreachableError as error:
        return DeliveryResult(error=str(error))
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        return DeliveryResult(error=type(error).__name__)


def _result_of(response: httpx2.Response, now: datetime) -> DeliveryResult:
    status = response.status_code
    if 200 <= status < 300:
        return DeliveryResult(status)
    rest = _requested_pause(response.headers.get("retry-after"), now) if status in _BUSY else None
    return DeliveryResult(status, f"it answered {status}", gone=status == _GONE, rest=rest)


def _requested_pause(header: str | None, now: datetime) -> timedelta | None:
    """The pause of a Retry-After header, in seconds or as a date; None if it is neither."""
    if header is None:
        return None
    if header.isascii() and header.isdigit():
        return timedelta(seconds=int(header[:9]))
    try:
        until = parsedate_to_datetime(header)
    except ValueError:
        return None
    return (until if until.tzinfo else until.replace(tzinfo=UTC)) - now
