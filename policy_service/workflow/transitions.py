"""The one mover: every change of state of an effect, a review, a proposal or a transaction passes through here.

Rules: a move is in the contract's table or it does not happen; it is one conditional UPDATE whose row count decides a
race; its audit row is written in the same unit (no audit row, no change), and so is the outbox row that tells others.
The unit is alone with the transaction since before it read it (``storage/alone.py``); one that is not is refused.
The row in memory follows the row in the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import update
from sqlmodel import col

from countersign.contract import EffectState, ErrorCode, TaskKind, TxnState, require_transition
from policy_service.audit.log import append
from policy_service.domain.settlement import needs_manual_decision, needs_manual_settlement, transaction_state
from policy_service.errors import ConflictError
from policy_service.queries.repository import Snapshot
from policy_service.storage import outbox, proposals, review_groups
from policy_service.storage.advisory_locks import require_locked
from policy_service.storage.core import Row, insert_row, table, update_rows
from policy_service.storage.database import Tx
from policy_service.storage.proposals import LAPSED, OPEN, ProposalRow
from policy_service.storage.tables import (
    AttemptRow,
    CommentRow,
    EffectRow,
    ReviewRow,
    TaskRow,
    TransactionRow,
)
from policy_service.storage.types import new_id
from policy_service.workflow.metering import release_reservation


@dataclass(frozen=True)
class TransitionReason:
    """Who made something move and why, as the log will tell it."""

    actor: str  # "agent:NAME", "person:ISS|SUB" or "service"
    why: str  # a verb or a reason code: submit, vote, sibling, superseded, ...
    detail: Mapping[str, Any] = field(default_factory=dict)

    def because(self, why: str) -> TransitionReason:
        """The same actor, another reason."""
        return TransitionReason(self.actor, why, self.detail)


SERVICE = "service"


def agent_actor(name: str) -> str:
    """The actor text of an enrolled party."""
    return f"agent:{name}"


def person_actor(iss: str, sub: str) -> str:
    """The actor text of a person."""
    return f"person:{iss}|{sub}"


def audit_effect(
    tx: Tx, about: EffectRow | ReviewRow, kind: str, actor: str, body: Mapping[str, Any]
) -> None:
    """Write a line of the log about an effect at its revision."""
    append(
        tx,
        kind,
        actor=actor,
        txn=about.txn,
        effect_id=about.effect_id,
        rev=about.rev,
        agent=about.agent,
        body=body,
    )


def transition_effect(
    tx: Tx, effect: EffectRow, to: EffectState, cause: TransitionReason, **changes: Any
) -> None:
    """Move one effect, with any columns that change in the same breath.

    Raises:
        IllegalMoveError: the table has no such move.
        ConflictError: somebody else moved it first.
    """
    require_locked(tx, effect.txn)
    came_from = EffectState(effect.state)
    require_transition(came_from, to)
    _change(
        tx,
        EffectRow,
        {"effect_id": effect.effect_id, "rev": effect.rev, "state": came_from.value},
        {"state": to.value, "changed_at": tx.now, **changes},
    )
    _follow(effect, {"state": to.value, "changed_at": tx.now, **changes})
    body = {"from": came_from.value, "to": to.value, "why": cause.why, "kind": effect.kind, **cause.detail}
    if release_reservation(tx, effect, to, cause.actor):
        body["given_back"] = True
    audit_effect(tx, effect, f"effect_{to.value}", cause.actor, body)


def transition_review(tx: Tx, review: ReviewRow, to: str, cause: TransitionReason, **changes: Any) -> None:
    """Settle or reopen a review; the message about it leaves through the outbox. What was proposed and not answered
    lapses when it settles."""
    require_locked(tx, review.txn)
    columns = {"state": to, "settled_at": None if to == "open" else tx.now, **changes}
    _change(tx, ReviewRow, {"review_id": review.review_id, "state": review.state}, columns)
    if to != "open":
        review_groups.delete_review_groups(tx.conn, review.review_id)
    came_from = review.state
    _follow(review, columns)
    publish_review_event(
        tx, review, "review_reopened" if to == "open" else "review_settled", cause, came_from=came_from
    )
    if to != "open":
        for proposal in proposals.open_proposals(tx.conn, review.review_id):
            transition_proposal(tx, review, proposal, LAPSED, TransitionReason(SERVICE, f"review_{to}"))


def transition_proposal(
    tx: Tx, review: ReviewRow, proposal: ProposalRow, to: str, cause: TransitionReason, **changes: Any
) -> None:
    """Answer a proposal, or let it lapse; nothing leads back. The review is the one it was made on."""
    require_locked(tx, proposal.txn)
    columns = {"state": to, "decided_at": tx.now, "decided_by": cause.actor, **changes}
    _change(tx, ProposalRow, {"proposal_id": proposal.proposal_id, "state": OPEN}, columns)
    _follow(proposal, columns)
    detail = {"proposal_id": proposal.proposal_id, "args_digest": proposal.args_digest}
    publish_review_event(tx, review, f"proposal_{to}", cause, **detail)


def publish_review_event(
    tx: Tx, review: ReviewRow, kind: str, cause: TransitionReason, **detail: Any
) -> None:
    """Log something about a review and queue the message about it."""
    body = {"review_id": review.review_id, "state": review.state, "why": cause.why, **cause.detail, **detail}
    audit_effect(tx, review, kind, cause.actor, body)
    outbox.enqueue(
        tx, kind, {"review_id": review.review_id, "effect_id": review.effect_id, "rev": review.rev}
    )


def transition_transaction(
    tx: Tx, transaction: TransactionRow, to: TxnState, cause: TransitionReason, **changes: Any
) -> None:
    """Move a transaction; its effects have moved already."""
    require_locked(tx, transaction.txn)
    came_from = TxnState(transaction.state)
    require_transition(came_from, to)
    _change(
        tx,
        TransactionRow,
        {"txn": transaction.txn, "rev": transaction.rev, "state": came_from.value},
        {"state": to.value, **changes},
    )
    _follow(transaction, {"state": to.value, **changes})
    append(
        tx,
        f"transaction_{to.value}",
        actor=cause.actor,
        txn=transaction.txn,
        rev=transaction.rev,
        agent=transaction.agent,
        body={"from": came_from.value, "to": to.value, "why": cause.why},
    )


def open_task(tx: Tx, effect: EffectRow, kind: TaskKind, text: str, cause: TransitionReason) -> None:
    """Tell people that something is theirs to settle; the same open trouble makes one task."""
    require_locked(tx, effect.txn)
    same = (col(TaskRow.effect_id) == effect.effect_id, col(TaskRow.kind) == kind.value)
    known = tx.conn.execute(table(TaskRow).select().where(*same, col(TaskRow.state) == "open")).first()
    if known is not None:
        return
    task_id = new_id("task", tx.now)
    insert(
        tx,
        TaskRow(
            task_id=task_id,
            kind=kind.value,
            txn=effect.txn,
            effect_id=effect.effect_id,
            rev=effect.rev,
            text=text,
            opened_at=tx.now,
        ),
    )
    _tell_task(tx, effect, "task_opened", task_id, cause, task=kind.value, text=text)


def close_tasks(tx: Tx, effect: EffectRow, cause: TransitionReason, *kinds: TaskKind) -> list[str]:
    """Close the open tasks of these kinds: a person has settled one, or it has settled itself, by a late report or a
    compensation that came after all. Which those were."""
    tasks, wanted = table(TaskRow), [kind.value for kind in kinds]
    where = (tasks.c.effect_id == effect.effect_id, tasks.c.kind.in_(wanted), tasks.c.state == "open")
    done = update(tasks).where(*where).values(state="settled", settled_at=tx.now)
    closed = tx.conn.execute(done.returning(tasks.c.task_id, tasks.c.kind)).all()
    for task_id, kind in closed:
        detail = {"task": kind, "why": cause.why, **cause.detail, "task_id": task_id}
        _tell_task(tx, effect, "task_settled", task_id, cause, **detail)
    return [task_id for task_id, _ in closed]


def _tell_task(
    tx: Tx, effect: EffectRow, told: str, named: str, cause: TransitionReason, **detail: Any
) -> None:
    audit_effect(tx, effect, told, cause.actor, {**detail, "task_id": named})
    outbox.enqueue(tx, told, {"task_id": named, "effect_id": effect.effect_id})


def withdraw_siblings(
    tx: Tx, snapshot: Snapshot, cause: TransitionReason, *, but: EffectRow | None = None
) -> None:
    """One effect of the transaction will never fire, so none of the others may: withdraw whatever is still open."""
    for effect in snapshot.effects:
        if effect is not but and EffectState(effect.state) in {EffectState.REVIEW, EffectState.RELEASED}:
            transition_effect(tx, effect, EffectState.WITHDRAWN, cause)
            close_review(tx, snapshot, effect, "withdrawn", cause)


def close_review(tx: Tx, snapshot: Snapshot, effect: EffectRow, to: str, cause: TransitionReason) -> None:
    """Settle the review of an effect when it is still open; one that was met stays so: people did agree."""
    review = snapshot.review_of(effect)
    if review is not None and review.state == "open":
        transition_review(tx, review, to, cause)


def sync_transaction_state(tx: Tx, snapshot: Snapshot, cause: TransitionReason, **changes: Any) -> None:
    """Bring the transaction to the state its effects imply, if that is another one than it has."""
    to = transaction_state(snapshot.parts())
    # Outcomes that are open again (a compensation under way) do not undo what people have been told.
    reopened = to is TxnState.REDEEMED and snapshot.transaction.state != TxnState.READY.value
    if to.value != snapshot.transaction.state and not reopened:
        transition_transaction(tx, snapshot.transaction, to, cause, **changes)
    parts = snapshot.parts()
    if needs_manual_settlement(parts):
        for effect, part in zip(snapshot.effects, parts, strict=True):
            if needs_manual_decision(part):
                open_task(
                    tx,
                    effect,
                    TaskKind.STANDING,
                    f"{effect.tool} fired and stands alone: its siblings did not",
                    cause,
                )


_OF_A_TRANSACTION = (TransactionRow, EffectRow, ReviewRow, CommentRow, AttemptRow, TaskRow, ProposalRow)


def insert(tx: Tx, row: Row) -> None:
    """Insert one row by a Core statement (a unit of work has no ORM session)."""
    if isinstance(row, _OF_A_TRANSACTION):
        require_locked(tx, row.txn)
    insert_row(tx.conn, row)


def set_columns(tx: Tx, row: EffectRow | ReviewRow | TransactionRow, **columns: Any) -> None:
    """Change columns that are not a state, in the database and in memory; the state must still be what we read."""
    require_locked(tx, row.txn)
    keys = {c.name: getattr(row, c.name) for c in table(type(row)).primary_key.columns}
    _change(tx, type(row), {**keys, "state": row.state}, columns)
    _follow(row, columns)


def _change(tx: Tx, model: type[Row], where: dict[str, Any], columns: dict[str, Any]) -> None:
    if update_rows(tx.conn, model, where, columns) != 1:
        raise ConflictError(
            "it changed while this request was being answered; read it again", code=ErrorCode.ILLEGAL_STATE
        )


def _follow(row: Row, columns: Mapping[str, Any]) -> None:
    for name, value in columns.items():
        setattr(row, name, value)
