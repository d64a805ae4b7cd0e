"""Reading transactions and effects from the journal: every row is checked on the way (records.py)."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from countersign.errors import JournalError, JournalSealed
from countersign.journal.database import Database, Row
from countersign.journal.moves import OPEN_TXN, LocalState
from countersign.journal.records import (
    EffectRecord,
    ShownEffect,
    TransactionRecord,
    effect_record,
    shown_effect,
    transaction_record,
)
from countersign.journal.sealing import Seals, is_sealed
from countersign.journal.searching import WANTED, Wanted

STAGED_LANE: Final = "staged"
LIVE_LANE: Final = "live"
COMPENSATE_LANE: Final = "compensate"
_ALL: Final = 2**63 - 1  # more than there are


class Reading:
    """Questions to the tables `transactions` and `effects`."""

    def __init__(self, database: Database, seals: Seals) -> None:
        self._database = database
        self._seals = seals

    def get(self, txn: str) -> TransactionRecord | None:
        """One transaction."""
        row = self._database.row("SELECT * FROM transactions WHERE txn = ?", (txn,))
        return None if row is None else transaction_record(row)

    def require(self, txn: str) -> TransactionRecord:
        """One transaction that must be there.

        Raises:
            JournalError: it is not.
        """
        found = self.get(txn)
        if found is None:
            raise JournalError(f"the journal has no transaction {txn[:12]}")
        return found

    def find(self, name: str) -> list[TransactionRecord]:
        """Transactions by run key, by id, or by the beginning of an id."""
        rows = self._database.rows(
            "SELECT * FROM transactions WHERE run_key = :name OR substr(txn, 1, length(:name)) = :name ORDER BY txn",
            {"name": name},
        )
        return [transaction_record(row) for row in rows]

    def newest(self, limit: int) -> list[TransactionRecord]:
        """The latest transactions, newest first."""
        rows = self._database.rows(
            "SELECT * FROM transactions ORDER BY updated_at DESC, txn LIMIT ?", (limit,)
        )
        return [transaction_record(row) for row in rows]

    def matching(self, wanted: Wanted, limit: int | None = None) -> list[TransactionRecord]:
        """The transactions somebody looks for, newest first; all of them unless `limit` says how many."""
        rows = self._database.rows(
            f"SELECT t.* FROM transactions t WHERE {WANTED} "  # noqa: S608 - text of ours, values are bound
            "ORDER BY t.updated_at DESC, t.txn LIMIT :limit",
            {**wanted.parameters, "limit": _ALL if limit is None else limit},
        )
        return [transaction_record(row) for row in rows]

    def unfinished(self) -> list[TransactionRecord]:
        """Transactions that somebody still has to finish, oldest first."""
        rows = self._database.rows(
            "SELECT * FROM transactions WHERE state NOT IN ('settled', 'ended') ORDER BY created_at, txn"
        )
        found = [transaction_record(row) for row in rows]
        return [record for record in found if record.state in OPEN_TXN]

    def effects(self, record: TransactionRecord, lane: str = STAGED_LANE) -> tuple[EffectRecord, ...]:
        """The effects of the list in force, in order.

        Raises:
            JournalSealed: something of them is sealed under a key that is not here.
        """
        return tuple(effect_record(row, record.agent, self._seals) for row in self._rows(record, lane))

    def shown(self, record: TransactionRecord, lane: str = STAGED_LANE) -> tuple[ShownEffect, ...]:
        """The same for people, who need no key: what is sealed is hidden. Every row is checked as far as keys are here;
        `countersign journal verify` needs none.
        """
        found = []
        for row in self._rows(record, lane):
            with suppress(JournalSealed):
                effect_record(row, record.agent, self._seals)
            found.append(shown_effect(row))
        return tuple(found)

    def _rows(self, record: TransactionRecord, lane: str) -> list[Row]:
        return self._database.rows(
            "SELECT * FROM effects WHERE txn = ? AND staging = ? AND lane = ? ORDER BY seq",
            (record.txn, record.staging, lane),
        )

    def live_tools(self, txn: str) -> tuple[str, ...]:
        """The tools whose effects under this key were neither kept nor undone, in whichever list: a process died."""
        rows = self._database.rows(
            "SELECT DISTINCT tool FROM effects WHERE txn = ? AND lane = ? AND state = ? ORDER BY tool",
            (txn, LIVE_LANE, LocalState.LIVE.value),
        )
        return tuple(row["tool"] for row in rows)

    def unfinished_has_secrets(self) -> bool:
        """Whether a call of a transaction that somebody still has to finish has something sealed, in whichever list."""
        rows = self._database.rows(
            "SELECT e.args FROM effects e JOIN transactions t ON t.txn = e.txn "
            "WHERE t.state NOT IN ('settled', 'ended')"
        )
        return any(is_sealed(row["args"]) for row in rows)

    def state_of(self, txn: str, staging: int, effect_id: str) -> LocalState | None:
        """Where one effect stands."""
        row = self._database.row(
            "SELECT state FROM effects WHERE txn = ? AND staging = ? AND effect_id = ?",
            (txn, staging, effect_id),
        )
        return None if row is None else LocalState(row["state"])
