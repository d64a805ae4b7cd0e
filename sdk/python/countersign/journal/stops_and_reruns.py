"""Lists that are not simply committed: begun again, edited, aborted, stopped, or continued by a rerun.

A stop is intended, unlike a crash: it is on disk before the interrupt propagates, and lasts until the program runs
again under its key. It does not end a pending review, and a list whose effects had all begun is finished.

A rerun's live rows are added to the list in force before it is committed, so that recovery asks the right adapters.
Live work that the first run's process lost and the rerun did not repeat is undone and leaves the list. Repeated work
keeps its row, with the new result. A list that was not redeemed takes nothing in, because a rerun replaces it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

from countersign.contract.effect import Effect
from countersign.errors import JournalError, JournalSealed
from countersign.journal.chain import Change, record_changes
from countersign.journal.database import Row
from countersign.journal.effects import sealed_args, transition, write_effect
from countersign.journal.leases import Lease
from countersign.journal.live_results import write_result, write_returned
from countersign.journal.queries import TransactionQueries
from countersign.journal.records import LIVE_LANE, STAGED_LANE, StagedRow
from countersign.journal.sealing import Seals
from countersign.journal.states import LocalState, LocalTxn
from countersign.journal.transactions import transaction_row


class Transactions(TransactionQueries):
    """The tables `transactions` and `effects`, except for firing."""

    def relist(
        self,
        lease: Lease,
        staging: int,
        calls: Sequence[StagedRow],
        *,
        dropped: Sequence[StagedRow] = (),
        why: str | None = None,
    ) -> int:
        """Begin another list of the same run with these calls, in this order, and return its number. The other calls
        are withdrawn or undone; those in `dropped` stay readable, with `why`.
        """
        with self._database.unit(durable=False):
            with self._leases.unit(lease, "relisted", durable=False) as change:
                for call in calls:
                    transition(change, staging, call.effect_id, LocalState.RELISTED)
                end_unfrozen(change, staging)
                complete_unsubmitted(change, self._seals, staging, dropped, why)
            again = self.begin_staging(lease)
            for call in calls:
                self.stage(lease, again, call)
        return again

    def adopt(
        self,
        lease: Lease,
        effects: Sequence[Effect],
        *,
        secret: Mapping[str, Collection[str]],
        txn_digest: str,
    ) -> None:
        """Adopt the bytes of an accepted edit, durably, before they can be redeemed; `secret` as for `freeze`."""
        with self._leases.unit(lease, "edited", durable=True) as change:
            staging = transaction_row(change.unit, lease.txn)["staging"]
            for effect in effects:
                write_effect(change, staging, effect, secret[effect.tool_digest], self._seals)
            change.update("transactions", "txn = ? AND redeemed = 0", (lease.txn,), txn_digest=txn_digest)

    def close(self, lease: Lease, note: str) -> None:
        """Record, durably, that a person has resolved partly kept work; `note` says who, when and what.

        Raises:
            JournalError: it is not unsettled.
        """
        with self._leases.unit(lease, "closed", durable=True) as change:
            where = ("txn = ? AND state = ?", (lease.txn, LocalTxn.UNSETTLED.value))
            closed = change.update("transactions", *where, state=LocalTxn.CLOSED.value, note=note)
            if closed != 1:
                raise JournalError(
                    f"transaction {lease.txn[:12]} is not unsettled, so it cannot be closed by hand"
                )

    def abort(self, lease: Lease, staging: int, note: str, calls: Sequence[StagedRow] = ()) -> None:
        """End a list that was never frozen. The arguments of `calls` stay readable. An earlier list in force stays
        as it is, and takes the note if it has none.
        """
        with self._leases.unit(lease, "aborted", durable=False) as change:
            end_unfrozen(change, staging)
            complete_unsubmitted(change, self._seals, staging, calls)
            never_frozen = ("txn = ? AND staging IS NULL", (lease.txn,))
            change.update("transactions", *never_frozen, state=LocalTxn.ENDED.value, note=note)
            change.update(
                "transactions",
                "txn = ? AND staging IS NOT NULL AND note IS NULL AND redeemed = 0 AND landed = 0",
                (lease.txn,),
                note=f"a later run: {note}",
            )

    def explain(self, lease: Lease, note: str) -> None:
        """Record why the list in force failed, unless a note exists."""
        with self._leases.unit(lease, "explained", durable=False) as change:
            unexplained = ("txn = ? AND note IS NULL AND state <> ?", (lease.txn, LocalTxn.SETTLED.value))
            change.update("transactions", *unexplained, note=note)

    def abort_all(self, lease: Lease, note: str) -> None:
        """End every list of a transaction that has none in force: the process that staged it died."""
        with self._database.unit(durable=False) as unit:
            self._leases.require(unit, lease)
            stagings = transaction_row(unit, lease.txn)["stagings"]
        for staging in range(1, stagings + 1):
            self.abort(lease, staging, note)
        self.end(lease, LocalTxn.ENDED, note)

    def note(self, lease: Lease, note: str | None) -> None:
        """Set the note of an unfinished transaction for people; None removes it."""
        now = self._clock.wall()
        with (
            self._database.unit(durable=False) as unit,
            record_changes(unit, lease.txn, "noted", now) as change,
        ):
            owned = ("txn = ? AND generation = ?", (lease.txn, lease.generation))
            change.update("transactions", *owned, note=note)

    def mark_undone(self, lease: Lease, staging: int, effect_ids: Sequence[str], why: str) -> None:
        """Record that these live effects were rolled back because one raised. The list continues without them; `why`
        distinguishes them from those undone with the list.
        """
        with self._leases.unit(lease, "raised", durable=False) as change:
            for effect_id in effect_ids:
                transition(change, staging, effect_id, LocalState.UNDONE, error=why)

    def note_returned(self, lease: Lease, staging: int, returned: Mapping[str, bytes]) -> None:
        """Keep the results of live tools of a rerun, whose list is never frozen."""
        if not returned:
            return
        with self._leases.unit(lease, "returned", durable=False) as change:
            write_returned(change, staging, returned, self._seals)

    def adopt_rerun(self, lease: Lease, staging: int, rerun: int) -> None:
        """Move the live rows of the rerun's list into the list in force, durably.

        Raises:
            JournalError: that list was not redeemed.
        """
        with self._leases.unit(lease, "taken_in", durable=True) as change:
            existing, repeated = (_live_rows(change, one) for one in (staging, rerun))
            for effect_id in existing.keys() - repeated.keys():
                transition(change, staging, effect_id, LocalState.UNDONE)
            change.update(
                "effects",
                "txn = ? AND staging = ? AND lane = ? AND state = ? AND error IS NULL",
                (lease.txn, staging, LIVE_LANE, LocalState.UNDONE.value),
                error=_MISSING_LIVE_WORK,
            )
            for effect_id in repeated:
                if effect_id in existing:
                    write_result(change, staging, effect_id, repeated[effect_id]["result"])
                else:
                    _copy(change, staging, repeated[effect_id])
                transition(change, rerun, effect_id, LocalState.RELISTED)
            redeemed = ("txn = ? AND staging = ? AND redeemed = 1", (lease.txn, staging))
            taken = change.update("transactions", *redeemed, live=len(repeated))
            if taken != 1:
                raise JournalError(
                    f"transaction {lease.txn[:12]} was not redeemed; a rerun replaces its list"
                )

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

    def continue_stopped(self, lease: Lease) -> None:
        """Its own program runs again under its key, and the list was redeemed: effects not begun may fire."""
        with self._leases.unit(lease, "goes_on", durable=False) as change:
            stopped = ("txn = ? AND state = ? AND redeemed = 1", (lease.txn, LocalTxn.STOPPED.value))
            change.update("transactions", *stopped, state=LocalTxn.REDEEMED.value, note=None)


_COPIED: Final = ("effect_id", "tool", "call_key", "args", "result")
_MISSING_LIVE_WORK: Final = "it was lost with its process, and its rerun did not bring it back"


_NOT_ALL_BEGUN: Final = (
    "txn = ? AND state IN ('frozen', 'ready', 'redeemed') AND EXISTS (SELECT 1 FROM effects e "
    "WHERE e.txn = transactions.txn AND e.staging = transactions.staging AND e.lane = 'staged' "
    "AND e.state IN ('staged', 'review', 'released', 'redeemed'))"
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


def end_unfrozen(change: Change, staging: int) -> None:
    """End a list that was never frozen: its staged calls are withdrawn, its live effects were undone."""
    for lane, to in ((STAGED_LANE, LocalState.WITHDRAWN), (LIVE_LANE, LocalState.UNDONE)):
        change.update(
            "effects",
            "txn = ? AND staging = ? AND lane = ? AND state IN ('staged', 'live')",
            (change.txn, staging, lane),
            state=to.value,
        )


def complete_unsubmitted(
    change: Change, seals: Seals, staging: int, calls: Sequence[StagedRow], why: str | None = None
) -> None:
    """Complete the rows of calls that are not submitted, with `why`."""
    for call in calls:
        raw = b""
        with suppress(JournalSealed):
            raw = sealed_args(change, seals, call)
        change.run(
            "effects",
            "UPDATE effects SET args = CASE WHEN length(args) = 0 THEN ? ELSE args END, tool_digest = ?, "
            "error = coalesce(error, ?) WHERE txn = ? AND staging = ? AND lane = ? AND effect_id = ?",
            (raw, call.tool_digest, why, change.txn, staging, call.lane, call.effect_id),
            *("args", "tool_digest", "error"),
        )
