"""Agents and executors, their Ed25519 keys, and API keys.

A name is enrolled once. A key is enrolled by an operator, or vouched for by an issuer's token for a limited time. It
belongs to one agent for ever, so it can never become another's. A revoked key is invalid at once, and a frozen agent
starts nothing. All changes are in the audit log.

API keys are a weaker proof for trials on loopback. They are stored hashed; a random 256-bit secret needs no salt.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, func, select, true, update
from sqlmodel import col

from countersign.contract import ErrorCode, PublicKey
from policy_service.errors import ConflictError, ForbiddenError, InvalidRequestError, NotFoundError
from policy_service.storage.advisory_locks import lock_exclusive, lock_shared
from policy_service.storage.core import find, find_one, insert_row, insert_row_or_ignore, rows_of, table
from policy_service.storage.credential_tables import AgentKeyRow, ApiKeyRow
from policy_service.storage.database import Tx
from policy_service.storage.tables import AgentRow
from policy_service.storage.types import time_text
from policy_service.storage.unit_of_work import append


@dataclass(frozen=True, slots=True)
class Caller:
    """An enrolled agent or executor, and how it authenticated.

    ``jkt`` is the thumbprint of the key of the proof; None for an API key, whose releases are bound to no key.
    """

    agent: str
    jkt: str | None
    method: Literal["key", "api_key"] = "key"


@dataclass(frozen=True, slots=True)
class Voucher:
    """An issuer's token, reduced to what it permits: which agent may add a key, and until when."""

    agent: str
    issuer: str  # the issuer's name in the settings
    trust: str  # digest of those settings
    issued_at: datetime
    subject: str
    until: datetime
    jkt: str | None  # the only permitted key, if the token is bound to one


_MAX_VOUCHED_KEYS = 256  # per agent and issuer at a time: its replicas, and some restarts of each
OPERATOR = "operator"  # the actor of commands on the service's host
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,99}\Z")


def enroll(
    tx: Tx, name: str, *, owner: str | None = None, roles: Sequence[str] = (), teams: Sequence[str] = ()
) -> None:
    """Enrol an agent; ``owner`` is a person's ``iss|sub``.

    Raises:
        InvalidRequestError: the name or the owner is malformed.
        ConflictError: the name is taken.
    """
    if not _NAME.match(name):
        raise InvalidRequestError(
            f"{name!r} cannot be an agent's name; use letters, digits, '.', '_' and '-'"
        )
    if owner is not None and not all(owner.partition("|")):
        raise InvalidRequestError(f"the owner {owner!r} is not a person; write ISSUER|SUBJECT")
    row = AgentRow(name=name, owner=owner, roles=list(roles), teams=list(teams), enrolled_at=tx.now)
    if not insert_row_or_ignore(tx.conn, row):
        raise ConflictError(f"the agent {name!r} is enrolled already; add a key with `agent key add`")
    body = {"agent": name, "owner": owner, "roles": list(roles), "teams": list(teams)}
    append(tx, "agent_enrolled", actor=OPERATOR, agent=name, body=body)


def add_key(tx: Tx, name: str, key: PublicKey) -> None:
    """Add a key to an agent.

    Raises:
        NotFoundError: no such agent.
        ConflictError: the key is known, of any agent and even if revoked.
    """
    _require_agent(tx.conn, name)
    row = AgentKeyRow(kid=key.kid, agent=name, x=key.jwk()["x"], added_at=tx.now)
    if not insert_row_or_ignore(tx.conn, row):
        raise ConflictError(f"the key {key.kid} belongs to an agent already; make a new one")
    append(tx, "agent_key_added", actor=OPERATOR, agent=name, body={"agent": name, "kid": key.kid})


def add_vouched_key(tx: Tx, key: PublicKey, voucher: Voucher) -> None:
    """Add a key that an issuer's token vouches for; repeating it extends the key's expiry.

    Raises:
        NotFoundError: no such agent.
        ForbiddenError: the agent is frozen, or the token is older than the last revocation of such a key: the revoked
            party may hold that token too.
        ConflictError: the key is another agent's, was enrolled, was revoked, came by another issuer, or is one too
            many.
    """
    agent, issuer = voucher.agent, voucher.issuer
    lock_shared(tx, agent)
    if _require_agent(tx.conn, agent).frozen_at is not None:
        raise ForbiddenError(f"the agent {agent!r} is frozen", code=ErrorCode.FROZEN)
    _require_newer_than_revocations(tx, voucher)
    _require_key_capacity(tx, voucher)
    renewal: dict[str, Any] = {"trust": voucher.trust, "expires_at": voucher.until}
    row = AgentKeyRow(kid=key.kid, agent=agent, x=key.jwk()["x"], added_at=tx.now, issuer=issuer, **renewal)
    if not insert_row_or_ignore(tx.conn, row):
        mine = (col(AgentKeyRow.kid) == key.kid, *_vouched(voucher), col(AgentKeyRow.revoked_at).is_(None))
        renewed = update(AgentKeyRow).where(*mine).values(renewal)
        if tx.conn.execute(renewed).rowcount == 0:
            raise ConflictError(f"the key {key.kid} belongs to an agent already; make a new one")
    body = {"agent": agent, "kid": key.kid, "issuer": issuer, "subject": voucher.subject}
    body["until"] = time_text(voucher.until)
    append(tx, "agent_key_brought", actor=f"agent:{agent}", agent=agent, body=body)


def _vouched(voucher: Voucher) -> tuple[ColumnElement[bool], ...]:
    return col(AgentKeyRow.agent) == voucher.agent, col(AgentKeyRow.issuer) == voucher.issuer


def _require_newer_than_revocations(tx: Tx, voucher: Voucher) -> None:
    last = tx.conn.execute(select(func.max(col(AgentKeyRow.revoked_at))).where(*_vouched(voucher))).scalar()
    if last is not None and voucher.issued_at <= last:
        raise ForbiddenError(
            "a key of this agent was revoked after that token was issued; send a newer token"
        )


def _require_key_capacity(tx: Tx, voucher: Voucher) -> None:
    live = (col(AgentKeyRow.revoked_at).is_(None), col(AgentKeyRow.expires_at) > tx.now)
    counted = select(func.count()).select_from(table(AgentKeyRow)).where(*_vouched(voucher), *live)
    if tx.conn.execute(counted).scalar_one() >= _MAX_VOUCHED_KEYS:
        raise ConflictError(
            f"{voucher.agent!r} has {_MAX_VOUCHED_KEYS} vouched keys already; wait until some expire"
        )


def revoke_key(tx: Tx, kid: str, reason: str | None = None) -> list[str]:
    """Revoke a key. Revoking a vouched key revokes all keys of that issuer for that agent, because a stolen token may
    have added several. Returns the revoked ids; a repetition changes nothing.

    Raises:
        NotFoundError: no such key.
    """
    known = find_one(tx.conn, AgentKeyRow, kid=kid)
    if known is None:
        raise NotFoundError(f"there is no key {kid!r}")
    lock_exclusive(tx, known.agent)
    which = col(AgentKeyRow.kid) == kid if known.issuer is None else col(AgentKeyRow.issuer) == known.issuer
    return _revoke_keys(tx, known.agent, which, reason)


def revoke_keys_of(tx: Tx, name: str) -> int:
    """Revoke every key of an agent. Returns the number of live ones."""
    lock_exclusive(tx, name)
    return len(_revoke_keys(tx, name, true()))


def _revoke_keys(tx: Tx, name: str, which: ColumnElement[bool], reason: str | None = None) -> list[str]:
    where = (col(AgentKeyRow.agent) == name, which, col(AgentKeyRow.revoked_at).is_(None))
    ended = update(AgentKeyRow).where(*where).values(revoked_at=tx.now).returning(col(AgentKeyRow.kid))
    kids = sorted(tx.conn.execute(ended).scalars())
    for kid in kids:
        body = {"agent": name, "kid": kid, **_reason_body(reason)}
        append(tx, "agent_key_revoked", actor=OPERATOR, agent=name, body=body)
    return kids


def freeze(tx: Tx, name: str, reason: str | None = None, *, actor: str = OPERATOR) -> None:
    """Freeze an agent: it submits, redeems and renews nothing until it is unfrozen. Compensation continues. A
    repetition changes nothing. Nothing the agent had started commits after this.

    Raises:
        NotFoundError: no such agent.
    """
    _require_agent(tx.conn, name)
    lock_exclusive(tx, name)
    where = (col(AgentRow.name) == name, col(AgentRow.frozen_at).is_(None))
    frozen = {"frozen_at": tx.now, "frozen_by": actor, "frozen_reason": reason}
    if tx.conn.execute(update(AgentRow).where(*where).values(frozen)).rowcount:
        append(tx, "agent_frozen", actor=actor, agent=name, body={"agent": name, **_reason_body(reason)})


def unfreeze(tx: Tx, name: str, reason: str | None = None, *, actor: str = OPERATOR) -> None:
    """Unfreeze an agent. What lapsed meanwhile stays lapsed; a repetition changes nothing.

    Raises:
        NotFoundError: no such agent.
    """
    _require_agent(tx.conn, name)
    where = (col(AgentRow.name) == name, col(AgentRow.frozen_at).is_not(None))
    thawed = {"frozen_at": None, "frozen_by": None, "frozen_reason": None}
    if tx.conn.execute(update(AgentRow).where(*where).values(thawed)).rowcount:
        append(tx, "agent_unfrozen", actor=actor, agent=name, body={"agent": name, **_reason_body(reason)})


def frozen_agents(conn: Connection) -> list[AgentRow]:
    """The frozen agents, by name."""
    frozen = select(*table(AgentRow).columns).where(col(AgentRow.frozen_at).is_not(None))
    return rows_of(AgentRow, conn.execute(frozen.order_by(col(AgentRow.name))))


def _reason_body(reason: str | None) -> dict[str, str]:
    return {} if reason is None else {"reason": reason}


def agent_names(conn: Connection, most: int) -> list[str]:
    """The first names of the enrolled agents."""
    return list(conn.execute(select(col(AgentRow.name)).order_by(col(AgentRow.name)).limit(most)).scalars())


def find_agent(conn: Connection, name: str) -> AgentRow | None:
    """An enrolled agent by name."""
    return find_one(conn, AgentRow, name=name)


def list_agents(conn: Connection) -> list[AgentRow]:
    """Every enrolled agent, by name."""
    return rows_of(AgentRow, conn.execute(select(*table(AgentRow).columns).order_by(col(AgentRow.name))))


def list_keys(conn: Connection, name: str) -> list[AgentKeyRow]:
    """The keys of an agent, oldest first, revoked ones too."""
    return sorted(find(conn, AgentKeyRow, agent=name), key=lambda row: row.added_at)


def _require_agent(conn: Connection, name: str) -> AgentRow:
    agent = find_agent(conn, name)
    if agent is None:
        raise NotFoundError(f"the agent {name!r} is not enrolled; policy-service agent enroll {name}")
    return agent


_PREFIX = "csk_"
_BYTES = 32


def make_api_key(tx: Tx, agent: str) -> str:
    """Create an API key. It is returned once and stored only as a hash.

    Raises:
        NotFoundError: no such agent.
    """
    _require_agent(tx.conn, agent)
    secret = _PREFIX + secrets.token_urlsafe(_BYTES)
    insert_row(tx.conn, ApiKeyRow(key_hash=_hash(secret), agent=agent, created_at=tx.now))
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
    """Revoke every API key of an agent. Returns the number of live ones.

    Raises:
        NotFoundError: no such agent.
    """
    _require_agent(tx.conn, agent)
    lock_exclusive(tx, agent)
    where = (col(ApiKeyRow.agent) == agent, col(ApiKeyRow.revoked_at).is_(None))
    ended = tx.conn.execute(update(ApiKeyRow).where(*where).values(revoked_at=tx.now)).rowcount
    if ended:
        append(tx, "api_keys_revoked", actor=OPERATOR, agent=agent, body={"agent": agent, "keys": ended})
    return ended


def has_live_api_key(conn: Connection, agent: str) -> bool:
    """Whether an agent has an API key that is not revoked."""
    query = select(col(ApiKeyRow.agent)).where(
        col(ApiKeyRow.agent) == agent, col(ApiKeyRow.revoked_at).is_(None)
    )
    return conn.execute(query).first() is not None


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
