"""Advisory locks: one unit of work at a time per transaction id; and leases of background jobs.

A verb reads a transaction, decides, and changes its state. No other unit may change it in between: two votes would
each miss the other, two submissions would open the same revision. SQLite has a single writer, so every unit is
exclusive. On PostgreSQL a unit takes an advisory lock that ends with its database transaction. It then reads the clock
again, because it may have waited, and a later unit must not have an earlier ``now``.

Locks are taken in one order, so that units cannot deadlock: one transaction id at most, first of all; then principals
(agents by name, people by issuer and subject), shared by units that act for them and exclusive for units that stop
them; then metered subjects, by lock id; last the review quota of an agent.

A lease says which replica runs a job, by the database's clock. Its row has a holder, an expiry and a fence. Taking it
over raises the fence; renewing keeps it. A lease is only an optimisation: every job is idempotent, so two holders do no
harm for a moment. A unit that must not interleave with another holder's takes the lease itself: the row stays locked
until its commit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

from sqlalchemy import BigInteger, Connection, bindparam, func, select, update

from policy_service.storage.core import fetch, insert_row_or_ignore, table
from policy_service.storage.system_tables import LeaseRow
from policy_service.storage.unit_of_work import Clock, Tx

_KEY = bindparam("key", type_=BigInteger)
_EXCLUSIVE = select(func.pg_advisory_xact_lock(_KEY))
_SHARED = select(func.pg_advisory_xact_lock_shared(_KEY))
_SHARED_TWO = _SHARED.add_columns(
    func.pg_advisory_xact_lock_shared(bindparam("and_key", type_=BigInteger)).label("second")
)
_CLOCK = select(func.clock_timestamp())
# A CTE with a volatile function is evaluated first, so the time is read once the lock is held.
_EXCLUSIVE_THEN_CLOCK = _CLOCK.select_from(_EXCLUSIVE.cte("held"))


def current_time(conn: Connection, clock: Clock | None) -> datetime:
    """The time of a unit of work on PostgreSQL."""
    if clock is not None:
        return clock()
    ((moment,),) = fetch(conn, _CLOCK, {})
    return cast(datetime, moment)


def lock_transaction(tx: Tx, txn: str) -> Tx:
    """Lock a transaction id until the unit ends. Continue with the returned unit, whose ``now`` is later.

    Raises:
        RuntimeError: the unit holds the lock of a transaction already.
    """
    if tx.locked_txn is not None:
        raise RuntimeError("a unit of work locks one transaction at most")
    if tx.conn.dialect.name == "sqlite":
        return replace(tx, locked_txn=txn)
    ((moment,),) = fetch(tx.conn, _EXCLUSIVE_THEN_CLOCK, {"key": _lock_id(f"txn {txn}")})
    return replace(tx, locked_txn=txn, now=moment if tx.clock is None else tx.clock())


def require_locked(tx: Tx, txn: str) -> None:
    """Refuse to change a transaction that another unit may be changing.

    Raises:
        RuntimeError: the unit has not locked this transaction.
    """
    if tx.locked_txn != txn:
        raise RuntimeError(
            "a unit of work changes a transaction it has not locked; call lock_transaction first"
        )


def lock_shared(tx: Tx, principal: str, and_then: str | None = None) -> None:
    """Hold off :func:`lock_exclusive` of this principal until the unit ends; units that act for it run concurrently.

    ``and_then`` is locked after it, in the same round trip.
    """
    if tx.conn.dialect.name == "sqlite":
        return
    key = _lock_id(f"party {principal}")
    if and_then is None:
        fetch(tx.conn, _SHARED, {"key": key})
    else:
        fetch(tx.conn, _SHARED_TWO, {"key": key, "and_key": _lock_id(f"party {and_then}")})


def lock_exclusive(tx: Tx, principal: str) -> None:
    """Wait for every unit that acts for this principal; later ones see this unit's changes."""
    if tx.conn.dialect.name != "sqlite":
        fetch(tx.conn, _EXCLUSIVE, {"key": _lock_id(f"party {principal}")})


def lock_counters(tx: Tx, counted: Iterable[str]) -> None:
    """Lock the metered subjects until the unit ends.

    Call it once per unit: two units that call it twice can deadlock. The server then ends one, which runs again.
    """
    if tx.conn.dialect.name != "sqlite":
        for key in sorted({_lock_id(f"counted {name}") for name in counted}):
            fetch(tx.conn, _EXCLUSIVE, {"key": key})


def lock_review_quota(tx: Tx, agent: str) -> None:
    """Lock the count of open reviews of this agent until the unit ends. It is the last lock a unit takes."""
    if tx.conn.dialect.name != "sqlite":
        fetch(tx.conn, _EXCLUSIVE, {"key": _lock_id(f"asking {agent}")})


def _lock_id(name: str) -> int:
    """Names whose ids collide only wait for each other."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)


_leases = table(LeaseRow)
_lease = _leases.c
# The renewal is frequent, so its statement is built once.
_RENEW = (
    update(_leases)
    .where(_lease.name == bindparam("lease"), _lease.holder == bindparam("mine"))
    .where(_lease.expires_at > bindparam("now"))
    .values(expires_at=bindparam("until"))
    .returning(_lease.fence)
)


def acquire_lease(tx: Tx, name: str, holder: str, ttl: timedelta) -> int | None:
    """Take or renew the lease. Returns its fence, or None if another holder has it.

    ``holder`` names one run of one process, never a host: a restarted process is another holder.
    """
    until = tx.now + ttl
    kept = tx.conn.execute(_RENEW, {"lease": name, "mine": holder, "now": tx.now, "until": until})
    if (fence := kept.scalar_one_or_none()) is not None:
        return int(fence)
    lapsed = update(_leases).where(_lease.name == name, _lease.expires_at <= tx.now)
    takeover = lapsed.values(holder=holder, fence=_lease.fence + 1, expires_at=until).returning(_lease.fence)
    if (fence := tx.conn.execute(takeover).scalar_one_or_none()) is not None:
        return int(fence)
    first = LeaseRow(name=name, holder=holder, fence=1, expires_at=until)
    return first.fence if insert_row_or_ignore(tx.conn, first) else None


def release_lease(tx: Tx, name: str, holder: str) -> bool:
    """Release the lease before its expiry. False: this holder did not have it."""
    held = update(_leases).where(_lease.name == name, _lease.holder == holder, _lease.expires_at > tx.now)
    return tx.conn.execute(held.values(expires_at=tx.now)).rowcount == 1
