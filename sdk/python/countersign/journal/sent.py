"""Which requests each call of an idempotent tool has sent, in the order of their places (tools/current.py): by digests,
so that a try of another process gives each the key that it had.

Rules: a request is on the disk before it is sent, written by the owner of the lease and by nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence

from countersign.journal.database import Database
from countersign.journal.leases import Lease, Leases
from countersign.journal.meta import SENT, set_meta


class SentRequests:
    """By transaction and effect."""

    def __init__(self, database: Database, leases: Leases) -> None:
        self._database = database
        self._leases = leases

    def keep(self, lease: Lease, effect_id: str, digests: Sequence[str]) -> None:
        """All of them, as they stand with one that is about to be sent.

        Raises:
            LeaseLost: somebody took the transaction over; nothing may be sent.
            JournalError: it could not be written.
        """
        with (
            self._database.unit(durable=True) as unit,
            self._leases.changing(unit, lease, "sending") as change,
        ):
            set_meta(change, _name(lease.txn, effect_id), " ".join(digests))

    def of(self, txn: str, effect_id: str) -> tuple[str, ...]:
        """What earlier tries have sent."""
        row = self._database.row("SELECT value FROM meta WHERE name = ?", (_name(txn, effect_id),))
        return () if row is None else tuple(str(row["value"]).split())


def _name(txn: str, effect_id: str) -> str:
    return f"{SENT}:{txn}:{effect_id}"
