"""Which turn of its conversation each message of a model is, remembered by the calls in it.

A list of messages may be shortened by whoever keeps it, so the place of a message there does not name it. Rules: what
is known of a message is written before any of its calls is carried out, and the FIRING that follows makes it durable;
of two messages that are told apart by nothing the later one is meant.
"""

from __future__ import annotations

import hashlib
from typing import Final

from countersign.clock import Clock
from countersign.contract.canonical import canonicalize
from countersign.journal.chain import OWN, changing
from countersign.journal.database import Database

_TURN: Final = "turn"


class Conversations:
    """The numbers of the turns, by conversation and message."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def turn(self, run: str, message: str) -> int | None:
        """Which turn the message of this name is; None where this journal has carried nothing of it out."""
        row = self._database.row("SELECT value FROM meta WHERE name = ?", (_name(run, message),))
        return None if row is None else int(row["value"])

    def keep(self, run: str, message: str, turn: int) -> None:
        """Remember it."""
        now = self._clock.wall()
        with self._database.unit(durable=False) as unit, changing(unit, OWN, "turn", now) as change:
            change.run(
                "meta",
                "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (_name(run, message), str(turn)),
            )


def _name(run: str, message: str) -> str:
    return f"{_TURN}:{hashlib.sha256(canonicalize([run, message])).hexdigest()}"
