"""Small facts about a transaction under names of their own: who takes changes of its arguments, where it was traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from countersign.clock import Clock
from countersign.contract.admission import JSON, load
from countersign.contract.canonical import canonicalize
from countersign.contract.errors import ContractError
from countersign.errors import JournalError
from countersign.journal.chain import OWN, Change, changing
from countersign.journal.database import Database

_TRACE: Final = "trace"
_EDITS: Final = "edits"
_EDITED: Final = "edited"
SENT: Final = "sent"


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
