"""Locks on resources: one `Serialize` transaction of this journal at a time for each live adapter.

A lock (`Serialize`, live/isolation.py) lasts exactly as long as its transaction's lease; there is no second
timeout. All locks of a transaction are taken in one unit, or none is, so no transaction waits for a second resource
while it holds a first, and no deadlock can occur. Waiting holds nothing in the journal: a refused transaction tries
again later. No line of the chain binds a lock: like the lease it says who may begin now, not what happened.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from countersign.clock import Clock
from countersign.journal.database import Database, Row
from countersign.journal.leases import Lease, Leases


@dataclass(frozen=True, slots=True)
class ResourceLock:
    """One resource and the transaction that holds it."""

    resource: str
    run_key: str
    holder: str


class ResourceLocks:
    """Locks resources for a transaction, across all processes that share the journal."""

    def __init__(self, database: Database, leases: Leases, clock: Clock) -> None:
        self._database = database
        self._leases = leases
        self._clock = clock

    def first_held(self, resources: Collection[str]) -> ResourceLock | None:
        """The first of these resources that is locked, or None. Reads only, so the next look may differ."""
        return self._first(self._database.rows(_LOCKS_QUERY), resources, "")

    def take(self, lease: Lease, resources: Collection[str]) -> ResourceLock | None:
        """Lock all of these for the lease's transaction; or lock none and return the first one held by another.

        Raises:
            LeaseLost: another process owns the transaction now.
        """
        with self._database.unit(durable=False) as unit:
            self._leases.require(unit, lease)
            taken = self._first(unit.execute(_LOCKS_QUERY).fetchall(), resources, lease.txn)
            if taken is not None:
                return taken
            for resource in sorted(resources):
                unit.execute(
                    "INSERT INTO claims (resource, txn, generation, taken_at) VALUES (?, ?, ?, ?) "
                    "ON CONFLICT (resource) DO UPDATE SET txn = excluded.txn, generation = excluded.generation, "
                    "taken_at = excluded.taken_at",
                    (resource, lease.txn, lease.generation, self._clock.wall()),
                )
            return None

    def drop(self, lease: Lease) -> None:
        """Release all locks of the transaction before its lease ends, if nothing was done with them."""
        with self._database.unit(durable=False) as unit:
            unit.execute(
                "DELETE FROM claims WHERE txn = ? AND generation = ?",
                (lease.txn, lease.generation),
            )

    def _first(
        self, rows: list[Row] | list[Any], resources: Collection[str], own: str
    ) -> ResourceLock | None:
        return next(
            (
                ResourceLock(row["resource"], row["run_key"], row["holder"])
                for row in rows
                if row["resource"] in resources
                and row["txn"] != own
                and self._leases.holds(row["holder"], row["lease_until"])
            ),
            None,
        )


_LOCKS_QUERY: Final = (
    "SELECT c.resource, c.txn, t.run_key, t.holder, t.lease_until FROM claims c "
    "JOIN transactions t ON t.txn = c.txn AND t.generation = c.generation "
    "WHERE t.holder IS NOT NULL ORDER BY c.resource"
)
