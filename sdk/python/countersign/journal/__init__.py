"""The SDK's durable record: what was staged, what was asked, what may have fired.

One SQLite file (WAL, 0600), or a schema of a PostgreSQL database. Nothing fires without it, and after a
crash it says what may have happened; it never guesses. `Journal` joins the parts, each in a file of its own.
"""

from __future__ import annotations

from pathlib import Path

from countersign.clock import Clock, SystemClock
from countersign.errors import MisuseError
from countersign.journal.claims import Claim, Claims
from countersign.journal.database import Database
from countersign.journal.firing import Done, Firing, News
from countersign.journal.freezing import Staged
from countersign.journal.leases import Lease, Leases
from countersign.journal.meta import (
    Conversations,
    Epochs,
    KeptManifests,
    Receipts,
    SentRequests,
    TakenEdits,
    Traces,
)
from countersign.journal.moves import LocalState, LocalTxn
from countersign.journal.outbox import Outbox
from countersign.journal.place import JournalPlace, JournalUrl, default_key_path, journal_place
from countersign.journal.postgres import PostgresDatabase
from countersign.journal.records import EffectRecord, Report, TransactionRecord
from countersign.journal.rerunning import Reruns, Stops
from countersign.journal.sealing import Seals
from countersign.journal.sealing_keys import KeptKey, KeyFile
from countersign.journal.spending import Spending
from countersign.journal.sqlite import SQLiteDatabase
from countersign.journal.transactions import Transactions

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
    "database_at",
    "require_journal",
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
        self.firing = Firing(self.leases, self.seals)
        self.sent = SentRequests(self.database, when, self.leases)
        self.stops = Stops(self.leases)
        self.reruns = Reruns(self.leases)
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


def database_at(place: JournalPlace | str) -> Database:
    """The database at this place; nothing is opened before it is used. `:memory:` is one that nothing survives.

    Raises:
        SettingsError: it is an address of something that keeps no journal, or its driver is not installed.
    """
    if isinstance(place, str) and place != ":memory:":
        place = journal_place(place)
    return PostgresDatabase(place) if isinstance(place, JournalUrl) else SQLiteDatabase(place)


def require_journal(place: JournalPlace) -> None:
    """Look whether there is a journal, and make none.

    Raises:
        MisuseError: there is none.
        JournalError: nobody can tell.
    """
    database = database_at(place)
    try:
        if not database.is_there():
            raise MisuseError(f"there is no journal at {str(place)!r}; name one with --journal")
    finally:
        database.close()


def _keys_of(place: JournalPlace | str, key_path: Path | None) -> KeptKey | KeyFile:
    """The keys of the journal at this place."""
    if place == ":memory:":
        return KeptKey()
    if key_path is not None:
        return KeyFile(key_path, named=True)
    return KeyFile(default_key_path(journal_place(place) if isinstance(place, str) else place), named=False)
