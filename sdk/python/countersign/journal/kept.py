"""Small things the journal keeps: manifests by digest, receipts by attempt, the epochs of each issuer, who takes
changes of arguments, and where a commit was traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from countersign.clock import Clock
from countersign.contract.admission import JSON, load
from countersign.contract.canonical import canonicalize
from countersign.contract.errors import ContractError
from countersign.contract.manifest import ToolManifest, load_manifest
from countersign.errors import JournalError
from countersign.journal.chain import OWN, Change, changing
from countersign.journal.database import Database

_EPOCH: Final = "epoch"
_TOLD: Final = "told"
_TRACE: Final = "trace"
_EDITS: Final = "edits"
_EDITED: Final = "edited"
SENT: Final = "sent"


class KeptManifests:
    """Every manifest a transaction was submitted with, so that recovery knows what a tool promised then."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def keep(self, manifest: ToolManifest) -> None:
        """Keep a manifest by its digest."""
        now = self._clock.wall()
        with self._database.unit(durable=False) as unit, changing(unit, OWN, "manifest", now) as change:
            change.run(
                "manifests",
                "INSERT INTO manifests (tool, digest, body, kept_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (manifest.tool, manifest.digest, canonicalize(manifest.to_json()), now),
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
            raise JournalError(f"the journal's manifest of tool {tool!r} is damaged: its digest is another")
        return manifest


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


def txn_of(name: str) -> str:
    """The transaction whose chain binds a row of `meta`."""
    kind, _, of = name.partition(":")
    return of.partition(":")[0] if kind in {_EDITS, _EDITED, _TRACE, SENT} else OWN


def set_meta(change: Change, name: str, value: str) -> None:
    """Write one row of `meta`, whatever it was."""
    change.run(
        "meta",
        "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )


class TakenEdits:
    """Whether whoever goes on with a transaction takes every change of its arguments that a reviewer proposes. A
    program that looks at each takes none beforehand: where it is not there, nobody looks for it.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def keep(self, txn: str, *, every: bool) -> None:
        """What the last program that committed said."""
        if self.of(txn) == every:
            return  # most programs say nothing of it, and one commit less is noticed
        now = self._clock.wall()
        with self._database.unit(durable=False) as unit, changing(unit, txn, "takes_edits", now) as change:
            set_meta(change, f"{_EDITS}:{txn}", str(int(every)))

    def note(self, txn: str, edits: Sequence[object]) -> None:
        """Which changes made the arguments in force: what was proposed, by whom, and who accepted."""
        now = self._clock.wall()
        with self._database.unit(durable=False) as unit, changing(unit, txn, "edits", now) as change:
            set_meta(change, f"{_EDITED}:{txn}", canonicalize(list(edits)).decode())

    def noted(self, txn: str) -> JSON:
        """The changes that were noted, oldest first; None where there were none.

        Raises:
            JournalError: the row was changed.
        """
        row = self._database.row("SELECT value FROM meta WHERE name = ?", (f"{_EDITED}:{txn}",))
        try:
            return None if row is None else load(row["value"].encode())
        except ContractError as error:
            raise JournalError(
                f"the journal's note of the changes of {txn[:12]} is damaged: {error}"
            ) from error

    def of(self, txn: str) -> bool:
        """Whether it said so; no where it has said nothing."""
        row = self._database.row("SELECT value FROM meta WHERE name = ?", (f"{_EDITS}:{txn}",))
        return row is not None and row["value"] == "1"


class Traces:
    """Where each transaction's commit was traced, so that what another process does later goes on there."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def keep(self, txn: str, traceparent: str | None) -> None:
        """Keep it, where anything is traced; of several commits the last."""
        if traceparent is None:
            return
        now = self._clock.wall()
        with self._database.unit(durable=False) as unit, changing(unit, txn, "traced", now) as change:
            set_meta(change, f"{_TRACE}:{txn}", traceparent)

    def find(self, txn: str) -> str | None:
        """The `traceparent` that was kept."""
        row = self._database.row("SELECT value FROM meta WHERE name = ?", (f"{_TRACE}:{txn}",))
        return None if row is None else str(row["value"])
