"""Transactions in the journal: staging, freezing, what the service answered, the end.

Every write names the lease of its owner. A list is frozen once, durably, together with the attempt it may be
redeemed under; from then on its bytes change only by an edit the service accepted, and never after the
redemption.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from countersign.clock import Clock
from countersign.contract.effect import Effect
from countersign.errors import JournalError
from countersign.journal.chain import record_changes
from countersign.journal.database import Database, Row, Unit
from countersign.journal.effect_rows import (
    StagedRow,
    complete_unsubmitted,
    end_unfrozen,
    supersede,
    write_effect,
    write_returned,
)
from countersign.journal.leases import Lease, Leases
from countersign.journal.queries import LIVE_LANE, STAGED_LANE, TransactionQueries
from countersign.journal.sealing import SealContext, Seals
from countersign.journal.states import LocalState, LocalTxn, transition

_ATTEMPT_BYTES: Final = 16
_NOTHING: Final[Mapping[str, bytes]] = MappingProxyType({})


class Transactions(TransactionQueries):
    """The tables `transactions` and `effects`, but for firing."""

    def __init__(self, database: Database, leases: Leases, clock: Clock, seals: Seals) -> None:
        super().__init__(database, seals)
        self._leases = leases
        self._clock = clock

    def open(self, *, txn: str, agent: str, run_key: str, independent: bool) -> None:
        """Make the row of a run key, if it is new."""
        now = self._clock.wall()
        with self._database.unit(durable=False) as unit, record_changes(unit, txn, "opened", now) as change:
            change.insert(
                "transactions",
                or_ignore=True,
                txn=txn,
                agent=agent,
                run_key=run_key,
                independent=int(independent),
                state=LocalTxn.STAGING.value,
                created_at=now,
                updated_at=now,
            )

    def begin_staging(self, lease: Lease) -> int:
        """Begin another list under this key; the list in force stays in force until this one is frozen."""
        with self._leases.unit(lease, "listing", durable=False) as change:
            change.run(
                "transactions",
                "UPDATE transactions SET stagings = stagings + 1 WHERE txn = ?",
                (lease.txn,),
                "stagings",
            )
            return int(_row(change.unit, lease.txn)["stagings"])

    def stage(self, lease: Lease, staging: int, call: StagedRow) -> None:
        """Write one call down before its placeholder is handed out, or before it runs live.

        Raises:
            JournalSealed: something of it is secret, and there is no key to seal it with.
        """
        about = SealContext(lease.txn, call.effect_id, "args")
        state = LocalState.LIVE if call.lane == LIVE_LANE else LocalState.STAGED
        with self._leases.unit(lease, "staged", durable=False) as change:
            sealed = (
                b"" if call.secret is None else self._seals.seal(change.unit, about, call.args, call.secret)
            )
            change.insert(
                "effects",
                only_given=True,
                txn=lease.txn,
                staging=staging,
                lane=call.lane,
                seq=call.seq,
                effect_id=call.effect_id,
                tool=call.tool,
                call_key=call.call_key,
                args=sealed,
                state=state.value,
                updated_at=change.at,
            )

    def relist(
        self,
        lease: Lease,
        staging: int,
        calls: Sequence[StagedRow],
        *,
        dropped: Sequence[StagedRow] = (),
        why: str | None = None,
    ) -> int:
        """Begin another list of the same run with these of its calls, in this order, and answer its number. The
        others are withdrawn or undone; of those in `dropped` the arguments stay readable, with `why`.
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

    def freeze(
        self,
        lease: Lease,
        staging: int,
        effects: Sequence[Effect],
        *,
        secret: Mapping[str, Collection[str]],
        txn_digest: str,
        live: int,
        returned: Mapping[str, bytes] = _NOTHING,
    ) -> str:
        """Put this list in force, durably, and name the attempt it may be redeemed under. `secret` says, by tool
        digest, which of the arguments its reviewed manifest calls secret; `returned`, by effect, what live tools did.

        The same list as before keeps its attempt: a redemption whose answer was lost is then still ours to
        find.

        Raises:
            JournalError: the list in force has been redeemed; nothing may replace it.
            JournalSealed: something of it is secret, and there is no key to seal it with.
        """
        with self._leases.unit(lease, "frozen", durable=True) as change:
            for effect in effects:
                write_effect(change, staging, effect, secret[effect.tool_digest], self._seals)
            write_returned(change, staging, returned, self._seals)
            if staging > 1:
                supersede(change, staging)
            attempt_id = _attempt_of_same_list(change.unit, lease.txn, staging)
            attempt_id = attempt_id or secrets.token_urlsafe(_ATTEMPT_BYTES)
            moved = change.update(
                *("transactions", "txn = ? AND redeemed = 0", (lease.txn,)),
                state=LocalTxn.FROZEN.value,
                staging=staging,
                live=live,
                txn_digest=txn_digest,
                attempt_id=attempt_id,
                rev=None,
                parked=0,
                landed=0,
                note=None,
            )
            if moved != 1:
                raise JournalError(f"transaction {lease.txn[:12]} was redeemed; its list cannot be replaced")
        return attempt_id

    def adopt(
        self,
        lease: Lease,
        effects: Sequence[Effect],
        *,
        secret: Mapping[str, Collection[str]],
        txn_digest: str,
    ) -> None:
        """Take over the bytes of an accepted edit, durably, before they can be redeemed; `secret` as for `freeze`."""
        with self._leases.unit(lease, "edited", durable=True) as change:
            staging = _row(change.unit, lease.txn)["staging"]
            for effect in effects:
                write_effect(change, staging, effect, secret[effect.tool_digest], self._seals)
            change.update("transactions", "txn = ? AND redeemed = 0", (lease.txn,), txn_digest=txn_digest)

    def see(
        self,
        lease: Lease,
        *,
        state: LocalTxn,
        rev: int,
        effects: Mapping[str, LocalState],
        parked: bool = False,
    ) -> None:
        """Note what the service answered before the redemption; effects only move where the table leads.

        Parked stays parked: whoever resumes it may crash as well. A look that finds nothing new writes nothing.
        """
        with self._leases.unit(lease, "seen", durable=False) as change:
            was = _row(change.unit, lease.txn)
            for effect_id, to in effects.items():
                transition(change, was["staging"], effect_id, to, missing_ok=True)
            seen = {"state": state.value, "rev": rev, "parked": was["parked"] | int(parked)}
            if any(was[name] != value for name, value in seen.items()):
                change.update("transactions", "txn = ?", (lease.txn,), **seen)

    def end(self, lease: Lease, state: LocalTxn, note: str | None = None) -> None:
        """Note where the transaction stands now; not durable, for it follows from the outcomes, which are. In the state
        it is in already nothing is written, unless another `note` is given; in another one the note is this, or none.
        """
        with self._leases.unit(lease, "stands", durable=False) as change:
            was = _row(change.unit, lease.txn)
            if (was["state"], was["parked"]) == (state.value, 0) and note in {None, was["note"]}:
                return
            change.update("transactions", "txn = ?", (lease.txn,), state=state.value, parked=0, note=note)

    def close(self, lease: Lease, note: str) -> None:
        """A person has put right what stood of it in part, durably; `note` says who, when and what.

        Raises:
            JournalError: it is not unsettled, so nobody has to.
        """
        with self._leases.unit(lease, "closed", durable=True) as change:
            where = ("txn = ? AND state = ?", (lease.txn, LocalTxn.UNSETTLED.value))
            closed = change.update("transactions", *where, state=LocalTxn.CLOSED.value, note=note)
            if closed != 1:
                raise JournalError(
                    f"transaction {lease.txn[:12]} is not unsettled, and is not closed by hand"
                )

    def abort(self, lease: Lease, staging: int, note: str, calls: Sequence[StagedRow] = ()) -> None:
        """End a list that was never frozen. The arguments of `calls` stay readable. An earlier list in force is left
        as it is; it takes the note where it has none.
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
        """Note why the list in force did not go through, where nothing is noted yet."""
        with self._leases.unit(lease, "explained", durable=False) as change:
            unexplained = ("txn = ? AND note IS NULL AND state <> ?", (lease.txn, LocalTxn.SETTLED.value))
            change.update("transactions", *unexplained, note=note)

    def abort_all(self, lease: Lease, note: str) -> None:
        """Forget every list of a transaction that has none in force: the process that staged it is gone."""
        with self._database.unit(durable=False) as unit:
            self._leases.require(unit, lease)
            stagings = _row(unit, lease.txn)["stagings"]
        for staging in range(1, stagings + 1):
            self.abort(lease, staging, note)
        self.end(lease, LocalTxn.ENDED, note)

    def note(self, lease: Lease, note: str | None) -> None:
        """Leave word for people on a transaction that could not be finished; None takes it back."""
        with (
            self._database.unit(durable=False) as unit,
            record_changes(unit, lease.txn, "noted", self._clock.wall()) as change,
        ):
            owned = ("txn = ? AND generation = ?", (lease.txn, lease.generation))
            change.update("transactions", *owned, note=note)

    def undone_alone(self, lease: Lease, staging: int, effect_ids: Sequence[str], why: str) -> None:
        """Note that nothing stands of these live effects, for one raised. Its list goes on without them: `why` tells
        them from those that are undone with it.
        """
        with self._leases.unit(lease, "raised", durable=False) as change:
            for effect_id in effect_ids:
                transition(change, staging, effect_id, LocalState.UNDONE, error=why)

    def note_returned(self, lease: Lease, staging: int, returned: Mapping[str, bytes]) -> None:
        """Note what the live tools of a rerun returned, whose list is never frozen."""
        if not returned:
            return
        with self._leases.unit(lease, "returned", durable=False) as change:
            write_returned(change, staging, returned, self._seals)

    def end_live(self, lease: Lease, staging: int, to: LocalState, *, durable: bool = False) -> None:
        """Note that the live effects of a list were kept or undone; kept also says that the attempt landed."""
        with self._leases.unit(lease, to.value, durable=durable) as change:
            change.update(
                "effects",
                "txn = ? AND staging = ? AND lane = ? AND state = ?",
                (lease.txn, staging, LIVE_LANE, LocalState.LIVE.value),
                state=to.value,
                updated_at=change.at,
            )
            if to is LocalState.KEPT:
                change.update("transactions", "txn = ?", (lease.txn,), landed=1)


def _row(unit: Unit, txn: str) -> Row:
    row: Row = unit.execute("SELECT * FROM transactions WHERE txn = ?", (txn,)).fetchone()
    return row


def _attempt_of_same_list(unit: Unit, txn: str, staging: int) -> str | None:
    """The attempt of the list in force, if the new list is the same: compared by (call_key, tool_digest) in
    order.
    """
    row = _row(unit, txn)
    if row["attempt_id"] is None or _list(unit, txn, row["staging"]) != _list(unit, txn, staging):
        return None
    return str(row["attempt_id"])


def _list(unit: Unit, txn: str, staging: int) -> list[tuple[str, str | None]]:
    rows = unit.execute(
        "SELECT call_key, tool_digest FROM effects WHERE txn = ? AND staging = ? AND lane = ? ORDER BY seq",
        (txn, staging, STAGED_LANE),
    )
    return [(row["call_key"], row["tool_digest"]) for row in rows]
