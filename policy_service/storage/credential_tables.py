"""Tables of credentials: keys, API keys, sessions, sign-in links, logout tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Index
from sqlmodel import Field

from policy_service.storage.core import Row
from policy_service.storage.types import UtcDateTime


class AgentKeyRow(Row, table=True):
    """A public key of an agent. ``kid`` is its RFC 7638 thumbprint, so a key belongs to one agent only."""

    __tablename__: ClassVar[Any] = "agent_keys"

    kid: str = Field(primary_key=True)
    agent: str = Field(foreign_key="agents.name", index=True)
    x: str  # base64url of the raw 32 bytes, as in the JWK
    added_at: datetime = Field(sa_type=UtcDateTime)
    issuer: str | None = None  # the issuer whose token vouched for it; None: enrolled by an operator
    trust: str | None = None  # digest of the issuer's settings then; the key is void under others
    expires_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # of a vouched key
    revoked_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class ApiKeyRow(Row, table=True):
    """A bearer key for trials on loopback; only its hash is stored."""

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
    trust: str | None = None  # digest of the provider's settings then; the session is void under others
    sid: str | None = None  # the provider's id of its own session, which it may end
    csrf_token: str
    auth_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # time of the last authentication
    told_at: datetime | None = Field(default=None, sa_type=UtcDateTime)  # notices seen until then
    created_at: datetime = Field(sa_type=UtcDateTime)
    seen_at: datetime = Field(sa_type=UtcDateTime)
    expires_at: datetime = Field(sa_type=UtcDateTime)
    revoked_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class LogoutTokenRow(Row, table=True):
    """A provider's logout token that was applied, once."""

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
