"""Report: what became of redeemed effects, told by the party that redeemed them.

Rules: only the redeeming party reports, naming its attempt; the same report again changes nothing; the first outcome
stands and a contradicting one becomes a task; an unknown becomes a task, and a later report of what really happened
settles it. An attempt this database has forgotten is told with a receipt from before the restore (recall.py). Nothing
here decides whether an effect may fire: that was over with the redemption.
"""

from __future__ import annotations

from collections.abc import Sequence

from countersign.contract import EffectState, Outcome, TaskAnswer, TaskKind, can_transition, canonicalize
from countersign.contract.wire import ReportedOutcome, ReportRequest
from policy_service.errors import InvalidRequestError, NotFoundError
from policy_service.identity.agents import Caller
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.tables import EffectRow
from policy_service.workflow.authorization import require_redeemer
from policy_service.workflow.effects.compensation_tasks import compensation_failed
from policy_service.workflow.releases.renew import require_attempt
from policy_service.workflow.releases.restore_redemption import restore_redemption
from policy_service.workflow.releases.verify_receipt import ReceiptProof, verify_receipt
from policy_service.workflow.transitions import (
    TransitionReason,
    agent_actor,
    audit_effect,
    close_tasks,
    open_task,
    set_columns,
    sync_transaction_state,
    transition_effect,
)

_MAX_ERROR = 2_000  # characters of the redeemer's error text that are kept


async def report(ctx: Context, caller: Caller, told: ReportRequest) -> Snapshot:
    """Record outcomes; the transaction as it is afterwards.

    Raises:
        NotFoundError: unknown_attempt (for every other party too), or an effect the attempt did not redeem.
        ForbiddenError: not_redeemer.
        InvalidRequestError: bad_token: a recall that proves nothing.
    """
    _require_reportable(told.outcomes)
    recalled = None if told.recall is None else verify_receipt(ctx, caller, told.attempt_id, told.recall)
    return await ctx.db.write(lambda tx: _report(tx, ctx, caller, told, recalled))


def _report(
    tx: Tx, ctx: Context, caller: Caller, told: ReportRequest, recalled: ReceiptProof | None
) -> Snapshot:
    if recalled is not None:
        tx = lock_transaction(tx, recalled.claims.txn)
        if repository.attempt_of(tx.conn, caller.agent, told.attempt_id) is None:
            snapshot = restore_redemption(tx, ctx.active.current, caller, recalled)
            if repository.attempt_of(tx.conn, caller.agent, told.attempt_id) is None:
                return snapshot  # redeemed under another attempt too: people were told
    attempt = require_attempt(tx.conn, caller, told.attempt_id)
    if tx.alone_with is None:
        tx = lock_transaction(tx, attempt.txn)
    snapshot = repository.require_transaction(tx.conn, attempt.txn, attempt.rev)
    require_redeemer(caller, snapshot.transaction)
    cause = TransitionReason(agent_actor(caller.agent), "report", {"attempt_id": told.attempt_id})
    for outcome in told.outcomes:
        effect = snapshot.find(outcome.effect_id)
        if effect is None or effect.redeemed_by != told.attempt_id:
            raise NotFoundError(f"the attempt did not redeem an effect {outcome.effect_id!r}")
        _take(tx, snapshot, effect, outcome, cause)
    sync_transaction_state(tx, snapshot, cause)
    return snapshot


def _require_reportable(outcomes: Sequence[ReportedOutcome]) -> None:
    for told in outcomes:
        if told.outcome not in _REPORTABLE:
            raise InvalidRequestError(
                f"{told.outcome.value!r} is not reported: it follows from what the compensation itself reports"
            )


_REPORTABLE = frozenset({Outcome.FIRED, Outcome.FAILED, Outcome.UNKNOWN, Outcome.UNUSED})


def _take(
    tx: Tx, snapshot: Snapshot, effect: EffectRow, outcome: ReportedOutcome, cause: TransitionReason
) -> None:
    to, state = EffectState(outcome.outcome.value), EffectState(effect.state)
    if to is state or (to is EffectState.FIRED and state in _AFTER_FIRED):
        _complete(tx, effect, outcome)
        return  # the same report again, or what a person has said already
    if {state, to} == _NOT_DONE and _said_not_fired(effect):
        return  # a person does not tell a call that failed from one that never was; neither contradicts their word
    if not can_transition(state, to):
        _contradicted(tx, effect, to, cause)
        return
    result = None if outcome.result is None else canonicalize(outcome.result)
    transition_effect(tx, effect, to, cause, result=result, error=(outcome.error or "")[:_MAX_ERROR] or None)
    if state is EffectState.UNKNOWN:
        close_tasks(tx, effect, cause, TaskKind.UNKNOWN, TaskKind.RESTORED)
    apply_outcome(tx, snapshot, effect, cause)


_NOT_DONE = frozenset({EffectState.FAILED, EffectState.UNUSED})


def _said_not_fired(effect: EffectRow) -> bool:
    return any(said["answer"] == TaskAnswer.NOT_FIRED.value for said in effect.settlements)


def _complete(tx: Tx, effect: EffectRow, outcome: ReportedOutcome) -> None:
    """A person who said that it fired may not have known its result; whoever fired it does, and its compensation may
    need it. A result that is there already stands."""
    if (
        EffectState(effect.state) is EffectState.FIRED
        and effect.result is None
        and outcome.result is not None
    ):
        set_columns(tx, effect, result=canonicalize(outcome.result))


_AFTER_FIRED = frozenset({EffectState.COMPENSATING, EffectState.COMPENSATED, EffectState.COMPENSATION_FAILED})


def _contradicted(tx: Tx, effect: EffectRow, told: EffectState, cause: TransitionReason) -> None:
    if told is EffectState.UNKNOWN:
        return  # knowing less than we do contradicts nothing
    text = f"{effect.tool} is recorded as {effect.state}; a later report says {told.value}"
    body = {"recorded": effect.state, "told": told.value, **cause.detail}
    audit_effect(tx, effect, "outcome_contradicted", cause.actor, body)
    open_task(tx, effect, TaskKind.CONTRADICTION, text, cause)
    set_columns(tx, effect, error=(effect.error or text)[:_MAX_ERROR])


def apply_outcome(tx: Tx, snapshot: Snapshot, effect: EffectRow, cause: TransitionReason) -> None:
    """What an outcome brings with it: a task for an unknown, and the forward effect of a compensation."""
    state = EffectState(effect.state)
    if state is EffectState.UNKNOWN:
        text = f"we do not know whether {effect.tool} fired for {effect.resource_type} {effect.resource_id}"
        open_task(tx, effect, TaskKind.UNKNOWN, text, cause)
    if effect.kind != "compensate":
        return
    if state is EffectState.FIRED:
        forward = snapshot.find(effect.compensates or "")
        if forward is not None:
            transition_effect(tx, forward, EffectState.COMPENSATED, cause)
    elif state in {EffectState.FAILED, EffectState.UNUSED}:
        compensation_failed(tx, snapshot, effect, f"its compensation {state.value}", cause)
