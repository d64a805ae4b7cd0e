"""Load transactions as snapshots: all rows of one revision, read on one connection.

Rows are instances of the table classes without a session. Changing one changes memory only;
:mod:`policy_service.workflow.transitions` writes the change to the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, func, or_, select, tuple_
from sqlmodel import col

from countersign.contract import EffectState, TaskAnswer
from policy_service.domain.person_actions import BREAK_GLASS
from policy_service.domain.settlement import EffectStatus
from policy_service.errors import NotFoundError
from policy_service.storage.core import Row, fetch_rows, find, find_one, key_after, rows_of, table
from policy_service.storage.review_tables import ACCEPTED, OPEN, ProposalRow, active_proposals_by_txn
from policy_service.storage.tables import (
    AgentRow,
    AttemptRow,
    CommentRow,
    DecisionRow,
    EffectRow,
    RedemptionRow,
    ReviewRow,
    TaskRow,
    TransactionRow,
    VoteRow,
)

_Row = TypeVar("_Row", bound=Row)


def is_valid_vote(vote: VoteRow) -> bool:
    """Whether a vote was cast in time and not revoked."""
    return not vote.late and vote.revoked_at is None


VALID_VOTE: Final = (col(VoteRow.late).is_(False), col(VoteRow.revoked_at).is_(None))
"""The same as conditions of a query."""


def left_as_fired(effect: EffectRow) -> bool:
    """Whether a person settled that this effect is not taken back."""
    return any(said["answer"] == TaskAnswer.LEFT_STANDING.value for said in effect.settlements)


@dataclass
class Snapshot:
    """One revision of a transaction with its effects, decisions, reviews, votes, proposals and comments."""

    transaction: TransactionRow
    effects: list[EffectRow]
    compensations: list[EffectRow] = field(default_factory=list)
    decisions: dict[str, DecisionRow] = field(default_factory=dict)
    reviews: dict[str, ReviewRow] = field(default_factory=dict)  # by effect id
    votes: dict[str, list[VoteRow]] = field(default_factory=dict)  # by review id
    proposals: list[ProposalRow] = field(default_factory=list)  # open or accepted, at any revision
    comments: dict[str, list[CommentRow]] = field(default_factory=dict)  # by review id, oldest first
    head_rev: int = 0

    @property
    def superseded_by(self) -> int | None:
        """The newest revision, if this snapshot is an older one."""
        return self.head_rev if self.head_rev > self.transaction.rev else None

    def parts(self) -> list[EffectStatus]:
        """The forward effects as :mod:`policy_service.domain.settlement` takes them."""
        unknown = {e.compensates for e in self.compensations if e.state == EffectState.UNKNOWN.value}
        return [
            EffectStatus(
                EffectState(e.state),
                e.compensation is not None,
                e.effect_id in unknown,
                left_as_fired(e),
                e.may_fail,
                e.reads,
            )
            for e in self.effects
        ]

    def find(self, effect_id: str) -> EffectRow | None:
        return next((e for e in [*self.effects, *self.compensations] if e.effect_id == effect_id), None)

    def review_of(self, effect: EffectRow) -> ReviewRow | None:
        """The review of an effect, open or settled."""
        return self.reviews.get(effect.effect_id)

    def open_proposals_of(self, effect: EffectRow) -> list[ProposalRow]:
        """The open proposals for an effect at this revision, oldest first. They lapse when its review closes."""
        review = self.review_of(effect)
        if review is None or review.state != "open":
            return []
        named = (effect.effect_id, effect.rev)
        return [row for row in self.proposals if row.state == OPEN and (row.effect_id, row.rev) == named]

    def edits_of(self, effect: EffectRow) -> list[ProposalRow]:
        """The accepted proposals that made the arguments of an effect at this revision, in order of
        acceptance.
        """
        call = (effect.effect_id, effect.tool_digest)
        made = [
            row
            for row in self.proposals
            if (row.effect_id, row.tool_digest) == call and (row.became_rev or effect.rev + 1) <= effect.rev
        ]
        return sorted(made, key=lambda row: row.became_rev or 0)

    def comments_on(self, effect: EffectRow) -> list[CommentRow]:
        """All comments on an effect at this revision, oldest first."""
        review = self.review_of(effect)
        return self.comments.get(review.review_id, []) if review else []

    @property
    def open_questions(self) -> frozenset[str]:
        """Ids of unanswered questions to the agent in open reviews."""
        waiting = (r.review_id for r in self.reviews.values() if r.state == "open")
        written = (one for review_id in waiting for one in self.comments.get(review_id, []))
        return frozenset(one.comment_id for one in written if one.kind == "question" and one.answer is None)

    def votes_on(self, effect: EffectRow) -> list[VoteRow]:
        """All votes on an effect at this revision, oldest first."""
        review = self.review_of(effect)
        return self.votes.get(review.review_id, []) if review else []


def rows(conn: Connection, model: type[_Row], query: Select[Any]) -> list[_Row]:
    """The rows of a query that is built for one call."""
    return rows_of(model, conn.execute(query))


def _all(model: type[_Row]) -> Select[Any]:
    return select(*table(model).columns)


# Every verb runs these queries, so they are built once.
_NEWEST = (
    _all(TransactionRow)
    .where(col(TransactionRow.txn) == bindparam("txn"))
    .order_by(col(TransactionRow.rev).desc())
    .limit(1)
)
_DECISIONS = _all(DecisionRow).where(
    col(DecisionRow.decision_id).in_(
        select(col(EffectRow.decision_id)).where(
            col(EffectRow.txn) == bindparam("txn"), col(EffectRow.rev) == bindparam("rev")
        )
    )
)
# Joined through effects, so that reviews and votes are found by key.
_OF_A_REVISION = and_(
    col(EffectRow.txn) == bindparam("txn"),
    col(EffectRow.rev) == bindparam("rev"),
    col(ReviewRow.effect_id) == col(EffectRow.effect_id),
    col(ReviewRow.rev) == col(EffectRow.rev),
)
_REVIEWS = _all(ReviewRow).where(_OF_A_REVISION)
_VOTES = (
    _all(VoteRow)
    .where(col(VoteRow.review_id).in_(select(col(ReviewRow.review_id)).where(_OF_A_REVISION)))
    .order_by(col(VoteRow.vote_id))
)
_COMMENTS = (
    _all(CommentRow)
    .where(col(CommentRow.review_id).in_(select(col(ReviewRow.review_id)).where(_OF_A_REVISION)))
    .order_by(col(CommentRow.comment_id))
)


_ACTIVE_PROPOSALS = (
    _all(ProposalRow)
    .where(or_(col(ProposalRow.state) == OPEN, col(ProposalRow.state) == ACCEPTED))
    .where(col(ProposalRow.txn) == bindparam("txn"))
    .order_by(col(ProposalRow.proposal_id))
)


def active_proposals(conn: Connection, txn: str) -> list[ProposalRow]:
    """The open and accepted proposals of a transaction, at any revision, oldest first."""
    return fetch_rows(conn, ProposalRow, _ACTIVE_PROPOSALS, txn=txn)


def load(conn: Connection, txn: str, rev: int | None = None) -> Snapshot | None:
    """The transaction at ``rev``, by default the newest; None if that revision does not exist."""
    newest = next(iter(fetch_rows(conn, TransactionRow, _NEWEST, txn=txn)), None)
    if newest is None:
        return None
    in_force = rev is None or rev == newest.rev
    transaction = newest if in_force else find_one(conn, TransactionRow, txn=txn, rev=rev)
    if transaction is None:
        return None
    which = {"txn": txn, "rev": transaction.rev}
    effects = sorted(find(conn, EffectRow, **which), key=lambda effect: effect.seq)
    snapshot = Snapshot(
        transaction,
        effects=[e for e in effects if e.kind == "effect"],
        compensations=[e for e in effects if e.kind == "compensate"],
        decisions={row.decision_id: row for row in fetch_rows(conn, DecisionRow, _DECISIONS, **which)},
        head_rev=newest.rev,
    )
    if any(effect.gates for effect in effects):
        snapshot.reviews = {
            review.effect_id: review for review in fetch_rows(conn, ReviewRow, _REVIEWS, **which)
        }
        for vote in fetch_rows(conn, VoteRow, _VOTES, **which):
            snapshot.votes.setdefault(vote.review_id, []).append(vote)
    if snapshot.reviews or transaction.edited_by:
        snapshot.proposals = active_proposals(conn, txn)
        for comment in fetch_rows(conn, CommentRow, _COMMENTS, **which):
            snapshot.comments.setdefault(comment.review_id, []).append(comment)
    return snapshot


def load_all(conn: Connection, wanted: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Snapshot]:
    """Snapshots by (txn, rev), with a constant number of queries.

    Other revisions are not read: an agent can create many of them, each as large as the limits allow.
    """
    txns = sorted({txn for txn, _ in wanted})
    heads = _newest_revisions(conn, txns)
    transactions = select_at_revisions(conn, TransactionRow, "txn", wanted)
    found = {(row.txn, row.rev): Snapshot(row, [], head_rev=heads[row.txn]) for row in transactions}
    effects = select_at_revisions(conn, EffectRow, "txn", wanted)
    decided = [effect.decision_id for effect in effects]
    decisions = {
        d.decision_id: d for d in select_in(conn, DecisionRow, col(DecisionRow.decision_id), decided)
    }
    for effect in sorted(effects, key=lambda effect: effect.seq):
        snapshot = found[effect.txn, effect.rev]
        (snapshot.effects if effect.kind == "effect" else snapshot.compensations).append(effect)
        snapshot.decisions[effect.decision_id] = decisions[effect.decision_id]
    named = [(effect.effect_id, effect.rev) for effect in effects]
    asked = select_at_revisions(conn, ReviewRow, "effect_id", named)
    reviews = {row.review_id: row for row in asked}
    for review in reviews.values():
        found[review.txn, review.rev].reviews[review.effect_id] = review
    votes = select_in(conn, VoteRow, col(VoteRow.review_id), sorted(reviews))
    for vote in sorted(votes, key=lambda vote: vote.vote_id):
        review = reviews[vote.review_id]
        found[review.txn, review.rev].votes.setdefault(vote.review_id, []).append(vote)
    by_txn = active_proposals_by_txn(conn, txns)
    for (txn, _), snapshot in found.items():
        snapshot.proposals = by_txn.get(txn, [])
    comments = select_in(conn, CommentRow, col(CommentRow.review_id), sorted(reviews))
    for comment in sorted(comments, key=lambda comment: comment.comment_id):
        review = reviews[comment.review_id]
        found[review.txn, review.rev].comments.setdefault(comment.review_id, []).append(comment)
    return {key: found[key] for key in wanted if key in found}


def _newest_revisions(conn: Connection, txns: Sequence[str]) -> dict[str, int]:
    newest = select(col(TransactionRow.txn), func.max(col(TransactionRow.rev)).label("newest"))
    found = conn.execute(newest.where(col(TransactionRow.txn).in_(txns)).group_by(col(TransactionRow.txn)))
    return {row.txn: row.newest for row in found}


def select_at_revisions(
    conn: Connection,
    model: type[_Row],
    name: str,
    values: Iterable[tuple[str, int]],
    *more: ColumnElement[bool],
) -> list[_Row]:
    """The rows whose (``name`` column, revision) is one of these pairs, in one query.

    The keys are also listed alone, because SQLite cannot use an index for a list of pairs.
    """
    columns, pairs = table(model).c, sorted(set(values))
    if not pairs:
        return []
    at = (
        columns[name].in_(sorted({each for each, _ in pairs})),
        tuple_(columns[name], columns.rev).in_(pairs),
    )
    return rows(conn, model, _all(model).where(*at, *more))


def select_in(conn: Connection, model: type[_Row], column: Any, values: Sequence[str]) -> list[_Row]:
    """The rows whose column holds one of these values."""
    return rows(conn, model, _all(model).where(column.in_(values)))


def require_transaction(conn: Connection, txn: str, rev: int | None = None) -> Snapshot:
    """:func:`load` for a transaction that must exist.

    Raises:
        NotFoundError: there is no such transaction, or not at that revision.
    """
    snapshot = load(conn, txn, rev)
    if snapshot is None:
        raise NotFoundError(
            f"there is no transaction {txn!r}" + ("" if rev is None else f" at revision {rev}")
        )
    return snapshot


def agents_of(conn: Connection, names: Sequence[str]) -> dict[str, AgentRow]:
    """Enrolled agents by name."""
    return {agent.name: agent for agent in select_in(conn, AgentRow, col(AgentRow.name), sorted(set(names)))}


def agent_of(conn: Connection, name: str) -> AgentRow | None:
    return find_one(conn, AgentRow, name=name)


def review_by_id(conn: Connection, review_id: str) -> ReviewRow | None:
    return find_one(conn, ReviewRow, review_id=review_id)


def reviewed_effect(conn: Connection, review_id: str) -> EffectRow:
    """The effect that a review is about.

    Raises:
        NotFoundError: the review or its effect does not exist.
    """
    review = require_review(conn, review_id)
    effect = find_one(conn, EffectRow, effect_id=review.effect_id, rev=review.rev)
    if effect is None:
        raise NotFoundError(f"the effect of review {review_id!r} is gone")
    return effect


def require_review(conn: Connection, review_id: str) -> ReviewRow:
    """The review with this id.

    Raises:
        NotFoundError: it does not exist.
    """
    review = review_by_id(conn, review_id)
    if review is None:
        raise NotFoundError(f"there is no review {review_id!r}")
    return review


def attempt_of(conn: Connection, redeemer: str, attempt_id: str) -> AttemptRow | None:
    """An attempt by the id its redeemer chose. Attempts of other agents are not found."""
    return find_one(conn, AttemptRow, redeemer=redeemer, attempt_id=attempt_id)


def list_open_reviews(conn: Connection, *, after: tuple[datetime, str] | None, limit: int) -> list[ReviewRow]:
    """A page of open reviews ordered by deadline, after the given (answer_by, review_id)."""
    c = table(ReviewRow).c
    query = _all(ReviewRow).where(c.state == "open")
    if after is not None:
        query = query.where(key_after((c.answer_by, c.review_id), after))
    return rows(conn, ReviewRow, query.order_by(c.answer_by, c.review_id).limit(limit))


def reviews_by_id(conn: Connection, review_ids: Sequence[str]) -> list[ReviewRow]:
    """These reviews, in no particular order."""
    return select_in(conn, ReviewRow, col(ReviewRow.review_id), review_ids)


_SEARCHED_BYTES = 16_384  # a larger effect's sentence is not searched


def searchable_effects(conn: Connection, effects: Sequence[tuple[str, int]]) -> list[EffectRow]:
    """These effects at their revisions, without those too large to search."""
    small = func.length(col(EffectRow.args)) <= _SEARCHED_BYTES
    return select_at_revisions(conn, EffectRow, "effect_id", effects, small)


def answered_reviews(conn: Connection, iss: str, sub: str, review_ids: Sequence[str]) -> set[str]:
    """Which of these reviews have a valid vote of this person: in time and not revoked.

    Break-glass signatures are not votes on a gate.
    """
    votes = table(VoteRow).c
    query = select(votes.review_id).where(votes.review_id.in_(review_ids), votes.iss == iss, votes.sub == sub)
    return set(conn.execute(query.where(*VALID_VOTE, votes.verdict != BREAK_GLASS)).scalars())


def list_tasks(
    conn: Connection, *, state: str, kind: str | None = None, after: str | None = None, limit: int
) -> list[TaskRow]:
    """A page of tasks in ``state``, of one kind or of all, ordered by id."""
    query = _all(TaskRow).where(col(TaskRow.state) == state).order_by(col(TaskRow.task_id)).limit(limit)
    if kind is not None:
        query = query.where(col(TaskRow.kind) == kind)
    return rows(conn, TaskRow, query if after is None else query.where(col(TaskRow.task_id) > after))


def redemptions_of(conn: Connection, attempt: AttemptRow) -> dict[str, RedemptionRow]:
    """The redemptions of an attempt by effect id."""
    named = {"redeemer": attempt.redeemer, "attempt_id": attempt.attempt_id}
    return {row.effect_id: row for row in find(conn, RedemptionRow, **named)}


def redeemed_effects(conn: Connection, effect_ids: Sequence[str]) -> set[str]:
    """Which of these effects were redeemed at any revision."""
    query = select(col(RedemptionRow.effect_id)).where(col(RedemptionRow.effect_id).in_(effect_ids))
    return {effect_id for (effect_id,) in conn.execute(query)}
