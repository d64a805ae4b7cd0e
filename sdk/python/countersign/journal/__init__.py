"""The SDK's durable record: what was staged, what was asked, what may have fired.

One SQLite file (WAL, 0600), or a schema of a PostgreSQL database. Nothing fires without it, and after a
crash it says what may have happened; it never guesses. `Journal` joins the parts, each in a file of its own.
"""

from __future__ import annotations

from countersign.clock import Clock, SystemClock
from countersign.journal.claims import Claim, Claims
from countersign.journal.firing import Done, Firing, News
from countersign.journal.kept import Epochs, KeptManifests, Receipts, TakenEdits, Traces
from countersign.journal.leases import Lease, Leases
from countersign.journal.moves import LocalState, LocalTxn
from countersign.journal.opening import database_at
from countersign.journal.outbox import Outbox
from countersign.journal.records import EffectRecord, Report, TransactionRecord
from countersign.journal.spending import Spending
from countersign.journal.transactions import Staged, Transactions
from countersign.journal_place import JournalPlace

__all__ = [
    "Claim",
    "Done",
    "EffectRecord",
    "Journal",
    "Lease",
    "LocalState",
    "LocalTxn",
    "News",
    "Report",
    "Staged",
    "TransactionRecord",
]


class Journal:
    """One journal, open."""

    def __init__(
        self, place: JournalPlace | str, *, clock: Clock | None = None, lease_seconds: float = 60.0
    ) -> None:
        when = clock or SystemClock()
        self.database = database_at(place)
        self.leases = Leases(self.database, when, lease_seconds)
        self.claims = Claims(self.database, self.leases, when)
        self.transactions = Transactions(self.database, self.leases, when)
        self.firing = Firing(self.database, self.leases, when)
        self.outbox = Outbox(self.database, when)
        self.manifests = KeptManifests(self.database, when)
        self.receipts = Receipts(self.database, when)
        self.epochs = Epochs(self.database, when)
        self.edits = TakenEdits(self.database, when)
        self.traces = Traces(self.database, when)
        self.spending = Spending(self.database, when)

    def close(self) -> None:
        """Close its connection, and renew no lease any more."""
        self.leases.close()
        self.database.close()
