"""Tables of the service itself: idempotency keys, audit log, outbox, webhooks, leases, policy commits, shadows,
passkeys and the epoch of the database.

The tables of the protocol are in ``tables.py``. An audit row is updated once at most, to assign its index.

The meta table holds the epoch and, for each epoch that a restore began, the time after which data may be lost. The
comparison with the mark outside the database is in ``tokens/epoch.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sqlalchemy import BigInteger, CheckConstraint, Connection, Index, LargeBinary, select, text
from sqlmodel import Field, col

from policy_service.storage.core import Row, insert_row, partial, table, update_rows
from policy_service.storage.types import Json, UtcDateTime, time_text

if TYPE_CHECKING:
    from policy_service.storage.unit_of_work import Tx

BUNDLE_LINES: Final = text("kind IN ('bundle_activated', 'bundle_refused', 'bundle_override')")
"""Audit lines about which bundle is active: few among millions, so they have their own index."""


PERSON_LINES: Final = text("substr(actor, 1, 7) = 'person:'")
"""Audit lines of actions by people: few among those of agents and the service."""


class IdempotencyRow(Row, table=True):
    """What a request with an idempotency key created: the resource's id and the digest of the body, never the
    response.
    """

    __tablename__: ClassVar[Any] = "idempotency_keys"

    agent: str = Field(primary_key=True)
    key: str = Field(primary_key=True, max_length=255)
    route: str
    body_digest: str
    resource: str
    created_at: datetime = Field(sa_type=UtcDateTime, index=True)


class AuditRow(Row, table=True):
    """One audit line. SQLite takes ``idx`` with it, PostgreSQL once, later; triggers refuse every other change."""

    __tablename__: ClassVar[Any] = "audit"
    __table_args__ = (
        Index("ix_audit_txn", "txn", "audit_id"),
        # Searches of the log. An id sorts by time, so each page is one range of an index.
        Index("ix_audit_agent", "agent", "audit_id"),
        Index("ix_audit_kind", "kind", "audit_id"),
        Index("ix_audit_person", "actor", "audit_id", **partial(PERSON_LINES)),
        Index("ix_audit_bundles", "audit_id", **partial(BUNDLE_LINES)),
    )

    audit_id: str = Field(primary_key=True)
    idx: int | None = Field(default=None, sa_type=BigInteger, unique=True, index=True)
    kind: str
    actor: str
    txn: str | None = None
    effect_id: str | None = Field(default=None, index=True)
    rev: int | None = None
    agent: str | None = None  # for searches; not part of the record
    body: bytes = Field(sa_type=LargeBinary)  # canonical JSON
    at: datetime = Field(sa_type=UtcDateTime)


class OutboxRow(Row, table=True):
    """A message to deliver at least once."""

    __tablename__: ClassVar[Any] = "outbox"
    __table_args__ = (
        Index("ix_outbox_due", "state", "next_at"),
        Index("ix_outbox_lane", "lane", "state", "next_at"),
    )

    outbox_id: str = Field(primary_key=True)
    lane: str = ""  # the receiver: "" is the service's log, else "webhook NAME" or "slack PLACE"
    kind: str
    payload: dict[str, Any] = Field(sa_type=Json)
    state: str = "waiting"  # waiting, sent, dead
    attempts: int = 0
    next_at: datetime = Field(sa_type=UtcDateTime)
    created_at: datetime = Field(sa_type=UtcDateTime)
    give_up_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # None: by attempts
    last_error: str | None = None


class WebhookRow(Row, table=True):
    """The delivery status of a webhook receiver: how far the audit log was sent, and its failures."""

    __tablename__: ClassVar[Any] = "webhooks"

    name: str = Field(primary_key=True)
    upto: int = Field(sa_type=BigInteger)  # index of the last line whose message was enqueued
    failures: int = 0  # in a row
    not_before: datetime | None = Field(default=None, sa_type=UtcDateTime)  # no delivery before this time
    disabled_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # it answered 410 Gone
    last_error: str | None = None


class LeaseRow(Row, table=True):
    """The holder of a job's lease, its expiry and its fencing number."""

    __tablename__: ClassVar[Any] = "leases"

    name: str = Field(primary_key=True)
    holder: str
    fence: int
    expires_at: datetime = Field(sa_type=UtcDateTime)


class ShadowRow(Row, table=True):
    """Counts of how a candidate bundle would have decided, and how far the audit log was compared."""

    __tablename__: ClassVar[Any] = "shadows"

    candidate: str = Field(primary_key=True)  # its digest
    commit: str
    since: datetime = Field(sa_type=UtcDateTime, index=True)
    upto: int = Field(sa_type=BigInteger)  # index of the last compared audit line
    compared: int = 0
    looser: int = 0
    stricter: int = 0
    other: int = 0  # looser in one respect and stricter in another
    failed: int = 0  # the evaluation failed


class ShadowDifferenceRow(Row, table=True):
    """One effect that the candidate and the active bundle decide differently."""

    __tablename__: ClassVar[Any] = "shadow_differences"
    __table_args__ = (Index("ix_shadow_differences_newest", "candidate", "idx"),)

    candidate: str = Field(primary_key=True)
    effect_id: str = Field(primary_key=True)
    rev: int = Field(primary_key=True)
    idx: int = Field(sa_type=BigInteger)  # of the audit line of the decision
    at: datetime = Field(sa_type=UtcDateTime)
    way: str  # looser, stricter, other
    tool: str
    agent: str
    active: str  # digest of the active bundle
    before: dict[str, Any] = Field(sa_type=Json)  # outcome, policies, asks
    after: dict[str, Any] = Field(sa_type=Json)


class MetaRow(Row, table=True):
    """Facts about this database: its epoch, and the times that restores may have lost."""

    __tablename__: ClassVar[Any] = "meta"

    name: str = Field(primary_key=True)
    value: str


ACTIVE: Final = "active"


class PolicyHeadRow(Row, table=True):
    """A policy commit known to all replicas, by its role: see ``pap/git``.

    ``active``: the commit in force, counted by ``seq``. ``override``: a commit an operator permits although it does
    not descend from the active one. ``refused``: the newest refused head, so that its audit line is written once.
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


class PasskeyRow(Row, table=True):
    """One passkey of a person. A removed one is kept: votes were proved with it, and it cannot return."""

    __tablename__: ClassVar[Any] = "passkeys"
    __table_args__ = (Index("ix_passkeys_person", "iss", "sub"),)

    passkey_id: str = Field(primary_key=True)
    credential_id: str = Field(unique=True)  # base64url, as the browser sends it
    key_digest: str = Field(unique=True)  # SHA-256 of the public key
    public_key: bytes = Field(sa_type=LargeBinary)  # COSE
    iss: str
    sub: str
    name: str
    sign_count: int
    vouched_by: str | None = None  # the older passkey that confirmed it; None: only a fresh sign-in
    created_by: str  # the session it was enrolled in, by its hash
    created_at: datetime = Field(sa_type=UtcDateTime)
    counts_from: datetime = Field(sa_type=UtcDateTime)
    last_used_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    removed_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    removed_by: str | None = None  # the session's hash, or "operator"


class ChallengeRow(Row, table=True):
    """A single-use WebAuthn challenge: enrol a passkey, confirm a change, or sign a vote."""

    __tablename__: ClassVar[Any] = "challenges"
    __table_args__ = (
        CheckConstraint("purpose IN ('enrol', 'vouch', 'vote')", name="purpose_known"),
        Index("ix_challenges_over", "expires_at"),
    )

    nonce_hash: str = Field(primary_key=True)
    purpose: str
    iss: str
    sub: str
    session: str  # its hash; another session of the same person cannot use it
    about: dict[str, Any] = Field(sa_type=Json)
    created_at: datetime = Field(sa_type=UtcDateTime)
    expires_at: datetime = Field(sa_type=UtcDateTime)
    used_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class AssertionRow(Row, table=True):
    """What a passkey signed for one vote: enough to verify it without this database."""

    __tablename__: ClassVar[Any] = "assertions"
    __table_args__ = (Index("ix_assertions_passkey", "passkey_id"),)

    vote_id: str = Field(primary_key=True, foreign_key="votes.vote_id")
    passkey_id: str = Field(foreign_key="passkeys.passkey_id")
    credential_id: str
    public_key: bytes = Field(sa_type=LargeBinary)
    authenticator_data: bytes = Field(sa_type=LargeBinary)
    client_data: bytes = Field(sa_type=LargeBinary)
    signature: bytes = Field(sa_type=LargeBinary)
    signed: dict[str, Any] = Field(sa_type=Json)  # the members of the challenge
    made_at: datetime = Field(sa_type=UtcDateTime)


class ViewRow(Row, table=True):
    """What the page showed the person of a vote, in canonical bytes."""

    __tablename__: ClassVar[Any] = "views"

    view_digest: str = Field(primary_key=True, min_length=64, max_length=64)
    material: bytes = Field(sa_type=LargeBinary)


_EPOCH = "epoch"
_LOST_AFTER = "lost_after:"
_FIRST = 1
_ALL = select(*table(MetaRow).columns).where(col(MetaRow.name).startswith(_LOST_AFTER))


@dataclass(frozen=True, slots=True)
class Restore:
    """An epoch that a restore began, and the time after which data may be lost."""

    epoch: int
    lost_after: datetime


def read_epoch(conn: Connection) -> int | None:
    """The epoch of this database; None before its first start."""
    found = conn.execute(select(col(MetaRow.value)).where(col(MetaRow.name) == _EPOCH)).scalar()
    return None if found is None else int(found)


def ensure_epoch(tx: Tx) -> int:
    """The epoch; the first one is written if there is none."""
    found = read_epoch(tx.conn)
    if found is None:
        insert_row(tx.conn, MetaRow(name=_EPOCH, value=str(_FIRST)))
    return found or _FIRST


def begin_epoch(tx: Tx, epoch: int, lost_after: datetime) -> None:
    """Start another epoch: changes after ``lost_after`` may be lost."""
    ensure_epoch(tx)
    update_rows(tx.conn, MetaRow, {"name": _EPOCH}, {"value": str(epoch)})
    insert_row(tx.conn, MetaRow(name=f"{_LOST_AFTER}{epoch}", value=time_text(lost_after)))


def list_restores(conn: Connection) -> list[Restore]:
    """Every restore of this database, by epoch."""
    found = [
        Restore(int(row.name.removeprefix(_LOST_AFTER)), datetime.fromisoformat(row.value))
        for row in conn.execute(_ALL)
    ]
    return sorted(found, key=lambda restore: restore.epoch)
