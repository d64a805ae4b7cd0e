"""Renew: the same attempt gets a fresh ``fire_by`` for effects it has not fired.

Everything is asked again. If the policy does not release one of them any more, nothing is renewed. Whether an effect is
then ``unused`` or ``unknown`` only the redeemer knows, and it reports that: we do not guess what may already be firing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from countersign.contract import EffectState, ErrorCode
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
from policy_service.workflow.active_commit import require_active_commit
from policy_service.workflow.authorization import (
    require_active_caller,
    require_effect_agent,
    require_redeemer,
)
from policy_service.workflow.effects.apply_evaluation import merge_gates, release_window, update_break_glass
from policy_service.workflow.effects.emergency_stop import require_not_stopped
from policy_service.workflow.effects.evaluation import (
    gather_facts,
    reevaluate,
    require_current_bundle,
    with_stable_bundle,
)
from policy_service.workflow.metering import lock_missing_meters
from policy_service.workflow.releases.mint import receipt_claims
from policy_service.workflow.releases.redeem import (
    RedeemResult,
    UnsignedReceipt,
    outcome_deadline,
    sign_receipt,
)
from policy_service.workflow.transitions import TransitionReason, agent_actor, audit_effect, set_columns


async def renew(ctx: Context, caller: Caller, attempt_id: str, effect_ids: Sequence[str]) -> RedeemResult:
    """Ask for more time to fire.

    Raises:
        NotFoundError: unknown_attempt.
        ForbiddenError: not_redeemer, or the agent is frozen.
        ConflictError: an effect has an outcome already (illegal_state).
    """

    async def under(bundle: Bundle) -> RedeemResult:
        attempt, snapshot = await ctx.db.read(lambda conn: attempt_and_snapshot(conn, caller, attempt_id))
        asked = [e for e in [*snapshot.effects, *snapshot.compensations] if e.effect_id in effect_ids]
        facts = await gather_facts(bundle, asked, ctx.clock())
        spent = await ctx.db.write(lambda tx: _renew(tx, ctx, bundle, caller, attempt_id, effect_ids, facts))
        return sign_receipt(ctx, spent, attempt.attempt_id)

    return await with_stable_bundle(ctx, under)


def attempt_and_snapshot(conn: Connection, caller: Caller, attempt_id: str) -> tuple[AttemptRow, Snapshot]:
    """An attempt of this party and its transaction.

    Raises:
        NotFoundError: unknown_attempt.
    """
    attempt = require_attempt(conn, caller, attempt_id)
    return attempt, repository.require_transaction(conn, attempt.txn, attempt.rev)


def require_attempt(conn: Connection, caller: Caller, attempt_id: str) -> AttemptRow:
    """An attempt of this party. Of which transaction it is never changes.

    Raises:
        NotFoundError: unknown_attempt.
    """
    attempt = repository.attempt_of(conn, caller.agent, attempt_id)
    if attempt is None:
        raise NotFoundError(f"there is no attempt {attempt_id!r}", code=ErrorCode.UNKNOWN_ATTEMPT)
    return attempt


def _renew(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    caller: Caller,
    attempt_id: str,
    effect_ids: Sequence[str],
    facts: Mapping[str, Facts],
) -> UnsignedReceipt:
    require_current_bundle(ctx, bundle)
    tx = lock_transaction(tx, require_attempt(tx.conn, caller, attempt_id).txn)
    require_active_commit(tx, ctx, bundle)
    attempt, snapshot = attempt_and_snapshot(tx.conn, caller, attempt_id)
    require_redeemer(caller, snapshot.transaction)
    require_active_caller(tx, caller, attempt.kind)
    effects = [_open_effect(snapshot, attempt, effect_id) for effect_id in dict.fromkeys(effect_ids)]
    require_not_stopped(tx, [effect.tool for effect in effects])
    cause = TransitionReason(agent_actor(caller.agent), "renew", {"attempt_id": attempt_id})
    allowed = (
        not _over(tx, snapshot, effects, cause)
        and _all_released(tx, ctx, bundle, snapshot, effects, facts, caller, cause)
        # asked again: a valid_for may have become shorter than the time that has passed
        and not _over(tx, snapshot, effects, cause)
    )
    if not allowed:
        return UnsignedReceipt(repository.require_transaction(tx.conn, attempt.txn, attempt.rev), None)
    fire_by = tx.now + timedelta(seconds=ctx.settings.fire_window_s)
    _set_fire_by(tx.conn, attempt, fire_by)
    for effect in effects:
        set_columns(tx, effect, fire_by=fire_by, unknown_at=outcome_deadline(ctx, bundle, effect, attempt))
        _log(tx, effect, "redemption_renewed", cause, fire_by=int(fire_by.timestamp()))
    redemptions = repository.redemptions_of(tx.conn, attempt)
    return UnsignedReceipt(
        snapshot, receipt_claims(ctx, snapshot, attempt, redemptions, effects, caller, tx.now)
    )


def _open_effect(snapshot: Snapshot, attempt: AttemptRow, effect_id: str) -> EffectRow:
    effect = snapshot.find(effect_id)
    if effect is None or effect.redeemed_by != attempt.attempt_id:
        raise NotFoundError(f"the attempt did not redeem an effect {effect_id!r}")
    if EffectState(effect.state) is not EffectState.REDEEMED:
        raise ConflictError(
            f"the effect is {effect.state} already; nothing is left to renew", state=effect.state
        )
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
    lock_missing_meters(tx, bundle, effects)
    for effect in effects:
        answer = reevaluate(
            tx, ctx, bundle, agent, snapshot, effect, facts[effect.effect_id], cause, caller=caller
        )
        merge_gates(tx, effect, answer)
        if not answer.releases:
            _log(tx, effect, "renewal_refused", cause, decision_id=answer.decision_id)
            return False
        update_break_glass(tx, snapshot, effect, answer.tally.opened, cause)
    return True


def _over(tx: Tx, snapshot: Snapshot, effects: Sequence[EffectRow], cause: TransitionReason) -> bool:
    """Whether the time these releases might be used is over: an attempt is renewed within it, not beyond (I-4)."""
    until = _until(snapshot, effects)
    if until is None or tx.now < until:
        return False
    for effect in effects:
        _log(tx, effect, "renewal_refused", cause, valid_until=int(until.timestamp()))
    return True


def _until(snapshot: Snapshot, effects: Sequence[EffectRow]) -> datetime | None:
    """The end of these releases by the shortest valid_for that was ever given; a compensation has one of its own."""
    if effects[0].kind == "compensate":
        return effects[0].lapses_at
    transaction = snapshot.transaction
    if transaction.ready_at is None or transaction.valid_until is None:
        return transaction.valid_until
    return min(transaction.valid_until, release_window(snapshot, transaction.ready_at)[1])


def _log(tx: Tx, effect: EffectRow, kind: str, cause: TransitionReason, **detail: Any) -> None:
    audit_effect(tx, effect, kind, cause.actor, {"attempt_id": effect.redeemed_by, **detail})


def _set_fire_by(conn: Connection, attempt: AttemptRow, fire_by: datetime) -> None:
    """The end of an attempt's time to fire, as its newest receipt says."""
    named = {"redeemer": attempt.redeemer, "attempt_id": attempt.attempt_id}
    update_rows(conn, AttemptRow, named, {"fire_by": fire_by})
    attempt.fire_by = fire_by
