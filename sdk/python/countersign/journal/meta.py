"""Records next to the transactions: manifests, receipts, epochs, edits, traces; and the outbox.

Most are rows of the table `meta`, whose name holds their kind and their transaction. The outbox holds outcomes to
report to the service, at least once each, in the order they were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from countersign.clock import Clock
from countersign.contract.admission import JSON, load
from countersign.contract.digests import canonicalize
from countersign.contract.errors import ContractError
from countersign.contract.manifest import ToolManifest, load_manifest
from countersign.errors import JournalError
from countersign.journal.chain import OWN, Change, record_changes
from countersign.journal.database import Database, Unit
from countersign.journal.records import Report
from countersign.journal.sealed_values import SealContext
from countersign.journal.sealing import Seals

_TRACE: Final = "trace"
_EDITS: Final = "edits"
_EDITED: Final = "edited"
REQUESTS: Final = "sent"
STEP: Final = "step"
_EPOCH: Final = "epoch"
_REPORTED_EPOCH: Final = "told"


def txn_of(name: str) -> str:
    """The transaction whose chain binds a row of `meta`."""
    kind, _, of = name.partition(":")
    return of.partition(":")[0] if kind in {_EDITS, _EDITED, _TRACE, REQUESTS, STEP} else OWN


def set_meta(change: Change, name: str, value: str) -> None:
    """Write one row of `meta`."""
    change.run(
        "meta",
        "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )


class MetaRecords:
    """Records of one kind."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def _value(self, name: str) -> str | None:
        """One row of `meta`."""
        row = self._database.row("SELECT value FROM meta WHERE name = ?", (name,))
        return None if row is None else str(row["value"])


class AcceptedEdits(MetaRecords):
    """Whether a process that continues a transaction accepts every proposed edit. A program that judges each edit
    accepts none in advance: without it, they are not judged.
    """

    def keep(self, txn: str, *, every: bool) -> None:
        """Record what the last committing program chose."""
        if self.of(txn) == every:
            return  # most programs never set it, and a saved commit is measurable
        now = self._clock.wall()
        with (
            self._database.unit(durable=False) as unit,
            record_changes(unit, txn, "takes_edits", now) as change,
        ):
            set_meta(change, f"{_EDITS}:{txn}", str(int(every)))

    def note(self, txn: str, edits: Sequence[object]) -> None:
        """Record the edits that made the arguments in force: the proposal, its author, who accepted it."""
        now = self._clock.wall()
        with self._database.unit(durable=False) as unit, record_changes(unit, txn, "edits", now) as change:
            set_meta(change, f"{_EDITED}:{txn}", canonicalize(list(edits)).decode())

    def noted(self, txn: str) -> JSON:
        """The recorded edits, oldest first. None if there are none.

        Raises:
            JournalError: the row was changed.
        """
        noted = self._value(f"{_EDITED}:{txn}")
        try:
            return None if noted is None else load(noted.encode())
        except ContractError as error:
            raise JournalError(
                f"the journal's note of the changes of {txn[:12]} is damaged: {error}"
            ) from error

    def of(self, txn: str) -> bool:
        """Whether it accepts every edit; False if nothing was recorded."""
        return self._value(f"{_EDITS}:{txn}") == "1"


class Traces(MetaRecords):
    """The trace of each transaction's commit, so that later work of other processes joins it."""

    def keep(self, txn: str, traceparent: str | None) -> None:
        """Record it, if tracing is on; the last commit wins."""
        if traceparent is None:
            return
        now = self._clock.wall()
        with self._database.unit(durable=False) as unit, record_changes(unit, txn, "traced", now) as change:
            set_meta(change, f"{_TRACE}:{txn}", traceparent)

    def find(self, txn: str) -> str | None:
        """The recorded `traceparent`."""
        return self._value(f"{_TRACE}:{txn}")


class StoredManifests(MetaRecords):
    """Every manifest a transaction was submitted with, for recovery."""

    def keep(self, manifest: ToolManifest) -> None:
        """Keep a manifest by its digest."""
        now = self._clock.wall()
        with self._database.unit(durable=False) as unit, record_changes(unit, OWN, "manifest", now) as change:
            change.insert(
                "manifests",
                or_ignore=True,
                tool=manifest.tool,
                digest=manifest.digest,
                body=canonicalize(manifest.to_json()),
                kept_at=now,
            )

    def get(self, tool: str, digest: str) -> ToolManifest:
        """The manifest of that digest.

        Raises:
            JournalError: it was not kept, or the row was changed.
        """
        row = self._database.row("SELECT body FROM manifests WHERE tool = ? AND digest = ?", (tool, digest))
        if row is None:
            raise JournalError(
                f"the journal has no manifest {digest[:12]} of tool {tool!r}; nothing fires without it"
            )
        try:
            manifest = load_manifest(row["body"])
        except ContractError as error:
            raise JournalError(f"the journal's manifest of tool {tool!r} is damaged: {error}") from error
        if manifest.digest != digest:
            raise JournalError(f"the journal's manifest of tool {tool!r} is damaged: its digest differs")
        return manifest


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """A receipt and its transaction."""

    txn: str
    token: str


class Receipts(MetaRecords):
    """The signed receipt of each attempt: proof of the redemption if the service's database loses it."""

    def keep(self, attempt_id: str, txn: str, token: str) -> None:
        """Keep a verified receipt. Not durable by itself: the FIRING that follows is."""
        if self.of(attempt_id) is not None:
            return
        now = self._clock.wall()
        with self._database.unit(durable=False) as unit, record_changes(unit, txn, "receipt", now) as change:
            change.insert(
                "receipts", or_ignore=True, attempt_id=attempt_id, txn=txn, token=token, kept_at=now
            )

    def of(self, attempt_id: str) -> StoredReceipt | None:
        """The receipt of an attempt, if one was ever seen."""
        row = self._database.row("SELECT txn, token FROM receipts WHERE attempt_id = ?", (attempt_id,))
        return None if row is None else StoredReceipt(str(row["txn"]), str(row["token"]))

    def unreported(self, since: float) -> list[str]:
        """Attempts with a receipt kept since then and no outcome written yet: firing now, or when their process
        ended.
        """
        rows = self._database.rows(
            "SELECT attempt_id FROM receipts WHERE kept_at >= ? AND NOT EXISTS "
            "(SELECT 1 FROM outbox WHERE outbox.attempt_id = receipts.attempt_id) ORDER BY kept_at",
            (since,),
        )
        return [str(row["attempt_id"]) for row in rows]


class Epochs(MetaRecords):
    """The highest epoch of each issuer: a release from before a restore is refused (design section 6). And the epoch
    up to which the service has every report of this journal: a later one gets them again before any submission.
    """

    def highest(self, iss: str) -> int:
        """The highest epoch seen in a verified token; 0 before the first."""
        value = self._value(f"{_EPOCH}:{iss}")
        return 0 if value is None else int(value)

    def reported(self, iss: str) -> int:
        """The epoch that has every report; 0 before there was anything to report."""
        value = self._value(f"{_REPORTED_EPOCH}:{iss}")
        return 0 if value is None else int(value)

    def observe(self, iss: str, epoch: int) -> None:
        """Record the epoch of a verified token; it never decreases. The first epoch counts as having every report."""
        if epoch <= self.highest(iss):
            return
        now = self._clock.wall()
        with self._database.unit(durable=True) as unit, record_changes(unit, OWN, "epoch", now) as change:
            _raise_epoch(change, f"{_EPOCH}:{iss}", epoch)
            change.insert("meta", or_ignore=True, name=f"{_REPORTED_EPOCH}:{iss}", value=str(epoch))

    def mark_reported(self, iss: str, epoch: int) -> None:
        """Record that the service of this epoch has every report."""
        now = self._clock.wall()
        with self._database.unit(durable=True) as unit, record_changes(unit, OWN, "told", now) as change:
            _raise_epoch(change, f"{_REPORTED_EPOCH}:{iss}", epoch)


def _raise_epoch(change: Change, name: str, epoch: int) -> None:
    change.run(
        "meta",
        "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE "
        "SET value = excluded.value WHERE CAST(excluded.value AS BIGINT) > CAST(meta.value AS BIGINT)",
        (name, str(epoch)),
        "value",
    )


REPORTED: Final = "outbox.result"
"""The column that the seal of a reported result is bound to."""


class Outbox:
    """The table `outbox`. Its rows are written with the outcomes they carry (effects.py)."""

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
        return len(self.pending(txn))

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
