"""What the service still has to be told: outcomes, at least once each, in the order they were written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from countersign.clock import Clock
from countersign.errors import JournalError
from countersign.journal.chain import record_changes
from countersign.journal.database import Database, Unit
from countersign.journal.records import Report
from countersign.journal.sealing import SealContext, Seals

REPORTED: Final = "outbox.result"
"""Where the seal of a reported result is bound to."""


class Outbox:
    """The table `outbox`; rows are written with the outcomes they carry (firing.py)."""

    def __init__(self, database: Database, clock: Clock, seals: Seals) -> None:
        self._database = database
        self._clock = clock
        self._seals = seals

    def pending(self, txn: str | None = None) -> list[Report]:
        """Reports the service has not taken yet, of one transaction or of all; what is sealed of them is not opened."""
        rows = self._database.rows(
            "SELECT id, txn, attempt_id, effect_id, outcome, result, error FROM outbox "
            "WHERE reported_at IS NULL AND refused IS NULL AND (txn = :txn OR :txn IS NULL) ORDER BY id",
            {"txn": txn},
        )
        return [Report(**{name: row[name] for name in Report.__dataclass_fields__}) for row in rows]

    def count(self, txn: str) -> int:
        """How many of one transaction the service has not taken yet."""
        row = self._database.row(
            "SELECT count(*) AS n FROM outbox WHERE reported_at IS NULL AND refused IS NULL AND txn = ?",
            (txn,),
        )
        return 0 if row is None else int(row["n"])

    def opened(self, report: Report) -> Report:
        """The report with its result as it is sent.

        Raises:
            JournalSealed: it is sealed under a key that is not here.
            JournalError: it was changed.
        """
        if report.result is None:
            return report
        try:
            result = self._seals.open(SealContext(report.txn, report.effect_id, REPORTED), report.result)
        except ValueError as error:
            raise JournalError(
                f"the journal's report of effect {report.effect_id[:12]} is damaged: {error}. It is not sent"
            ) from error
        return replace(report, result=result)

    def reported(self, reports: Sequence[Report]) -> None:
        """The service has them. Not durable: reporting twice does no harm."""
        now = self._clock.wall()
        with self._database.unit(durable=False) as unit:
            self._mark(unit, "reported", "UPDATE outbox SET reported_at = ? WHERE id = ?", now, reports)

    def requeue(self, since: float) -> None:
        """What the service has taken since then it may have forgotten: it is pending again."""
        with self._database.unit(durable=True) as unit:
            rows = unit.execute("SELECT DISTINCT txn FROM outbox WHERE reported_at >= ?", (since,)).fetchall()
            for row in rows:
                with record_changes(unit, row["txn"], "to_report_again", self._clock.wall()) as change:
                    change.run(
                        "outbox",
                        "UPDATE outbox SET reported_at = NULL WHERE reported_at >= ? AND txn = ?",
                        (since, row["txn"]),
                        "reported_at",
                    )

    def refused(self, reports: Sequence[Report], why: str) -> None:
        """The service will never take these (it knows better, or knows nothing of the attempt); kept for
        people.
        """
        with self._database.unit(durable=False) as unit:
            self._mark(unit, "report_refused", "UPDATE outbox SET refused = ? WHERE id = ?", why, reports)

    def _mark(self, unit: Unit, kind: str, sql: str, mark: float | str, reports: Sequence[Report]) -> None:
        """One line for each transaction the reports are of."""
        for txn in dict.fromkeys(one.txn for one in reports):
            with record_changes(unit, txn, kind, self._clock.wall()) as change:
                for one in reports:
                    if one.txn == txn:
                        change.run("outbox", sql, (mark, one.id), "reported_at", "refused")
