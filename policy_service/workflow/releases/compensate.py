"""Compensate: take back an effect that fired, by an effect of its own.

The arguments are built here from the manifest's mapping, the stored forward arguments and the reported result, never
by the agent. The policy is asked then: a plain forbid makes a task; gates count as met when people approved the
forward effect (the compensation was shown to them), else they are asked. A freeze of the agent does not stop it.
Asked for again, it answers with the compensation as it is now; it is redeemed at most once.
"""

from __future__ import annotations

from dataclasses import dataclass

from countersign.contract import (
    JSON,
    Compensation,
    ContractError,
    Effect,
    EffectState,
    ErrorCode,
    Resource,
    Verdict,
    admit,
    canonicalize,
    compensation_args,
    load,
    names,
)
from policy_service.domain.policy_request import Facts
from policy_service.errors import ConflictError, NotFoundError
from policy_service.identity.agents import Caller
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.effects import gates_of, manifest_for
from policy_service.queries.repository import Snapshot, left_as_fired
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.tables import AgentRow, EffectRow
from policy_service.workflow.authorization import require_active_caller, require_redeemer
from policy_service.workflow.effects.compensation_tasks import (
    COMPENSATION_DUE,
    compensation_failed,
    compensation_impossible,
)
from policy_service.workflow.effects.effect_rows import apply_first_decision, new_effect_row
from policy_service.workflow.effects.emergency_stop import require_not_stopped
from policy_service.workflow.effects.evaluation import (
    evaluate_new_effect,
    gather_facts,
    is_preapproved_compensation,
    record_decision,
    require_current_bundle,
    weakest_auth_method,
    with_stable_bundle,
)
from policy_service.workflow.effects.open_review import open_review
from policy_service.workflow.effects.revisions import audit_submitted_effect
from policy_service.workflow.effects.termination import expire_effect
from policy_service.workflow.metering import lock_meters
from policy_service.workflow.releases.mint import UnsignedRelease, mint
from policy_service.workflow.releases.release import sign_releases
from policy_service.workflow.transitions import (
    TransitionReason,
    agent_actor,
    close_tasks,
    insert,
    sync_transaction_state,
    transition_effect,
)


@dataclass(frozen=True)
class CompensationResult:
    """A compensation as it is, with its signed release when it may go."""

    snapshot: Snapshot
    effect: EffectRow
    release: str | None


async def compensate(ctx: Context, caller: Caller, txn: str, effect_id: str) -> CompensationResult:
    """Ask for the release of a compensation.

    Raises:
        NotFoundError, ForbiddenError: not this caller's to redeem.
        ConflictError: the effect did not fire, or has no compensation (illegal_state).
    """

    async def under(bundle: Bundle) -> CompensationResult:
        snapshot = await ctx.db.read(lambda conn: repository.require_transaction(conn, txn))
        require_redeemer(caller, snapshot.transaction)
        try:
            undo = _known(snapshot, effect_id) or _build(bundle, snapshot, effect_id)
        except _ImpossibleError as error:
            why = str(error)
            await ctx.db.write(lambda tx: _give_up(tx, caller, txn, effect_id, why))
            raise ConflictError(why) from error
        facts = await gather_facts(bundle, [undo], ctx.clock())
        after, minted = await ctx.db.write(
            lambda tx: _compensate(tx, ctx, bundle, caller, txn, effect_id, facts[undo.effect_id])
        )
        effect = _require(after, undo.effect_id)
        tokens = sign_releases(ctx, minted)
        return CompensationResult(after, effect, tokens[0] if tokens else None)

    return await with_stable_bundle(ctx, under)


def _require(snapshot: Snapshot, effect_id: str) -> EffectRow:
    effect = snapshot.find(effect_id)
    if effect is None:
        raise NotFoundError(f"the transaction holds no effect {effect_id!r}")
    return effect


def _build(bundle: Bundle, snapshot: Snapshot, effect_id: str) -> EffectRow:
    """The compensation of a fired effect, named and with its arguments; not stored yet."""
    forward = _require_fired(snapshot, effect_id)
    if forward.compensation is None or forward.kind != "effect":
        raise ConflictError(f"{forward.tool} has no compensation in its manifest; a person settles it")
    rule = Compensation(**forward.compensation)
    call_key = names.compensation_call_key(effect_id=forward.effect_id, tool=rule.tool)
    try:
        result = None if forward.result is None else load(forward.result)
        args = admit(compensation_args(rule.map, args=load(forward.args), result=result))
    except ContractError as error:
        raise _ImpossibleError(f"the compensation of {forward.tool} cannot be built: {error}") from error
    effect = Effect(
        agent=forward.agent,
        txn=forward.txn,
        effect_id=names.effect_id(txn=forward.txn, call_key=call_key),
        seq=forward.seq,
        tool=rule.tool,
        tool_digest=rule.tool_digest,
        resource=_resource(bundle, rule, args) or Resource(forward.resource_type, forward.resource_id),
        args_bytes=canonicalize(args),
        call_key=call_key,
    )
    return new_effect_row(bundle, effect, forward.rev, compensates=forward.effect_id)


class _ImpossibleError(Exception):
    """The manifest's mapping finds no value for an argument (a result that was never reported, mostly), or makes args
    beyond the limits of admission."""


def _resource(bundle: Bundle, rule: Compensation, args: JSON) -> Resource | None:
    manifest = manifest_for(bundle, rule.tool, rule.tool_digest)
    try:
        return None if manifest is None else manifest.resource_of(args)
    except ContractError:
        return None  # the args do not fit the compensating tool: the decision will be `invalid_args`


def _known(snapshot: Snapshot, effect_id: str) -> EffectRow | None:
    return next((e for e in snapshot.compensations if e.compensates == effect_id), None)


def _require_fired(snapshot: Snapshot, effect_id: str) -> EffectRow:
    forward = _require(snapshot, effect_id)
    if EffectState(forward.state) is not EffectState.FIRED:
        raise ConflictError(
            f"{forward.tool} is {forward.state}; only what has fired can be compensated",
            code=ErrorCode.ILLEGAL_STATE,
            state=forward.state,
        )
    if left_as_fired(forward):
        raise ConflictError(
            f"a person settled that {forward.tool} stays as it fired; nothing takes it back any more",
            state=forward.state,
        )
    return forward


def _give_up(tx: Tx, caller: Caller, txn: str, effect_id: str, why: str) -> None:
    """Nobody can take it back by a call: a person is told."""
    tx = lock_transaction(tx, txn)
    snapshot = repository.require_transaction(tx.conn, txn)
    forward = _require_fired(snapshot, effect_id)
    compensation_impossible(
        tx, snapshot, forward, why, TransitionReason(agent_actor(caller.agent), "compensate")
    )


def _compensate(
    tx: Tx, ctx: Context, bundle: Bundle, caller: Caller, txn: str, effect_id: str, facts: Facts
) -> tuple[Snapshot, list[UnsignedRelease]]:
    require_current_bundle(ctx, bundle)
    tx = lock_transaction(tx, txn)
    snapshot = repository.require_transaction(tx.conn, txn)
    require_redeemer(caller, snapshot.transaction)
    require_active_caller(tx, caller, "compensate")
    cause = TransitionReason(agent_actor(caller.agent), "compensate")
    known = _known(snapshot, effect_id)
    undo = known or _open(
        tx, ctx, bundle, snapshot, _build(bundle, snapshot, effect_id), facts, caller, cause
    )
    require_not_stopped(tx, [undo.tool])
    if EffectState(undo.state) is not EffectState.RELEASED:
        return snapshot, []
    if undo.lapses_at is None or tx.now >= undo.lapses_at:
        expire_effect(tx, snapshot, undo)
        return snapshot, []
    return snapshot, mint(tx, ctx, snapshot, [undo], caller, undo.lapses_at, cause)


def _open(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    snapshot: Snapshot,
    undo: EffectRow,
    facts: Facts,
    caller: Caller,
    cause: TransitionReason,
) -> EffectRow:
    forward = _require_fired(snapshot, undo.compensates or "")
    agent = _agent(tx, forward.agent)
    lock_meters(tx, bundle, [undo])
    decision, sight = evaluate_new_effect(
        tx,
        ctx,
        bundle,
        agent,
        undo,
        facts,
        txn_size=1,
        claimed=snapshot.transaction.claimed,
        reevaluated=True,
        method=weakest_auth_method(snapshot, caller),
    )
    asks = decision.outcome is Verdict.REVIEW and not is_preapproved_compensation(snapshot, undo)
    denied = decision.outcome is Verdict.DENY
    state = EffectState.DENIED if denied else EffectState.REVIEW if asks else EffectState.RELEASED
    apply_first_decision(undo, state, decision, tx.now)
    if not asks:
        undo.gates = []  # met by the people who approved the forward effect, to whom this was shown
    audit_submitted_effect(tx, undo, cause)
    undo.decision_id = record_decision(tx, snapshot, undo, decision, facts, sight, cause)
    insert(tx, undo)
    snapshot.compensations.append(undo)
    transition_effect(tx, forward, EffectState.COMPENSATING, cause)
    close_tasks(tx, forward, cause, COMPENSATION_DUE)
    if asks:
        open_review(tx, bundle, snapshot, undo, gates_of(undo), cause)
    if denied:
        compensation_failed(tx, snapshot, undo, "the policy forbids its compensation", cause)
    sync_transaction_state(tx, snapshot, cause)
    return undo


def _agent(tx: Tx, name: str) -> AgentRow:
    """The agent, frozen or not: a freeze does not stop a compensation."""
    agent = repository.agent_of(tx.conn, name)
    if agent is None:
        raise NotFoundError(f"the agent {name!r} is not enrolled any more")
    return agent
