"""Reading a transaction as it is: one snapshot of its rows, taken in one connection.

A snapshot is what every verb works on. Rows are the tables' own classes, used as plain typed values: no session is
attached, so changing one changes memory only; :mod:`policy_service.workflow.moves` keeps the two in step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, and_, exists, func, or_, select, update
from sqlmodel import SQLModel, col

from countersign.contract import EffectState, TxnState
from policy_service.domain.settlement import Part
from policy_service.errors import NotFoundError
from policy_service.storage.core import table
from policy_service.storage.tables import (
    AgentRow,
    AttemptRow,
    DecisionRow,
    EffectRow,
    RedemptionRow,
    ReviewRow,
    TaskRow,
    TransactionRow,
    VoteRow,
)

_Row = TypeVar("_Row", bound=SQLModel)


@dataclass
class Snapshot:
    """One revision of a transaction with everything that hangs on it."""

    transaction: TransactionRow
    effects: list[EffectRow]
    compensations: list[EffectRow] = field(default_factory=list)
    decisions: dict[str, DecisionRow] = field(default_factory=dict)
    reviews: dict[str, ReviewRow] = field(default_factory=dict)  # by effect id
    votes: dict[str, list[VoteRow]] = field(default_factory=dict)  # by review id
    head_rev: int = 0

    @property
    def superseded_by(self) -> int | None:
        """The revision in force, when it is not this one."""
        return self.head_rev if self.head_rev > self.transaction.rev else None

    def parts(self) -> list[Part]:
        """The forward effects as :mod:`policy_service.domain.settlement` sees them."""
        return [Part(EffectState(e.state), e.compensation is not None) for e in self.effects]

    def find(self, effect_id: str) -> EffectRow | None:
        """The effect or compensation of that id, or None."""
        return next((e for e in [*self.effects, *self.compensations] if e.effect_id == effect_id), None)

    def review_of(self, effect: EffectRow) -> ReviewRow | None:
        """The review of an effect, open or settled, or None when nobody was ever asked."""
        return self.reviews.get(effect.effect_id)

    def votes_on(self, effect: EffectRow) -> list[VoteRow]:
        """Every vote on an effect at this revision, oldest first."""
        review = self.review_of(effect)
        return self.votes.get(review.review_id, []) if review else []


def rows(conn: Connection, model: type[_Row], query: Select[Any]) -> list[_Row]:
    """The rows of ``query`` as instances of ``model``, detached from any session."""
    return [model(**row._mapping) for row in conn.execute(query)]


def one(conn: Connection, model: type[_Row], query: Select[Any]) -> _Row | None:
    """The first row of ``query``, or None."""
    row = conn.execute(query).first()
    return model(**row._mapping) if row is not None else None


def _all(model: type[_Row]) -> Select[Any]:
    return select(*table(model).columns)


def head_revision(conn: Connection, txn: str) -> int:
    """The revision in force, 0 when the transaction was never submitted."""
    return (
        conn.execute(select(func.max(col(TransactionRow.rev))).where(col(TransactionRow.txn) == txn)).scalar()
        or 0
    )


def load(conn: Connection, txn: str, rev: int | None = None) -> Snapshot | None:
    """The transaction at ``rev``, or as it is in force; None when there is no such revision."""
    head = head_revision(conn, txn)
    wanted = head if rev is None else rev
    where = (col(TransactionRow.txn) == txn, col(TransactionRow.rev) == wanted)
    transaction = one(conn, TransactionRow, _all(TransactionRow).where(*where))
    if transaction is None:
        return None
    effects = rows(
        conn,
        EffectRow,
        _all(EffectRow)
        .where(col(EffectRow.txn) == txn, col(EffectRow.rev) == wanted)
        .order_by(col(EffectRow.seq)),
    )
    snapshot = Snapshot(
        transaction,
        effects=[e for e in effects if e.kind == "effect"],
        compensations=[e for e in effects if e.kind == "compensate"],
        head_rev=head,
    )
    _load_answers(conn, snapshot, effects)
    return snapshot


def require(conn: Connection, txn: str, rev: int | None = None) -> Snapshot:
    """:func:`load` for a transaction that must be there.

    Raises:
        NotFoundError: there is no such transaction, or not at that revision.
    """
    snapshot = load(conn, txn, rev)
    if snapshot is None:
        raise NotFoundError(
            f"there is no transaction {txn!r}" + ("" if rev is None else f" at revision {rev}")
        )
    return snapshot


def _load_answers(conn: Connection, snapshot: Snapshot, effects: Sequence[EffectRow]) -> None:
    snapshot.decisions = decisions_of(conn, [effect.decision_id for effect in effects])
    if not any(e.gates for e in effects):
        return
    txn, rev = snapshot.transaction.txn, snapshot.transaction.rev
    reviews = rows(
        conn, ReviewRow, _all(ReviewRow).where(col(ReviewRow.txn) == txn, col(ReviewRow.rev) == rev)
    )
    snapshot.reviews = {r.effect_id: r for r in reviews}
    ids = [r.review_id for r in reviews]
    votes = _all(VoteRow).where(col(VoteRow.review_id).in_(ids)).order_by(col(VoteRow.vote_id))
    for vote in rows(conn, VoteRow, votes):
        snapshot.votes.setdefault(vote.review_id, []).append(vote)


def agent_of(conn: Connection, name: str) -> AgentRow | None:
    """An enrolled party by name."""
    return one(conn, AgentRow, _all(AgentRow).where(col(AgentRow.name) == name))


def revisions_denied_by_people(conn: Connection, txn: str) -> list[int]:
    """The revisions a person's deny ended, newest first."""
    effects, votes = table(EffectRow).c, table(VoteRow).c
    query = (
        select(effects.rev)
        .join(table(VoteRow), (votes.effect_id == effects.effect_id) & (votes.rev == effects.rev))
        .where(effects.txn == txn, effects.state == EffectState.DENIED.value)
        .where(votes.verdict == "deny", votes.late.is_(False))
        .distinct()
        .order_by(effects.rev.desc())
    )
    return [rev for (rev,) in conn.execute(query)]


def review_by_id(conn: Connection, review_id: str) -> ReviewRow | None:
    """A review by its id."""
    return one(conn, ReviewRow, _all(ReviewRow).where(col(ReviewRow.review_id) == review_id))


def attempt_by_id(conn: Connection, attempt_id: str) -> AttemptRow | None:
    """An attempt by the name its redeemer gave it."""
    return one(conn, AttemptRow, _all(AttemptRow).where(col(AttemptRow.attempt_id) == attempt_id))


def open_reviews(conn: Connection, *, after: tuple[datetime, str] | None, limit: int) -> list[ReviewRow]:
    """A page of open reviews, those that expire first in front, after the (answer_by, review_id) given."""
    query = _all(ReviewRow).where(col(ReviewRow.state) == "open")
    if after is not None:
        at, review_id = after
        later = or_(
            col(ReviewRow.answer_by) > at,
            and_(col(ReviewRow.answer_by) == at, col(ReviewRow.review_id) > review_id),
        )
        query = query.where(later)
    return rows(
        conn, ReviewRow, query.order_by(col(ReviewRow.answer_by), col(ReviewRow.review_id)).limit(limit)
    )


def count_open_reviews(conn: Connection, cap: int) -> int:
    """How many reviews are open, counted no further than ``cap``."""
    some = select(col(ReviewRow.review_id)).where(col(ReviewRow.state) == "open").limit(cap).subquery()
    return int(conn.execute(select(func.count()).select_from(some)).scalar_one())


def tasks(conn: Connection, *, state: str, after: str | None, limit: int) -> list[TaskRow]:
    """A page of tasks in ``state``, by key."""
    query = _all(TaskRow).where(col(TaskRow.state) == state).order_by(col(TaskRow.task_id)).limit(limit)
    return rows(conn, TaskRow, query if after is None else query.where(col(TaskRow.task_id) > after))


def redemptions_of(conn: Connection, attempt_id: str) -> dict[str, RedemptionRow]:
    """What an attempt spent, by effect."""
    query = _all(RedemptionRow).where(col(RedemptionRow.attempt_id) == attempt_id)
    return {row.effect_id: row for row in rows(conn, RedemptionRow, query)}


def spent_effects(conn: Connection, effect_ids: Sequence[str]) -> set[str]:
    """Which of these effects were ever redeemed, at any revision."""
    query = select(col(RedemptionRow.effect_id)).where(col(RedemptionRow.effect_id).in_(effect_ids))
    return {effect_id for (effect_id,) in conn.execute(query)}


def set_fire_by(conn: Connection, attempt_id: str, fire_by: datetime) -> None:
    """The end of an attempt's time to fire, as its newest receipt says."""
    where = col(AttemptRow.attempt_id) == attempt_id
    conn.execute(update(AttemptRow).where(where).values(fire_by=fire_by))


def decisions_of(conn: Connection, decision_ids: Sequence[str]) -> dict[str, DecisionRow]:
    """Decisions by id."""
    query = _all(DecisionRow).where(col(DecisionRow.decision_id).in_(decision_ids))
    return {row.decision_id: row for row in rows(conn, DecisionRow, query)}


def reviews_due(conn: Connection, now: datetime, limit: int) -> list[ReviewRow]:
    """Open reviews whose time is over."""
    where = (col(ReviewRow.state) == "open", col(ReviewRow.answer_by) <= now)
    return rows(conn, ReviewRow, _all(ReviewRow).where(*where).limit(limit))


def transactions_over(conn: Connection, now: datetime, limit: int) -> list[TransactionRow]:
    """Ready transactions whose releases may not be used any more."""
    where = (col(TransactionRow.state) == TxnState.READY.value, col(TransactionRow.valid_until) <= now)
    return rows(conn, TransactionRow, _all(TransactionRow).where(*where).limit(limit))


def effects_unreported(conn: Connection, now: datetime, limit: int) -> list[EffectRow]:
    """Redeemed effects on which nobody reported in time."""
    where = (col(EffectRow.state) == EffectState.REDEEMED.value, col(EffectRow.unknown_at) <= now)
    return rows(conn, EffectRow, _all(EffectRow).where(*where).limit(limit))


def released_compensations(conn: Connection) -> list[EffectRow]:
    """Compensations that may be spent and are not, those that could be first in front."""
    where = (col(EffectRow.state) == EffectState.RELEASED.value, col(EffectRow.kind) == "compensate")
    return rows(conn, EffectRow, _all(EffectRow).where(*where).order_by(col(EffectRow.changed_at)))


def torn_effects(conn: Connection, task: str, before: datetime, limit: int) -> list[EffectRow]:
    """Effects that fired in a transaction whose outcomes are all known and which still is only redeemed: something
    else in it did not fire, they could be taken back, and no task of that kind says so yet."""
    effects, others, tasks = table(EffectRow), table(EffectRow).alias("others"), table(TaskRow)
    same = (others.c.txn == effects.c.txn, others.c.rev == effects.c.rev)
    waits = others.c.state.in_([EffectState.REDEEMED.value, EffectState.COMPENSATING.value])
    known = (tasks.c.effect_id == effects.c.effect_id, tasks.c.kind == task)
    transaction = (col(TransactionRow.txn) == effects.c.txn, col(TransactionRow.rev) == effects.c.rev)
    query = (
        select(*effects.columns)
        .join(table(TransactionRow), and_(*transaction))
        .where(col(TransactionRow.state) == TxnState.REDEEMED.value)
        .where(effects.c.state == EffectState.FIRED.value, effects.c.kind == "effect")
        .where(effects.c.changed_at <= before)
        .where(~exists().where(*same, waits), ~exists().where(*known))
        .limit(limit)
    )
    return rows(conn, EffectRow, query)


def open_effects(conn: Connection, after: str, limit: int) -> list[tuple[str, str, int]]:
    """A page of (effect_id, txn, rev) that are open, by key."""
    query = (
        select(col(EffectRow.effect_id), col(EffectRow.txn), col(EffectRow.rev))
        .where(
            col(EffectRow.state).in_([EffectState.REVIEW.value, EffectState.RELEASED.value]),
            col(EffectRow.effect_id) > after,
        )
        .order_by(col(EffectRow.effect_id))
        .limit(limit)
    )
    return [(effect_id, txn, rev) for effect_id, txn, rev in conn.execute(query)]
