"""Which turn of its conversation a message of the model is: the N in the key `KEY/turn-N` of its transaction.

Rules: a message that was carried out before is the turn it was then, wherever it stands in a list that was shortened
since: the journal knows it by its calls (their ids, names and arguments), and knew it before anything was done. A new
message is the turn after the last one that stands before it. So a model that is asked anew at the same point answers
under the same key, whatever it calls and whatever ids its calls have, and nothing is done twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from countersign.integrations.conversation import Dialect, Message, ModelCall
from countersign.journal.conversations import Conversations


class Numbering:
    """The turns of one conversation."""

    def __init__(self, kept: Conversations, run: str, dialect: Dialect) -> None:
        self._kept = kept
        self._run = run
        self._dialect = dialect

    def known(self, message: Message) -> int | None:
        """Which turn it is, where its calls were carried out before."""
        return self._kept.turn(self._run, _name(self._dialect.calls_of(message)))

    def assign(self, before: Sequence[Message], message: Message) -> int:
        """Which turn a new message is that stands after these, from now on."""
        turn = 1 + self._last(before)
        self._kept.keep(self._run, _name(self._dialect.calls_of(message)), turn)
        return turn

    def _last(self, messages: Sequence[Message]) -> int:
        last = 0
        for message in messages:
            if self._dialect.calls_of(message):
                known = self.known(message)
                last = (
                    last + 1 if known is None else known
                )  # unknown: of another journal, counted where it stands
        return last


def _name(calls: Sequence[ModelCall]) -> str:
    """Of a message, by what it calls."""
    said = [[call.call_id, call.name, call.arguments] for call in calls]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
