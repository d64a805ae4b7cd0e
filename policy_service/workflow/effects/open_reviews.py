"""Open reviews: opening and reopening, deadlines, reminders and escalation.

A reminder is sent after every `remind` interval since the review was opened or reopened. A gate that names escalation
groups adds them after half of the time to answer, once. A gate that fires late can move these times forward, never
back. The times are columns that the sweeps query.

Escalation adds voters and nothing else: it lowers no quorum, waives no step-up, and removes no group.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence
from datetime import datetime, timedelta
from typing import Any

from policy_service.domain.gates import Gate, merge
from policy_service.pap.bundle import Bundle
from policy_service.queries.effects import gates_of, manifest_for
from policy_service.queries.repository import Snapshot
from policy_service.storage.core import table
from policy_service.storage.database import Tx
from policy_service.storage.review_tables import ReviewGroupRow
from policy_service.storage.tables import EffectRow, ReviewRow
from policy_service.storage.types import new_id, time_text
from policy_service.workflow.effects.outcomes import expire_effect
from policy_service.workflow.transitions import (
    TransitionReason,
    delete_review_groups,
    insert,
    publish_review_event,
    set_columns,
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
    """Open a review of an effect, or reopen the settled one of this revision because a gate fired late.

    The time to answer starts now, also for a reopened review.
    """
    known, due = snapshot.review_of(effect), _answer_deadline(gates, tx.now)
    if known is not None:
        if known.state != "open":
            times = _schedule(gates, tx.now, due, escalated=known.escalated)
            transition_review(tx, known, "open", cause, answer_by=due, **times)
            _index_groups(tx, known, gates)
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
        **_schedule(gates, tx.now, due),
    )
    insert(tx, review)
    _index_groups(tx, review, gates)
    snapshot.reviews[effect.effect_id] = review
    publish_review_event(tx, review, "review_opened", cause, gates=[gate.policy_id for gate in gates])


def add_late_gates(
    tx: Tx, review: ReviewRow, effect: EffectRow, late: Sequence[Gate], cause: TransitionReason
) -> None:
    """Ask the groups of gates that fired while the review is open. The review closes at the earliest deadline."""
    until = min(review.answer_by, _answer_deadline(late, tx.now))
    times = _schedule(gates_of(effect), tx.now, until, escalated=review.escalated, before=review)
    set_columns(tx, review, answer_by=until, **times)
    _index_groups(tx, review, gates_of(effect, late))
    publish_review_event(tx, review, "review_asks_more", cause, gates=[gate.policy_id for gate in late])


def remind(tx: Tx, snapshot: Snapshot, effect: EffectRow) -> None:
    """Send the due reminder of a review, or expire the review if its deadline has passed.

    Intervals that were missed while no sweep ran make one reminder.
    """
    review = snapshot.reviews[effect.effect_id]
    if tx.now >= review.answer_by:
        expire_effect(tx, snapshot, effect)
        return
    every, due, following = _reminder_interval(gates_of(effect)), review.remind_at, None
    if every is not None and due is not None:
        following = due + every * max(1, (tx.now - due) // every + 1)
    set_columns(tx, review, reminded_at=tx.now, remind_at=following)
    publish_review_event(tx, review, "review_reminded", TransitionReason.by_service("unanswered"))


def escalate_if_due(tx: Tx, snapshot: Snapshot, effect: EffectRow) -> None:
    """Escalate the gates of a review that are due, or expire the review if its deadline has passed."""
    review = snapshot.reviews[effect.effect_id]
    if tx.now >= review.answer_by:
        expire_effect(tx, snapshot, effect)
        return
    now = time_text(tx.now)
    due = {key for key, at in review.escalates.items() if at <= now}
    escalate(tx, review, effect, due, TransitionReason.by_service("unanswered"))


def escalate(
    tx: Tx, review: ReviewRow, effect: EffectRow, keys: Collection[str], cause: TransitionReason
) -> bool:
    """Add the escalation groups of these gates to an open review; whether any gate had groups to add."""
    found = [
        gate
        for gate in merge(gates_of(effect))
        if gate.key in keys and gate.escalate - gate.groups and gate.key not in review.escalated
    ]
    remaining = {key: at for key, at in review.escalates.items() if key not in keys}
    since = {gate.key: time_text(tx.now) for gate in found}
    set_columns(tx, review, escalated=review.escalated | since, **_escalation_columns(remaining))
    if found:
        _index_groups(tx, review, gates_of(effect))
        groups = sorted(frozenset[str]().union(*(gate.escalate for gate in found)))
        publish_review_event(tx, review, "review_escalated", cause, gates=sorted(since), groups=groups)
    return bool(found)


def _index_groups(tx: Tx, review: ReviewRow, gates: Sequence[Gate]) -> None:
    """Put the review into the queues of all groups that these gates ask, escalation groups included."""
    groups = frozenset[str]().union(*(gate.voters for gate in merge(gates, review.escalated)))
    delete_review_groups(tx.conn, review.review_id)
    row = {"review_id": review.review_id, "answer_by": review.answer_by, "agent": review.agent}
    tx.conn.execute(table(ReviewGroupRow).insert(), [row | {"asked": group} for group in sorted(groups)])


def _answer_deadline(gates: Sequence[Gate], now: datetime) -> datetime:
    return now + min(gate.answer_within for gate in merge(gates))


def _reminder_interval(gates: Sequence[Gate]) -> timedelta | None:
    return min((gate.remind for gate in gates if gate.remind is not None), default=None)


def _schedule(
    gates: Sequence[Gate],
    now: datetime,
    until: datetime,
    *,
    escalated: Container[str] = (),
    before: ReviewRow | None = None,
) -> dict[str, Any]:
    """The columns for the next reminder and escalation of a review that is open from now until its deadline.

    ``before``: the review as it is already scheduled; its earlier times stay.
    """
    escalates = dict(before.escalates) if before is not None else {}
    halfway = time_text(now + (until - now) / 2)
    wanted = [gate.key for gate in merge(gates) if gate.escalate and gate.key not in escalated]
    escalates = {key: min(escalates.get(key, halfway), halfway) for key in wanted}
    every = _reminder_interval(gates)
    reminds = [now + every] if every is not None else []
    if before is not None and before.remind_at is not None:
        reminds.append(before.remind_at)
    return {"remind_at": min(reminds, default=None), **_escalation_columns(escalates)}


def _escalation_columns(escalates: dict[str, str]) -> dict[str, Any]:
    """The escalation time of each gate, and the earliest of them, which the sweep queries."""
    first = min(escalates.values(), default=None)
    return {"escalates": escalates, "escalate_at": None if first is None else datetime.fromisoformat(first)}
