"""Idempotency keys: the same key names the same resource, or it is an error.

A key belongs to one agent. It is settled in the unit of work that makes the resource, before anybody waits; stored are
the resource's id and the digest of the body, never an answer, so a repeat answers with the resource as it is now.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete
from sqlmodel import col

from countersign.contract import ErrorCode
from policy_service.errors import InvalidRequestError
from policy_service.storage.core import find_one, insert_row_or_ignore
from policy_service.storage.database import Tx
from policy_service.storage.system_tables import IdempotencyRow


@dataclass(frozen=True)
class IdempotencyKey:
    """An Idempotency-Key header with what it was sent for."""

    agent: str
    value: str
    route: str
    body_digest: str


def claim_key(tx: Tx, key: IdempotencyKey, resource: str) -> str | None:
    """Bind a new key to the resource this unit makes, or answer with the one the key has made already.

    Raises:
        InvalidRequestError: the key was used for another body or route (idempotency_key_reused).
    """
    row = IdempotencyRow(
        agent=key.agent,
        key=key.value,
        route=key.route,
        body_digest=key.body_digest,
        resource=resource,
        created_at=tx.now,
    )
    if insert_row_or_ignore(tx.conn, row):
        return None
    known = find_one(tx.conn, IdempotencyRow, agent=key.agent, key=key.value)
    if known is None or (known.route, known.body_digest) != (key.route, key.body_digest):
        raise InvalidRequestError(
            "this idempotency key was used for another request; take a new one for a new body",
            code=ErrorCode.IDEMPOTENCY_KEY_REUSED,
        )
    return known.resource


def delete_expired_keys(tx: Tx, before: datetime) -> int:
    """Delete keys made before that moment; how many."""
    return tx.conn.execute(delete(IdempotencyRow).where(col(IdempotencyRow.created_at) < before)).rowcount
