"""A review with its snapshot, effect and agent, as votes and pages need it."""

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
    """A review, the transaction at its revision, the effect it is about, and the agent."""

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
        """The merged gates, including groups added by escalation."""
        return merge(self.gates, self.review.escalated)


def read_review_context(conn: Connection, review_id: str) -> ReviewContext:
    """The context of one review.

    Raises:
        NotFoundError: the review, its effect or its agent does not exist.
    """
    return review_context_of(conn, repository.require_review(conn, review_id))


def review_context_of(conn: Connection, review: ReviewRow) -> ReviewContext:
    """The context of a review row.

    Raises:
        NotFoundError: its effect or agent does not exist.
    """
    snapshot = repository.require_transaction(conn, review.txn, review.rev)
    case = _case(review, snapshot, repository.agent_of(conn, review.agent))
    if case is None:
        raise NotFoundError(f"the effect of review {review.review_id!r} is gone")
    return case


def read_review_contexts(conn: Connection, reviews: Sequence[ReviewRow]) -> list[ReviewContext]:
    """The contexts of these reviews, with a constant number of queries; without those whose effect or agent
    is missing.
    """
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
    # the snapshot's own instance, so that changes of the row are seen through both
    return ReviewContext(snapshot.review_of(effect) or review, snapshot, effect, agent)
