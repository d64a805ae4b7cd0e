"""Escalate: a gate that nobody answers, or that its people cannot meet, asks its further groups as well.

It adds voters and nothing else: no quorum is lowered, no step-up waived, nobody asked before is left out. A gate
escalates once; for each time there is one line in the log with the gates and the groups, and one message.
"""

from __future__ import annotations

from collections.abc import Collection

from policy_service.domain.gates import MergedGate, merge
from policy_service.queries.effects import gates_of
from policy_service.queries.repository import Snapshot
from policy_service.storage.database import Tx
from policy_service.storage.tables import EffectRow, ReviewRow
from policy_service.storage.types import time_text
from policy_service.workflow.effects.open_review import index_review_groups
from policy_service.workflow.effects.reminders import escalation_columns
from policy_service.workflow.effects.termination import expire_effect
from policy_service.workflow.transitions import SERVICE, TransitionReason, publish_review_event, set_columns


def escalate_if_due(tx: Tx, snapshot: Snapshot, effect: EffectRow) -> None:
    """Escalate the gates whose time has come; where the time to answer is over, the review expires instead."""
    review = snapshot.reviews[effect.effect_id]
    if tx.now >= review.answer_by:
        expire_effect(tx, snapshot, effect)
        return
    now = time_text(tx.now)
    due = {key for key, at in review.escalates.items() if at <= now}
    escalate(tx, review, effect, due, TransitionReason(SERVICE, "unanswered"))


def escalate(
    tx: Tx, review: ReviewRow, effect: EffectRow, keys: Collection[str], cause: TransitionReason
) -> bool:
    """Let these gates of an open review ask the further groups they name and have not asked; whether any did."""
    found = [gate for gate in merge(gates_of(effect)) if gate.key in keys and can_escalate(gate, review)]
    still = {key: at for key, at in review.escalates.items() if key not in keys}
    since = {gate.key: time_text(tx.now) for gate in found}
    set_columns(tx, review, escalated=review.escalated | since, **escalation_columns(still))
    if found:
        index_review_groups(tx, review, gates_of(effect))
        groups = sorted(frozenset[str]().union(*(gate.escalate for gate in found)))
        publish_review_event(tx, review, "review_escalated", cause, gates=sorted(since), groups=groups)
    return bool(found)


def can_escalate(gate: MergedGate, review: ReviewRow) -> bool:
    """Whether a gate names groups it does not ask yet."""
    return bool(gate.escalate - gate.groups) and gate.key not in review.escalated
