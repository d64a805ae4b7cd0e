"""The tables the service itself runs on: idempotency keys, the log, the outbox, webhooks, leases, policy commits,
shadows, facts of the database.

What the protocol is about stands in ``tables.py``. Of the log only the sequencer changes a row, once, to number it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final

from sqlalchemy import BigInteger, CheckConstraint, Index, LargeBinary, text
from sqlmodel import Field

from policy_service.storage.core import Row
from policy_service.storage.types import Json, UtcDateTime

ABOUT_BUNDLES: Final = text("kind IN ('bundle_activated', 'bundle_refused', 'bundle_override')")
"""Lines of the log about which policies are in force: some among millions, so they have an index of their own."""


class IdempotencyRow(Row, table=True):
    """What a key made: the resource's id and the digest of the body, never the answer."""

    __tablename__: ClassVar[Any] = "idempotency_keys"

    agent: str = Field(primary_key=True)
    key: str = Field(primary_key=True, max_length=255)
    route: str
    body_digest: str
    resource: str
    created_at: datetime = Field(sa_type=UtcDateTime, index=True)


class AuditRow(Row, table=True):
    """One line of the log. ``idx`` is given once, later, by the sequencer; triggers refuse every other change."""

    __tablename__: ClassVar[Any] = "audit"
    __table_args__ = (
        Index("ix_audit_txn", "txn", "audit_id"),
        Index("ix_audit_bundles", "audit_id", sqlite_where=ABOUT_BUNDLES, postgresql_where=ABOUT_BUNDLES),
    )

    audit_id: str = Field(primary_key=True)
    idx: int | None = Field(default=None, sa_type=BigInteger, unique=True, index=True)
    kind: str
    actor: str
    txn: str | None = None
    effect_id: str | None = Field(default=None, index=True)
    rev: int | None = None
    body: bytes = Field(sa_type=LargeBinary)  # canonical JSON
    at: datetime = Field(sa_type=UtcDateTime)


class OutboxRow(Row, table=True):
    """A message that must leave the service at least once."""

    __tablename__: ClassVar[Any] = "outbox"
    __table_args__ = (
        Index("ix_outbox_due", "state", "next_at"),
        Index("ix_outbox_lane", "lane", "state", "next_at"),
    )

    outbox_id: str = Field(primary_key=True)
    lane: str = ""  # who is told: the service's own log, or "webhook NAME"; lanes do not wait for each other
    kind: str
    payload: dict[str, Any] = Field(sa_type=Json)
    state: str = "waiting"  # waiting, sent, dead
    attempts: int = 0
    next_at: datetime = Field(sa_type=UtcDateTime)
    created_at: datetime = Field(sa_type=UtcDateTime)
    give_up_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # None: after so many attempts
    last_error: str | None = None


class WebhookRow(Row, table=True):
    """How far a receiver of webhooks was told of the log, and how it takes it."""

    __tablename__: ClassVar[Any] = "webhooks"

    name: str = Field(primary_key=True)
    upto: int = Field(sa_type=BigInteger)  # index of the last line whose message waits or has left
    failures: int = 0  # in a row
    not_before: datetime | None = Field(default=None, sa_type=UtcDateTime)  # let it rest until then
    disabled_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # it said that it is gone
    last_error: str | None = None


class LeaseRow(Row, table=True):
    """Who leads a job, until when, and the fencing number of that reign."""

    __tablename__: ClassVar[Any] = "leases"

    name: str = Field(primary_key=True)
    holder: str
    fence: int
    expires_at: datetime = Field(sa_type=UtcDateTime)


class ShadowRow(Row, table=True):
    """How a candidate bundle would have decided what another one decided, in numbers, and how far was looked."""

    __tablename__: ClassVar[Any] = "shadows"

    candidate: str = Field(primary_key=True)  # its digest
    commit: str
    since: datetime = Field(sa_type=UtcDateTime, index=True)
    upto: int = Field(sa_type=BigInteger)  # index of the last line of the log that was looked at
    compared: int = 0
    looser: int = 0
    stricter: int = 0
    other: int = 0  # laxer in one thing and stricter in another
    failed: int = 0  # could not be asked about


class ShadowDifferenceRow(Row, table=True):
    """One effect about which the candidate and the active bundle differ."""

    __tablename__: ClassVar[Any] = "shadow_differences"
    __table_args__ = (Index("ix_shadow_differences_newest", "candidate", "idx"),)

    candidate: str = Field(primary_key=True)
    effect_id: str = Field(primary_key=True)
    rev: int = Field(primary_key=True)
    idx: int = Field(sa_type=BigInteger)  # of the line that tells the decision
    at: datetime = Field(sa_type=UtcDateTime)
    way: str  # looser, stricter, other
    tool: str
    agent: str
    active: str  # digest of the bundle it is compared with
    before: dict[str, Any] = Field(sa_type=Json)  # outcome, policies, asks
    after: dict[str, Any] = Field(sa_type=Json)


class MetaRow(Row, table=True):
    """Facts about this database itself: its epoch and when it was made."""

    __tablename__: ClassVar[Any] = "meta"

    name: str = Field(primary_key=True)
    value: str


class PolicyHeadRow(Row, table=True):
    """A commit of the policies that all replicas know of, by what is known of it: see ``pap/git``.

    ``active``: the one in force, which ``seq`` counts up. ``override``: one an operator has said may follow though it
    does not descend from it. ``refused``: the newest head that was refused, so that its line is written once.
    """

    __tablename__: ClassVar[Any] = "policy_heads"
    __table_args__ = (CheckConstraint("what IN ('active', 'override', 'refused')", name="what_known"),)

    what: str = Field(primary_key=True)
    source: str  # repository, ref and subfolder, hashed: an address may hold a password
    commit: str
    digest: str | None = None
    seq: int = 1
    reason: str | None = None
    at: datetime = Field(sa_type=UtcDateTime)
