"""Who has a live adapter's resource to himself: what `Serialize` waits for (live/isolation.py).

Rules: a claim hangs on its transaction's lease and stands exactly as long: whoever gives the lease up, loses it or dies
holds nothing any more, and no second clock decides. All claims of a transaction are taken in one unit or none is, so
nobody waits for a second resource while he holds a first, and no circle of waiting can arise. Nothing of the journal is
held while anybody waits: who is refused asks again later. No line of the chain binds a claim: like the lease it says
who may begin now, not what happened.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from countersign.clock import Clock
from countersign.journal.database import Database, Row
from countersign.journal.leases import Lease, Leases

_LOCKS_QUERY: Final = (
    "SELECT c.resource, c.txn, t.run_key, t.holder, t.lease_until FROM claims c "
    "JOIN transactions t ON t.txn = c.txn AND t.generation = c.generation "
    "WHERE t.holder IS NOT NULL ORDER BY c.resource"
)


@dataclass(frozen=True, slots=True)
class ResourceLock:
    """One resource, and which transaction has it to itself."""

    resource: str
    run_key: str
    holder: str


class ResourceLocks:
    """Taking resources for a transaction alone, across all processes that share the journal."""

    def __init__(self, database: Database, leases: Leases, clock: Clock) -> None:
        self._database = database
        self._leases = leases
        self._clock = clock

    def standing(self, resources: Collection[str]) -> ResourceLock | None:
        """The first of these that somebody has, or None. A look: nothing is written, and the next may see another."""
        return self._first(self._database.rows(_LOCKS_QUERY), resources, "")

    def take(self, lease: Lease, resources: Collection[str]) -> ResourceLock | None:
        """Take all of these for the lease's transaction, or none and answer the first that somebody else has.

        Raises:
            LeaseLost: the transaction is not this process's any more.
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
        """Give all of them up before the lease: nothing was done with them. Those of others are left alone."""
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
