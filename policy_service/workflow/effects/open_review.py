"""Opening the question about an effect, and opening it again when policy asks for more later."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from policy_service.domain.gates import Gate, merge
from policy_service.pap.bundle import Bundle
from policy_service.queries.effects import manifest_for
from policy_service.queries.repository import Snapshot
from policy_service.storage import review_groups
from policy_service.storage.database import Tx
from policy_service.storage.tables import EffectRow, ReviewRow
from policy_service.storage.types import new_id
from policy_service.workflow.effects import reminders
from policy_service.workflow.transitions import (
    TransitionReason,
    insert,
    publish_review_event,
    transition_review,
)

_RISK_OF_UNKNOWN = "high"


def open_review(
    tx: Tx,
    bundle: Bundle,
    snapshot: Snapshot,
    effect: EffectRow,
    gates: Sequence[Gate],
    cause: TransitionReason,
) -> None:
    """Ask people: a new review, or the settled one of this revision reopened because a gate fired late.

    The time to answer runs from now: for a late gate from when it fired.
    """
    known = snapshot.review_of(effect)
    due = answer_deadline(gates, tx.now)
    if known is not None:
        if known.state != "open":
            times = reminders.reminder_columns(gates, tx.now, due, escalated=known.escalated)
            transition_review(tx, known, "open", cause, answer_by=due, **times)
            index_review_groups(tx, known, gates)
        return
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    review = ReviewRow(
        review_id=new_id("rev", tx.now),
        effect_id=effect.effect_id,
        rev=effect.rev,
        txn=effect.txn,
        agent=effect.agent,
        tool=effect.tool,
        risk=manifest.risk if manifest is not None else _RISK_OF_UNKNOWN,
        state="open",
        edited_by=snapshot.transaction.edited_by,
        opened_at=tx.now,
        answer_by=due,
        **reminders.reminder_columns(gates, tx.now, due),
    )
    insert(tx, review)
    index_review_groups(tx, review, gates)
    snapshot.reviews[effect.effect_id] = review
    publish_review_event(tx, review, "review_opened", cause, gates=[gate.policy_id for gate in gates])


def index_review_groups(tx: Tx, review: ReviewRow, gates: Iterable[Gate]) -> None:
    """Put the review into the queue of everybody these gates ask, those who were added by escalation included."""
    groups = frozenset[str]().union(*(gate.voters for gate in merge(gates, review.escalated)))
    review_groups.set_review_groups(
        tx.conn, review.review_id, groups=groups, answer_by=review.answer_by, agent=review.agent
    )


def answer_deadline(gates: Sequence[Gate], now: datetime) -> datetime:
    """When the question closes: the shortest time any fired gate gives."""
    return now + min(gate.answer_within for gate in merge(gates))
