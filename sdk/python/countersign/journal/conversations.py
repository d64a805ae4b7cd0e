"""Which turns of a conversation a mark stands for: the calls of a model's message, its answers, or what stood before.

A list of messages may be shortened by whoever keeps it, so the place of a message there does not name it. Rules: a turn
is written down before any of its calls is carried out, and the FIRING that follows makes it durable; a mark keeps every
turn that it ever stood for, so nothing that is written later hides one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Final

from countersign.clock import Clock
from countersign.contract.canonical import canonicalize
from countersign.journal.chain import OWN, changing
from countersign.journal.database import Database, Unit
from countersign.journal.meta import set_meta

_TURN: Final = "turn"


class Conversations:
    """The numbers of the turns, by conversation and mark."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def turns(self, run: str, mark: str) -> frozenset[int]:
        """Every turn that the mark stands for in this journal."""
        row = self._database.row("SELECT value FROM meta WHERE name = ?", (_name(run, mark),))
        return frozenset() if row is None else frozenset(json.loads(row["value"]))

    def deciding(self) -> AbstractContextManager[Unit]:
        """What is read inside holds until what is written inside is: no other process takes a turn between."""
        return self._database.unit(durable=False)

    def keep(self, run: str, marks: Iterable[str], turn: int) -> None:
        """Remember that each of these stands for this turn."""
        now = self._clock.wall()
        with self.deciding() as unit, changing(unit, OWN, "turn", now) as change:
            for mark in marks:
                known = self.turns(run, mark)
                if turn not in known:
                    set_meta(change, _name(run, mark), json.dumps(sorted(known | {turn})))


def _name(run: str, mark: str) -> str:
    return f"{_TURN}:{hashlib.sha256(canonicalize([run, mark])).hexdigest()}"
