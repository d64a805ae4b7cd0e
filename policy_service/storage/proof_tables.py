"""The tables of passkeys, of the challenges they answer, and of what a vote was proved with.

Rules kept here: a credential and a public key belong to one person for ever, removed or not; a challenge is found by
the hash of its nonce and spent once; a vote has one assertion; a view is stored under the digest of its own bytes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import CheckConstraint, Index, LargeBinary
from sqlmodel import Field

from policy_service.storage.core import Row
from policy_service.storage.types import Json, UtcDateTime


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
