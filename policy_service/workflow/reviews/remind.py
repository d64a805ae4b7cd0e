"""Remind: people who have not answered are told once more that they are asked.

One line in the log and one message in the outbox for each reminder; what was missed while nobody swept is one.
"""

from __future__ import annotations

from policy_service.queries.effects import gates_of
from policy_service.queries.repository import Snapshot
from policy_service.storage.database import Tx
from policy_service.storage.tables import EffectRow
from policy_service.workflow.effects.reminders import next_reminder, reminder_interval
from policy_service.workflow.effects.termination import expire_effect
from policy_service.workflow.transitions import SERVICE, TransitionReason, publish_review_event, set_columns


def remind(tx: Tx, snapshot: Snapshot, effect: EffectRow) -> None:
    """Remind of a review whose reminder is due; one whose time to answer is over expires instead."""
    review = snapshot.reviews[effect.effect_id]
    if tx.now >= review.answer_by:
        expire_effect(tx, snapshot, effect)
        return
    every, due = reminder_interval(gates_of(effect)), review.remind_at
    then = None if every is None or due is None else next_reminder(due, every, tx.now)
    set_columns(tx, review, reminded_at=tx.now, remind_at=then)
    publish_review_event(tx, review, "review_reminded", TransitionReason(SERVICE, "unanswered"))
