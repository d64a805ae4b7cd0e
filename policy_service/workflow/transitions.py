"""State transitions: every state change of an effect, review, proposal, task or transaction goes through here.

A transition must be in the contract's table. It is one conditional UPDATE, whose row count decides a race. A row that
the same unit inserts is written once, in its final state. The audit row of a transition and its outbox message are
written in the same unit of work, so there is no change without an audit row. The unit must hold the transaction's lock
since before it read the transaction (`storage/advisory_locks.py`); otherwise the transition is refused. The row in
memory is updated together with the row in the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, delete, update

from countersign.contract import EffectState, ErrorCode, TaskKind, TxnState, require_transition
from policy_service.audit.log import append
from policy_service.errors import ConflictError
from policy_service.queries.repository import Snapshot
from policy_service.storage.advisory_locks import require_locked
from policy_service.storage.core import Row, find, insert_row, table, update_rows
from policy_service.storage.database import Tx
from policy_service.storage.review_tables import LAPSED, OPEN, ProposalRow, ReviewGroupRow
from policy_service.storage.tables import (
    AttemptRow,
    CommentRow,
    EffectRow,
    ReviewRow,
    TaskRow,
    TransactionRow,
)
from policy_service.storage.types import new_id
from policy_service.storage.unit_of_work import enqueue
from policy_service.workflow.metering import release_reservation

SERVICE = "service"


def agent_actor(name: str) -> str:
    """The actor text of an enrolled agent."""
    return f"agent:{name}"


def person_actor(iss: str, sub: str) -> str:
    """The actor text of a person."""
    return f"person:{iss}|{sub}"


@dataclass(frozen=True)
class TransitionReason:
    """Who causes a transition and why, for the audit log."""

    actor: str  # "agent:NAME", "person:ISS|SUB" or "service"
    why: str  # a verb or reason code: submit, vote, sibling, superseded, ...
    detail: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def by_agent(cls, name: str, why: str, detail: Mapping[str, Any] | None = None) -> TransitionReason:
        """A transition that an agent causes."""
        return cls(agent_actor(name), why, detail or {})

    @classmethod
    def by_person(
        cls, iss: str, sub: str, why: str, detail: Mapping[str, Any] | None = None
    ) -> TransitionReason:
        """A transition that a person causes."""
        return cls(person_actor(iss, sub), why, detail or {})

    @classmethod
    def by_service(cls, why: str) -> TransitionReason:
        """A transition that the service causes by itself."""
        return cls(SERVICE, why)

    def because(self, why: str) -> TransitionReason:
        """The same actor with another reason."""
        return TransitionReason(self.actor, why, self.detail)


def audit_effect(
    tx: Tx, about: EffectRow | ReviewRow, kind: str, actor: str, body: Mapping[str, Any]
) -> None:
    """Append an audit row about an effect at its revision."""
    named: dict[str, Any] = {
        "txn": about.txn,
        "effect_id": about.effect_id,
        "rev": about.rev,
        "agent": about.agent,
    }
    append(tx, kind, actor=actor, body=body, **named)


def transition_effect(
    tx: Tx, effect: EffectRow, to: EffectState, cause: TransitionReason, **changes: Any
) -> None:
    """Move one effect to another state, and change other columns with it.

    Raises:
        IllegalMoveError: the contract's table has no such transition.
        ConflictError: another unit changed it first.
    """
    state_before = EffectState(effect.state)
    require_transition(state_before, to)
    _update(tx, effect, {"state": to.value, "changed_at": tx.now, **changes})
    body = {"from": state_before.value, "to": to.value, "why": cause.why, "kind": effect.kind, **cause.detail}
    if release_reservation(tx, effect, to, cause.actor):
        body["given_back"] = True
    audit_effect(tx, effect, f"effect_{to.value}", cause.actor, body)


def transition_review(tx: Tx, review: ReviewRow, to: str, cause: TransitionReason, **changes: Any) -> None:
    """Settle or reopen a review. Its open proposals lapse when it settles."""
    state_before, settles = review.state, to != "open"
    _update(tx, review, {"state": to, "settled_at": tx.now if settles else None, **changes})
    if settles:
        delete_review_groups(tx.conn, review.review_id)
    kind = "review_settled" if settles else "review_reopened"
    publish_review_event(tx, review, kind, cause, came_from=state_before)
    if settles:
        proposals = find(tx.conn, ProposalRow, review_id=review.review_id, state=OPEN)
        for proposal in sorted(proposals, key=lambda row: row.proposal_id):
            transition_proposal(tx, review, proposal, LAPSED, TransitionReason.by_service(f"review_{to}"))


_review_groups = table(ReviewGroupRow)
_DELETE_GROUPS = delete(_review_groups).where(_review_groups.c.review_id == bindparam("of"))


def delete_review_groups(conn: Connection, review_id: str) -> None:
    """Remove a review from the queues of its groups."""
    conn.execute(_DELETE_GROUPS, {"of": review_id})


def transition_proposal(
    tx: Tx, review: ReviewRow, proposal: ProposalRow, to: str, cause: TransitionReason, **changes: Any
) -> None:
    """Close an open proposal on this review. No transition leads back to open."""
    columns = {"state": to, "decided_at": tx.now, "decided_by": cause.actor, **changes}
    _update(tx, proposal, columns, state=OPEN)
    detail = {"proposal_id": proposal.proposal_id, "args_digest": proposal.args_digest}
    publish_review_event(tx, review, f"proposal_{to}", cause, **detail)


def publish_review_event(
    tx: Tx, review: ReviewRow, kind: str, cause: TransitionReason, **detail: Any
) -> None:
    """Append an audit row about a review, and enqueue the message about it."""
    body = {"review_id": review.review_id, "state": review.state, "why": cause.why, **cause.detail, **detail}
    audit_effect(tx, review, kind, cause.actor, body)
    payload = {"review_id": review.review_id, "effect_id": review.effect_id, "rev": review.rev}
    enqueue(tx, kind, payload)


def transition_transaction(
    tx: Tx, transaction: TransactionRow, to: TxnState, cause: TransitionReason, **changes: Any
) -> None:
    """Move a transaction whose effects have moved already."""
    state_before = TxnState(transaction.state)
    require_transition(state_before, to)
    _update(tx, transaction, {"state": to.value, **changes})
    body = {"from": state_before.value, "to": to.value, "why": cause.why}
    named: dict[str, Any] = {"txn": transaction.txn, "rev": transaction.rev, "agent": transaction.agent}
    append(tx, f"transaction_{to.value}", actor=cause.actor, body=body, **named)


def open_task(tx: Tx, effect: EffectRow, kind: TaskKind, text: str, cause: TransitionReason) -> None:
    """Open a task about an effect, unless one of this kind is open already."""
    require_locked(tx, effect.txn)
    if find(tx.conn, TaskRow, effect_id=effect.effect_id, kind=kind.value, state="open"):
        return
    row = TaskRow(
        task_id=new_id("task", tx.now),
        kind=kind.value,
        txn=effect.txn,
        effect_id=effect.effect_id,
        rev=effect.rev,
        text=text,
        opened_at=tx.now,
    )
    insert(tx, row)
    _publish_task_event(tx, effect, "task_opened", row.task_id, cause, task=kind.value, text=text)


def close_tasks(tx: Tx, effect: EffectRow, cause: TransitionReason, *kinds: TaskKind) -> bool:
    """Close the open tasks of these kinds about an effect; whether there were any."""
    tasks, wanted = table(TaskRow), [kind.value for kind in kinds]
    where = (tasks.c.effect_id == effect.effect_id, tasks.c.kind.in_(wanted), tasks.c.state == "open")
    done = update(tasks).where(*where).values(state="settled", settled_at=tx.now)
    closed = tx.conn.execute(done.returning(tasks.c.task_id, tasks.c.kind)).all()
    for task_id, kind in closed:
        detail = {"task": kind, "why": cause.why, **cause.detail}
        _publish_task_event(tx, effect, "task_settled", task_id, cause, **detail)
    return bool(closed)


def _publish_task_event(
    tx: Tx, effect: EffectRow, kind: str, task_id: str, cause: TransitionReason, /, **detail: Any
) -> None:
    audit_effect(tx, effect, kind, cause.actor, {**detail, "task_id": task_id})
    enqueue(tx, kind, {"task_id": task_id, "effect_id": effect.effect_id})


def withdraw_siblings(
    tx: Tx, snapshot: Snapshot, cause: TransitionReason, *, but: EffectRow | None = None
) -> None:
    """Withdraw every open effect of a transaction, because one of its effects will never fire."""
    for effect in snapshot.effects:
        if effect is not but and EffectState(effect.state) in {EffectState.REVIEW, EffectState.RELEASED}:
            transition_effect(tx, effect, EffectState.WITHDRAWN, cause)
            close_review(tx, snapshot, effect, "withdrawn", cause)


def close_review(tx: Tx, snapshot: Snapshot, effect: EffectRow, to: str, cause: TransitionReason) -> None:
    """Settle the review of an effect if it is open. A review that was met stays met: people did approve."""
    review = snapshot.review_of(effect)
    if review is not None and review.state == "open":
        transition_review(tx, review, to, cause)


_OF_A_TRANSACTION = (TransactionRow, EffectRow, ReviewRow, CommentRow, AttemptRow, TaskRow, ProposalRow)


def insert(tx: Tx, row: Row) -> None:
    """Insert one row. A row that belongs to a transaction needs that transaction's lock."""
    if isinstance(row, _OF_A_TRANSACTION):
        require_locked(tx, row.txn)
    insert_row(tx.conn, row)


def insert_at_end(tx: Tx, row: EffectRow | TransactionRow) -> None:
    """Insert a row at the end of the unit, with the changes made until then. No query of the unit may need it."""
    require_locked(tx, row.txn)
    tx.new_rows[id(row)] = row


def set_columns(tx: Tx, row: EffectRow | ReviewRow | TransactionRow, **columns: Any) -> None:
    """Change columns other than the state, in the database and in memory, if the state is still the one read.

    Raises:
        ConflictError: another unit changed it first.
    """
    _update(tx, row, columns)


def _update(
    tx: Tx,
    row: EffectRow | ReviewRow | TransactionRow | ProposalRow,
    columns: Mapping[str, Any],
    state: str | None = None,
) -> None:
    require_locked(tx, row.txn)
    where = {column.name: getattr(row, column.name) for column in table(type(row)).primary_key}
    where["state"] = state or row.state
    if id(row) not in tx.new_rows and update_rows(tx.conn, type(row), where, dict(columns)) != 1:
        raise ConflictError(
            "it changed while this request was processed; read it again", code=ErrorCode.ILLEGAL_STATE
        )
    for name, value in columns.items():
        setattr(row, name, value)
