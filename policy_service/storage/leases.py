"""Who leads a job, on every replica, by the database's clock.

A lease row has a holder, an end and a fence. Taking it over raises the fence; renewing keeps it. A lease is
an optimisation: every job it guards is idempotent, so two leaders for a moment do no harm. Where a unit of
work must not interleave with another leader's, it takes the lease in that unit: the row stays locked until
commit.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import bindparam, update

from policy_service.storage.core import insert_unless_there, table
from policy_service.storage.plumbing import LeaseRow
from policy_service.storage.unit import Tx

_leases = table(LeaseRow)
_lease = _leases.c
# What a leader asks all the time is built once; who takes over asks it once.
_KEEP = (
    update(_leases)
    .where(_lease.name == bindparam("asked"), _lease.holder == bindparam("mine"))
    .where(_lease.expires_at > bindparam("now"))
    .values(expires_at=bindparam("until"))
    .returning(_lease.fence)
)


def acquire(tx: Tx, name: str, holder: str, ttl: timedelta) -> int | None:
    """Take, keep or fail to get the lease; the answer is its fence.

    ``holder`` names one life of one process, never a host: a restarted process is another holder.
    """
    until = tx.now + ttl
    kept = tx.conn.execute(_KEEP, {"asked": name, "mine": holder, "now": tx.now, "until": until})
    if (fence := kept.scalar_one_or_none()) is not None:
        return int(fence)
    lapsed = update(_leases).where(_lease.name == name, _lease.expires_at <= tx.now)
    takeover = lapsed.values(holder=holder, fence=_lease.fence + 1, expires_at=until).returning(_lease.fence)
    if (fence := _one(tx, takeover)) is not None:
        return fence
    first = insert_unless_there(tx.conn, _leases).returning(_lease.fence)
    return _one(tx, first.values(name=name, holder=holder, fence=1, expires_at=until))


def release(tx: Tx, name: str, holder: str) -> bool:
    """Let go early, so that another need not wait for the end. False: it was not held by this holder."""
    held = update(_leases).where(_lease.name == name, _lease.holder == holder, _lease.expires_at > tx.now)
    return tx.conn.execute(held.values(expires_at=tx.now)).rowcount == 1


def _one(tx: Tx, statement: Any) -> int | None:
    fence: int | None = tx.conn.execute(statement).scalar_one_or_none()
    return fence
