"""What time does: reviews nobody answered expire, releases nobody used expire, redeemed effects nobody reported on
become unknown and a task.

Idempotent, in small units, each found by an index on its due time. Every verb checks the same times itself; a sweep
that is late changes when people are told, never what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from countersign.contract import EffectState
from policy_service.identity.dev_signin import forget_links
from policy_service.identity.sessions import forget_sessions
from policy_service.storage.database import Tx
from policy_service.storage.outbox import forget_sent
from policy_service.workflow import records
from policy_service.workflow.context import Context
from policy_service.workflow.endings import expire_effect, expire_if_over, lapses_at
from policy_service.workflow.idempotency import forget_older
from policy_service.workflow.moves import SERVICE, Cause, follow_effects, move_effect
from policy_service.workflow.report import settle_effect
from policy_service.workflow.standing import DUE, compensation_due

_AT_ONCE = 50  # rows in one unit: a sweep never holds the writer for long


async def expire_reviews(ctx: Context) -> int:
    """Expire effects whose question was not answered in time; how many."""
    return await _in_small_units(ctx, _expire_reviews)


async def expire_releases(ctx: Context) -> int:
    """Expire ready transactions whose releases were not used in time; how many."""
    return await _in_small_units(ctx, _expire_releases)


async def expire_compensations(ctx: Context) -> int:
    """Expire compensations whose release was not used in time: what they were to take back stands; how many."""
    return await _in_small_units(ctx, _expire_compensations)


async def ask_for_compensations(ctx: Context) -> int:
    """Tell people of what fired, should be taken back, and is not asked to be; how many."""
    grace = timedelta(seconds=ctx.settings.outcome_grace_s)
    return await _in_small_units(ctx, lambda tx: _ask_for_compensations(tx, grace))


async def doubt_unreported(ctx: Context) -> int:
    """Mark redeemed effects unknown when nobody reported by ``fire_by`` and the tool's timeout; how many."""
    return await _in_small_units(ctx, _doubt_unreported)


async def forget_what_is_over(ctx: Context) -> int:
    """Forget old idempotency keys, messages that left, and sessions and links that ended; how many rows.

    The log remembers what happened; these rows only made it work.
    """
    return await ctx.db.write(lambda tx: _forget(tx, ctx.settings.idempotency_keep_hours))


def _forget(tx: Tx, keep_hours: int) -> int:
    before = tx.now - timedelta(hours=keep_hours)
    return (
        forget_older(tx, before)
        + forget_sent(tx, before)
        + forget_sessions(tx, before)
        + forget_links(tx, before)
    )


async def _in_small_units(ctx: Context, unit: Callable[[Tx], int]) -> int:
    total = 0
    while done := await ctx.db.write(unit):
        total += done
        if done < _AT_ONCE:
            break
    return total


def _expire_reviews(tx: Tx) -> int:
    due = records.reviews_due(tx.conn, tx.now, _AT_ONCE)
    for review in due:
        snapshot = records.require(tx.conn, review.txn, review.rev)
        effect = snapshot.find(review.effect_id)
        if effect is not None and effect.state == EffectState.REVIEW.value:
            expire_effect(tx, snapshot, effect)
    return len(due)


def _expire_releases(tx: Tx) -> int:
    due = records.transactions_over(tx.conn, tx.now, _AT_ONCE)
    for transaction in due:
        expire_if_over(tx, records.require(tx.conn, transaction.txn, transaction.rev))
    return len(due)


def _expire_compensations(tx: Tx) -> int:
    over = [row for row in records.released_compensations(tx.conn) if tx.now >= lapses_at(row)][:_AT_ONCE]
    for row in over:
        snapshot = records.require(tx.conn, row.txn, row.rev)
        effect = snapshot.find(row.effect_id)
        if effect is not None:
            expire_effect(tx, snapshot, effect)
    return len(over)


def _ask_for_compensations(tx: Tx, grace: timedelta) -> int:
    torn = records.torn_effects(tx.conn, DUE, tx.now - grace, _AT_ONCE)
    for effect in torn:
        compensation_due(tx, effect, Cause(SERVICE, "not_compensated"))
    return len(torn)


def _doubt_unreported(tx: Tx) -> int:
    due = records.effects_unreported(tx.conn, tx.now, _AT_ONCE)
    cause = Cause(SERVICE, "not_reported")
    for row in due:
        snapshot = records.require(tx.conn, row.txn, row.rev)
        effect = snapshot.find(row.effect_id)
        if effect is not None and effect.state == EffectState.REDEEMED.value:
            move_effect(tx, effect, EffectState.UNKNOWN, cause)
            settle_effect(tx, snapshot, effect, cause)
            follow_effects(tx, snapshot, cause)
    return len(due)
