"""What a program keeps of its conversation with a model, so that another process can continue it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Final

from countersign.contract.digests import canonicalize
from countersign.journal.chain import OWN, record_changes
from countersign.journal.database import Unit
from countersign.journal.meta import MetaRecords, set_meta

_TURN: Final = "turn"


class Conversations(MetaRecords):
    """The turns of a conversation that a mark refers to: a model's calls, its answers, or earlier messages.

    The caller may shorten its list of messages, so the position of a message does not identify it. A turn is
    recorded before any of its calls is executed, and the FIRING that follows makes it durable. A mark keeps every
    turn it ever referred to, so a later record hides none.
    """

    def turns(self, run: str, mark: str) -> frozenset[int]:
        """Every turn that the mark refers to in this journal."""
        return frozenset(json.loads(self._value(_turn_name(run, mark)) or "[]"))

    def deciding(self) -> AbstractContextManager[Unit]:
        """A unit in which reads stay valid until the writes: no other process takes a turn in between."""
        return self._database.unit(durable=False)

    def keep(self, run: str, marks: Iterable[str], turn: int) -> None:
        """Record that each of these marks refers to this turn."""
        now = self._clock.wall()
        with self.deciding() as unit, record_changes(unit, OWN, "turn", now) as change:
            for mark in marks:
                known = self.turns(run, mark)
                if turn not in known:
                    set_meta(change, _turn_name(run, mark), json.dumps(sorted(known | {turn})))


def _turn_name(run: str, mark: str) -> str:
    return f"{_TURN}:{hashlib.sha256(canonicalize([run, mark])).hexdigest()}"
