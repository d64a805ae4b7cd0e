"""The tables of what agents and people show to be known by: keys, API keys, sessions, sign-in links, logouts."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import (
    Index,
)
from sqlmodel import Field

from policy_service.storage.core import Row
from policy_service.storage.types import UtcDateTime


class AgentKeyRow(Row, table=True):
    """One public key of a party; ``kid`` is its RFC 7638 thumbprint, so a key belongs to one party only."""

    __tablename__: ClassVar[Any] = "agent_keys"

    kid: str = Field(primary_key=True)
    agent: str = Field(foreign_key="agents.name", index=True)
    x: str  # base64url of the raw 32 bytes, as in the JWK
    added_at: datetime = Field(sa_type=UtcDateTime)
    issuer: str | None = None  # whose token brought it; None: an operator enrolled it
    trust: str | None = None  # the issuer's settings then; under others the key does not count
    expires_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # a brought key's end
    revoked_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class ApiKeyRow(Row, table=True):
    """A bearer key for trials on loopback; only its hash is kept."""

    __tablename__: ClassVar[Any] = "api_keys"

    key_hash: str = Field(primary_key=True)
    agent: str = Field(foreign_key="agents.name", index=True)
    created_at: datetime = Field(sa_type=UtcDateTime)
    revoked_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class SessionRow(Row, table=True):
    """A signed-in browser; the cookie's value is stored hashed."""

    __tablename__: ClassVar[Any] = "sessions"
    __table_args__ = (Index("ix_sessions_person", "iss", "sub"), Index("ix_sessions_sid", "iss", "sid"))

    id_hash: str = Field(primary_key=True)
    iss: str
    sub: str
    assurance: str  # "oidc" or "dev"
    trust: str | None = None  # the provider's settings then; under others the session is over
    sid: str | None = None  # what the provider calls its own session, which it may end
    csrf_token: str
    auth_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # when they last proved who they are
    told_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # what changed before, they have seen
    created_at: datetime = Field(sa_type=UtcDateTime)
    seen_at: datetime = Field(sa_type=UtcDateTime)
    expires_at: datetime = Field(sa_type=UtcDateTime)
    revoked_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class LogoutTokenRow(Row, table=True):
    """A provider's logout token that was obeyed; each is once."""

    __tablename__: ClassVar[Any] = "logout_tokens"

    iss: str = Field(primary_key=True)
    jti: str = Field(primary_key=True)
    expires_at: datetime = Field(sa_type=UtcDateTime)


class SignInLinkRow(Row, table=True):
    """A one-time link of the development sign-in; the token is stored hashed and spent by one UPDATE."""

    __tablename__: ClassVar[Any] = "sign_in_links"

    token_hash: str = Field(primary_key=True)
    iss: str
    sub: str
    name: str
    created_at: datetime = Field(sa_type=UtcDateTime)
    expires_at: datetime = Field(sa_type=UtcDateTime)
    used_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


# -- effects ---------------------------------------------------------------------------------------------------------
