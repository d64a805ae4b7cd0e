"""The requests that a tool sent for one effect, so that a later try repeats them in order."""

from __future__ import annotations

from collections.abc import Sequence

from countersign.clock import Clock
from countersign.journal.database import Database
from countersign.journal.leases import Lease, Leases
from countersign.journal.meta import REQUESTS, MetaRecords, set_meta


class RequestLog(MetaRecords):
    """The requests that each call of an idempotent tool has sent, in order, as digests (tools/sending.py), so that a
    try of another process gives each one the same key. A request is on disk before it is sent, written only by the
    owner of the lease.
    """

    def __init__(self, database: Database, clock: Clock, leases: Leases) -> None:
        super().__init__(database, clock)
        self._leases = leases

    def keep(self, lease: Lease, effect_id: str, digests: Sequence[str]) -> None:
        """Record all of them, including the one about to be sent.

        Raises:
            LeaseLost: another process has taken over; nothing may be sent.
            JournalError: it could not be written.
        """
        with self._leases.unit(lease, "sending", durable=True) as change:
            set_meta(change, f"{REQUESTS}:{lease.txn}:{effect_id}", " ".join(digests))

    def of(self, txn: str, effect_id: str) -> tuple[str, ...]:
        """The requests of earlier tries."""
        return tuple((self._value(f"{REQUESTS}:{txn}:{effect_id}") or "").split())
