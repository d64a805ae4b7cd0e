"""Renew: give effects of an attempt that have not fired yet a later `fire_by`.

The policy is evaluated again for each effect. If it no longer releases one of them, none is renewed. Whether that
effect is then `unused` or `unknown` only the redeemer knows, and it reports that: it may be firing right now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from countersign.contract import EffectState
from policy_service.domain.policy_request import Facts
from policy_service.errors import ConflictError, NotFoundError
from policy_service.identity.agents import Caller
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.core import update_rows
from policy_service.storage.database import Tx
from policy_service.storage.tables import AttemptRow, EffectRow
from policy_service.workflow.authorization import (
    require_active_caller,
    require_active_commit,
    require_effect_agent,
    require_not_stopped,
    require_redeemer,
)
from policy_service.workflow.effects.apply_evaluation import merge_gates, release_window, update_break_glass
from policy_service.workflow.effects.evaluation import (
    gather_facts,
    reevaluate_each,
    require_current_bundle,
    with_stable_bundle,
)
from policy_service.workflow.releases.redeem import (
    RedeemResult,
    Redemption,
    outcome_deadline,
    require_attempt,
    sign_receipt,
)
from policy_service.workflow.releases.release import receipt_claims
from policy_service.workflow.transitions import TransitionReason, audit_effect, set_columns


async def renew(ctx: Context, caller: Caller, attempt_id: str, effect_ids: Sequence[str]) -> RedeemResult:
    """Request more time to fire these effects.

    Raises:
        NotFoundError: unknown_attempt, or an effect that the attempt did not redeem.
        ForbiddenError: not_redeemer, or the agent is frozen.
        ConflictError: an effect has an outcome already (illegal_state).
    """

    async def work(bundle: Bundle) -> RedeemResult:
        _, snapshot = await ctx.db.read(lambda conn: _attempt_and_snapshot(conn, caller, attempt_id))
        wanted = [e for e in [*snapshot.effects, *snapshot.compensations] if e.effect_id in effect_ids]
        facts = await gather_facts(bundle, wanted, ctx.clock())
        redemption = await ctx.db.write(
            lambda tx: _renew(tx, ctx, bundle, caller, attempt_id, effect_ids, facts)
        )
        return sign_receipt(ctx, redemption, attempt_id)

    return await with_stable_bundle(ctx, work)


def _attempt_and_snapshot(conn: Connection, caller: Caller, attempt_id: str) -> tuple[AttemptRow, Snapshot]:
    attempt = require_attempt(conn, caller, attempt_id)
    return attempt, repository.require_transaction(conn, attempt.txn, attempt.rev)


def _renew(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    caller: Caller,
    attempt_id: str,
    effect_ids: Sequence[str],
    facts: Mapping[str, Facts],
) -> Redemption:
    require_current_bundle(ctx, bundle)
    tx = lock_transaction(tx, require_attempt(tx.conn, caller, attempt_id).txn)
    require_active_commit(tx, ctx, bundle)
    attempt, snapshot = _attempt_and_snapshot(tx.conn, caller, attempt_id)
    require_redeemer(caller, snapshot.transaction)
    stopped = require_active_caller(tx, caller, attempt.kind).stopped
    effects = [_unfired_effect(snapshot, attempt, effect_id) for effect_id in dict.fromkeys(effect_ids)]
    require_not_stopped(stopped, [effect.tool for effect in effects])
    cause = TransitionReason.by_agent(caller.agent, "renew", {"attempt_id": attempt_id})
    allowed = (
        not _has_expired(tx, snapshot, effects, cause.actor)
        and _all_released(tx, ctx, bundle, snapshot, effects, facts, caller, cause)
        # again, because an evaluation can shorten the validity below the time that has passed
        and not _has_expired(tx, snapshot, effects, cause.actor)
    )
    if not allowed:
        return repository.require_transaction(tx.conn, attempt.txn, attempt.rev), None
    attempt.fire_by = fire_by = tx.now + timedelta(seconds=ctx.settings.fire_window_s)
    named = {"redeemer": attempt.redeemer, "attempt_id": attempt.attempt_id}
    update_rows(tx.conn, AttemptRow, named, {"fire_by": fire_by})
    for effect in effects:
        unknown_at = outcome_deadline(ctx, bundle, effect, attempt)
        set_columns(tx, effect, fire_by=fire_by, unknown_at=unknown_at)
        _audit(tx, effect, "redemption_renewed", cause.actor, fire_by=int(fire_by.timestamp()))
    redemptions = repository.redemptions_of(tx.conn, attempt)
    return snapshot, receipt_claims(ctx, snapshot, attempt, redemptions, effects, caller, tx.now)


def _unfired_effect(snapshot: Snapshot, attempt: AttemptRow, effect_id: str) -> EffectRow:
    effect = snapshot.find(effect_id)
    if effect is None or effect.redeemed_by != attempt.attempt_id:
        raise NotFoundError(f"the attempt did not redeem an effect {effect_id!r}")
    if EffectState(effect.state) is not EffectState.REDEEMED:
        raise ConflictError(f"the effect is {effect.state} already and cannot be renewed", state=effect.state)
    return effect


def _all_released(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    snapshot: Snapshot,
    effects: Sequence[EffectRow],
    facts: Mapping[str, Facts],
    caller: Caller,
    cause: TransitionReason,
) -> bool:
    agent = require_effect_agent(tx, snapshot.transaction.agent, effects[0].kind)
    for effect, answer in reevaluate_each(tx, ctx, bundle, agent, snapshot, effects, facts, cause, caller):
        merge_gates(tx, effect, answer)
        if not answer.releases:
            _audit(tx, effect, "renewal_refused", cause.actor, decision_id=answer.decision_id)
            return False
        update_break_glass(tx, snapshot, effect, answer.tally.opened, cause)
    return True


def _has_expired(tx: Tx, snapshot: Snapshot, effects: Sequence[EffectRow], actor: str) -> bool:
    """Whether the validity of the releases has ended. An attempt is never renewed beyond it (I-4)."""
    until = _valid_until(snapshot, effects)
    if until is None or tx.now < until:
        return False
    for effect in effects:
        _audit(tx, effect, "renewal_refused", actor, valid_until=int(until.timestamp()))
    return True


def _valid_until(snapshot: Snapshot, effects: Sequence[EffectRow]) -> datetime | None:
    """The end of the validity, by the shortest ``valid_for`` so far. A compensation has its own."""
    if effects[0].kind == "compensate":
        return effects[0].lapses_at
    transaction = snapshot.transaction
    if transaction.ready_at is None or transaction.valid_until is None:
        return transaction.valid_until
    return min(transaction.valid_until, release_window(snapshot, transaction.ready_at)[1])


def _audit(tx: Tx, effect: EffectRow, kind: str, actor: str, **detail: Any) -> None:
    audit_effect(tx, effect, kind, actor, {"attempt_id": effect.redeemed_by, **detail})
