"""How effects end, what their outcomes mean for the transaction, and which tasks that leaves to people.

An effect that ends unfired takes its siblings along: one transaction commits as one. A compensation ends alone; its
forward effect then remains fired. A fired effect that should not remain is a task, because otherwise no one would learn
of it (I-14).
"""

from __future__ import annotations

from typing import Any

from countersign.contract import EffectState, TaskKind, TxnState
from policy_service.domain.settlement import needs_manual_decision, needs_manual_settlement, transaction_state
from policy_service.queries.repository import Snapshot
from policy_service.storage.database import Tx
from policy_service.storage.tables import EffectRow
from policy_service.workflow.transitions import (
    TransitionReason,
    close_review,
    open_task,
    transition_effect,
    transition_transaction,
    withdraw_siblings,
)

COMPENSATION_DUE = TaskKind.COMPENSATION_DUE
"""The task about a fired effect that should have been compensated by now."""


# -- ending unfired ----------------------------------------------------------------------------------------------------


def end_effect(
    tx: Tx,
    snapshot: Snapshot,
    effect: EffectRow,
    to: EffectState,
    cause: TransitionReason,
    words: str | None = None,
) -> None:
    """End an open effect as denied, expired, withdrawn or revoked, with its review and its siblings.

    ``words`` are the text of the person or agent who ended it. They are stored with the effect, not in the audit log.
    """
    transition_effect(tx, effect, to, cause, taken_back=words)
    close_review(tx, snapshot, effect, to.value, cause)
    end_transaction(tx, snapshot, effect, cause)


def expire_effect(tx: Tx, snapshot: Snapshot, effect: EffectRow) -> None:
    """End an effect whose review was not answered, or whose release was not used, in time."""
    end_effect(tx, snapshot, effect, EffectState.EXPIRED, TransitionReason.by_service("expired"))


def expire_if_unused(tx: Tx, snapshot: Snapshot) -> bool:
    """Expire a ready transaction after its validity; whether it did. Each verb checks this itself: the sweep can be
    late."""
    until = snapshot.transaction.valid_until
    if snapshot.transaction.state != TxnState.READY.value or until is None or tx.now < until:
        return False
    expire_effect(tx, snapshot, snapshot.effects[0])
    return True


def expire_if_unanswered(tx: Tx, snapshot: Snapshot) -> None:
    """Expire a transaction that has a review past its deadline."""
    for effect in snapshot.effects:
        review = snapshot.review_of(effect)
        if review is not None and review.state == "open" and tx.now >= review.answer_by:
            expire_effect(tx, snapshot, effect)
            return


def end_transaction(tx: Tx, snapshot: Snapshot, effect: EffectRow, cause: TransitionReason) -> None:
    """End the rest of a transaction after one effect ended unfired. A compensation leaves only a task."""
    if effect.kind == "effect":
        withdraw_siblings(tx, snapshot, cause.because("sibling"), but=effect)
        sync_transaction_state(tx, snapshot, cause)
    else:
        compensation_failed(tx, snapshot, effect, f"its compensation was {effect.state}", cause)


# -- after redemption --------------------------------------------------------------------------------------------------


def sync_transaction_state(tx: Tx, snapshot: Snapshot, cause: TransitionReason, **changes: Any) -> None:
    """Move the transaction to the state that its effects imply, and open tasks for what only people can settle."""
    parts = snapshot.parts()
    to = transaction_state(parts)
    # A compensation that is under way does not reopen a transaction that was already reported as finished.
    reopened = to is TxnState.REDEEMED and snapshot.transaction.state != TxnState.READY.value
    if to.value != snapshot.transaction.state and not reopened:
        transition_transaction(tx, snapshot.transaction, to, cause, **changes)
    if needs_manual_settlement(parts):
        for effect, part in zip(snapshot.effects, parts, strict=True):
            if needs_manual_decision(part):
                text = f"{effect.tool} fired, its siblings did not, and it has no compensation"
                open_task(tx, effect, TaskKind.STANDING, text, cause)


def apply_outcome(tx: Tx, snapshot: Snapshot, effect: EffectRow, cause: TransitionReason) -> None:
    """Apply what an effect's new outcome implies: a task if it is unknown, and the forward effect's state if the effect
    is a compensation."""
    state = EffectState(effect.state)
    if state is EffectState.UNKNOWN:
        text = f"it is unknown whether {effect.tool} fired for {effect.resource_type} {effect.resource_id}"
        open_task(tx, effect, TaskKind.UNKNOWN, text, cause)
    if effect.kind != "compensate":
        return
    if state is EffectState.FIRED:
        forward = snapshot.find(effect.compensates or "")
        if forward is not None:
            transition_effect(tx, forward, EffectState.COMPENSATED, cause)
    elif state in {EffectState.FAILED, EffectState.UNUSED}:
        compensation_failed(tx, snapshot, effect, f"its compensation {state.value}", cause)


def compensation_failed(
    tx: Tx, snapshot: Snapshot, compensation: EffectRow, why: str, cause: TransitionReason
) -> None:
    """Open a task about the forward effect of a compensation that will not happen."""
    forward = snapshot.find(compensation.compensates or "")
    if forward is not None and EffectState(forward.state) is EffectState.COMPENSATING:
        _fail_compensation(tx, snapshot, forward, why, cause)


def compensation_impossible(
    tx: Tx, snapshot: Snapshot, forward: EffectRow, why: str, cause: TransitionReason
) -> None:
    """Open a task about a fired effect whose compensation cannot be built."""
    transition_effect(tx, forward, EffectState.COMPENSATING, cause)
    _fail_compensation(tx, snapshot, forward, why, cause)


def compensation_due(tx: Tx, effect: EffectRow, cause: TransitionReason) -> None:
    """Open a task about a fired effect that should have been compensated by now."""
    text = f"{effect.tool} fired, its siblings did not, and no compensation was requested"
    open_task(tx, effect, COMPENSATION_DUE, text, cause)


def _fail_compensation(
    tx: Tx, snapshot: Snapshot, forward: EffectRow, why: str, cause: TransitionReason
) -> None:
    transition_effect(tx, forward, EffectState.COMPENSATION_FAILED, cause)
    text = f"{forward.tool} fired and was not compensated: {why}"
    open_task(tx, forward, TaskKind.COMPENSATION_FAILED, text, cause)
    sync_transaction_state(tx, snapshot, cause)
