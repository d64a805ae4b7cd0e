"""A review with everything around it, as a vote and a page need it: read one by one, or a page at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from policy_service.domain.gates import Gate, MergedGate, merge
from policy_service.errors import NotFoundError
from policy_service.queries import repository
from policy_service.queries.effects import gates_of
from policy_service.queries.repository import Snapshot
from policy_service.storage.tables import AgentRow, EffectRow, ReviewRow


@dataclass(frozen=True)
class ReviewContext:
    """A review, the transaction at its revision, the effect it asks about, and whose effect that is."""

    review: ReviewRow
    snapshot: Snapshot
    effect: EffectRow
    agent: AgentRow

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Every gate that ever fired on the effect."""
        return gates_of(self.effect)

    @property
    def asked(self) -> tuple[MergedGate, ...]:
        """What they ask for together, of everybody who is asked by now."""
        return merge(self.gates, self.review.escalated)


def read_review_context(conn: Connection, review_id: str) -> ReviewContext:
    """One case.

    Raises:
        NotFoundError: there is no such review, or its effect or agent is gone.
    """
    return review_context_of(conn, repository.require_review(conn, review_id))


def review_context_of(conn: Connection, review: ReviewRow) -> ReviewContext:
    """The case of this review.

    Raises:
        NotFoundError: its effect or agent is gone.
    """
    snapshot = repository.require_transaction(conn, review.txn, review.rev)
    case = _case(review, snapshot, repository.agent_of(conn, review.agent))
    if case is None:
        raise NotFoundError(f"the effect of review {review.review_id!r} is gone")
    return case


def read_review_contexts(conn: Connection, reviews: Sequence[ReviewRow]) -> list[ReviewContext]:
    """The cases of these reviews, by as many queries as one takes; a review whose effect is gone is left out."""
    snapshots = repository.load_all(conn, [(review.txn, review.rev) for review in reviews])
    agents = repository.agents_of(conn, [review.agent for review in reviews])
    cases = (
        _case(review, snapshots.get((review.txn, review.rev)), agents.get(review.agent)) for review in reviews
    )
    return [case for case in cases if case is not None]


def _case(review: ReviewRow, snapshot: Snapshot | None, agent: AgentRow | None) -> ReviewContext | None:
    effect = None if snapshot is None else snapshot.find(review.effect_id)
    if snapshot is None or effect is None or agent is None:
        return None
    # the snapshot's own row of the review: what moves it here must be seen here
    return ReviewContext(snapshot.review_of(effect) or review, snapshot, effect, agent)
