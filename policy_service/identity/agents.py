"""Agents and executors: enrolled by an operator, with several Ed25519 keys each.

Rules: a name is enrolled once; a key is enrolled by an operator or brought by a token for a while; it belongs to one
party for ever, so the key of one can never become another's; a revoked key proves nothing from that moment on; a frozen
party begins nothing. All of it is logged.

API keys: a weaker kind of proof for trials on loopback. Stored hashed; a random 256-bit secret needs no salt.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, bindparam, func, select, true, update
from sqlmodel import col

from countersign.contract import ErrorCode, PublicKey
from policy_service.errors import ConflictError, ForbiddenError, InvalidRequestError, NotFoundError
from policy_service.storage.advisory_locks import lock_exclusive, lock_shared
from policy_service.storage.audit_writer import append
from policy_service.storage.core import insert_or_ignore, table
from policy_service.storage.credential_tables import AgentKeyRow, ApiKeyRow
from policy_service.storage.database import Tx
from policy_service.storage.tables import AgentRow
from policy_service.storage.types import time_text


@dataclass(frozen=True, slots=True)
class Caller:
    """An enrolled agent or executor, and how it proved itself.

    ``jkt`` is the thumbprint of the key that signed the proof; None for an API key, whose releases are bound to none.
    """

    agent: str
    jkt: str | None
    method: Literal["key", "api_key"] = "key"


@dataclass(frozen=True, slots=True)
class Voucher:
    """What a token says for an agent: whose key may be brought, who says so, and until when."""

    agent: str
    issuer: str  # its name in the settings
    trust: str  # those settings as they are, in a digest
    issued_at: datetime
    subject: str
    until: datetime
    jkt: str | None  # the only key it may bring, where the token is bound to one


_MAX_VOUCHED_KEYS = 256  # of one agent by one issuer at a time: its replicas, and some restarts of each
OPERATOR = "operator"  # whoever has the command line of the service's own host
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,99}\Z")


@dataclass(frozen=True, slots=True)
class LiveKey:
    """A key that proves something now, whose it is, and the issuer settings it was brought under (None: enrolled)."""

    agent: str
    key: PublicKey
    trust: str | None


def enroll(
    tx: Tx, name: str, *, owner: str | None = None, roles: Sequence[str] = (), teams: Sequence[str] = ()
) -> None:
    """Enrol a party; ``owner`` is a person's ``iss|sub``.

    Raises:
        InvalidRequestError: a name or owner that cannot be one.
        ConflictError: the name is taken.
    """
    if not _NAME.match(name):
        raise InvalidRequestError(
            f"{name!r} cannot be an agent's name; use letters, digits, '.', '_' and '-'"
        )
    if owner is not None and not all(owner.partition("|")):
        raise InvalidRequestError(f"the owner {owner!r} is not a person; write ISSUER|SUBJECT")
    row = {"name": name, "owner": owner, "roles": list(roles), "teams": list(teams), "enrolled_at": tx.now}
    if tx.conn.execute(insert_or_ignore(tx.conn, table(AgentRow)).values(row)).rowcount == 0:
        raise ConflictError(f"the agent {name!r} is enrolled already; add a key with `agent key add`")
    body = {"agent": name, "owner": owner, "roles": list(roles), "teams": list(teams)}
    append(tx, "agent_enrolled", actor=OPERATOR, agent=name, body=body)


def add_key(tx: Tx, name: str, key: PublicKey) -> None:
    """Let a party prove itself with one more key.

    Raises:
        NotFoundError: no such party.
        ConflictError: the key is known, whoever has it and whether or not it was revoked.
    """
    _require_agent(tx.conn, name)
    row = {"kid": key.kid, "agent": name, "x": key.jwk()["x"], "added_at": tx.now}
    if tx.conn.execute(insert_or_ignore(tx.conn, table(AgentKeyRow)).values(row)).rowcount == 0:
        raise ConflictError(f"the key {key.kid} was given to a party already; make a new one")
    append(tx, "agent_key_added", actor=OPERATOR, agent=name, body={"agent": name, "kid": key.kid})


def add_vouched_key(tx: Tx, key: PublicKey, voucher: Voucher) -> None:
    """Let an agent prove itself with a key that an issuer's token vouches for; again moves its end.

    Raises:
        NotFoundError: no such agent.
        ForbiddenError: it is frozen, or the token is older than the last revocation of such a key: whoever was to be
            kept out may hold that token too.
        ConflictError: the key is another's, was enrolled, was revoked, came by another issuer, or is one too many.
    """
    agent, issuer = voucher.agent, voucher.issuer
    lock_shared(tx, agent)
    if _require_agent(tx.conn, agent).frozen_at is not None:
        raise ForbiddenError(f"the agent {agent!r} is frozen", code=ErrorCode.FROZEN)
    _require_newer_than_revocations(tx, voucher)
    _require_room(tx, voucher)
    row = {"kid": key.kid, "agent": agent, "x": key.jwk()["x"], "added_at": tx.now}
    row |= {"issuer": issuer, "trust": voucher.trust, "expires_at": voucher.until}
    if tx.conn.execute(insert_or_ignore(tx.conn, table(AgentKeyRow)).values(row)).rowcount == 0:
        mine = (
            col(AgentKeyRow.kid) == key.kid,
            col(AgentKeyRow.agent) == agent,
            col(AgentKeyRow.issuer) == issuer,
            col(AgentKeyRow.revoked_at).is_(None),
        )
        if (
            tx.conn.execute(
                update(AgentKeyRow).where(*mine).values(trust=voucher.trust, expires_at=voucher.until)
            ).rowcount
            == 0
        ):
            raise ConflictError(f"the key {key.kid} was given to a party already; make a new one")
    body = {"agent": agent, "kid": key.kid, "issuer": issuer, "subject": voucher.subject}
    append(
        tx,
        "agent_key_brought",
        actor=f"agent:{agent}",
        agent=agent,
        body={**body, "until": time_text(voucher.until)},
    )


def _brought(voucher: Voucher) -> tuple[ColumnElement[bool], ...]:
    return col(AgentKeyRow.agent) == voucher.agent, col(AgentKeyRow.issuer) == voucher.issuer


def _require_newer_than_revocations(tx: Tx, voucher: Voucher) -> None:
    last = tx.conn.execute(select(func.max(col(AgentKeyRow.revoked_at))).where(*_brought(voucher))).scalar()
    if last is not None and voucher.issued_at <= last:
        raise ForbiddenError(
            "a key of this agent's was revoked after that token was issued; show a newer token"
        )


def _require_room(tx: Tx, voucher: Voucher) -> None:
    live = (col(AgentKeyRow.revoked_at).is_(None), col(AgentKeyRow.expires_at) > tx.now)
    counted = select(func.count()).select_from(table(AgentKeyRow)).where(*_brought(voucher), *live)
    if tx.conn.execute(counted).scalar_one() >= _MAX_VOUCHED_KEYS:
        raise ConflictError(
            f"{voucher.agent!r} has {_MAX_VOUCHED_KEYS} brought keys already; wait until some end"
        )


def revoke_key(tx: Tx, kid: str, reason: str | None = None) -> list[str]:
    """End a key, and with one that a token brought every other that the same issuer's tokens brought for that agent:
    whoever held the token may have brought several. The keys that ended; ending a key again changes nothing.

    Raises:
        NotFoundError: no such key.
    """
    known = _key_row(tx.conn, kid)
    if known is None:
        raise NotFoundError(f"there is no key {kid!r}")
    lock_exclusive(tx, known.agent)
    which = col(AgentKeyRow.kid) == kid if known.issuer is None else col(AgentKeyRow.issuer) == known.issuer
    return _revoke_keys(tx, known.agent, which, reason)


def revoke_keys_of(tx: Tx, name: str) -> int:
    """End every key of a party; how many were live."""
    lock_exclusive(tx, name)
    return len(_revoke_keys(tx, name, true()))


def _revoke_keys(tx: Tx, name: str, which: ColumnElement[bool], reason: str | None = None) -> list[str]:
    where = (col(AgentKeyRow.agent) == name, which, col(AgentKeyRow.revoked_at).is_(None))
    ended = update(AgentKeyRow).where(*where).values(revoked_at=tx.now).returning(col(AgentKeyRow.kid))
    kids = sorted(tx.conn.execute(ended).scalars())
    for kid in kids:
        append(
            tx,
            "agent_key_revoked",
            actor=OPERATOR,
            agent=name,
            body={"agent": name, "kid": kid, **_reason_body(reason)},
        )
    return kids


def freeze(tx: Tx, name: str, reason: str | None = None, *, actor: str = OPERATOR) -> None:
    """Stop a party: it stages, redeems and renews nothing until it is unfrozen. Taking back what fired goes on.
    Freezing it again changes nothing. Once this is committed nothing it had begun is committed after it.

    Raises:
        NotFoundError: no such party.
    """
    _require_agent(tx.conn, name)
    lock_exclusive(tx, name)
    where = (col(AgentRow.name) == name, col(AgentRow.frozen_at).is_(None))
    frozen = {"frozen_at": tx.now, "frozen_by": actor, "frozen_reason": reason}
    if tx.conn.execute(update(AgentRow).where(*where).values(frozen)).rowcount:
        append(tx, "agent_frozen", actor=actor, agent=name, body={"agent": name, **_reason_body(reason)})


def unfreeze(tx: Tx, name: str, reason: str | None = None, *, actor: str = OPERATOR) -> None:
    """Let a frozen party act again. What lapsed meanwhile stays lapsed; unfreezing it again changes nothing.

    Raises:
        NotFoundError: no such party.
    """
    _require_agent(tx.conn, name)
    where = (col(AgentRow.name) == name, col(AgentRow.frozen_at).is_not(None))
    thawed = {"frozen_at": None, "frozen_by": None, "frozen_reason": None}
    if tx.conn.execute(update(AgentRow).where(*where).values(thawed)).rowcount:
        append(tx, "agent_unfrozen", actor=actor, agent=name, body={"agent": name, **_reason_body(reason)})


def frozen_agents(conn: Connection) -> list[AgentRow]:
    """The parties that are frozen now, by name."""
    query = (
        select(*_columns(AgentRow)).where(col(AgentRow.frozen_at).is_not(None)).order_by(col(AgentRow.name))
    )
    return [AgentRow(**row._mapping) for row in conn.execute(query)]


def _reason_body(reason: str | None) -> dict[str, str]:
    return {} if reason is None else {"reason": reason}


def agent_names(conn: Connection, most: int) -> list[str]:
    """The first names of those enrolled."""
    return list(conn.execute(select(col(AgentRow.name)).order_by(col(AgentRow.name)).limit(most)).scalars())


def find_agent(conn: Connection, name: str) -> AgentRow | None:
    """An enrolled party by name."""
    row = conn.execute(select(*_columns(AgentRow)).where(col(AgentRow.name) == name)).first()
    return None if row is None else AgentRow(**row._mapping)


def find_key(conn: Connection, kid: str, now: datetime) -> LiveKey | None:
    """The key of an id, unless it was revoked or its time is over."""
    row = conn.execute(_LIVE_KEY, {"asked": kid}).first()
    if row is None or (row.expires_at is not None and now >= row.expires_at):
        return None
    return LiveKey(row.agent, _public_key(row.x), row.trust)


def list_agents(conn: Connection) -> list[AgentRow]:
    """Every enrolled party, by name."""
    query = select(*_columns(AgentRow)).order_by(col(AgentRow.name))
    return [AgentRow(**row._mapping) for row in conn.execute(query)]


def list_keys(conn: Connection, name: str) -> list[AgentKeyRow]:
    """The keys of a party, oldest first, revoked ones too."""
    query = (
        select(*_columns(AgentKeyRow))
        .where(col(AgentKeyRow.agent) == name)
        .order_by(col(AgentKeyRow.added_at))
    )
    return [AgentKeyRow(**row._mapping) for row in conn.execute(query)]


def _require_agent(conn: Connection, name: str) -> AgentRow:
    agent = find_agent(conn, name)
    if agent is None:
        raise NotFoundError(f"the agent {name!r} is not enrolled; policy-service agent enroll {name}")
    return agent


def _key_row(conn: Connection, kid: str) -> AgentKeyRow | None:
    row = conn.execute(select(*_columns(AgentKeyRow)).where(col(AgentKeyRow.kid) == kid)).first()
    return None if row is None else AgentKeyRow(**row._mapping)


# Asked for with every request: the statement is built once, and so is each key.
_LIVE_KEY = select(
    col(AgentKeyRow.agent), col(AgentKeyRow.x), col(AgentKeyRow.trust), col(AgentKeyRow.expires_at)
).where(col(AgentKeyRow.kid) == bindparam("asked"), col(AgentKeyRow.revoked_at).is_(None))


@lru_cache(maxsize=4096)
def _public_key(x: str) -> PublicKey:
    return PublicKey.from_jwk({"kty": "OKP", "crv": "Ed25519", "x": x})


def _columns(model: type[AgentRow] | type[AgentKeyRow]) -> list[Any]:
    return list(table(model).columns)


_PREFIX = "csk_"
_BYTES = 32


def make_api_key(tx: Tx, agent: str) -> str:
    """A new key for an enrolled agent; this is the only time it is seen.

    Raises:
        NotFoundError: no such agent.
    """
    _require_enrolled(tx, agent)
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
    _require_enrolled(tx, agent)
    lock_exclusive(tx, agent)
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


def _require_enrolled(tx: Tx, agent: str) -> None:
    if find_agent(tx.conn, agent) is None:
        raise NotFoundError(f"the agent {agent!r} is not enrolled; policy-service agent enroll {agent}")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
