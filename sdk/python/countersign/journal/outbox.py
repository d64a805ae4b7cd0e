"""What the service still has to be told: outcomes, at least once each, in the order they were written."""

from __future__ import annotations

from collections.abc import Sequence

from countersign.clock import Clock
from countersign.journal.database import Database
from countersign.journal.records import Report


class Outbox:
    """The table `outbox`; rows are written with the outcomes they carry (firing.py)."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def pending(self, txn: str | None = None) -> list[Report]:
        """Reports the service has not taken yet; of one transaction, or of all."""
        rows = self._database.rows(
            "SELECT id, txn, attempt_id, effect_id, outcome, result, error FROM outbox "
            "WHERE reported_at IS NULL AND refused IS NULL AND (? IS NULL OR txn = ?) ORDER BY id",
            (txn, txn),
        )
        return [Report(**{name: row[name] for name in Report.__dataclass_fields__}) for row in rows]

    def reported(self, reports: Sequence[Report]) -> None:
        """The service has them. Not durable: reporting twice does no harm."""
        with self._database.unit(durable=False) as unit:
            unit.executemany(
                "UPDATE outbox SET reported_at = ? WHERE id = ?",
                [(self._clock.wall(), one.id) for one in reports],
            )

    def tell_again(self, since: float) -> None:
        """What the service has taken since then it may have forgotten: it is pending again."""
        with self._database.unit(durable=True) as unit:
            unit.execute("UPDATE outbox SET reported_at = NULL WHERE reported_at >= ?", (since,))

    def refused(self, reports: Sequence[Report], why: str) -> None:
        """The service will never take these (it knows better, or knows nothing of the attempt); kept for
        people.
        """
        with self._database.unit(durable=False) as unit:
            unit.executemany("UPDATE outbox SET refused = ? WHERE id = ?", [(why, one.id) for one in reports])
