"""Report: record the outcomes of redeemed effects, as their redeemer reports them.

Only the redeemer reports, naming its attempt. Reporting again changes nothing. The first outcome is kept, and a
contradicting one becomes a task. An unknown outcome becomes a task too, which a later report settles. An attempt that
the database lost in a restore is reported with a receipt from before (`restore_redemption.py`). Nothing here decides
whether an effect may fire: the redemption decided that.
"""

from __future__ import annotations

from countersign.contract import EffectState, Outcome, TaskAnswer, TaskKind, can_transition, canonicalize
from countersign.contract.wire import ReportedOutcome, ReportRequest
from policy_service.errors import ConflictError, InvalidRequestError, NotFoundError
from policy_service.identity.agents import Caller
from policy_service.queries import repository
from policy_service.queries.archived import require_attempt_not_archived
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.tables import EffectRow
from policy_service.workflow.authorization import require_redeemer
from policy_service.workflow.effects.outcomes import apply_outcome, sync_transaction_state
from policy_service.workflow.releases.redeem import require_attempt
from policy_service.workflow.releases.restore_redemption import (
    ReceiptProof,
    record_archived_contradiction,
    restore_redemption,
    verify_receipt,
)
from policy_service.workflow.transitions import (
    TransitionReason,
    audit_effect,
    close_tasks,
    open_task,
    set_columns,
    transition_effect,
)

_MAX_ERROR = 2_000  # characters kept of the redeemer's error text
_REPORTABLE = frozenset({Outcome.FIRED, Outcome.FAILED, Outcome.UNKNOWN, Outcome.UNUSED})
_NOT_FIRED = frozenset({EffectState.FAILED, EffectState.UNUSED})
_AFTER_FIRED = frozenset({EffectState.COMPENSATING, EffectState.COMPENSATED, EffectState.COMPENSATION_FAILED})


async def report(ctx: Context, caller: Caller, sent: ReportRequest) -> Snapshot:
    """Record outcomes; returns the transaction afterwards.

    Raises:
        NotFoundError: unknown_attempt (also for any other party), or an effect that the attempt did not redeem.
        ForbiddenError: not_redeemer.
        InvalidRequestError: bad_token: the receipt proves nothing.
        ConflictError: already_reported: the transaction is archived.
    """
    for outcome in sent.outcomes:
        if outcome.outcome not in _REPORTABLE:
            raise InvalidRequestError(
                f"{outcome.outcome.value!r} cannot be reported: it follows from the report about the compensation"
            )
    proof = None if sent.recall is None else verify_receipt(ctx, caller, sent.attempt_id, sent.recall)
    done = await ctx.db.write(lambda tx: _report(tx, ctx, caller, sent, proof))
    if isinstance(done, ConflictError):
        raise done
    return done


def _report(
    tx: Tx, ctx: Context, caller: Caller, sent: ReportRequest, proof: ReceiptProof | None
) -> Snapshot | ConflictError:
    if proof is not None:
        tx = lock_transaction(tx, proof.claims.txn)
        if repository.attempt_of(tx.conn, caller.agent, sent.attempt_id) is None:
            require_attempt_not_archived(tx.conn, caller.agent, sent.attempt_id)
            if (refusal := record_archived_contradiction(tx, proof, sent.outcomes)) is not None:
                return refusal
            snapshot = restore_redemption(tx, ctx.active.current, caller, proof)
            if repository.attempt_of(tx.conn, caller.agent, sent.attempt_id) is None:
                return snapshot  # redeemed under another attempt as well, which is a task now
    attempt = require_attempt(tx.conn, caller, sent.attempt_id)
    if tx.locked_txn is None:
        tx = lock_transaction(tx, attempt.txn)
    snapshot = repository.require_transaction(tx.conn, attempt.txn, attempt.rev)
    require_redeemer(caller, snapshot.transaction)
    cause = TransitionReason.by_agent(caller.agent, "report", {"attempt_id": sent.attempt_id})
    for outcome in sent.outcomes:
        effect = snapshot.find(outcome.effect_id)
        if effect is None or effect.redeemed_by != sent.attempt_id:
            raise NotFoundError(f"the attempt did not redeem an effect {outcome.effect_id!r}")
        _record(tx, snapshot, effect, outcome, cause)
    sync_transaction_state(tx, snapshot, cause)
    return snapshot


def _record(
    tx: Tx, snapshot: Snapshot, effect: EffectRow, outcome: ReportedOutcome, cause: TransitionReason
) -> None:
    to, state = EffectState(outcome.outcome.value), EffectState(effect.state)
    result = None if outcome.result is None else canonicalize(outcome.result)
    if to is state or (to is EffectState.FIRED and state in _AFTER_FIRED):
        # A person who settled it as fired may not have known the result, which its compensation can need.
        if state is EffectState.FIRED and effect.result is None and result is not None:
            set_columns(tx, effect, result=result)
        return
    if {state, to} == _NOT_FIRED and _settled_as_not_fired(effect):
        return  # people cannot distinguish a failed call from an unused one, so neither contradicts them
    if not can_transition(state, to):
        if to is not EffectState.UNKNOWN:  # an unknown outcome contradicts nothing
            _record_contradiction(tx, effect, to, cause)
        return
    transition_effect(tx, effect, to, cause, result=result, error=(outcome.error or "")[:_MAX_ERROR] or None)
    if state is EffectState.UNKNOWN:
        close_tasks(tx, effect, cause, TaskKind.UNKNOWN, TaskKind.RESTORED)
    apply_outcome(tx, snapshot, effect, cause)


def _settled_as_not_fired(effect: EffectRow) -> bool:
    return any(settled["answer"] == TaskAnswer.NOT_FIRED.value for settled in effect.settlements)


def _record_contradiction(tx: Tx, effect: EffectRow, reported: EffectState, cause: TransitionReason) -> None:
    text = f"{effect.tool} is recorded as {effect.state}; a later report says {reported.value}"
    body = {"recorded": effect.state, "told": reported.value, **cause.detail}
    audit_effect(tx, effect, "outcome_contradicted", cause.actor, body)
    open_task(tx, effect, TaskKind.CONTRADICTION, text, cause)
    set_columns(tx, effect, error=(effect.error or text)[:_MAX_ERROR])
