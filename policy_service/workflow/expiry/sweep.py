"""What time does: reviews nobody answered are brought to mind, asked of further groups and expire, releases nobody used
expire, redeemed effects nobody reported on become unknown and a task.

Idempotent; each row in a unit of its own, found by an index on its due time. A row that cannot be moved is logged,
holds up no other and is tried again with the next round. Every verb checks the same times itself; a sweep that is late
changes when people are told, never what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import structlog

from countersign.contract import EffectState
from policy_service import metrics
from policy_service.identity.dev_signin import delete_expired_links
from policy_service.identity.passkeys import delete_expired_challenges
from policy_service.identity.people import delete_expired_invitations
from policy_service.identity.sessions import delete_expired_logouts, delete_expired_sessions
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.outbox import delete_dead, delete_sent
from policy_service.storage.tables import EffectRow
from policy_service.workflow.effects.compensation_tasks import compensation_due
from policy_service.workflow.effects.idempotency import delete_expired_keys
from policy_service.workflow.effects.termination import expire_effect, expire_if_unused
from policy_service.workflow.expiry import due_rows
from policy_service.workflow.expiry.due_rows import DueQueue, DueRow
from policy_service.workflow.releases.report import apply_outcome
from policy_service.workflow.reviews.escalate import escalate_if_due
from policy_service.workflow.reviews.remind import remind
from policy_service.workflow.slack.enqueue import delete_expired_slack_rows
from policy_service.workflow.transitions import (
    SERVICE,
    TransitionReason,
    sync_transaction_state,
    transition_effect,
)

log = structlog.get_logger(__name__)

_AT_ONCE = 50  # rows found by one query

DEAD_MESSAGE_RETENTION: Final = timedelta(days=30)
"""How long `policy-service webhooks retry` can still offer what a receiver did not take; the log has it for ever."""

Move = Callable[[Tx, Snapshot, DueRow], object]


async def expire_reviews(ctx: Context) -> int:
    """Expire effects whose question was not answered in time; how many."""
    return await _each(ctx, due_rows.UNANSWERED, _expire)


async def send_reminders(ctx: Context) -> int:
    """Remind of the questions whose reminder is due; how many."""
    return await _each(
        ctx, due_rows.TO_REMIND, lambda tx, snapshot, row: remind(tx, snapshot, _effect(snapshot, row))
    )


async def escalate_reviews(ctx: Context) -> int:
    """Put the questions nobody answers to the further groups their gates name; how many."""
    return await _each(
        ctx,
        due_rows.TO_ESCALATE,
        lambda tx, snapshot, row: escalate_if_due(tx, snapshot, _effect(snapshot, row)),
    )


async def expire_releases(ctx: Context) -> int:
    """Expire ready transactions whose releases were not used in time; how many."""
    return await _each(ctx, due_rows.UNUSED, lambda tx, snapshot, _: expire_if_unused(tx, snapshot))


async def expire_compensations(ctx: Context) -> int:
    """Expire compensations whose release was not used in time: what they were to take back stands; how many."""
    return await _each(ctx, due_rows.EXPIRED_COMPENSATIONS, _expire)


async def open_compensation_tasks(ctx: Context) -> int:
    """Tell people of what fired, should be taken back, and is not asked to be; how many."""
    grace = timedelta(seconds=ctx.settings.outcome_grace_s)
    return await _each(ctx, due_rows.UNCOMPENSATED, _ask_for_compensation, grace)


async def mark_unreported_unknown(ctx: Context) -> int:
    """Mark redeemed effects unknown when nobody reported by ``fire_by`` and the tool's timeout; how many."""
    return await _each(ctx, due_rows.UNREPORTED, _doubt)


async def delete_expired_rows(ctx: Context) -> int:
    """Forget old idempotency keys, messages that left or that nobody will take, sessions and links that ended, and what
    Slack need not be told about any more; how many rows.

    The log remembers what happened; these rows only made it work.
    """
    return await ctx.db.write(lambda tx: _forget(tx, ctx.settings.idempotency_keep_hours))


def _forget(tx: Tx, keep_hours: int) -> int:
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


async def _each(ctx: Context, queue: DueQueue, move: Move, grace: timedelta = timedelta()) -> int:
    """Move every row that has been due for ``grace``; how many moved."""
    moved, after, now = 0, None, ctx.clock() - grace
    while page := await ctx.db.read(
        lambda conn, after=after: due_rows.due_page(conn, queue, now, after, _AT_ONCE)  # type: ignore[misc]
    ):
        for row in page:
            try:
                moved += await ctx.db.write(lambda tx, row=row: _move(tx, queue, move, grace, row))  # type: ignore[misc]
            except Exception:
                # The next round tries it again; until then the others must not wait for it.
                metrics.ROW_FAILURES.inc()
                log.exception("sweep_failed", txn=row.txn, rev=row.rev, key=row.key)
        after = page[-1]
    return moved


def _move(tx: Tx, queue: DueQueue, move: Move, grace: timedelta, row: DueRow) -> bool:
    tx = lock_transaction(tx, row.txn)
    if not due_rows.is_due(tx.conn, queue, tx.now - grace, row):
        return False
    move(tx, repository.require_transaction(tx.conn, row.txn, row.rev), row)
    return True


def _expire(tx: Tx, snapshot: Snapshot, row: DueRow) -> None:
    expire_effect(tx, snapshot, _effect(snapshot, row))


def _ask_for_compensation(tx: Tx, snapshot: Snapshot, row: DueRow) -> None:
    compensation_due(tx, _effect(snapshot, row), TransitionReason(SERVICE, "not_compensated"))


def _doubt(tx: Tx, snapshot: Snapshot, row: DueRow) -> None:
    cause, effect = TransitionReason(SERVICE, "not_reported"), _effect(snapshot, row)
    transition_effect(tx, effect, EffectState.UNKNOWN, cause)
    apply_outcome(tx, snapshot, effect, cause)
    sync_transaction_state(tx, snapshot, cause)


def _effect(snapshot: Snapshot, row: DueRow) -> EffectRow:
    return next(e for e in [*snapshot.effects, *snapshot.compensations] if e.effect_id == row.key)
