"""Outbox: messages to send, written with the change that causes them and delivered at least once.

A unit of work writes its messages with `enqueue` (``unit_of_work.py``); here they are claimed and delivered.

A message carries ids, never content: the sender reads the current state. Delivery may repeat, so receivers must be
idempotent. A claim hides a message for a while instead of deleting it; if the process dies meanwhile, the message
becomes due again. After the last attempt it becomes ``dead`` and is logged. Each receiver has its own lane, so a slow
one does not delay others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import Update, delete, select, update

from policy_service import metrics
from policy_service.storage.core import insert_row_or_ignore, table
from policy_service.storage.database import Database
from policy_service.storage.system_tables import OutboxRow
from policy_service.storage.unit_of_work import Tx

log = structlog.get_logger(__name__)

_outbox = table(OutboxRow)
_row = _outbox.c
_MESSAGE = (_row.outbox_id, _row.kind, _row.payload, _row.attempts, _row.created_at)
_MAX_DOUBLINGS = 30  # beyond it the pause is at its maximum anyway


@dataclass(frozen=True, slots=True)
class Message:
    """A claimed message; ``attempt`` counts from 1."""

    outbox_id: str
    kind: str
    payload: Mapping[str, Any]
    attempt: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Attempts and backoff. ``settings.py`` gives the reason for each value."""

    max_attempts: int = 20
    backoff_s: float = 1
    max_backoff_s: float = 900
    claim_s: float = 60

    def pause(self, attempt: int) -> timedelta:
        """The pause after a failed attempt."""
        doubled = self.backoff_s * 2.0 ** min(attempt - 1, _MAX_DOUBLINGS)
        return timedelta(seconds=min(doubled, self.max_backoff_s))


@dataclass(frozen=True, slots=True)
class DrainResult:
    """Counts of one drain."""

    sent: int = 0
    failed: int = 0
    dead: int = 0


Deliver = Callable[[Message], Awaitable[None]]


def enqueue_once(
    tx: Tx, outbox_id: str, kind: str, payload: Mapping[str, Any], *, lane: str, give_up_at: datetime
) -> None:
    """Write a message under a given id into a lane, unless it exists. It is retried until ``give_up_at``."""
    row = OutboxRow(
        outbox_id=outbox_id, lane=lane, kind=kind, payload=dict(payload), next_at=tx.now, created_at=tx.now,
        give_up_at=give_up_at,
    )  # fmt: skip
    insert_row_or_ignore(tx.conn, row)


def claim(tx: Tx, limit: int, retry: RetryPolicy, lane: str = "") -> list[Message]:
    """Claim the due messages of a lane, oldest first, and hide them for the time of the claim."""
    due = (
        select(_row.outbox_id)
        .where(_row.lane == lane, _row.state == "waiting", _row.next_at <= tx.now)
        .order_by(_row.next_at, _row.outbox_id)
        .limit(limit)
    )
    return _hide(tx, list(tx.conn.scalars(due.with_for_update(skip_locked=True))), retry)


def claim_first(tx: Tx, retry: RetryPolicy, lane: str) -> Message | None:
    """Claim the first message of an ordered lane; None while it is claimed or not yet due."""
    first = select(_row.outbox_id, _row.next_at).where(_row.lane == lane, _row.state == "waiting")
    found = tx.conn.execute(
        first.order_by(_row.created_at, _row.outbox_id).limit(1).with_for_update()
    ).first()
    if found is None or found.next_at > tx.now:
        return None
    (message,) = _hide(tx, [found.outbox_id], retry)
    return message


def _hide(tx: Tx, ids: Sequence[str], retry: RetryPolicy) -> list[Message]:
    """Start an attempt of these messages, in this order, and hide them for the time of the claim."""
    if not ids:
        return []
    begun = {"attempts": _row.attempts + 1, "next_at": tx.now + timedelta(seconds=retry.claim_s)}
    hide = update(_outbox).where(_row.outbox_id.in_(ids)).values(begun).returning(*_MESSAGE)
    messages = [Message(*row) for row in tx.conn.execute(hide)]
    return sorted(messages, key=lambda one: ids.index(one.outbox_id))


def mark_sent(tx: Tx, outbox_id: str, attempt: int | None = None) -> bool:
    """Mark a message as sent.

    ``attempt``, here and below: if a later attempt has started, because this one exceeded its claim, nothing is
    written and the result is False.
    """
    statement = _waiting(outbox_id, attempt).values(state="sent", next_at=tx.now, last_error=None)
    return tx.conn.execute(statement).rowcount == 1


def mark_failed(tx: Tx, message: Message, error: str, retry: RetryPolicy) -> None:
    """Retry later, or mark as dead after the last attempt. ``error`` names the kind, never quotes."""
    state = "dead" if message.attempt >= retry.max_attempts else "waiting"
    later = {"state": state, "next_at": tx.now + retry.pause(message.attempt), "last_error": error}
    tx.conn.execute(_waiting(message.outbox_id).values(later))


def reschedule(tx: Tx, outbox_id: str, until: datetime, error: str) -> None:
    """Retry at that time. ``error`` names the kind, never quotes."""
    tx.conn.execute(_waiting(outbox_id).values(next_at=until, last_error=error))


def requeue(
    tx: Tx, outbox_id: str, error: str | None, *, untried: bool = False, attempt: int | None = None
) -> bool:
    """Return a message to its position in the lane. ``error`` names the kind, never quotes. ``untried``: it certainly
    did not arrive, so the attempt does not count.
    """
    attempts = _row.attempts - 1 if untried else _row.attempts
    back = {"next_at": _row.created_at, "attempts": attempts, "last_error": error}
    return tx.conn.execute(_waiting(outbox_id, attempt).values(back)).rowcount == 1


def mark_dead(tx: Tx, outbox_id: str, error: str | None, attempt: int | None = None) -> bool:
    """Mark a message that can never be delivered."""
    statement = _waiting(outbox_id, attempt).values(state="dead", next_at=tx.now, last_error=error)
    return tx.conn.execute(statement).rowcount == 1


def _waiting(outbox_id: str, attempt: int | None = None) -> Update:
    statement = update(_outbox).where(_row.outbox_id == outbox_id, _row.state == "waiting")
    return statement if attempt is None else statement.where(_row.attempts == attempt)


def expire_messages(tx: Tx, lane: str) -> int:
    """Mark the messages of a lane as dead that have passed ``give_up_at``. Returns their number."""
    late = (_row.lane == lane, _row.state == "waiting", _row.give_up_at <= tx.now)
    return tx.conn.execute(update(_outbox).where(*late).values(state="dead", next_at=tx.now)).rowcount


def delete_expired(tx: Tx, lane: str, kind: str) -> int:
    """Delete messages of a kind that have passed ``give_up_at`` and have no value later. Returns their number."""
    late = (_row.lane == lane, _row.kind == kind, _row.state == "waiting", _row.give_up_at <= tx.now)
    return tx.conn.execute(delete(_outbox).where(*late)).rowcount


def retry_dead(tx: Tx, lane: str, give_up_at: datetime, *, but: str = "", attempts: int = 0) -> int:
    """Retry the dead messages of a lane, except one kind, and make the waiting ones due now. Returns the number of
    dead ones.

    ``attempts``: the count they start with, so that a message that may have arrived is not sent again.
    """
    dead = update(_outbox).where(_row.lane == lane, _row.state == "dead", _row.kind != but)
    fresh = {"state": "waiting", "attempts": attempts, "give_up_at": give_up_at, "next_at": tx.now}
    revived = tx.conn.execute(dead.values(fresh))
    waiting = update(_outbox).where(_row.lane == lane, _row.state == "waiting", _row.next_at > tx.now)
    tx.conn.execute(waiting.values(next_at=tx.now))
    return revived.rowcount


def delete_sent(tx: Tx, before: datetime) -> int:
    """Delete messages sent before that time. The audit log keeps the record."""
    return tx.conn.execute(delete(_outbox).where(_row.state == "sent", _row.next_at < before)).rowcount


def delete_dead(tx: Tx, before: datetime) -> int:
    """Delete messages of lanes that became dead before that time."""
    over = (_row.state == "dead", _row.give_up_at < before)
    return tx.conn.execute(delete(_outbox).where(*over)).rowcount


async def drain(
    db: Database, deliver: Deliver, *, limit: int = 50, retry: RetryPolicy | None = None
) -> DrainResult:
    """Deliver the due messages one after the other. An error of one does not delay the others."""
    patience = retry or RetryPolicy()
    messages = await db.write(lambda tx: claim(tx, limit, patience))
    outcomes = [await _deliver(db, deliver, message, patience) for message in messages]
    return DrainResult(outcomes.count("sent"), outcomes.count("failed"), outcomes.count("dead"))


async def _deliver(db: Database, deliver: Deliver, message: Message, retry: RetryPolicy) -> str:
    try:
        await deliver(message)
    except Exception as error:  # noqa: BLE001  recorded and retried; a poison message must not block others
        dead = message.attempt >= retry.max_attempts
        say = log.error if dead else log.warning
        name = type(error).__name__
        say("outbox_delivery_failed", outbox_id=message.outbox_id, kind=message.kind, error=name, dead=dead)
        await db.write(lambda tx: mark_failed(tx, message, name, retry))
        metrics.DELIVERIES.labels("dead" if dead else "failed").inc()
        return "dead" if dead else "failed"
    await db.write(lambda tx: mark_sent(tx, message.outbox_id))
    metrics.DELIVERIES.labels("sent").inc()
    return "sent"
