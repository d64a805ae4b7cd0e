"""Activation: a new bundle is in force, so every open effect is evaluated again.

An effect that the bundle denies ends. One that it requires a review for waits, also if it had been released. A laxer
bundle releases nothing by itself, because the gates of a revision stay; only votes that count again can.

The service answers requests meanwhile, and /readyz reports the progress. That is safe, because a redemption evaluates
again. An effect whose evaluation fails is logged, does not block others, and is evaluated at every refresh until it
succeeds. An effect whose newest decision is of the active bundle is not evaluated, so a start under an unchanged bundle
evaluates nothing.
"""

from __future__ import annotations

import asyncio

import structlog
from sqlalchemy import Connection, select
from sqlmodel import col

from countersign.contract import EffectState
from policy_service.domain.policy_request import Facts
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.tables import DecisionRow, EffectRow
from policy_service.workflow.active_commit import refresh_bundle
from policy_service.workflow.effects.apply_evaluation import apply_evaluation
from policy_service.workflow.effects.evaluation import (
    gather_facts,
    reevaluate,
    require_current_bundle,
    with_stable_bundle,
)
from policy_service.workflow.effects.outcomes import expire_if_unused
from policy_service.workflow.transitions import TransitionReason

log = structlog.get_logger(__name__)

_PAUSE_S = 1.0  # requests for a refresh must not turn into constant requests to the git remote
_OPEN = frozenset({EffectState.REVIEW, EffectState.RELEASED})


async def activate(ctx: Context) -> bool:
    """Refresh the bundle and evaluate all open effects; whether another bundle is active now.

    If the new bundle does not load, the last one stays active. The status and the log say why.
    """
    reloaded = await refresh_bundle(ctx)
    await reevaluate_open_effects(ctx)
    return reloaded.changed


async def refresh_on_request(ctx: Context) -> None:
    """Refresh whenever it is requested, with a pause after each, until cancelled."""
    while True:
        await ctx.looks.wait()
        try:
            await activate(ctx)
        except Exception:
            log.exception("look_failed")  # the scheduled job tries again
        await asyncio.sleep(_PAUSE_S)


async def reevaluate_open_effects(ctx: Context) -> int:
    """Evaluate every open effect that the active bundle has not decided yet; returns how many were evaluated.

    One round runs at a time; a second caller waits and finds it done. After a complete round this process does nothing
    until another bundle is active. That also keeps replicas with different folders from evaluating in turns forever.
    """
    async with ctx.active.asking:
        return await _reevaluate_open(ctx)


async def _reevaluate_open(ctx: Context) -> int:
    active = ctx.active
    digest, activation, after = active.current.digest, active.activations, ""
    if active.reevaluated == activation:
        return 0
    active.asked = active.unasked = 0
    while page := await ctx.db.read(lambda conn, after=after: _undecided_page(conn, digest, after, 100)):  # type: ignore[misc]
        for effect_id, txn, rev in page:
            try:
                await _reevaluate_one(ctx, effect_id, txn, rev)
                active.asked += 1
            except Exception:
                # One effect that fails must not leave the others under rules that are no longer in force.
                active.unasked += 1
                log.exception("asking_failed", effect_id=effect_id, bundle=digest)
            active.report_progress()
        after = page[-1][0]
    if not active.unasked:
        active.reevaluated = activation
    active.report_progress()
    return active.asked


async def _reevaluate_one(ctx: Context, effect_id: str, txn: str, rev: int) -> None:
    async def work(bundle: Bundle) -> None:
        snapshot = await ctx.db.read(lambda conn: repository.require_transaction(conn, txn, rev))
        effect = snapshot.find(effect_id)
        if effect is not None:
            facts = await gather_facts(bundle, [effect], ctx.clock())
            await ctx.db.write(lambda tx: in_unit(tx, bundle, effect_id, txn, rev, facts[effect_id]))

    def in_unit(tx: Tx, bundle: Bundle, effect_id: str, txn: str, rev: int, facts: Facts) -> None:
        require_current_bundle(ctx, bundle)
        tx = lock_transaction(tx, txn)
        snapshot = repository.require_transaction(tx.conn, txn, rev)
        effect = snapshot.find(effect_id)
        agent = repository.agent_of(tx.conn, snapshot.transaction.agent)
        if effect is None or agent is None or EffectState(effect.state) not in _OPEN:
            return
        cause = TransitionReason.by_service("activation")
        answer = reevaluate(tx, ctx, bundle, agent, snapshot, effect, facts, cause)
        apply_evaluation(tx, bundle, snapshot, effect, answer, cause)
        expire_if_unused(tx, snapshot)  # its validity may be shorter now than the time that has passed

    await with_stable_bundle(ctx, work)


def _undecided_page(conn: Connection, bundle: str, after: str, limit: int) -> list[tuple[str, str, int]]:
    """A page of open effects whose newest decision is of another bundle, as (effect_id, txn, rev)."""
    of_effect = (
        col(DecisionRow.effect_id) == col(EffectRow.effect_id),
        col(DecisionRow.rev) == col(EffectRow.rev),
    )
    newest = (
        select(col(DecisionRow.bundle))
        .where(*of_effect)
        .order_by(col(DecisionRow.decided_at).desc())
        .limit(1)
        .scalar_subquery()
    )
    query = (
        select(col(EffectRow.effect_id), col(EffectRow.txn), col(EffectRow.rev))
        .where(
            col(EffectRow.state).in_([EffectState.REVIEW.value, EffectState.RELEASED.value]),
            col(EffectRow.effect_id) > after,
            newest != bundle,
        )
        .order_by(col(EffectRow.effect_id))
        .limit(limit)
    )
    return [(effect_id, txn, rev) for effect_id, txn, rev in conn.execute(query)]
