"""Stops and reruns: a program stopped in its commit, and the live work that a rerun adds to a redeemed list.

A crash leaves no stop, and a redeemed list rolls forward after it. A stop is intended: it is on disk before the
interrupt propagates, and lasts until the program runs again under its key. A pending review is not stopped by stopping
the wait for it, and a list whose effects had all begun is finished.

A rerun's live rows are added to the list in force before it is committed, so that recovery asks the right adapters.
Live work that the first run's process lost and the rerun did not repeat is undone and leaves the list. Repeated work
keeps its row, with the new result. A list that was not redeemed takes nothing in, because a rerun replaces it.
"""

from __future__ import annotations

from typing import Final

from countersign.errors import JournalError
from countersign.journal.chain import Change
from countersign.journal.database import Row
from countersign.journal.effects import write_result
from countersign.journal.leases import Lease, Leases
from countersign.journal.queries import LIVE_LANE
from countersign.journal.states import LocalState, LocalTxn, transition

_COPIED: Final = ("effect_id", "tool", "call_key", "args", "result")
_MISSING_LIVE_WORK: Final = "it was lost with its process, and its rerun did not bring it back"


class Reruns:
    """Live work that reruns add to redeemed lists."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases

    def take_in(self, lease: Lease, staging: int, rerun: int) -> None:
        """Move the live rows of the rerun's list into the list in force, durably.

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
    """Copy a row. Sealed values are bound to transaction and effect, and open in either list."""
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
    """The rows of a list that are neither kept nor undone, by effect id, in order."""
    rows = change.unit.execute(
        f"SELECT {', '.join(_COPIED)} FROM effects "  # noqa: S608 - constants of this module
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
    """Stops of programs, and their continuation."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases

    def stop(self, lease: Lease, note: str) -> None:
        """The program was stopped while its list was being submitted or redeemed. It is no longer parked: only its
        own program may fire it now.
        """
        with self._leases.unit(lease, "stopped", durable=True) as change:
            change.update(
                *("transactions", _NOT_ALL_BEGUN, (lease.txn,)),
                state=LocalTxn.STOPPED.value,
                parked=0,
                note=note,
            )

    def go_on(self, lease: Lease) -> None:
        """Its own program runs again under its key, and the list was redeemed: effects not begun may fire."""
        with self._leases.unit(lease, "goes_on", durable=False) as change:
            stopped = ("txn = ? AND state = ? AND redeemed = 1", (lease.txn, LocalTxn.STOPPED.value))
            change.update("transactions", *stopped, state=LocalTxn.REDEEMED.value, note=None)
