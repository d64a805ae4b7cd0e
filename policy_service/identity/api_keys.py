"""API keys: a weaker kind of proof for trials on loopback. Stored hashed; a random 256-bit secret needs no salt."""

from __future__ import annotations

import hashlib
import secrets

from sqlalchemy import Connection, select, update
from sqlmodel import col

from policy_service.errors import NotFoundError
from policy_service.identity.agents import OPERATOR, find_agent
from policy_service.storage.alone import stop
from policy_service.storage.core import table
from policy_service.storage.credentials import ApiKeyRow
from policy_service.storage.database import Tx
from policy_service.storage.logbook import append

_PREFIX = "csk_"
_BYTES = 32


def make_api_key(tx: Tx, agent: str) -> str:
    """A new key for an enrolled agent; this is the only time it is seen.

    Raises:
        NotFoundError: no such agent.
    """
    _require(tx, agent)
    secret = _PREFIX + secrets.token_urlsafe(_BYTES)
    row = {"key_hash": _hash(secret), "agent": agent, "created_at": tx.now}
    tx.conn.execute(table(ApiKeyRow).insert().values(row))
    append(tx, "api_key_made", actor=OPERATOR, agent=agent, body={"agent": agent, "key": _hash(secret)[:12]})
    return secret


def find_api_key(conn: Connection, secret: str) -> str | None:
    """The agent of a live key."""
    if not secret.startswith(_PREFIX):
        return None
    query = select(col(ApiKeyRow.agent)).where(
        col(ApiKeyRow.key_hash) == _hash(secret), col(ApiKeyRow.revoked_at).is_(None)
    )
    return conn.execute(query).scalar()


def revoke_api_keys(tx: Tx, agent: str) -> int:
    """End every key of an agent; how many were live.

    Raises:
        NotFoundError: no such agent.
    """
    _require(tx, agent)
    stop(tx, agent)
    where = (col(ApiKeyRow.agent) == agent, col(ApiKeyRow.revoked_at).is_(None))
    ended = tx.conn.execute(update(ApiKeyRow).where(*where).values(revoked_at=tx.now)).rowcount
    if ended:
        append(tx, "api_keys_revoked", actor=OPERATOR, agent=agent, body={"agent": agent, "keys": ended})
    return ended


def has_live_api_key(conn: Connection, agent: str) -> bool:
    """Whether an agent has any key that was not revoked."""
    query = select(col(ApiKeyRow.agent)).where(
        col(ApiKeyRow.agent) == agent, col(ApiKeyRow.revoked_at).is_(None)
    )
    return conn.execute(query).first() is not None


def _require(tx: Tx, agent: str) -> None:
    if find_agent(tx.conn, agent) is None:
        raise NotFoundError(f"the agent {agent!r} is not enrolled; policy-service agent enroll {agent}")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
