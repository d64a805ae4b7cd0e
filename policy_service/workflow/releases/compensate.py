"""Compensate: undo a fired effect by an effect of its own.

The arguments are built here from the manifest's mapping, the stored forward arguments and the reported result, never
by the agent. Then policy is evaluated: a deny becomes a task. Gates count as met if people approved the forward effect,
because its review showed the compensation. A freeze of the agent does not block compensations. A repeated request
returns the compensation as it is now. It is redeemed at most once.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from countersign.contract import (
    Compensation,
    ContractError,
    Effect,
    EffectState,
    ErrorCode,
    ReleaseClaims,
    Resource,
    Verdict,
    admit,
    canonicalize,
    compensation_args,
    digests,
    load,
)
from policy_service.domain.policy_request import Facts
from policy_service.errors import ConflictError, NotFoundError
from policy_service.identity.agents import Caller
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.archived import refuse_missing_to
from policy_service.queries.context import Context
from policy_service.queries.effects import gates_of
from policy_service.queries.repository import Snapshot, left_as_fired
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.tables import EffectRow
from policy_service.workflow.authorization import (
    require_active_caller,
    require_not_stopped,
    require_redeemer,
)
from policy_service.workflow.effects.digests import apply_first_decision, derive_resource, new_effect_row
from policy_service.workflow.effects.evaluation import (
    evaluate_new_effect,
    gather_facts,
    is_preapproved_compensation,
    record_decision,
    require_current_bundle,
    weakest_auth_method,
    with_stable_bundle,
)
from policy_service.workflow.effects.open_reviews import open_review
from policy_service.workflow.effects.outcomes import (
    COMPENSATION_DUE,
    compensation_failed,
    compensation_impossible,
    expire_effect,
    sync_transaction_state,
)
from policy_service.workflow.effects.revisions import audit_submitted_effect
from policy_service.workflow.metering import lock_meters
from policy_service.workflow.releases.release import mint, sign_releases
from policy_service.workflow.transitions import (
    TransitionReason,
    close_tasks,
    insert,
    transition_effect,
)


@dataclass(frozen=True)
class CompensationResult:
    """A compensation as it is, with its signed release if it may fire."""

    snapshot: Snapshot
    effect: EffectRow
    release: str | None


class _ImpossibleError(Exception):
    """The mapping finds no value for an argument, usually of an unreported result, or the args exceed a limit."""


async def compensate(ctx: Context, caller: Caller, txn: str, effect_id: str) -> CompensationResult:
    """Request the release of a compensation.

    Raises:
        NotFoundError, ForbiddenError: the caller may not redeem it.
        ConflictError: already_redeemed: its transaction is archived, so it can never be compensated by the service.
        ConflictError: the effect did not fire, or has no compensation (illegal_state).
    """

    async def work(bundle: Bundle) -> CompensationResult:
        snapshot = await ctx.db.read(lambda conn: _load(conn, caller, txn))
        require_redeemer(caller, snapshot.transaction)
        try:
            undo = _known_compensation(snapshot, effect_id) or _build(bundle, snapshot, effect_id)
        except _ImpossibleError as error:
            why = str(error)
            await ctx.db.write(lambda tx: _record_impossible(tx, caller, txn, effect_id, why))
            raise ConflictError(why) from error
        facts = await gather_facts(bundle, [undo], ctx.clock())
        after, claims = await ctx.db.write(
            lambda tx: _compensate(tx, ctx, bundle, caller, txn, effect_id, facts[undo.effect_id])
        )
        effect = _require_effect(after, undo.effect_id)
        return CompensationResult(after, effect, next(iter(sign_releases(ctx, claims)), None))

    return await with_stable_bundle(ctx, work)


def _load(conn: Connection, caller: Caller, txn: str) -> Snapshot:
    return repository.load(conn, txn) or refuse_missing_to(conn, caller.agent, txn)


def _require_effect(snapshot: Snapshot, effect_id: str) -> EffectRow:
    effect = snapshot.find(effect_id)
    if effect is None:
        raise NotFoundError(f"the transaction holds no effect {effect_id!r}")
    return effect


def _known_compensation(snapshot: Snapshot, effect_id: str) -> EffectRow | None:
    return next((e for e in snapshot.compensations if e.compensates == effect_id), None)


def _require_fired(snapshot: Snapshot, effect_id: str) -> EffectRow:
    forward = _require_effect(snapshot, effect_id)
    if EffectState(forward.state) is not EffectState.FIRED:
        raise ConflictError(
            f"{forward.tool} is {forward.state}; only a fired effect can be compensated",
            code=ErrorCode.ILLEGAL_STATE,
            state=forward.state,
        )
    if left_as_fired(forward):
        raise ConflictError(
            f"a person decided to keep what {forward.tool} did; it can no longer be compensated",
            state=forward.state,
        )
    return forward


def _build(bundle: Bundle, snapshot: Snapshot, effect_id: str) -> EffectRow:
    """Build the compensation of a fired effect, without storing it."""
    forward = _require_fired(snapshot, effect_id)
    if forward.compensation is None or forward.kind != "effect":
        raise ConflictError(f"{forward.tool} has no compensation in its manifest; a person settles it")
    rule = Compensation(**forward.compensation)
    call_key = digests.compensation_call_key(effect_id=forward.effect_id, tool=rule.tool)
    try:
        result = None if forward.result is None else load(forward.result)
        args = admit(compensation_args(rule.map, args=load(forward.args), result=result))
    except ContractError as error:
        raise _ImpossibleError(f"the compensation of {forward.tool} cannot be built: {error}") from error
    resource = derive_resource(bundle, rule.tool, rule.tool_digest, args)
    effect = Effect(
        agent=forward.agent,
        txn=forward.txn,
        effect_id=digests.effect_id(txn=forward.txn, call_key=call_key),
        seq=forward.seq,
        tool=rule.tool,
        tool_digest=rule.tool_digest,
        resource=resource or Resource(forward.resource_type, forward.resource_id),
        args_bytes=canonicalize(args),
        call_key=call_key,
    )
    return new_effect_row(bundle, effect, forward.rev, compensates=forward.effect_id)


def _record_impossible(tx: Tx, caller: Caller, txn: str, effect_id: str, why: str) -> None:
    tx = lock_transaction(tx, txn)
    snapshot = repository.require_transaction(tx.conn, txn)
    forward = _require_fired(snapshot, effect_id)
    cause = TransitionReason.by_agent(caller.agent, "compensate")
    compensation_impossible(tx, snapshot, forward, why, cause)


def _compensate(
    tx: Tx, ctx: Context, bundle: Bundle, caller: Caller, txn: str, effect_id: str, facts: Facts
) -> tuple[Snapshot, list[ReleaseClaims]]:
    require_current_bundle(ctx, bundle)
    tx = lock_transaction(tx, txn)
    snapshot = _load(tx.conn, caller, txn)
    require_redeemer(caller, snapshot.transaction)
    stopped = require_active_caller(tx, caller, "compensate").stopped
    cause = TransitionReason.by_agent(caller.agent, "compensate")
    undo = _known_compensation(snapshot, effect_id)
    if undo is None:
        undo = _build(bundle, snapshot, effect_id)
        _store(tx, ctx, bundle, snapshot, undo, facts, caller, cause)
    require_not_stopped(stopped, [undo.tool])
    if EffectState(undo.state) is not EffectState.RELEASED:
        return snapshot, []
    if undo.lapses_at is None or tx.now >= undo.lapses_at:
        expire_effect(tx, snapshot, undo)
        return snapshot, []
    return snapshot, mint(tx, ctx, snapshot, [undo], caller, undo.lapses_at, cause)


def _store(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    snapshot: Snapshot,
    undo: EffectRow,
    facts: Facts,
    caller: Caller,
    cause: TransitionReason,
) -> None:
    """Decide about a new compensation, store it, and open its review or task."""
    forward = _require_fired(snapshot, undo.compensates or "")
    agent = repository.agent_of(tx.conn, forward.agent)  # frozen or not
    if agent is None:
        raise NotFoundError(f"the agent {forward.agent!r} is no longer enrolled")
    lock_meters(tx, bundle, [undo])
    about = {"txn_size": 1, "claimed": snapshot.transaction.claimed, "reevaluated": True}
    method = weakest_auth_method(snapshot, caller)
    decision, reading = evaluate_new_effect(tx, ctx, bundle, agent, undo, facts, method=method, **about)
    denied = decision.outcome is Verdict.DENY
    asks = decision.outcome is Verdict.REVIEW and not is_preapproved_compensation(snapshot, undo)
    state = EffectState.DENIED if denied else EffectState.REVIEW if asks else EffectState.RELEASED
    apply_first_decision(undo, state, decision, tx.now)
    if not asks:
        undo.gates = []  # met by the approvals of the forward effect, whose review showed this compensation
    audit_submitted_effect(tx, undo, cause)
    undo.decision_id = record_decision(tx, snapshot, undo, decision, facts, reading, cause)
    insert(tx, undo)
    snapshot.compensations.append(undo)
    transition_effect(tx, forward, EffectState.COMPENSATING, cause)
    close_tasks(tx, forward, cause, COMPENSATION_DUE)
    if asks:
        open_review(tx, bundle, snapshot, undo, gates_of(undo), cause)
    if denied:
        compensation_failed(tx, snapshot, undo, "policy denies its compensation", cause)
    sync_transaction_state(tx, snapshot, cause)
