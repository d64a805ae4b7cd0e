"""That a rerun's live work goes with the list in force: its rows stand there before it is committed, so that whoever
finds the list later asks the right adapters, and notes what became of it.

Rules: what the first run's process lost and the rerun did not bring back is undone, and no part of the list any more;
what it did bring back keeps its row, with what it returned now; a list that was not redeemed takes nothing in, for a
rerun replaces it.
"""

from __future__ import annotations

from typing import Final

from countersign.clock import Clock
from countersign.errors import JournalError
from countersign.journal.chain import Change
from countersign.journal.database import Database
from countersign.journal.leases import Lease, Leases
from countersign.journal.moves import LocalState
from countersign.journal.moving import move
from countersign.journal.reading import LIVE_LANE

_LOST: Final = "it was lost with its process, and its rerun did not bring it back"


class Reruns:
    """What reruns of redeemed lists bring along."""

    def __init__(self, database: Database, leases: Leases, clock: Clock) -> None:
        self._database = database
        self._leases = leases
        self._clock = clock

    def take_in(self, lease: Lease, staging: int, rerun: int) -> None:
        """Let the live rows of the rerun's list stand in the list in force, durably.

        Raises:
            JournalError: that list was not redeemed.
        """
        with (
            self._database.unit(durable=True) as unit,
            self._leases.changing(unit, lease, "taken_in") as change,
        ):
            ours, brought = (_live(change, one) for one in (staging, rerun))
            for effect_id in ours.keys() - brought.keys():
                move(change, staging, effect_id, LocalState.UNDONE)
            change.run(
                "effects",
                "UPDATE effects SET error = ? WHERE txn = ? AND staging = ? AND lane = ? AND state = ? "
                "AND error IS NULL",
                (_LOST, lease.txn, staging, LIVE_LANE, LocalState.UNDONE.value),
                "error",
            )
            for effect_id in brought:
                if effect_id in ours:
                    _answer(change, staging, effect_id, brought[effect_id][-1])
                else:
                    self._copy(change, staging, brought[effect_id])
                move(change, rerun, effect_id, LocalState.RELISTED)
            taken = change.run(
                "transactions",
                "UPDATE transactions SET live = ? WHERE txn = ? AND staging = ? AND redeemed = 1",
                (len(brought), lease.txn, staging),
                "live",
            )
            if taken != 1:
                raise JournalError(
                    f"transaction {lease.txn[:12]} was not redeemed; a rerun replaces its list"
                )

    def _copy(self, change: Change, staging: int, row: tuple[object, ...]) -> None:
        """What is sealed of it is bound to transaction and effect, and opens in either list."""
        (last,) = change.unit.execute(
            "SELECT coalesce(max(seq), 0) FROM effects WHERE txn = ? AND staging = ? AND lane = ?",
            (change.txn, staging, LIVE_LANE),
        ).fetchone()
        change.run(
            "effects",
            "INSERT INTO effects (txn, staging, lane, seq, effect_id, tool, call_key, args, result, state, updated_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (change.txn, staging, LIVE_LANE, last + 1, *row, LocalState.LIVE.value, self._clock.wall()),
            *("txn", "effect_id", "tool", "call_key", "args", "result", "state", "updated_at"),
        )


def _answer(change: Change, staging: int, effect_id: str, result: object) -> None:
    change.run(
        "effects",
        "UPDATE effects SET result = ? WHERE txn = ? AND staging = ? AND lane = ? AND effect_id = ?",
        (result, change.txn, staging, LIVE_LANE, effect_id),
        "result",
    )


def _live(change: Change, staging: int) -> dict[str, tuple[object, ...]]:
    """The rows of a list that are neither kept nor undone, by effect, in order."""
    rows = change.unit.execute(
        "SELECT effect_id, tool, call_key, args, result FROM effects "
        "WHERE txn = ? AND staging = ? AND lane = ? AND state = ? ORDER BY seq",
        (change.txn, staging, LIVE_LANE, LocalState.LIVE.value),
    ).fetchall()
    return {row["effect_id"]: tuple(row) for row in rows}
