"""What is due: rows whose time has come, one queue for each thing that time does.

A queue is read by page, the longest due in front and each row at most once, so a row that stays due blocks nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Column, ColumnElement, Connection, Select, exists, select

from countersign.contract import EffectState, TxnState
from policy_service.storage.core import key_after, table
from policy_service.storage.tables import EffectRow, ReviewRow, TaskRow, TransactionRow
from policy_service.workflow.effects.compensation_tasks import COMPENSATION_DUE


@dataclass(frozen=True, slots=True)
class DueRow:
    """A row whose time has come: when that was, which it is, and of which transaction."""

    at: datetime
    key: str  # the effect's id, or the transaction's where the row is one
    txn: str
    rev: int


@dataclass(frozen=True)
class DueQueue:
    """Rows that are due once the time in column ``at`` has come, as long as the conditions hold."""

    at: Column[datetime]
    key: Column[str]
    txn: Column[str]
    rev: Column[int]
    conditions: tuple[ColumnElement[bool], ...]


_REVIEWS, _EFFECTS, _TRANSACTIONS = table(ReviewRow).c, table(EffectRow).c, table(TransactionRow).c
_OTHERS, _TASKS = table(EffectRow).alias("others").c, table(TaskRow).c


def _effects(at: Column[datetime], *conditions: ColumnElement[bool]) -> DueQueue:
    return DueQueue(at, _EFFECTS.effect_id, _EFFECTS.txn, _EFFECTS.rev, conditions)


UNANSWERED = DueQueue(
    _REVIEWS.answer_by, _REVIEWS.effect_id, _REVIEWS.txn, _REVIEWS.rev, (_REVIEWS.state == "open",)
)
"""Questions nobody answered in time."""

TO_REMIND = DueQueue(
    _REVIEWS.remind_at, _REVIEWS.effect_id, _REVIEWS.txn, _REVIEWS.rev, (_REVIEWS.state == "open",)
)
"""Questions whose people are to be reminded."""

TO_ESCALATE = DueQueue(
    _REVIEWS.escalate_at, _REVIEWS.effect_id, _REVIEWS.txn, _REVIEWS.rev, (_REVIEWS.state == "open",)
)
"""Questions that are to be put to further groups."""

UNUSED = DueQueue(
    _TRANSACTIONS.valid_until,
    _TRANSACTIONS.txn,
    _TRANSACTIONS.txn,
    _TRANSACTIONS.rev,
    (_TRANSACTIONS.state == TxnState.READY.value,),
)
"""Ready transactions whose releases nobody used in time."""

UNREPORTED = _effects(_EFFECTS.unknown_at, _EFFECTS.state == EffectState.REDEEMED.value)
"""Redeemed effects on which nobody reported in time."""

EXPIRED_COMPENSATIONS = _effects(_EFFECTS.lapses_at, _EFFECTS.state == EffectState.RELEASED.value)
"""Compensations whose release nobody used in time."""

UNCOMPENSATED = _effects(
    _EFFECTS.changed_at,
    _EFFECTS.state.concat("") == EffectState.FIRED.value,  # not by the index of states: see below
    _EFFECTS.kind == "effect",
    _EFFECTS.compensation.is_not(None),
    # Begun with: few transactions are in these states, while every effect that ever fired stays in its own.
    _TRANSACTIONS.txn == _EFFECTS.txn,
    _TRANSACTIONS.rev == _EFFECTS.rev,
    _TRANSACTIONS.state.in_([TxnState.REDEEMED.value, TxnState.UNSETTLED.value]),
    ~exists().where(
        _OTHERS.txn == _EFFECTS.txn,
        _OTHERS.rev == _EFFECTS.rev,
        _OTHERS.state.in_(
            [EffectState.REDEEMED.value, EffectState.COMPENSATING.value, EffectState.UNKNOWN.value]
        ),
    ),
    ~exists().where(_TASKS.effect_id == _EFFECTS.effect_id, _TASKS.kind == COMPENSATION_DUE.value),
)
"""Effects that fired in a transaction whose outcomes are all known and which is not settled (what became of it was
known late, perhaps): something else in it did not fire, they could be taken back, and no task says so yet."""


def due_page(
    conn: Connection, queue: DueQueue, now: datetime, after: DueRow | None, limit: int
) -> list[DueRow]:
    """Rows that are due, the longest due in front, after the one given."""
    query = _of(queue, now).order_by(queue.at, queue.key).limit(limit)
    if after is not None:
        query = query.where(key_after((queue.at, queue.key), (after.at, after.key)))
    return [DueRow(*row) for row in conn.execute(query)]


def is_due(conn: Connection, queue: DueQueue, now: datetime, row: DueRow) -> bool:
    """Whether a row is due still: somebody else may have moved it, and another clock may have called it due."""
    query = _of(queue, now).where(queue.key == row.key, queue.rev == row.rev)
    return conn.execute(query).first() is not None


def _of(queue: DueQueue, now: datetime) -> Select[datetime, str, str, int]:
    columns = (queue.at, queue.key, queue.txn.label("of_txn"), queue.rev)
    return select(*columns).where(*queue.conditions, queue.at <= now)
