"""That a program was stopped in its commit, before all of it was begun: whoever finds the list later begins nothing.

Rules: a crash leaves no such word, and what was redeemed goes forward after it; a stop is somebody's will, so it is on
the disk before the interrupt goes on its way, and stays until the program itself runs again under its key. What people
are asked about is not stopped with the wait for them, and what had all been begun is brought to its end.
"""

from __future__ import annotations

from typing import Final

from countersign.journal.database import Database
from countersign.journal.leases import Lease, Leases
from countersign.journal.moves import LocalState, LocalTxn
from countersign.journal.reading import STAGED_LANE

_ON_ITS_WAY: Final = (LocalTxn.FROZEN.value, LocalTxn.READY.value, LocalTxn.REDEEMED.value)
_NOT_BEGUN: Final = tuple(
    state.value for state in (LocalState.STAGED, LocalState.REVIEW, LocalState.RELEASED, LocalState.REDEEMED)
)


class Stops:
    """Who was stopped, and who goes on all the same."""

    def __init__(self, database: Database, leases: Leases) -> None:
        self._database = database
        self._leases = leases

    def stop(self, lease: Lease, note: str) -> None:
        """The program of the list in force was stopped while it asked for it or was about to begin. Parked it is no
        more: whoever agrees to it later agrees to what only its program can fire.
        """
        with (
            self._database.unit(durable=True) as unit,
            self._leases.changing(unit, lease, "stopped") as change,
        ):
            change.run(
                "transactions",
                "UPDATE transactions SET state = ?, parked = 0, note = ? WHERE txn = ? AND state IN (?, ?, ?) "
                "AND EXISTS (SELECT 1 FROM effects e WHERE e.txn = transactions.txn "
                "AND e.staging = transactions.staging AND e.lane = ? AND e.state IN (?, ?, ?, ?))",
                (LocalTxn.STOPPED.value, note, lease.txn, *_ON_ITS_WAY, STAGED_LANE, *_NOT_BEGUN),
                *("state", "parked", "note"),
            )

    def go_on(self, lease: Lease) -> None:
        """Its own program runs again under its key, and the list had been redeemed: what was not begun may be."""
        with (
            self._database.unit(durable=False) as unit,
            self._leases.changing(unit, lease, "goes_on") as change,
        ):
            change.run(
                "transactions",
                "UPDATE transactions SET state = ?, note = NULL WHERE txn = ? AND state = ? AND redeemed = 1",
                (LocalTxn.REDEEMED.value, lease.txn, LocalTxn.STOPPED.value),
                *("state", "note"),
            )
