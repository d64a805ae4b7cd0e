"""Small things the journal keeps: manifests by digest, and the highest epoch met."""

from __future__ import annotations

from typing import Final

from countersign.clock import Clock
from countersign.contract.canonical import canonicalize
from countersign.contract.errors import ContractError
from countersign.contract.manifest import ToolManifest, load_manifest
from countersign.errors import JournalError
from countersign.journal.database import Database

_EPOCH: Final = "epoch"


class KeptManifests:
    """Every manifest a transaction was submitted with, so that recovery knows what a tool promised then."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def keep(self, manifest: ToolManifest) -> None:
        """Keep a manifest by its digest."""
        with self._database.unit(durable=False) as unit:
            unit.execute(
                "INSERT OR IGNORE INTO manifests (tool, digest, body, kept_at) VALUES (?, ?, ?, ?)",
                (manifest.tool, manifest.digest, canonicalize(manifest.to_json()), self._clock.wall()),
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


class Epochs:
    """The highest epoch of each issuer: a release from before a restore is refused (design section 6)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def highest(self, iss: str) -> int:
        """The highest epoch met so far; 0 before the first."""
        row = self._database.row("SELECT value FROM meta WHERE name = ?", (f"{_EPOCH}:{iss}",))
        return 0 if row is None else int(row["value"])

    def meet(self, iss: str, epoch: int) -> None:
        """Remember an epoch from a verified token; it never goes back."""
        if epoch <= self.highest(iss):
            return
        with self._database.unit(durable=True) as unit:
            unit.execute(
                "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE "
                "SET value = excluded.value WHERE CAST(excluded.value AS INTEGER) > CAST(value AS INTEGER)",
                (f"{_EPOCH}:{iss}", str(epoch)),
            )
