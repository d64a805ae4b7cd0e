"""Every manifest a transaction was submitted with, by its digest."""

from __future__ import annotations

from countersign.clock import Clock
from countersign.contract.canonical import canonicalize
from countersign.contract.errors import ContractError
from countersign.contract.manifest import ToolManifest, load_manifest
from countersign.errors import JournalError
from countersign.journal.chain import OWN, changing
from countersign.journal.database import Database


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
