"""Activation: a new bundle is in force, so every open effect is asked about again.

What it denies ends; what it asks people about waits for them, again if it had been released. A laxer bundle releases
nothing: the gates of a revision stay. Only votes that stand on it already do, when their people count again.

Nobody waits for that: a start serves while it goes on, and /readyz says how far it is. Nothing unsafe goes meanwhile,
because redemption asks again.

An effect that cannot be asked about is logged, stops no other, and is asked about again at every look until it was.
What was asked is told by the decisions themselves: an effect whose newest one is of the bundle in force is not asked
about again, so a start under an unchanged bundle asks nothing.
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
from policy_service.workflow.bundle_refresh import refresh_bundle
from policy_service.workflow.effects.apply_evaluation import apply_evaluation
from policy_service.workflow.effects.evaluation import (
    gather_facts,
    reevaluate,
    require_current_bundle,
    with_stable_bundle,
)
from policy_service.workflow.effects.termination import expire_if_unused
from policy_service.workflow.transitions import SERVICE, TransitionReason

log = structlog.get_logger(__name__)

_PAUSE_S = 1.0  # whoever may ask for a look may not make us knock at the remote all the time
_OPEN = frozenset({EffectState.REVIEW, EffectState.RELEASED})


async def activate(ctx: Context) -> bool:
    """Look at the bundle's source; when it holds another valid bundle, put it in force and ask again about what is
    open.

    A bundle that does not load leaves the last good one active; the status and the log say why.
    """
    reloaded = await refresh_bundle(ctx)
    await reevaluate_open_effects(ctx)
    return reloaded.changed


async def refresh_on_request(ctx: Context) -> None:
    """Look as often as somebody asks, and not without a pause. Until cancelled."""
    while True:
        await ctx.looks.wait()
        try:
            await activate(ctx)
        except Exception:
            log.exception("look_failed")  # the job looks again; who asked was told nothing of its end
        await asyncio.sleep(_PAUSE_S)


async def reevaluate_open_effects(ctx: Context) -> int:
    """Ask the active bundle about every open effect it has not answered for yet; how many were asked about.

    One round at a time; who comes meanwhile waits, and finds it done.

    Once it has answered for all, this process looks no more until another bundle is in force. That is also what keeps
    replicas with different folders from asking by turns for ever: each asks once for a bundle of its own, what the
    older folder decides afterwards is asked about when that replica follows, and redemption asks again anyway.
    """
    async with ctx.active.asking:
        return await _ask_about_open(ctx)


async def _ask_about_open(ctx: Context) -> int:
    active = ctx.active
    digest, after = active.current.digest, ""
    if active.fully_reevaluated == digest:
        return 0
    active.fully_reevaluated = None  # rules that come back are asked about what came under others meanwhile
    active.asked = active.unasked = 0
    while page := await ctx.db.read(lambda conn, after=after: _not_asked(conn, digest, after, 100)):  # type: ignore[misc]
        for effect_id, txn, rev in page:
            try:
                await _ask_one(ctx, effect_id, txn, rev)
                active.asked += 1
            except Exception:
                # Whatever is wrong with this one must not leave the others under rules that no longer hold.
                active.unasked += 1
                log.exception("asking_failed", effect_id=effect_id, bundle=digest)
            active.report_progress()
        after = page[-1][0]
    if not active.unasked:
        active.fully_reevaluated = digest
    active.report_progress()
    return active.asked


async def _ask_one(ctx: Context, effect_id: str, txn: str, rev: int) -> None:
    async def under(bundle: Bundle) -> None:
        snapshot = await ctx.db.read(lambda conn: repository.require_transaction(conn, txn, rev))
        effect = snapshot.find(effect_id)
        if effect is not None:
            facts = await gather_facts(bundle, [effect], ctx.clock())
            await ctx.db.write(lambda tx: _ask_in(tx, bundle, effect_id, txn, rev, facts[effect_id]))

    def _ask_in(tx: Tx, bundle: Bundle, effect_id: str, txn: str, rev: int, facts: Facts) -> None:
        require_current_bundle(ctx, bundle)
        tx = lock_transaction(tx, txn)
        snapshot = repository.require_transaction(tx.conn, txn, rev)
        effect = snapshot.find(effect_id)
        agent = repository.agent_of(tx.conn, snapshot.transaction.agent)
        if effect is None or agent is None or EffectState(effect.state) not in _OPEN:
            return
        cause = TransitionReason(SERVICE, "activation")
        answer = reevaluate(tx, ctx, bundle, agent, snapshot, effect, facts, cause)
        apply_evaluation(tx, bundle, snapshot, effect, answer, cause)
        expire_if_unused(tx, snapshot)  # a valid_for may have become shorter than the time that has passed

    await with_stable_bundle(ctx, under)


def _not_asked(conn: Connection, bundle: str, after: str, limit: int) -> list[tuple[str, str, int]]:
    """A page of (effect_id, txn, rev), by key, that are open and whose newest decision is of another bundle."""
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
