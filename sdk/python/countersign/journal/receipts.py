"""What the service has signed, by attempt, and the epochs it was in: what a restored one is told again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from countersign.clock import Clock
from countersign.journal.chain import OWN, Change, changing
from countersign.journal.database import Database

_EPOCH: Final = "epoch"
_TOLD: Final = "told"


@dataclass(frozen=True, slots=True)
class Receipt:
    """A receipt, and the transaction it was given for."""

    txn: str
    token: str


class Receipts:
    """What the service has signed of each attempt: proof of the redemption, should its database forget it."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def keep(self, attempt_id: str, txn: str, token: str) -> None:
        """Keep a verified receipt. Not durable by itself: the FIRING that follows is, and carries this with it."""
        if self.of(attempt_id) is not None:
            return
        now = self._clock.wall()
        with self._database.unit(durable=False) as unit, changing(unit, txn, "receipt", now) as change:
            change.run(
                "receipts",
                "INSERT INTO receipts (attempt_id, txn, token, kept_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (attempt_id, txn, token, now),
            )

    def of(self, attempt_id: str) -> Receipt | None:
        """The receipt of an attempt, if one was ever seen."""
        row = self._database.row("SELECT txn, token FROM receipts WHERE attempt_id = ?", (attempt_id,))
        return None if row is None else Receipt(str(row["txn"]), str(row["token"]))

    def untold(self, since: float) -> list[str]:
        """Attempts whose receipt was kept since then and of which no outcome is written yet: what is firing now, or
        was when its process ended.
        """
        rows = self._database.rows(
            "SELECT attempt_id FROM receipts WHERE kept_at >= ? AND NOT EXISTS "
            "(SELECT 1 FROM outbox WHERE outbox.attempt_id = receipts.attempt_id) ORDER BY kept_at",
            (since,),
        )
        return [str(row["attempt_id"]) for row in rows]


class Epochs:
    """The highest epoch of each issuer: a release from before a restore is refused (design section 6). And the epoch
    whose service was told everything this journal knows: a later one is told again, before anything is submitted.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def highest(self, iss: str) -> int:
        """The highest epoch met in a verified token; 0 before the first."""
        return self._read(f"{_EPOCH}:{iss}")

    def told(self, iss: str) -> int:
        """The epoch that was told everything; 0 before there was anything to tell."""
        return self._read(f"{_TOLD}:{iss}")

    def meet(self, iss: str, epoch: int) -> None:
        """Remember an epoch from a verified token; it never goes back. The first one has been told everything."""
        if epoch <= self.highest(iss):
            return
        now = self._clock.wall()
        with self._database.unit(durable=True) as unit, changing(unit, OWN, "epoch", now) as change:
            _raise(change, f"{_EPOCH}:{iss}", epoch)
            change.run(
                "meta",
                "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING",
                (f"{_TOLD}:{iss}", str(epoch)),
            )

    def tell(self, iss: str, epoch: int) -> None:
        """The service of this epoch has been told everything."""
        now = self._clock.wall()
        with self._database.unit(durable=True) as unit, changing(unit, OWN, "told", now) as change:
            _raise(change, f"{_TOLD}:{iss}", epoch)

    def _read(self, name: str) -> int:
        row = self._database.row("SELECT value FROM meta WHERE name = ?", (name,))
        return 0 if row is None else int(row["value"])


def _raise(change: Change, name: str, epoch: int) -> None:
    change.run(
        "meta",
        "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE "
        "SET value = excluded.value WHERE CAST(excluded.value AS BIGINT) > CAST(meta.value AS BIGINT)",
        (name, str(epoch)),
        "value",
    )
