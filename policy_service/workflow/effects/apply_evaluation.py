"""Apply an evaluation to an open effect: release it, send it back to review, or deny it; then update its transaction.

This module also records a break-glass release: with an audit row, a message and, if one person signed alone, a task to
review it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from countersign.contract import EffectState, TaskKind, TxnState
from policy_service.domain.gates import Gate
from policy_service.domain.quorum import BreakGlassApproval
from policy_service.pap.bundle import Bundle
from policy_service.queries.repository import Snapshot
from policy_service.storage.core import find
from policy_service.storage.database import Tx
from policy_service.storage.tables import EffectRow, ReviewRow, TaskRow
from policy_service.workflow.effects.digests import release_expiry
from policy_service.workflow.effects.evaluation import Evaluation
from policy_service.workflow.effects.open_reviews import add_late_gates, open_review
from policy_service.workflow.effects.outcomes import end_transaction, sync_transaction_state
from policy_service.workflow.transitions import (
    TransitionReason,
    close_review,
    open_task,
    publish_review_event,
    set_columns,
    transition_effect,
    transition_review,
)


def release_window(snapshot: Snapshot, now: datetime) -> tuple[datetime, datetime]:
    """When a transaction became ready, and until when its releases are valid: for the shortest ``valid_for``."""
    return now, now + timedelta(seconds=min(effect.valid_for_s for effect in snapshot.effects))


def apply_evaluation(
    tx: Tx, bundle: Bundle, snapshot: Snapshot, effect: EffectRow, answer: Evaluation, cause: TransitionReason
) -> None:
    """Move an open effect to the state that the newest evaluation gives it, and its transaction with it.

    A denied effect ends with its siblings. An effect whose gates are met is released. Any other effect waits for
    review, also if it had been released before.
    """
    late = merge_gates(tx, effect, answer)
    released, review = effect.state == EffectState.RELEASED.value, snapshot.review_of(effect)
    is_open = review is not None and review.state == "open"
    if answer.denied:
        denied = cause.because("policy")
        transition_effect(tx, effect, EffectState.DENIED, denied, decision_id=answer.decision_id)
        close_review(tx, snapshot, effect, "denied", denied)
        end_transaction(tx, snapshot, effect, cause)
        return
    if answer.releases and released:
        update_break_glass(tx, snapshot, effect, answer.tally.opened, cause)
    elif answer.releases:
        times = {"decision_id": answer.decision_id, "lapses_at": release_expiry(effect, tx.now)}
        transition_effect(tx, effect, EffectState.RELEASED, cause, **times)
        if review is not None and is_open:
            _record_break_glass(tx, snapshot, effect, review, answer.tally.opened, cause)
            transition_review(tx, review, "met", cause)
    elif released:
        asks = cause.because("policy_asks")
        transition_effect(tx, effect, EffectState.REVIEW, asks, decision_id=answer.decision_id)
        open_review(tx, bundle, snapshot, effect, answer.gates, asks)
    elif late and review is not None and is_open:
        add_late_gates(tx, review, effect, late, cause)
    _update_transaction(tx, snapshot, effect, cause)


def update_break_glass(
    tx: Tx, snapshot: Snapshot, effect: EffectRow, opened: BreakGlassApproval | None, cause: TransitionReason
) -> None:
    """Record that a released effect now depends on break-glass, or on one signer instead of two.

    That happens when a vote or signature stops counting, and those left still permit the release.
    """
    review = snapshot.review_of(effect)
    if opened is None or review is None:
        return
    kind = TaskKind.BREAK_GLASS_REVIEW.value
    tasks = find(tx.conn, TaskRow, effect_id=effect.effect_id, rev=effect.rev, kind=kind)
    if review.break_glass_at is None or (opened.alone and not tasks):
        _record_break_glass(tx, snapshot, effect, review, opened, cause)


def _record_break_glass(
    tx: Tx,
    snapshot: Snapshot,
    effect: EffectRow,
    review: ReviewRow,
    opened: BreakGlassApproval | None,
    cause: TransitionReason,
) -> None:
    if opened is None:
        return
    set_columns(tx, review, break_glass_at=tx.now)
    detail = {"people": len(opened.vote_ids), "votes": list(opened.vote_ids)}
    publish_review_event(
        tx, review, "break_glass_opened", cause, effect_digest=effect.effect_digest, **detail
    )
    if opened.alone:
        (name,) = (vote.name for vote in snapshot.votes_on(effect) if vote.vote_id in opened.vote_ids)
        text = f"{name} released this alone by break-glass, without the approvals its gates require"
        open_task(tx, effect, TaskKind.BREAK_GLASS_REVIEW, text, cause)


def merge_gates(tx: Tx, effect: EffectRow, answer: Evaluation) -> list[Gate]:
    """Store the gates that fired late and a shorter validity; returns the late gates. Nothing becomes laxer."""
    gates = [gate.to_json() for gate in answer.gates]
    late = [gate for gate in answer.gates if gate.to_json() not in effect.gates]
    valid_for_s = min(effect.valid_for_s, int(answer.valid_for.total_seconds()))
    if gates != effect.gates or valid_for_s != effect.valid_for_s:
        shorter = timedelta(seconds=effect.valid_for_s - valid_for_s)
        until = None if effect.lapses_at is None else effect.lapses_at - shorter
        set_columns(tx, effect, gates=gates, valid_for_s=valid_for_s, lapses_at=until)
    return late


def _update_transaction(tx: Tx, snapshot: Snapshot, effect: EffectRow, cause: TransitionReason) -> None:
    """Update the transaction after its effect. When it becomes ready, the validity of its releases starts."""
    if effect.kind != "effect":
        return
    times = {}
    if all(e.state == EffectState.RELEASED.value for e in snapshot.effects):
        _shorten_validity(tx, snapshot)
        times["ready_at"], times["valid_until"] = release_window(snapshot, tx.now)
    sync_transaction_state(tx, snapshot, cause, **times)


def _shorten_validity(tx: Tx, snapshot: Snapshot) -> None:
    """End the releases of a ready transaction earlier if a ``valid_for`` became shorter; never later."""
    transaction = snapshot.transaction
    if transaction.state != TxnState.READY.value or transaction.ready_at is None:
        return
    _, until = release_window(snapshot, transaction.ready_at)
    if transaction.valid_until is None or until < transaction.valid_until:
        set_columns(tx, transaction, valid_until=until)
