"""Stops and reruns: a program that was stopped in its commit, and the live work that a rerun brings to a redeemed list.

A crash leaves no stop, and what was redeemed goes forward after it. A stop is somebody's will: it is on the disk before
the interrupt goes on its way, and stays until the program itself runs again under its key. What people are asked about
is not stopped with the wait for them, and what had all been begun is brought to its end.

A rerun's live rows stand in the list in force before it is committed, so that recovery asks the right adapters. What
the first run's process lost and the rerun did not bring back is undone, and no part of the list any more; what it did
bring back keeps its row, with what it returned now; a list that was not redeemed takes nothing in, for a rerun replaces
it.
"""

from __future__ import annotations

from typing import Final

from countersign.errors import JournalError
from countersign.journal.chain import Change
from countersign.journal.database import Row
from countersign.journal.effect_rows import write_result
from countersign.journal.leases import Lease, Leases
from countersign.journal.queries import LIVE_LANE
from countersign.journal.states import LocalState, LocalTxn, transition

_COPIED: Final = ("effect_id", "tool", "call_key", "args", "result")
_MISSING_LIVE_WORK: Final = "it was lost with its process, and its rerun did not bring it back"


class Reruns:
    """What reruns of redeemed lists bring along."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases

    def take_in(self, lease: Lease, staging: int, rerun: int) -> None:
        """Let the live rows of the rerun's list stand in the list in force, durably.

        Raises:
            JournalError: that list was not redeemed.
        """
        with self._leases.unit(lease, "taken_in", durable=True) as change:
            ours, brought = (_live_rows(change, one) for one in (staging, rerun))
            for effect_id in ours.keys() - brought.keys():
                transition(change, staging, effect_id, LocalState.UNDONE)
            change.update(
                "effects",
                "txn = ? AND staging = ? AND lane = ? AND state = ? AND error IS NULL",
                (lease.txn, staging, LIVE_LANE, LocalState.UNDONE.value),
                error=_MISSING_LIVE_WORK,
            )
            for effect_id in brought:
                if effect_id in ours:
                    write_result(change, staging, effect_id, brought[effect_id]["result"])
                else:
                    _copy(change, staging, brought[effect_id])
                transition(change, rerun, effect_id, LocalState.RELISTED)
            redeemed = ("txn = ? AND staging = ? AND redeemed = 1", (lease.txn, staging))
            taken = change.update("transactions", *redeemed, live=len(brought))
            if taken != 1:
                raise JournalError(
                    f"transaction {lease.txn[:12]} was not redeemed; a rerun replaces its list"
                )


def _copy(change: Change, staging: int, row: Row) -> None:
    """What is sealed of it is bound to transaction and effect, and opens in either list."""
    (last,) = change.unit.execute(
        "SELECT coalesce(max(seq), 0) FROM effects WHERE txn = ? AND staging = ? AND lane = ?",
        (change.txn, staging, LIVE_LANE),
    ).fetchone()
    change.insert(
        "effects",
        only_given=True,
        txn=change.txn,
        staging=staging,
        lane=LIVE_LANE,
        seq=last + 1,
        **dict(zip(_COPIED, row, strict=True)),
        state=LocalState.LIVE.value,
        updated_at=change.at,
    )


def _live_rows(change: Change, staging: int) -> dict[str, Row]:
    """The rows of a list that are neither kept nor undone, by effect, in order."""
    rows = change.unit.execute(
        f"SELECT {', '.join(_COPIED)} FROM effects "  # noqa: S608 - words of this module
        "WHERE txn = ? AND staging = ? AND lane = ? AND state = ? ORDER BY seq",
        (change.txn, staging, LIVE_LANE, LocalState.LIVE.value),
    ).fetchall()
    return {row["effect_id"]: row for row in rows}


_NOT_ALL_BEGUN: Final = (
    "txn = ? AND state IN ('frozen', 'ready', 'redeemed') AND EXISTS (SELECT 1 FROM effects e "
    "WHERE e.txn = transactions.txn AND e.staging = transactions.staging AND e.lane = 'staged' "
    "AND e.state IN ('staged', 'review', 'released', 'redeemed'))"
)


class Stops:
    """Who was stopped, and who goes on all the same."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases

    def stop(self, lease: Lease, note: str) -> None:
        """The program of the list in force was stopped while it asked for it or was about to begin. Parked it is no
        more: whoever agrees to it later agrees to what only its program can fire.
        """
        with self._leases.unit(lease, "stopped", durable=True) as change:
            change.update(
                *("transactions", _NOT_ALL_BEGUN, (lease.txn,)),
                state=LocalTxn.STOPPED.value,
                parked=0,
                note=note,
            )

    def go_on(self, lease: Lease) -> None:
        """Its own program runs again under its key, and the list had been redeemed: what was not begun may be."""
        with self._leases.unit(lease, "goes_on", durable=False) as change:
            stopped = ("txn = ? AND state = ? AND redeemed = 1", (lease.txn, LocalTxn.STOPPED.value))
            change.update("transactions", *stopped, state=LocalTxn.REDEEMED.value, note=None)
