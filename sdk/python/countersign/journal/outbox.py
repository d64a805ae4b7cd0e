"""The outbox: outcomes to report to the service, at least once each, in the order they were written."""

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
"""The column that the seal of a reported result is bound to."""


class Outbox:
    """The table `outbox`. Its rows are written with the outcomes they carry (execution.py)."""

    def __init__(self, database: Database, clock: Clock, seals: Seals) -> None:
        self._database = database
        self._clock = clock
        self._seals = seals

    def pending(self, txn: str | None = None) -> list[Report]:
        """Reports that the service has not accepted yet, of one transaction or of all, still sealed."""
        rows = self._database.rows(
            "SELECT id, txn, attempt_id, effect_id, outcome, result, error FROM outbox "
            "WHERE reported_at IS NULL AND refused IS NULL AND (txn = :txn OR :txn IS NULL) ORDER BY id",
            {"txn": txn},
        )
        return [Report(**{name: row[name] for name in Report.__dataclass_fields__}) for row in rows]

    def count(self, txn: str) -> int:
        """The number of pending reports of one transaction."""
        row = self._database.row(
            "SELECT count(*) AS n FROM outbox WHERE reported_at IS NULL AND refused IS NULL AND txn = ?",
            (txn,),
        )
        return 0 if row is None else int(row["n"])

    def opened(self, report: Report) -> Report:
        """The report with its result unsealed.

        Raises:
            JournalSealed: it is sealed under a key that is not available.
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
        """Mark reports as accepted. Not durable: reporting twice does no harm."""
        now = self._clock.wall()
        with self._database.unit(durable=False) as unit:
            self._mark(unit, "reported", "UPDATE outbox SET reported_at = ? WHERE id = ?", now, reports)

    def requeue(self, since: float) -> None:
        """Mark reports accepted since then as pending again: the service may have lost them."""
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
        """Mark reports that the service refuses for good. They are kept for people to read."""
        with self._database.unit(durable=False) as unit:
            self._mark(unit, "report_refused", "UPDATE outbox SET refused = ? WHERE id = ?", why, reports)

    def _mark(self, unit: Unit, kind: str, sql: str, mark: float | str, reports: Sequence[Report]) -> None:
        """Add one line for each transaction of the reports."""
        for txn in dict.fromkeys(one.txn for one in reports):
            with record_changes(unit, txn, kind, self._clock.wall()) as change:
                for one in reports:
                    if one.txn == txn:
                        change.run("outbox", sql, (mark, one.id), "reported_at", "refused")
