"""Being alone with something: of the units that ask for the same name, one runs at a time.

A verb reads a transaction, decides, and moves it. Between the reading and the moving nobody else may move it: two votes
would each miss the other, two submissions would open the same revision. SQLite has one writer, so a unit is always
alone. On PostgreSQL a unit takes an advisory lock that ends with its database transaction, and reads the clock again
afterwards: it may have waited, and a unit that runs later must not have the earlier ``now``.

A unit is alone with one transaction at most, and asks for that before anything else is locked: so nobody waits in a
ring. Parties come after (an agent by name, a person by issuer and subject), shared by those who act for them and alone
for those who stop them. Then come those a submission is counted for, in the order of their numbers, and last the
agent that has people asked.

Who leads a job, on every replica, by the database's clock.

A lease row has a holder, an end and a fence. Taking it over raises the fence; renewing keeps it. A lease is
an optimisation: every job it guards is idempotent, so two leaders for a moment do no harm. Where a unit of
work must not interleave with another leader's, it takes the lease in that unit: the row stays locked until
commit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Connection, bindparam, func, select, update

from policy_service.storage.core import insert_or_ignore, table
from policy_service.storage.system_tables import LeaseRow
from policy_service.storage.unit_of_work import Clock, Tx

_KEY = bindparam("key", type_=BigInteger)
_EXCLUSIVE = select(func.pg_advisory_xact_lock(_KEY))
_SHARED = select(func.pg_advisory_xact_lock_shared(_KEY))
_CLOCK = select(func.clock_timestamp())


def current_time(conn: Connection, clock: Clock | None) -> datetime:
    """The time a unit of work on PostgreSQL goes by."""
    if clock is not None:
        return clock()
    moment: datetime = conn.execute(_CLOCK).scalar_one()
    return moment


def lock_transaction(tx: Tx, txn: str) -> Tx:
    """The same unit, alone with a transaction until it ends; go on with this one, its ``now`` is newer.

    Raises:
        RuntimeError: it is alone with another one already.
    """
    if tx.alone_with is not None:
        raise RuntimeError("a unit of work is alone with one transaction at most")
    if tx.conn.dialect.name == "sqlite":
        return replace(tx, alone_with=txn)
    tx.conn.execute(_EXCLUSIVE, {"key": _lock_id(f"txn {txn}")})
    return replace(tx, alone_with=txn, now=current_time(tx.conn, tx.clock))


def require_locked(tx: Tx, txn: str) -> None:
    """Refuse to move what another unit may be moving.

    Raises:
        RuntimeError: the unit did not ask to be alone with this transaction.
    """
    if tx.alone_with != txn:
        raise RuntimeError("a unit of work moves a transaction it is not alone with; ask for that first")


def lock_shared(tx: Tx, party: str) -> None:
    """Whoever stops this party waits until this unit has ended; many may act for it at once."""
    if tx.conn.dialect.name != "sqlite":
        tx.conn.execute(_SHARED, {"key": _lock_id(f"party {party}")})


def lock_exclusive(tx: Tx, party: str) -> None:
    """Wait for every unit that acts for this party; those that come later see what this one does."""
    if tx.conn.dialect.name != "sqlite":
        tx.conn.execute(_EXCLUSIVE, {"key": _lock_id(f"party {party}")})


def lock_counters(tx: Tx, counted: Iterable[str]) -> None:
    """Be alone, until the unit ends, with those it is counted for; on SQLite every unit is. Once in a unit, or two
    units could wait for each other: then the server ends one, and it runs again."""
    if tx.conn.dialect.name != "sqlite":
        for key in sorted({_lock_id(f"counted {name}") for name in counted}):
            tx.conn.execute(_EXCLUSIVE, {"key": key})


def lock_review_quota(tx: Tx, agent: str) -> None:
    """Be the only one who counts what this agent has people asked, until the unit ends. Nothing is locked after it, so
    nobody waits in a ring."""
    if tx.conn.dialect.name != "sqlite":
        tx.conn.execute(_EXCLUSIVE, {"key": _lock_id(f"asking {agent}")})


def _lock_id(name: str) -> int:
    """Two names with the same number only wait for each other."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)


_leases = table(LeaseRow)
_lease = _leases.c
# What a leader asks all the time is built once; who takes over asks it once.
_RENEW = (
    update(_leases)
    .where(_lease.name == bindparam("asked"), _lease.holder == bindparam("mine"))
    .where(_lease.expires_at > bindparam("now"))
    .values(expires_at=bindparam("until"))
    .returning(_lease.fence)
)


def acquire_lease(tx: Tx, name: str, holder: str, ttl: timedelta) -> int | None:
    """Take, keep or fail to get the lease; the answer is its fence.

    ``holder`` names one life of one process, never a host: a restarted process is another holder.
    """
    until = tx.now + ttl
    kept = tx.conn.execute(_RENEW, {"asked": name, "mine": holder, "now": tx.now, "until": until})
    if (fence := kept.scalar_one_or_none()) is not None:
        return int(fence)
    lapsed = update(_leases).where(_lease.name == name, _lease.expires_at <= tx.now)
    takeover = lapsed.values(holder=holder, fence=_lease.fence + 1, expires_at=until).returning(_lease.fence)
    if (fence := _one(tx, takeover)) is not None:
        return fence
    first = insert_or_ignore(tx.conn, _leases).returning(_lease.fence)
    return _one(tx, first.values(name=name, holder=holder, fence=1, expires_at=until))


def release_lease(tx: Tx, name: str, holder: str) -> bool:
    """Let go early, so that another need not wait for the end. False: it was not held by this holder."""
    held = update(_leases).where(_lease.name == name, _lease.holder == holder, _lease.expires_at > tx.now)
    return tx.conn.execute(held.values(expires_at=tx.now)).rowcount == 1


def _one(tx: Tx, statement: Any) -> int | None:
    fence: int | None = tx.conn.execute(statement).scalar_one_or_none()
    return fence
