"""How an open effect ends unfired: a person denies, time runs out, the agent withdraws, an operator revokes.

One that ends takes its siblings along. A compensation ends alone, and then its forward effect stands: a task.
"""

from __future__ import annotations

from countersign.contract import EffectState, TxnState
from policy_service.queries.repository import Snapshot
from policy_service.storage.database import Tx
from policy_service.storage.tables import EffectRow
from policy_service.workflow.effects.apply_evaluation import end_transaction
from policy_service.workflow.transitions import SERVICE, TransitionReason, close_review, transition_effect


def deny_effect(tx: Tx, snapshot: Snapshot, effect: EffectRow, cause: TransitionReason) -> None:
    """Somebody who may answer said no, and that is final."""
    _end(tx, snapshot, effect, EffectState.DENIED, "denied", cause.because("denied_by_person"))


def expire_effect(tx: Tx, snapshot: Snapshot, effect: EffectRow) -> None:
    """Nobody answered in time, or the release was not used in time."""
    _end(tx, snapshot, effect, EffectState.EXPIRED, "expired", TransitionReason(SERVICE, "expired"))


def expire_if_unused(tx: Tx, snapshot: Snapshot) -> bool:
    """Expire a ready transaction whose time is over; checked wherever it matters, not only by the sweep."""
    until = snapshot.transaction.valid_until
    if snapshot.transaction.state != TxnState.READY.value or until is None or tx.now < until:
        return False
    expire_effect(tx, snapshot, snapshot.effects[0])
    return True


def expire_if_unanswered(tx: Tx, snapshot: Snapshot) -> bool:
    """Expire a transaction one of whose questions was not answered in time; checked here too, as above."""
    for effect in snapshot.effects:
        review = snapshot.review_of(effect)
        if review is not None and review.state == "open" and tx.now >= review.answer_by:
            expire_effect(tx, snapshot, effect)
            return True
    return False


def withdraw_effect(
    tx: Tx, snapshot: Snapshot, effect: EffectRow, cause: TransitionReason, words: str | None
) -> None:
    """The requester's side takes it back, with words of its own, which stay with the effect and out of the log."""
    _end(tx, snapshot, effect, EffectState.WITHDRAWN, "withdrawn", cause, words)


def revoke_effect(tx: Tx, snapshot: Snapshot, effect: EffectRow, cause: TransitionReason, words: str) -> None:
    """An operator ends what waits or is released, with words that stay with the effect."""
    _end(tx, snapshot, effect, EffectState.REVOKED, "revoked", cause, words)


def _end(
    tx: Tx,
    snapshot: Snapshot,
    effect: EffectRow,
    to: EffectState,
    review_state: str,
    cause: TransitionReason,
    words: str | None = None,
) -> None:
    transition_effect(tx, effect, to, cause, taken_back=words)
    close_review(tx, snapshot, effect, review_state, cause)
    end_transaction(tx, snapshot, effect, cause)
