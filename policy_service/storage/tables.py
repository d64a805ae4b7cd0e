"""The tables of the protocol; no queries and no rules.

Constraints that only the database can enforce: one redemption per effect over all its revisions, one row per
transaction and revision, one vote of a kind per person, one resource per idempotency key, one audit row per index. A
primary key is either a digest of what it names or time-ordered, so pages go by key.

States are text, checked against the contract's enums. Bytes that were voted on are stored as bytes, never as JSON that
the database could re-serialise. SQLModel does not validate ``table=True`` models, hence the CHECK constraints.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final

from sqlalchemy import (
    CheckConstraint,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    UniqueConstraint,
    false,
    text,
)
from sqlmodel import Field

from countersign.contract import EffectState, TaskKind, TxnState
from policy_service.storage.core import Row, partial
from policy_service.storage.types import Json, UtcDateTime


def _one_of(column: str, values: type[Any]) -> CheckConstraint:
    """A CHECK that restricts a text column to an enum."""
    quoted = ", ".join(f"'{value.value}'" for value in values)
    return CheckConstraint(f"{column} IN ({quoted})", name=f"{column}_known")


TRANSACTION_OVER: Final = text("state || '' IN ('settled', 'ended')")
"""Transactions in which nothing is open. An expression, so that SQLite does not prefer an index of states."""


# -- principals ----------------------------------------------------------------------------------------------


class AgentRow(Row, table=True):
    """An enrolled agent, or an executor that redeems for agents (its name is then their ``aud``)."""

    __tablename__: ClassVar[Any] = "agents"
    __table_args__ = (
        # Every page lists the frozen ones, which are few of many.
        Index("ix_agents_frozen", "name", **partial("frozen_at IS NOT NULL")),
    )

    name: str = Field(primary_key=True, max_length=200)
    owner: str | None = Field(default=None)  # "iss|sub" of a person
    roles: list[str] = Field(default_factory=list, sa_type=Json)
    teams: list[str] = Field(default_factory=list, sa_type=Json)
    enrolled_at: datetime = Field(sa_type=UtcDateTime)
    frozen_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    frozen_by: str | None = None  # an actor, as in the audit log
    frozen_reason: str | None = None


class PersonRow(Row, table=True):
    """A person, identified by issuer and subject, never by an address."""

    __tablename__: ClassVar[Any] = "people"

    iss: str = Field(primary_key=True)
    sub: str = Field(primary_key=True)
    name: str
    email: str | None = None
    groups: list[str] = Field(default_factory=list, sa_type=Json)  # from the token, with its age below
    groups_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    groups_problem: str | None = None  # why groups of the provider were missing from the token
    first_seen_at: datetime = Field(sa_type=UtcDateTime)
    last_seen_at: datetime = Field(sa_type=UtcDateTime)
    revoked_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # may decide nothing


class TransactionRow(Row, table=True):
    """One revision of a transaction. The highest revision is in force; the others are history."""

    __tablename__: ClassVar[Any] = "transactions"
    __table_args__ = (
        _one_of("state", TxnState),
        Index("ix_transactions_agent", "agent", "submitted_at"),
        Index("ix_transactions_aud", "aud", "submitted_at"),
        Index("ix_transactions_due", "state", "valid_until"),
        # The archive looks for old ones among these.
        Index("ix_transactions_over", "submitted_at", "txn", **partial(TRANSACTION_OVER)),
    )

    txn: str = Field(primary_key=True, min_length=64, max_length=64)
    rev: int = Field(primary_key=True, ge=1)
    agent: str = Field(foreign_key="agents.name")
    run_key: str
    independent: bool = False
    method: str = "key"  # how the agent proved itself at submission: key or api_key
    jkt: str | None = None  # the key it proved itself with
    state: str
    txn_digest: str
    aud: str
    claimed: dict[str, str] = Field(default_factory=dict, sa_type=Json)
    # "iss|sub" of people who changed arguments in force
    edited_by: list[str] = Field(default_factory=list, sa_type=Json)
    submitted_at: datetime = Field(sa_type=UtcDateTime)
    ready_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    valid_until: datetime | None = Field(default=None, sa_type=UtcDateTime)


class EffectRow(Row, table=True):
    """One effect at one revision. ``args`` are the canonical bytes that are shown, voted on, signed and fired."""

    __tablename__: ClassVar[Any] = "effects"
    __table_args__ = (
        _one_of("state", EffectState),
        CheckConstraint("kind IN ('effect', 'compensate')", name="kind_known"),
        Index("ix_effects_txn", "txn", "rev", "seq"),
        Index("ix_effects_state", "state", "unknown_at"),
        Index("ix_effects_lapse", "state", "lapses_at"),
        Index("ix_effects_kind", "agent", "tool", "asked_at"),
        Index("ix_effects_resource", "tool", "resource_key", "asked_at"),
        Index("ix_effects_recipients", "tool", "recipients_key", "asked_at"),
        Index(
            "ix_effects_denied", "agent", "tool", "resource_key", "changed_at", **partial("state = 'denied'")
        ),
    )

    effect_id: str = Field(primary_key=True, min_length=64, max_length=64)
    rev: int = Field(primary_key=True, ge=1)
    kind: str = "effect"
    compensates: str | None = None
    txn: str
    seq: int
    agent: str
    tool: str
    tool_digest: str
    resource_type: str
    resource_id: str
    resource_key: str  # digest of both: an id may exceed an index's limit
    recipients_key: str | None = None  # digest of the recipients in the arguments
    args: bytes = Field(sa_type=LargeBinary)
    args_digest: str
    effect_digest: str
    call_key: str
    compensation: dict[str, Any] | None = Field(default=None, sa_type=Json)
    secret: list[str] = Field(default_factory=list, sa_type=Json)  # pointers, of the manifest at submission
    # its failure does not stop its siblings; of the manifest at submission
    may_fail: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    # it only reads, so it needs no compensation; of the manifest at submission
    reads: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    state: str
    decision_id: str
    gates: list[dict[str, Any]] = Field(default_factory=list, sa_type=Json)  # every gate that ever fired
    valid_for_s: int  # the shortest valid_for that ever applied
    lapses_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # of a released compensation
    redeemed_by: str | None = None  # attempt id
    fire_by: datetime | None = Field(default=None, sa_type=UtcDateTime)
    unknown_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # fire_by + the manifest's timeout
    result: bytes | None = Field(default=None, sa_type=LargeBinary)  # canonical JSON the redeemer reported
    error: str | None = None  # the redeemer's error text of a failed call
    taken_back: str | None = None  # the reason given when the requester withdrew it
    settlements: list[dict[str, Any]] = Field(default_factory=list, sa_type=Json)  # by people
    metered: bool = False  # it holds or has held reservations
    asked_at: datetime = Field(sa_type=UtcDateTime)  # time of this revision's first decision
    changed_at: datetime = Field(sa_type=UtcDateTime)


class DecisionRow(Row, table=True):
    """One answer of the policy; every later evaluation is a new row."""

    __tablename__: ClassVar[Any] = "decisions"
    __table_args__ = (Index("ix_decisions_effect", "effect_id", "rev"),)

    decision_id: str = Field(primary_key=True)
    effect_id: str
    rev: int
    outcome: str
    cause: str  # submit, vote, activation, redeem, renew, compensate
    policies: list[str] = Field(sa_type=Json)
    gates: list[str] = Field(sa_type=Json)
    reasons: list[dict[str, Any]] = Field(sa_type=Json)
    unseen: list[str] = Field(sa_type=Json)
    facts: list[dict[str, Any]] = Field(default_factory=list, sa_type=Json)
    # the value of each meter of its tool
    history: dict[str, int] = Field(default_factory=dict, sa_type=Json)
    bundle: str
    commit: str
    decided_at: datetime = Field(sa_type=UtcDateTime)


class ReviewRow(Row, table=True):
    """The open question about one effect at one revision."""

    __tablename__: ClassVar[Any] = "reviews"
    __table_args__ = (
        UniqueConstraint("effect_id", "rev", name="uq_reviews_effect"),
        CheckConstraint(
            "state IN ('open', 'met', 'denied', 'expired', 'withdrawn', 'revoked')", name="review_state_known"
        ),
        Index("ix_reviews_due", "state", "answer_by", "review_id"),
        Index("ix_reviews_newest", "state", "review_id"),
        Index("ix_reviews_agent", "agent", "state", "answer_by", "review_id"),
        Index("ix_reviews_settled", "settled_at", "review_id"),
        Index("ix_reviews_remind", "state", "remind_at"),
        Index("ix_reviews_escalate", "state", "escalate_at"),
        # Every page lists the recent break-glass openings, which are rare.
        Index("ix_reviews_break_glass", "break_glass_at", **partial("break_glass_at IS NOT NULL")),
    )

    review_id: str = Field(primary_key=True)
    effect_id: str
    rev: int
    txn: str
    agent: str
    tool: str
    risk: str
    state: str
    edited_by: list[str] = Field(default_factory=list, sa_type=Json)  # as in the transaction
    opened_at: datetime = Field(sa_type=UtcDateTime)
    answer_by: datetime = Field(sa_type=UtcDateTime)
    settled_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    # last break-glass opening
    break_glass_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    remind_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # the next reminder
    reminded_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # the last one
    escalate_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # the earliest of `escalates`
    escalates: dict[str, str] = Field(default_factory=dict, sa_type=Json)  # merged gate -> due time
    escalated: dict[str, str] = Field(default_factory=dict, sa_type=Json)  # merged gate -> time it escalated
    unanswerable: str | None = None  # why the known people cannot meet its quorum, as last computed


class CommentRow(Row, table=True):
    """A comment on an open review. A question is for the agent, whose answer is shown with it."""

    __tablename__: ClassVar[Any] = "comments"
    __table_args__ = (CheckConstraint("kind IN ('comment', 'question')", name="comment_kind_known"),)

    comment_id: str = Field(primary_key=True)
    review_id: str = Field(foreign_key="reviews.review_id", index=True)
    txn: str
    kind: str
    iss: str
    sub: str
    name: str
    assurance: str
    for_requester: bool = False  # written by the requester's side
    text: str
    channel: str
    written_at: datetime = Field(sa_type=UtcDateTime)
    answer: str | None = None  # the agent's claim
    answered_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class VoteRow(Row, table=True):
    """One person's vote, or their break-glass signature. Late votes are kept and have no effect."""

    __tablename__: ClassVar[Any] = "votes"
    __table_args__ = (
        # A vote revoked with its person does not block a new one.
        Index(
            "uq_votes_person",
            "review_id",
            "iss",
            "sub",
            "verdict",
            "late",
            unique=True,
            **partial("revoked_at IS NULL"),
        ),
        CheckConstraint("verdict IN ('approve', 'deny', 'break_glass')", name="verdict_known"),
    )

    vote_id: str = Field(primary_key=True)
    review_id: str = Field(foreign_key="reviews.review_id", index=True)
    effect_id: str
    rev: int
    effect_digest: str
    txn_digest: str
    iss: str
    sub: str
    name: str
    verdict: str
    reason: str | None = None
    assurance: str
    step_up: str | None = None
    view_digest: str | None = None  # the page shown to this person
    groups: list[str] = Field(sa_type=Json)  # of the token; groups from readable sources are looked up again
    channel: str
    late: bool = False
    cast_at: datetime = Field(sa_type=UtcDateTime)
    revoked_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # no longer counted


class AttemptRow(Row, table=True):
    """One intended commit, named by the redeemer before it starts. Names are scoped to a redeemer, so no other can
    take one.
    """

    __tablename__: ClassVar[Any] = "attempts"

    redeemer: str = Field(primary_key=True)
    attempt_id: str = Field(primary_key=True)
    txn: str = Field(index=True)
    rev: int
    kind: str
    jkt: str | None = None  # key of the proof; None for an API key
    fire_by: datetime = Field(sa_type=UtcDateTime)
    redeemed_at: datetime = Field(sa_type=UtcDateTime)


class RedemptionRow(Row, table=True):
    """A spent effect. The primary key is the effect alone: one redemption over all revisions."""

    __tablename__: ClassVar[Any] = "redemptions"
    __table_args__ = (
        ForeignKeyConstraint(["redeemer", "attempt_id"], ["attempts.redeemer", "attempts.attempt_id"]),
        Index("ix_redemptions_attempt", "redeemer", "attempt_id"),
    )

    effect_id: str = Field(primary_key=True)
    rev: int
    redeemer: str
    attempt_id: str
    jti: str | None = Field(default=None, unique=True)
    decision_id: str
    redeemed_at: datetime = Field(sa_type=UtcDateTime)


class TaskRow(Row, table=True):
    """A question that only a person can settle."""

    __tablename__: ClassVar[Any] = "tasks"
    __table_args__ = (
        Index("ix_tasks_effect", "effect_id", "kind"),
        Index("ix_tasks_state", "state", "task_id"),
        # Every page lists the break-glass openings not yet reviewed. Not partial: SQLite's planner has no statistics
        # here and does not prefer a partial index to the one above.
        Index("ix_tasks_kind", "kind", "state", "task_id"),
        _one_of("kind", TaskKind),
    )

    task_id: str = Field(primary_key=True)
    kind: str  # the contract's TaskKind
    state: str = "open"
    txn: str
    effect_id: str
    rev: int
    text: str
    opened_at: datetime = Field(sa_type=UtcDateTime)
    settled_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class StopRow(Row, table=True):
    """An emergency stop in force: of ``everything``, or of ``tool:NAME``."""

    __tablename__: ClassVar[Any] = "stops"

    what: str = Field(primary_key=True)
    reason: str
    by: str  # an actor, as in the audit log
    at: datetime = Field(sa_type=UtcDateTime)
