"""The SDK's durable record: what was staged, what was asked, what may have fired.

One SQLite file (WAL, 0600), or a schema of a PostgreSQL database. Nothing fires without it, and after a
crash it says what may have happened; it never guesses. `Journal` joins the parts, each in a file of its own.
"""

from __future__ import annotations

from pathlib import Path

from countersign.clock import Clock, SystemClock
from countersign.journal.claims import Claim, Claims
from countersign.journal.conversations import Conversations
from countersign.journal.firing import Done, Firing, News
from countersign.journal.leases import Lease, Leases
from countersign.journal.manifests import KeptManifests
from countersign.journal.meta import TakenEdits, Traces
from countersign.journal.moves import LocalState, LocalTxn
from countersign.journal.opening import database_at
from countersign.journal.outbox import Outbox
from countersign.journal.place import JournalPlace, default_key_path, journal_place
from countersign.journal.receipts import Epochs, Receipts
from countersign.journal.records import EffectRecord, Report, TransactionRecord
from countersign.journal.rerunning import Reruns
from countersign.journal.sealing import Seals
from countersign.journal.sealing_keys import KeptKey, KeyFile
from countersign.journal.sent import SentRequests
from countersign.journal.spending import Spending
from countersign.journal.stopping import Stops
from countersign.journal.transactions import Staged, Transactions

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
    """One journal, open. `key_path` is the file of the keys that seal what is secret; it is needed only where something
    is. Without it a journal in a file has it beside it, and one that machines share has none.
    """

    def __init__(
        self,
        place: JournalPlace | str,
        *,
        clock: Clock | None = None,
        lease_seconds: float = 60.0,
        key_path: Path | None = None,
    ) -> None:
        when = clock or SystemClock()
        self.database = database_at(place)
        self.seals = Seals(when, _keys_of(place, key_path))
        self.leases = Leases(self.database, when, lease_seconds)
        self.claims = Claims(self.database, self.leases, when)
        self.transactions = Transactions(self.database, self.leases, when, self.seals)
        self.firing = Firing(self.database, self.leases, when, self.seals)
        self.sent = SentRequests(self.database, self.leases)
        self.stops = Stops(self.database, self.leases)
        self.reruns = Reruns(self.database, self.leases, when)
        self.outbox = Outbox(self.database, when, self.seals)
        self.manifests = KeptManifests(self.database, when)
        self.receipts = Receipts(self.database, when)
        self.epochs = Epochs(self.database, when)
        self.edits = TakenEdits(self.database, when)
        self.traces = Traces(self.database, when)
        self.conversations = Conversations(self.database, when)
        self.spending = Spending(self.database, when, self.seals)

    def close(self) -> None:
        """Close its connection, and renew no lease any more."""
        self.leases.close()
        self.database.close()


def _keys_of(place: JournalPlace | str, key_path: Path | None) -> KeptKey | KeyFile:
    """The keys of the journal at this place."""
    if place == ":memory:":
        return KeptKey()
    if key_path is not None:
        return KeyFile(key_path, named=True)
    return KeyFile(default_key_path(journal_place(place) if isinstance(place, str) else place), named=False)
