"""Facts kept beside the transactions: manifests, receipts, epochs, accepted edits, traces, requests sent, model turns.

Most are rows of the table `meta`, whose name says what they are and of which transaction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from countersign.clock import Clock
from countersign.contract.admission import JSON, load
from countersign.contract.canonical import canonicalize
from countersign.contract.errors import ContractError
from countersign.contract.manifest import ToolManifest, load_manifest
from countersign.errors import JournalError
from countersign.journal.chain import OWN, Change, record_changes
from countersign.journal.database import Database, Unit
from countersign.journal.leases import Lease, Leases

_TRACE: Final = "trace"
_EDITS: Final = "edits"
_EDITED: Final = "edited"
_REQUESTS: Final = "sent"
_EPOCH: Final = "epoch"
_REPORTED_EPOCH: Final = "told"
_TURN: Final = "turn"


def txn_of(name: str) -> str:
    """The transaction whose chain binds a row of `meta`."""
    kind, _, of = name.partition(":")
    return of.partition(":")[0] if kind in {_EDITS, _EDITED, _TRACE, _REQUESTS} else OWN


def set_meta(change: Change, name: str, value: str) -> None:
    """Write one row of `meta`, whatever it was."""
    change.run(
        "meta",
        "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )


class MetaRecords:
    """Facts of one kind."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def _value(self, name: str) -> str | None:
        """One row of `meta`."""
        row = self._database.row("SELECT value FROM meta WHERE name = ?", (name,))
        return None if row is None else str(row["value"])


class AcceptedEdits(MetaRecords):
    """Whether whoever goes on with a transaction takes every change of its arguments that a reviewer proposes. A
    program that looks at each takes none beforehand: where it is not there, nobody looks for it.
    """

    def keep(self, txn: str, *, every: bool) -> None:
        """What the last program that committed said."""
        if self.of(txn) == every:
            return  # most programs say nothing of it, and one commit less is noticed
        now = self._clock.wall()
        with (
            self._database.unit(durable=False) as unit,
            record_changes(unit, txn, "takes_edits", now) as change,
        ):
            set_meta(change, f"{_EDITS}:{txn}", str(int(every)))

    def note(self, txn: str, edits: Sequence[object]) -> None:
        """Which changes made the arguments in force: what was proposed, by whom, and who accepted."""
        now = self._clock.wall()
        with self._database.unit(durable=False) as unit, record_changes(unit, txn, "edits", now) as change:
            set_meta(change, f"{_EDITED}:{txn}", canonicalize(list(edits)).decode())

    def noted(self, txn: str) -> JSON:
        """The changes that were noted, oldest first; None where there were none.

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
        """Whether it said so; no where it has said nothing."""
        return self._value(f"{_EDITS}:{txn}") == "1"


class Traces(MetaRecords):
    """Where each transaction's commit was traced, so that what another process does later goes on there."""

    def keep(self, txn: str, traceparent: str | None) -> None:
        """Keep it, where anything is traced; of several commits the last."""
        if traceparent is None:
            return
        now = self._clock.wall()
        with self._database.unit(durable=False) as unit, record_changes(unit, txn, "traced", now) as change:
            set_meta(change, f"{_TRACE}:{txn}", traceparent)

    def find(self, txn: str) -> str | None:
        """The `traceparent` that was kept."""
        return self._value(f"{_TRACE}:{txn}")


class StoredManifests(MetaRecords):
    """Every manifest a transaction was submitted with, so that recovery knows what a tool promised then."""

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
            raise JournalError(f"the journal's manifest of tool {tool!r} is damaged: its digest is another")
        return manifest


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """A receipt, and the transaction it was given for."""

    txn: str
    token: str


class Receipts(MetaRecords):
    """What the service has signed of each attempt: proof of the redemption, should its database forget it."""

    def keep(self, attempt_id: str, txn: str, token: str) -> None:
        """Keep a verified receipt. Not durable by itself: the FIRING that follows is, and carries this with it."""
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

    def without_health(self, since: float) -> list[str]:
        """Attempts whose receipt was kept since then and of which no outcome is written yet: what is firing now, or
        was when its process ended.
        """
        rows = self._database.rows(
            "SELECT attempt_id FROM receipts WHERE kept_at >= ? AND NOT EXISTS "
            "(SELECT 1 FROM outbox WHERE outbox.attempt_id = receipts.attempt_id) ORDER BY kept_at",
            (since,),
        )
        return [str(row["attempt_id"]) for row in rows]


class Epochs(MetaRecords):
    """The highest epoch of each issuer: a release from before a restore is refused (design section 6). And the epoch
    whose service was told everything this journal knows: a later one is told again, before anything is submitted.
    """

    def highest(self, iss: str) -> int:
        """The highest epoch met in a verified token; 0 before the first."""
        value = self._value(f"{_EPOCH}:{iss}")
        return 0 if value is None else int(value)

    def told(self, iss: str) -> int:
        """The epoch that was told everything; 0 before there was anything to tell."""
        value = self._value(f"{_REPORTED_EPOCH}:{iss}")
        return 0 if value is None else int(value)

    def meet(self, iss: str, epoch: int) -> None:
        """Remember an epoch from a verified token; it never goes back. The first one has been told everything."""
        if epoch <= self.highest(iss):
            return
        now = self._clock.wall()
        with self._database.unit(durable=True) as unit, record_changes(unit, OWN, "epoch", now) as change:
            _raise_epoch(change, f"{_EPOCH}:{iss}", epoch)
            change.insert("meta", or_ignore=True, name=f"{_REPORTED_EPOCH}:{iss}", value=str(epoch))

    def tell(self, iss: str, epoch: int) -> None:
        """The service of this epoch has been told everything."""
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


class RequestLog(MetaRecords):
    """Which requests each call of an idempotent tool has sent, in the order of their places (tools/sending.py): by
    digests, so that a try of another process gives each the key that it had.

    A request is on the disk before it is sent, written by the owner of the lease and by nobody else.
    """

    def __init__(self, database: Database, clock: Clock, leases: Leases) -> None:
        super().__init__(database, clock)
        self._leases = leases

    def keep(self, lease: Lease, effect_id: str, digests: Sequence[str]) -> None:
        """All of them, as they stand with one that is about to be sent.

        Raises:
            LeaseLost: somebody took the transaction over; nothing may be sent.
            JournalError: it could not be written.
        """
        with self._leases.unit(lease, "sending", durable=True) as change:
            set_meta(change, f"{_REQUESTS}:{lease.txn}:{effect_id}", " ".join(digests))

    def of(self, txn: str, effect_id: str) -> tuple[str, ...]:
        """What earlier tries have sent."""
        return tuple((self._value(f"{_REQUESTS}:{txn}:{effect_id}") or "").split())


class Conversations(MetaRecords):
    """Which turns of a conversation a mark stands for: a model's calls, its answers, or what stood before.

    A list of messages may be shortened by whoever keeps it, so the place of a message there does not name it. A turn
    is written down before any of its calls is carried out, and the FIRING that follows makes it durable; a mark keeps
    every turn that it ever stood for, so nothing that is written later hides one.
    """

    def turns(self, run: str, mark: str) -> frozenset[int]:
        """Every turn that the mark stands for in this journal."""
        return frozenset(json.loads(self._value(_turn_name(run, mark)) or "[]"))

    def deciding(self) -> AbstractContextManager[Unit]:
        """What is read inside holds until what is written inside is: no other process takes a turn between."""
        return self._database.unit(durable=False)

    def keep(self, run: str, marks: Iterable[str], turn: int) -> None:
        """Remember that each of these stands for this turn."""
        now = self._clock.wall()
        with self.deciding() as unit, record_changes(unit, OWN, "turn", now) as change:
            for mark in marks:
                known = self.turns(run, mark)
                if turn not in known:
                    set_meta(change, _turn_name(run, mark), json.dumps(sorted(known | {turn})))


def _turn_name(run: str, mark: str) -> str:
    return f"{_TURN}:{hashlib.sha256(canonicalize([run, mark])).hexdigest()}"
