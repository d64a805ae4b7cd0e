"""Webhooks: which receivers get which line of the log, and the delivery of one.

Each receiver has a cursor in the log and a lane in the outbox. Following moves the cursor and writes the messages in
one unit of work, so an event is neither lost nor written twice, whichever replica follows. A message is what the line
says in ids and codes; its id is made of the receiver and the index, so a receiver knows a repeat. Several leave at
once, so order is not promised: the index tells it. One process at a time sends to a receiver, by lease; one that
fails rests and is then tried with one message at a time.

A delivery is signed, goes to exactly the address that was checked, and is judged by its status alone: 2xx is taken;
410 means that nobody is there any more; anything else, a redirect too, has failed. The answer's body is not read, so
neither its size nor its pace matters. The report of a failure quotes neither address nor answer.
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

_LINES: Final = 500  # of the log, in one look
_AT_ONCE: Final = 8  # requests to one receiver at the same time
_LEASE: Final = timedelta(seconds=60)  # outlasts every request that was begun under it (30 s at most)
_RETRY: Final = RetryPolicy(backoff_s=5, max_backoff_s=14_400, claim_s=60)  # 5 s, 10 s, ... four hours
_REST: Final = RetryPolicy(backoff_s=1, max_backoff_s=60)  # for a receiver that fails, whatever waits for it
_LONGEST_REST: Final = timedelta(hours=4)  # that a receiver may ask for

_outbox, _hooks = table(OutboxRow).c, table(WebhookRow).c
_MEMBERS: Final = EXPORTED_MEMBERS | {"agent", "what"}
_PAGES: Final = {"review_id": "reviews", "task_id": "tasks"}


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """What came of one request: ``error`` is None where the receiver has taken it, and never quotes what it says."""

    status: int | None = None
    error: str | None = None
    gone: bool = False
    rest: timedelta | None = None  # it asked to be left alone for so long


@dataclass(frozen=True, slots=True)
class ReceiverStatus:
    """How a receiver is doing."""

    upto: int
    behind: int  # lines of the log it was not followed through
    waiting: int
    oldest: datetime | None
    dead: int
    failures: int
    last_error: str | None
    not_before: datetime | None
    disabled_at: datetime | None


def webhook_lane(name: str) -> str:
    """The lane of a receiver in the outbox."""
    return f"webhook {name}"


def webhook_id(issuer: str, name: str, index: int) -> str:
    """The same for the same event and receiver, whoever sends it and how often."""
    named = canonicalize({"index": index, "iss": issuer, "webhook": name})
    digest = hashlib.sha256(b"countersign/webhook/v1\n" + named).hexdigest()
    return f"evt_{digest[:32]}"


def webhook_event(settings: Settings, line: Entry) -> dict[str, Any]:
    """What is told of a line: ids, codes and where to look; no args, no words of anybody."""
    about = {"txn": line.txn, "effect_id": line.effect_id, "rev": line.rev}
    told = about | {name: value for name, value in line.body.items() if name in _MEMBERS}
    links = {
        name.removesuffix("_id"): f"{settings.public_url}/{page}/{told[name]}"
        for name, page in _PAGES.items()
        if name in told
    }
    data = {"iss": settings.iss, "index": line.index, **told, "links": links}
    return {
        "type": line.kind,
        "timestamp": time_text(line.at),
        "data": {name: value for name, value in data.items() if value is not None},
    }


# -- following the log ---------------------------------------------------------------------------------------------


async def enqueue_events(ctx: Context, webhook: Webhook) -> bool:
    """Write the messages about what the log has said since; whether there was anything to look at.

    A receiver that was never heard of is told from now on.
    """
    row, lines = await ctx.db.read(lambda conn: _look(conn, webhook.name))
    if row is None:
        await ctx.db.write(lambda tx: _begin(tx, webhook.name))
        return True
    if not lines:
        return False
    return await ctx.db.write(lambda tx: _put(tx, ctx.settings, webhook, row.upto, lines))


def _look(conn: Connection, name: str) -> tuple[WebhookRow | None, list[Entry]]:
    row = find_one(conn, WebhookRow, name=name)
    blind = row is None or row.disabled_at is not None
    return row, [] if row is None or blind else entries_after(conn, row.upto, _LINES)


def _begin(tx: Tx, name: str) -> None:
    insert_row_or_ignore(tx.conn, WebhookRow(name=name, upto=highest_index(tx.conn)))


def _put(tx: Tx, settings: Settings, webhook: Webhook, was: int, lines: Sequence[Entry]) -> bool:
    if not update_rows(tx.conn, WebhookRow, {"name": webhook.name, "upto": was}, {"upto": lines[-1].index}):
        return False  # another replica was faster
    until = tx.now + timedelta(hours=settings.webhook_give_up_hours)
    for line in lines:
        if webhook.wants(line.kind):
            named = webhook_id(settings.iss, webhook.name, line.index)
            event = webhook_event(settings, line)
            outbox.enqueue_once(
                tx, named, line.kind, event, lane=webhook_lane(webhook.name), give_up_at=until
            )
    return True


# -- sending -------------------------------------------------------------------------------------------------------


async def claim_messages(ctx: Context, name: str, holder: str) -> list[Message]:
    """What is to be sent to a receiver now, claimed for this process; nothing while another one sends to it."""
    now = ctx.clock()
    if not await ctx.db.read(lambda conn: _is_due(conn, name, now)):
        return []  # most of the time, and without a write
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
    return outbox.claim(tx, 1 if row.failures else _AT_ONCE, _RETRY, webhook_lane(name))


async def record_result(ctx: Context, name: str, message: Message, answer: DeliveryResult) -> int:
    """Write down what came of a message; how many were given up."""
    spread = random.uniform(0.5, 1)  # noqa: S311  so that what failed together does not come back together
    return await ctx.db.write(lambda tx: _note(tx, name, message, answer, spread))


def _note(tx: Tx, name: str, message: Message, answer: DeliveryResult, spread: float) -> int:
    mine = update(table(WebhookRow)).where(_hooks.name == name)
    if answer.error is None:
        outbox.mark_sent(tx, message.outbox_id)
        tx.conn.execute(mine.where(_hooks.failures > 0).values(failures=0, not_before=None, last_error=None))
        return 0
    failures = tx.conn.execute(
        mine.values(failures=_hooks.failures + 1).returning(_hooks.failures)
    ).scalar_one()
    asked = min(answer.rest or timedelta(), _LONGEST_REST)
    rest = max(asked, _REST.pause(failures) * spread)
    put_off = max(asked, _RETRY.pause(message.attempt) * spread)
    outbox.reschedule(tx, message.outbox_id, tx.now + put_off, answer.error)
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


# -- for operators -------------------------------------------------------------------------------------------------


def receiver_status(conn: Connection, name: str, most: int = 10_000) -> ReceiverStatus | None:
    """How a receiver is doing; None before the service has met it. Counting stops at ``most``."""
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
    """Send what was given up after all, and to a receiver that was gone again; how many messages were given up.

    Raises:
        NotFoundError: the service has no such receiver, or has not met it yet.
    """
    known = {webhook.name for webhook in settings.webhooks}
    mine = update(table(WebhookRow)).where(_hooks.name == name)
    awake = mine.values(failures=0, not_before=None, disabled_at=None)
    if name in known and not tx.conn.execute(awake).rowcount:
        raise NotFoundError(f"the service has not met the webhook {name!r} yet; start it with these settings")
    if name not in known:
        raise NotFoundError(
            f"there is no webhook {name!r}; the settings have {', '.join(sorted(known)) or 'none'}"
        )
    until = tx.now + timedelta(hours=settings.webhook_give_up_hours)
    revived = outbox.retry_dead(tx, webhook_lane(name), until)
    append(tx, "webhook_retried", actor=OPERATOR, body={"webhook": name, "messages": revived})
    return revived


_GONE: Final = 410
_BUSY: Final = frozenset({429, 503})  # what may say when to come back (RFC 9110 section 10.2.3)


async def deliver(
    webhook: Webhook,
    keys: Sequence[WebhookKey],
    named: str,
    event: Mapping[str, Any],
    now: datetime,
    resolve: Resolve = resolve,
) -> DeliveryResult:
    """Send one event; what came of it."""
    body = canonicalize(dict(event))
    headers = {"Content-Type": "application/json", "User-Agent": "countersign"}
    headers |= sign_webhook(keys, named, int(now.timestamp()), body)
    try:
        async with (
            asyncio.timeout(webhook.timeout_s),
            open_response(
                "POST", webhook.url, webhook, headers=headers, body=body, resolve=resolve
            ) as response,
        ):
            return _judged(response, now)
    except TimeoutError:
        return DeliveryResult(error=f"no answer within {webhook.timeout_s:g} s")
    except UnreachableError as error:
        return DeliveryResult(error=str(error))
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        return DeliveryResult(error=type(error).__name__)


def _judged(response: httpx2.Response, now: datetime) -> DeliveryResult:
    status = response.status_code
    if 200 <= status < 300:
        return DeliveryResult(status)
    rest = _asked_for(response.headers.get("retry-after"), now) if status in _BUSY else None
    return DeliveryResult(status, f"it answered {status}", gone=status == _GONE, rest=rest)


def _asked_for(told: str | None, now: datetime) -> timedelta | None:
    """Seconds or a date; None where it is neither."""
    if told is None:
        return None
    if told.isascii() and told.isdigit():
        return timedelta(seconds=int(told[:9]))
    try:
        until = parsedate_to_datetime(told)
    except ValueError:
        return None
    return (until if until.tzinfo else until.replace(tzinfo=UTC)) - now
