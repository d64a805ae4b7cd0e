"""From "one of them may go" to "the transaction may go", and back."""

from __future__ import annotations

from datetime import datetime, timedelta

from countersign.contract import EffectState, TaskKind, TxnState
from policy_service.domain.gates import Gate
from policy_service.domain.quorum import BreakGlassApproval
from policy_service.pap.bundle import Bundle
from policy_service.queries.effects import gates_of
from policy_service.queries.repository import Snapshot
from policy_service.storage.core import find
from policy_service.storage.database import Tx
from policy_service.storage.tables import EffectRow, ReviewRow, TaskRow
from policy_service.workflow.effects import reminders
from policy_service.workflow.effects.compensation_tasks import compensation_failed
from policy_service.workflow.effects.effect_rows import release_expiry
from policy_service.workflow.effects.evaluation import Evaluation
from policy_service.workflow.effects.open_review import answer_deadline, index_review_groups, open_review
from policy_service.workflow.transitions import (
    TransitionReason,
    close_review,
    open_task,
    publish_review_event,
    set_columns,
    sync_transaction_state,
    transition_effect,
    transition_review,
    withdraw_siblings,
)

_OWED = TaskKind.BREAK_GLASS_REVIEW.value


def release_window(snapshot: Snapshot, now: datetime) -> tuple[datetime, datetime]:
    """When a transaction became ready and until when its releases may be used: the shortest ``valid_for`` counts."""
    return now, now + timedelta(seconds=min(effect.valid_for_s for effect in snapshot.effects))


def apply_evaluation(
    tx: Tx, bundle: Bundle, snapshot: Snapshot, effect: EffectRow, answer: Evaluation, cause: TransitionReason
) -> None:
    """Bring an open effect to where the policy's newest answer puts it, and its transaction along.

    Denied: it and its siblings end. Met: it is released. Otherwise it waits for people, again if it had been released.
    """
    late = merge_gates(tx, effect, answer)
    state = EffectState(effect.state)
    if answer.denied:
        transition_effect(
            tx, effect, EffectState.DENIED, cause.because("policy"), decision_id=answer.decision_id
        )
        close_review(tx, snapshot, effect, "denied", cause.because("policy"))
        end_transaction(tx, snapshot, effect, cause)
        return
    if answer.releases and state is EffectState.REVIEW:
        until = release_expiry(effect, tx.now)
        transition_effect(
            tx, effect, EffectState.RELEASED, cause, decision_id=answer.decision_id, lapses_at=until
        )
        review = snapshot.review_of(effect)
        if review is not None and review.state == "open":
            record_break_glass(tx, snapshot, effect, review, answer.tally.opened, cause)
            transition_review(tx, review, "met", cause)
    elif answer.releases and state is EffectState.RELEASED:
        update_break_glass(tx, snapshot, effect, answer.tally.opened, cause)
    elif not answer.releases and state is EffectState.RELEASED:
        transition_effect(
            tx, effect, EffectState.REVIEW, cause.because("policy_asks"), decision_id=answer.decision_id
        )
        open_review(tx, bundle, snapshot, effect, answer.gates, cause.because("policy_asks"))
    elif not answer.releases and late:
        shorten_deadline(tx, snapshot, effect, late, cause)
    update_transaction(tx, snapshot, effect, cause)


def record_break_glass(
    tx: Tx,
    snapshot: Snapshot,
    effect: EffectRow,
    review: ReviewRow,
    opened: BreakGlassApproval | None,
    cause: TransitionReason,
) -> None:
    """Say aloud that this goes without the people its gates ask. One person alone owes a review afterwards."""
    if opened is None:
        return
    set_columns(tx, review, break_glass_at=tx.now)
    detail = {"people": len(opened.vote_ids), "votes": list(opened.vote_ids)}
    publish_review_event(
        tx, review, "break_glass_opened", cause, effect_digest=effect.effect_digest, **detail
    )
    if opened.alone:
        (name,) = (vote.name for vote in snapshot.votes_on(effect) if vote.vote_id in opened.vote_ids)
        text = f"{name} opened this alone, without the people its gates ask"
        open_task(tx, effect, TaskKind.BREAK_GLASS_REVIEW, text, cause)


def update_break_glass(
    tx: Tx, snapshot: Snapshot, effect: EffectRow, opened: BreakGlassApproval | None, cause: TransitionReason
) -> None:
    """Say it when what is released goes by an emergency now and did not before, or by one person where it was two: a
    signature or a vote has left the count since, and what is left still lets it go."""
    review = snapshot.review_of(effect)
    if opened is None or review is None:
        return
    told = find(tx.conn, TaskRow, effect_id=effect.effect_id, rev=effect.rev, kind=_OWED)
    if review.break_glass_at is None or (opened.alone and not told):
        record_break_glass(tx, snapshot, effect, review, opened, cause)


def merge_gates(tx: Tx, effect: EffectRow, answer: Evaluation) -> list[Gate]:
    """Remember gates that fired late and times that became shorter; nothing ever gets laxer. The late ones."""
    gates = [gate.to_json() for gate in answer.gates]
    late = [gate for gate in answer.gates if gate.to_json() not in effect.gates]
    valid_for_s = min(effect.valid_for_s, int(answer.valid_for.total_seconds()))
    if gates != effect.gates or valid_for_s != effect.valid_for_s:
        shorter = timedelta(seconds=effect.valid_for_s - valid_for_s)
        until = None if effect.lapses_at is None else effect.lapses_at - shorter
        set_columns(tx, effect, gates=gates, valid_for_s=valid_for_s, lapses_at=until)
    return late


def shorten_deadline(
    tx: Tx, snapshot: Snapshot, effect: EffectRow, late: list[Gate], cause: TransitionReason
) -> None:
    """A late gate's time to answer runs from now; the review closes at the earliest of all. Its people are told."""
    review = snapshot.review_of(effect)
    if review is not None and review.state == "open":
        until = min(review.answer_by, answer_deadline(late, tx.now))
        times = reminders.reminder_columns(
            gates_of(effect), tx.now, until, escalated=review.escalated, before=review
        )
        set_columns(tx, review, answer_by=until, **times)
        index_review_groups(tx, review, gates_of(effect, late))
        publish_review_event(tx, review, "review_asks_more", cause, gates=[gate.policy_id for gate in late])


def end_transaction(tx: Tx, snapshot: Snapshot, effect: EffectRow, cause: TransitionReason) -> None:
    """An effect ended unfired: so do its siblings, and the transaction. A compensation ends alone: then what it was to
    take back stands."""
    if effect.kind == "effect":
        withdraw_siblings(tx, snapshot, cause.because("sibling"), but=effect)
        sync_transaction_state(tx, snapshot, cause)
    else:
        compensation_failed(tx, snapshot, effect, f"its compensation was {effect.state}", cause)


def update_transaction(tx: Tx, snapshot: Snapshot, effect: EffectRow, cause: TransitionReason) -> None:
    """The transaction follows its effects; becoming ready starts the clock of its releases."""
    if effect.kind != "effect":
        return
    if all(e.state == EffectState.RELEASED.value for e in snapshot.effects):
        _shorten(tx, snapshot)
        ready_at, valid_until = release_window(snapshot, tx.now)
        sync_transaction_state(tx, snapshot, cause, ready_at=ready_at, valid_until=valid_until)
    else:
        sync_transaction_state(tx, snapshot, cause)


def _shorten(tx: Tx, snapshot: Snapshot) -> None:
    """A transaction that is ready already ends earlier when a valid_for became shorter; never later."""
    transaction = snapshot.transaction
    if transaction.state != TxnState.READY.value or transaction.ready_at is None:
        return
    _, until = release_window(snapshot, transaction.ready_at)
    if transaction.valid_until is None or until < transaction.valid_until:
        set_columns(tx, transaction, valid_until=until)
