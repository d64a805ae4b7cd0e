"""The tables the service itself runs on: idempotency keys, the log, the outbox, webhooks, leases, policy commits,
shadows, facts of the database.

What the protocol is about stands in ``tables.py``. Of the log only the sequencer changes a row, once, to number it.

The meta table holds facts the database keeps about itself: its epoch, and for each epoch that a restore began, what was
lost before it. ``tokens/epoch.py`` compares it with the mark outside; nothing here decides whether a database may be
used.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

from sqlalchemy import BigInteger, CheckConstraint, Connection, Index, LargeBinary, select, text
from sqlmodel import Field, col

from policy_service.storage.core import Row, insert_row, table, update_rows
from policy_service.storage.types import Json, UtcDateTime, time_text
from policy_service.storage.unit_of_work import Tx

BUNDLE_LINES: Final = text("kind IN ('bundle_activated', 'bundle_refused', 'bundle_override')")
"""Lines of the log about which policies are in force: some among millions, so they have an index of their own."""


PERSON_LINES: Final = text("substr(actor, 1, 7) = 'person:'")
"""Lines of the log that tell what a person did: few beside those of agents and the service."""


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
        # What people search the log by. An id sorts by time, so a page of any search is a stretch of one index.
        Index("ix_audit_agent", "agent", "audit_id"),
        Index("ix_audit_kind", "kind", "audit_id"),
        Index(
            "ix_audit_person", "actor", "audit_id", sqlite_where=PERSON_LINES, postgresql_where=PERSON_LINES
        ),
        Index("ix_audit_bundles", "audit_id", sqlite_where=BUNDLE_LINES, postgresql_where=BUNDLE_LINES),
    )

    audit_id: str = Field(primary_key=True)
    idx: int | None = Field(default=None, sa_type=BigInteger, unique=True, index=True)
    kind: str
    actor: str
    txn: str | None = None
    effect_id: str | None = Field(default=None, index=True)
    rev: int | None = None
    agent: str | None = (
        None  # whose transaction it is about, or which agent: to search by, and no part of the record
    )
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


class PasskeyRow(Row, table=True):
    """One passkey of a person. What was removed stays: votes were proved with it, and it is never enrolled again."""

    __tablename__: ClassVar[Any] = "passkeys"
    __table_args__ = (Index("ix_passkeys_person", "iss", "sub"),)

    passkey_id: str = Field(primary_key=True)
    credential_id: str = Field(unique=True)  # base64url, as the browser says it
    key_digest: str = Field(unique=True)  # SHA-256 of the public key
    public_key: bytes = Field(sa_type=LargeBinary)  # COSE
    iss: str
    sub: str
    name: str
    sign_count: int
    vouched_by: str | None = None  # the older passkey that vouched; None: a fresh sign-in alone
    created_by: str  # the session it was enrolled in, by its hash
    created_at: datetime = Field(sa_type=UtcDateTime)
    counts_from: datetime = Field(sa_type=UtcDateTime)
    last_used_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    removed_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    removed_by: str | None = None  # the session's hash, or "operator"


class ChallengeRow(Row, table=True):
    """One question a passkey is to answer, once: enrol, vouch for a change, or sign a vote."""

    __tablename__: ClassVar[Any] = "challenges"
    __table_args__ = (
        CheckConstraint("purpose IN ('enrol', 'vouch', 'vote')", name="purpose_known"),
        Index("ix_challenges_over", "expires_at"),
    )

    nonce_hash: str = Field(primary_key=True)
    purpose: str
    iss: str
    sub: str
    session: str  # its hash: another session of the same person cannot answer
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
    """What some vote's person was shown, in canonical bytes."""

    __tablename__: ClassVar[Any] = "views"

    view_digest: str = Field(primary_key=True, min_length=64, max_length=64)
    material: bytes = Field(sa_type=LargeBinary)


_EPOCH = "epoch"
_LOST_AFTER = "lost_after:"
_FIRST = 1
_ALL = select(*table(MetaRow).columns).where(col(MetaRow.name).startswith(_LOST_AFTER))


@dataclass(frozen=True, slots=True)
class Restore:
    """An epoch that a restore began, and from when on things may have been forgotten."""

    epoch: int
    lost_after: datetime


def read_epoch(conn: Connection) -> int | None:
    """The incarnation of this database; None before its first start."""
    found = conn.execute(select(col(MetaRow.value)).where(col(MetaRow.name) == _EPOCH)).scalar()
    return None if found is None else int(found)


def ensure_epoch(tx: Tx) -> int:
    """The epoch, begun here if there is none."""
    found = read_epoch(tx.conn)
    if found is None:
        insert_row(tx.conn, MetaRow(name=_EPOCH, value=str(_FIRST)))
    return found or _FIRST


def begin_epoch(tx: Tx, epoch: int, lost_after: datetime) -> None:
    """This database goes on as another incarnation: what came after ``lost_after`` may be forgotten."""
    ensure_epoch(tx)
    update_rows(tx.conn, MetaRow, {"name": _EPOCH}, {"value": str(epoch)})
    insert_row(tx.conn, MetaRow(name=f"{_LOST_AFTER}{epoch}", value=time_text(lost_after)))


def list_restores(conn: Connection) -> list[Restore]:
    """Every restore this database has been through, by epoch."""
    found = [
        Restore(int(row.name.removeprefix(_LOST_AFTER)), datetime.fromisoformat(row.value))
        for row in conn.execute(_ALL)
    ]
    return sorted(found, key=lambda restore: restore.epoch)
