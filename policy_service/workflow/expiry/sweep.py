"""The sweeps: expire reviews and releases, send reminders, escalate, mark unreported effects, and delete old rows.

Each sweep reads a queue of due rows by an index, page by page, the longest due first and each row once. Each row is
handled in a unit of its own; one that fails is logged, does not block others, and is tried again by the next sweep.
Sweeps are idempotent. Every verb checks the same times itself, so a late sweep delays notifications and permits
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy import Column, ColumnElement, Connection, Select, exists, select

from countersign.contract import EffectState, TxnState
from policy_service import metrics
from policy_service.identity.dev_signin import delete_expired_links
from policy_service.identity.logout import delete_expired_logouts
from policy_service.identity.passkeys import delete_expired_challenges
from policy_service.identity.people import delete_expired_invitations
from policy_service.identity.sessions import delete_expired_sessions
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.core import key_after, table
from policy_service.storage.database import Tx
from policy_service.storage.outbox import delete_dead, delete_sent
from policy_service.storage.tables import EffectRow, ReviewRow, TaskRow, TransactionRow
from policy_service.workflow.effects.open_reviews import escalate_if_due, remind
from policy_service.workflow.effects.outcomes import (
    COMPENSATION_DUE,
    apply_outcome,
    compensation_due,
    expire_effect,
    expire_if_unused,
    sync_transaction_state,
)
from policy_service.workflow.releases.submit import delete_expired_keys
from policy_service.workflow.slack.enqueue import delete_expired_slack_rows
from policy_service.workflow.transitions import TransitionReason, transition_effect

log = structlog.get_logger(__name__)

_PAGE = 50  # rows found by one query

DEAD_MESSAGE_RETENTION: Final = timedelta(days=30)
"""How long `policy-service webhooks retry` can still send undelivered messages. The audit log keeps the events."""


@dataclass(frozen=True, slots=True)
class DueRow:
    at: datetime
    key: str  # the id of the effect, or of the transaction if that is due
    txn: str
    rev: int


@dataclass(frozen=True)
class DueQueue:
    """Rows that are due when the time in column ``at`` has passed and the conditions hold."""

    at: Column[datetime]
    key: Column[str]
    txn: Column[str]
    rev: Column[int]
    conditions: tuple[ColumnElement[bool], ...]

    def rows(self, now: datetime) -> Select[datetime, str, str, int]:
        """The query for all rows that are due."""
        columns = (self.at, self.key, self.txn.label("of_txn"), self.rev)
        return select(*columns).where(*self.conditions, self.at <= now)


_Handler = Callable[[Tx, Snapshot, DueRow], object]

_REVIEWS, _EFFECTS, _TRANSACTIONS = table(ReviewRow).c, table(EffectRow).c, table(TransactionRow).c
_OTHERS, _TASKS = table(EffectRow).alias("others").c, table(TaskRow).c


def _open_reviews(at: Column[datetime]) -> DueQueue:
    return DueQueue(at, _REVIEWS.effect_id, _REVIEWS.txn, _REVIEWS.rev, (_REVIEWS.state == "open",))


def _effects(at: Column[datetime], *conditions: ColumnElement[bool]) -> DueQueue:
    return DueQueue(at, _EFFECTS.effect_id, _EFFECTS.txn, _EFFECTS.rev, conditions)


UNANSWERED = _open_reviews(_REVIEWS.answer_by)
TO_REMIND = _open_reviews(_REVIEWS.remind_at)
TO_ESCALATE = _open_reviews(_REVIEWS.escalate_at)
UNUSED = DueQueue(
    _TRANSACTIONS.valid_until,
    _TRANSACTIONS.txn,
    _TRANSACTIONS.txn,
    _TRANSACTIONS.rev,
    (_TRANSACTIONS.state == TxnState.READY.value,),
)
UNREPORTED = _effects(_EFFECTS.unknown_at, _EFFECTS.state == EffectState.REDEEMED.value)
EXPIRED_COMPENSATIONS = _effects(_EFFECTS.lapses_at, _EFFECTS.state == EffectState.RELEASED.value)
# Fired effects that could be compensated, in an unsettled transaction whose outcomes are all known (perhaps late),
# without a task about it.
UNCOMPENSATED = _effects(
    _EFFECTS.changed_at,
    # Not by the index of effect states, which holds every effect that ever fired: few transactions are in these states.
    _EFFECTS.state.concat("") == EffectState.FIRED.value,
    _EFFECTS.kind == "effect",
    _EFFECTS.compensation.is_not(None),
    _TRANSACTIONS.txn == _EFFECTS.txn,
    _TRANSACTIONS.rev == _EFFECTS.rev,
    _TRANSACTIONS.state.in_([TxnState.REDEEMED.value, TxnState.UNSETTLED.value]),
    ~exists().where(
        _OTHERS.txn == _EFFECTS.txn,
        _OTHERS.rev == _EFFECTS.rev,
        _OTHERS.state.in_(
            [EffectState.REDEEMED.value, EffectState.COMPENSATING.value, EffectState.UNKNOWN.value]
        ),
    ),
    ~exists().where(_TASKS.effect_id == _EFFECTS.effect_id, _TASKS.kind == COMPENSATION_DUE.value),
)


async def expire_reviews(ctx: Context) -> int:
    """Expire effects whose review was not answered in time; returns how many."""
    return await _each(ctx, UNANSWERED, lambda tx, snap, row: expire_effect(tx, snap, _effect(snap, row)))


async def send_reminders(ctx: Context) -> int:
    """Send the due reminders; returns how many."""
    return await _each(ctx, TO_REMIND, lambda tx, snap, row: remind(tx, snap, _effect(snap, row)))


async def escalate_reviews(ctx: Context) -> int:
    """Escalate unanswered reviews to the groups their gates name; returns how many."""
    return await _each(ctx, TO_ESCALATE, lambda tx, snap, row: escalate_if_due(tx, snap, _effect(snap, row)))


async def expire_releases(ctx: Context) -> int:
    """Expire ready transactions whose releases were not used in time; returns how many."""
    return await _each(ctx, UNUSED, lambda tx, snap, _: expire_if_unused(tx, snap))


async def expire_compensations(ctx: Context) -> int:
    """Expire compensations whose release was not used in time, which leaves a task; returns how many."""
    return await _each(
        ctx, EXPIRED_COMPENSATIONS, lambda tx, snap, row: expire_effect(tx, snap, _effect(snap, row))
    )


async def open_compensation_tasks(ctx: Context) -> int:
    """Open tasks about fired effects that should be compensated, without a request to; returns how many."""
    grace = timedelta(seconds=ctx.settings.outcome_grace_s)
    cause = TransitionReason.by_service("not_compensated")
    return await _each(
        ctx, UNCOMPENSATED, lambda tx, snap, row: compensation_due(tx, _effect(snap, row), cause), grace
    )


async def mark_unreported_unknown(ctx: Context) -> int:
    """Mark redeemed effects unknown without a report by ``fire_by`` and the tool's timeout; returns how many."""
    return await _each(ctx, UNREPORTED, _mark_unknown)


async def delete_expired_rows(ctx: Context) -> int:
    """Delete expired keys, messages, sessions, links, challenges and Slack records; returns how many rows.

    These rows only support operations. The audit log keeps what happened.
    """
    return await ctx.db.write(lambda tx: _delete_expired(tx, ctx.settings.idempotency_keep_hours))


def _delete_expired(tx: Tx, keep_hours: int) -> int:
    before = tx.now - timedelta(hours=keep_hours)
    return (
        delete_expired_keys(tx, before)
        + delete_sent(tx, before)
        + delete_dead(tx, tx.now - DEAD_MESSAGE_RETENTION)
        + delete_expired_sessions(tx, before)
        + delete_expired_links(tx, before)
        + delete_expired_logouts(tx, tx.now)
        + delete_expired_challenges(tx, before)
        + delete_expired_invitations(tx, before)
        + delete_expired_slack_rows(tx)
    )


async def _each(ctx: Context, queue: DueQueue, move: _Handler, grace: timedelta = timedelta()) -> int:
    """Handle every row that has been due for ``grace``; returns how many."""
    moved, after, now = 0, None, ctx.clock() - grace
    while page := await ctx.db.read(lambda conn, after=after: due_page(conn, queue, now, after)):  # type: ignore[misc]
        for row in page:
            try:
                moved += await ctx.db.write(lambda tx, row=row: _move(tx, queue, move, grace, row))  # type: ignore[misc]
            except Exception:
                # The next sweep tries it again; the other rows must not wait for it.
                metrics.ROW_FAILURES.inc()
                log.exception("sweep_failed", txn=row.txn, rev=row.rev, key=row.key)
        after = page[-1]
    return moved


def due_page(conn: Connection, queue: DueQueue, now: datetime, after: DueRow | None) -> list[DueRow]:
    query = queue.rows(now).order_by(queue.at, queue.key).limit(_PAGE)
    if after is not None:
        query = query.where(key_after((queue.at, queue.key), (after.at, after.key)))
    return [DueRow(*row) for row in conn.execute(query)]


def _move(tx: Tx, queue: DueQueue, move: _Handler, grace: timedelta, row: DueRow) -> bool:
    tx = lock_transaction(tx, row.txn)
    # Another unit may have moved it, and the clock of another host may have found it due.
    due = queue.rows(tx.now - grace).where(queue.key == row.key, queue.rev == row.rev)
    if tx.conn.execute(due).first() is None:
        return False
    move(tx, repository.require_transaction(tx.conn, row.txn, row.rev), row)
    return True


def _mark_unknown(tx: Tx, snapshot: Snapshot, row: DueRow) -> None:
    cause, effect = TransitionReason.by_service("not_reported"), _effect(snapshot, row)
    transition_effect(tx, effect, EffectState.UNKNOWN, cause)
    apply_outcome(tx, snapshot, effect, cause)
    sync_transaction_state(tx, snapshot, cause)


def _effect(snapshot: Snapshot, row: DueRow) -> EffectRow:
    return next(e for e in [*snapshot.effects, *snapshot.compensations] if e.effect_id == row.key)
