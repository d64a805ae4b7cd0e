"""The SDK's durable record: what was staged, what was submitted, what may have fired.

One SQLite file (WAL, 0600), or a schema of a PostgreSQL database. Nothing fires without it. After a crash it holds what
may have happened; it never guesses. `Journal` joins the parts, each in a module of its own.
"""

from __future__ import annotations

from pathlib import Path

from countersign.clock import Clock, SystemClock
from countersign.errors import MisuseError
from countersign.journal.conversations import Conversations
from countersign.journal.database import Database
from countersign.journal.effects import EffectLog, EffectOutcome
from countersign.journal.leases import Lease, Leases
from countersign.journal.location import JournalLocation, JournalUrl, default_key_path, parse_location
from countersign.journal.meta import AcceptedEdits, Epochs, Outbox, Receipts, StoredManifests, Traces
from countersign.journal.postgres import PostgresDatabase
from countersign.journal.records import EffectRecord, Report, StagedRow, TransactionRecord
from countersign.journal.request_log import RequestLog
from countersign.journal.resource_locks import ResourceLock, ResourceLocks
from countersign.journal.sealing import Seals
from countersign.journal.sealing_keys import InMemoryKey, KeyFile
from countersign.journal.settlements import RemoteOutcome, Settlements
from countersign.journal.spending import Spending
from countersign.journal.sqlite import SQLiteDatabase
from countersign.journal.states import LocalState, LocalTxn
from countersign.journal.steps import RecordedSteps
from countersign.journal.stops_and_reruns import Transactions

__all__ = [
    "EffectOutcome",
    "EffectRecord",
    "Journal",
    "Lease",
    "LocalState",
    "LocalTxn",
    "RemoteOutcome",
    "Report",
    "ResourceLock",
    "StagedRow",
    "TransactionRecord",
    "open_database",
    "require_journal",
]


class Journal:
    """An open journal. `key_path` is the file of its sealing keys, needed only for secrets. By default a journal in
    a file has it next to the file; a shared journal has none.
    """

    def __init__(
        self,
        place: JournalLocation | str,
        *,
        clock: Clock | None = None,
        lease_seconds: float = 60.0,
        key_path: Path | None = None,
    ) -> None:
        when = clock or SystemClock()
        self.database = open_database(place)
        self.seals = Seals(when, _keys_for(place, key_path))
        self.leases = Leases(self.database, when, lease_seconds)
        self.resource_locks = ResourceLocks(self.database, self.leases, when)
        self.transactions = Transactions(self.database, self.leases, when, self.seals)
        self.effect_log = EffectLog(self.leases, self.seals)
        self.settlements = Settlements(self.leases, self.seals, self.effect_log)
        self.request_log = RequestLog(self.database, when, self.leases)
        self.outbox = Outbox(self.database, when, self.seals)
        self.manifests = StoredManifests(self.database, when)
        self.receipts = Receipts(self.database, when)
        self.epochs = Epochs(self.database, when)
        self.edits = AcceptedEdits(self.database, when)
        self.traces = Traces(self.database, when)
        self.steps = RecordedSteps(self.database, when, self.seals)
        self.conversations = Conversations(self.database, when)
        self.spending = Spending(self.database, when, self.seals)

    def close(self) -> None:
        """Close the connection and stop renewing leases."""
        self.leases.close()
        self.database.close()


def open_database(place: JournalLocation | str) -> Database:
    """The database at this location, opened at first use. `:memory:` is a database that ends with the process.

    Raises:
        SettingsError: the address has another scheme, or its driver is not installed.
    """
    if isinstance(place, str) and place != ":memory:":
        place = parse_location(place)
    return PostgresDatabase(place) if isinstance(place, JournalUrl) else SQLiteDatabase(place)


def require_journal(place: JournalLocation) -> None:
    """Require an existing journal, without creating one.

    Raises:
        MisuseError: there is none.
        JournalError: the database cannot be reached.
    """
    database = open_database(place)
    try:
        if not database.exists():
            raise MisuseError(f"there is no journal at {str(place)!r}; name one with --journal")
    finally:
        database.close()


def _keys_for(place: JournalLocation | str, key_path: Path | None) -> InMemoryKey | KeyFile:
    """The sealing keys of the journal at this location."""
    if place == ":memory:":
        return InMemoryKey()
    if key_path is not None:
        return KeyFile(key_path, named=True)
    return KeyFile(default_key_path(parse_location(place) if isinstance(place, str) else place), named=False)
