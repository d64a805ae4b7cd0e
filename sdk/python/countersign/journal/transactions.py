"""Transactions in the journal: staging, freezing, what the service answered, the end.

Every write names the lease of its owner. A list is frozen once, durably, together with the attempt it may be
redeemed under; from then on its bytes change only by an edit the service accepted, and never after the
redemption.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from countersign.clock import Clock
from countersign.contract.effect import Effect
from countersign.errors import JournalError
from countersign.journal.chain import changing
from countersign.journal.database import Database, Unit
from countersign.journal.freezing import write_effect
from countersign.journal.leases import Lease, Leases
from countersign.journal.moves import LocalState, LocalTxn
from countersign.journal.moving import move
from countersign.journal.reading import LIVE_LANE, STAGED_LANE, Reading
from countersign.journal.returned import write_returned
from countersign.journal.sealing import About, Seals
from countersign.journal.unsubmitted import keep_readable, leave, supersede

_ATTEMPT_BYTES: Final = 16
_NOTHING: Final[Mapping[str, bytes]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Staged:
    """One call as it was staged: its names and its bytes. `secret` is what of them is secret as far as anybody has
    said; None where nobody has, for the manifest is looked at later: then they are written when the list is frozen.
    """

    effect_id: str
    call_key: str
    tool: str
    args: bytes = field(repr=False)
    lane: str
    seq: int
    secret: tuple[str, ...] | None
    tool_digest: str | None = None  # of the manifest that says so, where it is known


class Transactions(Reading):
    """The tables `transactions` and `effects`, but for firing."""

    def __init__(self, database: Database, leases: Leases, clock: Clock, seals: Seals) -> None:
        super().__init__(database, seals)
        self._leases = leases
        self._clock = clock

    def open(self, *, txn: str, agent: str, run_key: str, independent: bool) -> None:
        """Make the row of a run key, if it is new."""
        now = self._clock.wall()
        with self._database.unit(durable=False) as unit, changing(unit, txn, "opened", now) as change:
            change.run(
                "transactions",
                "INSERT INTO transactions (txn, agent, run_key, independent, state, created_at, updated_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (txn, agent, run_key, int(independent), LocalTxn.STAGING.value, now, now),
            )

    def begin_staging(self, lease: Lease) -> int:
        """Begin another list under this key; the list in force stays in force until this one is frozen."""
        with (
            self._database.unit(durable=False) as unit,
            self._leases.changing(unit, lease, "listing") as change,
        ):
            change.run(
                "transactions",
                "UPDATE transactions SET stagings = stagings + 1 WHERE txn = ?",
                (lease.txn,),
                "stagings",
            )
            return int(
                unit.execute("SELECT stagings FROM transactions WHERE txn = ?", (lease.txn,)).fetchone()[0]
            )

    def stage(self, lease: Lease, staging: int, call: Staged) -> None:
        """Write one call down before its placeholder is handed out, or before it runs live.

        Raises:
            JournalSealed: something of it is secret, and there is no key to seal it with.
        """
        about = About(lease.txn, call.effect_id, "args")
        state = LocalState.LIVE if call.lane == LIVE_LANE else LocalState.STAGED
        with (
            self._database.unit(durable=False) as unit,
            self._leases.changing(unit, lease, "staged") as change,
        ):
            change.run(
                "effects",
                "INSERT INTO effects (txn, staging, lane, seq, effect_id, tool, call_key, args, state, updated_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(lease.txn, staging, call.lane, call.seq, call.effect_id, call.tool, call.call_key),
                    b"" if call.secret is None else self._seals.seal(unit, about, call.args, call.secret),
                    *(state.value, change.at),
                ),
                *("txn", "effect_id", "tool", "call_key", "args", "state", "updated_at"),
            )

    def relist(
        self,
        lease: Lease,
        staging: int,
        calls: Sequence[Staged],
        *,
        dropped: Sequence[Staged] = (),
        why: str | None = None,
    ) -> int:
        """Begin another list of the same run with these of its calls, in this order, and answer its number. The
        others are withdrawn or undone; of those in `dropped` the arguments stay readable, with `why`.
        """
        with self._database.unit(durable=False) as unit:
            with self._leases.changing(unit, lease, "relisted") as change:
                for call in calls:
                    move(change, staging, call.effect_id, LocalState.RELISTED)
                leave(change, staging)
                keep_readable(change, self._seals, staging, dropped, why)
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
        with (
            self._database.unit(durable=True) as unit,
            self._leases.changing(unit, lease, "frozen") as change,
        ):
            for effect in effects:
                write_effect(change, staging, effect, secret[effect.tool_digest], self._seals)
            write_returned(change, staging, returned, self._seals)
            if staging > 1:
                supersede(change, staging)
            attempt_id = _attempt_of_same_list(unit, lease.txn, staging) or secrets.token_urlsafe(
                _ATTEMPT_BYTES
            )
            moved = change.run(
                "transactions",
                "UPDATE transactions SET state = ?, staging = ?, live = ?, txn_digest = ?, attempt_id = ?, rev = NULL, "
                "parked = 0, landed = 0, note = NULL WHERE txn = ? AND redeemed = 0",
                (LocalTxn.FROZEN.value, staging, live, txn_digest, attempt_id, lease.txn),
                *("state", "staging", "live", "txn_digest", "attempt_id", "rev", "parked", "landed", "note"),
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
        with (
            self._database.unit(durable=True) as unit,
            self._leases.changing(unit, lease, "edited") as change,
        ):
            staging = _in_force(unit, lease.txn)
            for effect in effects:
                write_effect(change, staging, effect, secret[effect.tool_digest], self._seals)
            change.run(
                "transactions",
                "UPDATE transactions SET txn_digest = ? WHERE txn = ? AND redeemed = 0",
                (txn_digest, lease.txn),
                "txn_digest",
            )

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
        with (
            self._database.unit(durable=False) as unit,
            self._leases.changing(unit, lease, "seen") as change,
        ):
            staging = _in_force(unit, lease.txn)
            for effect_id, to in effects.items():
                move(change, staging, effect_id, to, missing_ok=True)
            was = unit.execute(
                "SELECT state, rev, parked FROM transactions WHERE txn = ?", (lease.txn,)
            ).fetchone()
            seen = (state.value, rev, was["parked"] | int(parked))
            if (was["state"], was["rev"], was["parked"]) != seen:
                change.run(
                    "transactions",
                    "UPDATE transactions SET state = ?, rev = ?, parked = ? WHERE txn = ?",
                    (*seen, lease.txn),
                    *("state", "rev", "parked"),
                )

    def end(self, lease: Lease, state: LocalTxn, note: str | None = None) -> None:
        """Note where the transaction stands now; not durable, for it follows from the outcomes, which are. In the state
        it is in already nothing is written, unless another `note` is given; in another one the note is this, or none.
        """
        with (
            self._database.unit(durable=False) as unit,
            self._leases.changing(unit, lease, "stands") as change,
        ):
            was = unit.execute(
                "SELECT state, parked, note FROM transactions WHERE txn = ?", (lease.txn,)
            ).fetchone()
            if (was["state"], was["parked"]) == (state.value, 0) and note in {None, was["note"]}:
                return
            change.run(
                "transactions",
                "UPDATE transactions SET state = ?, parked = 0, note = ? WHERE txn = ?",
                (state.value, note, lease.txn),
                *("state", "parked", "note"),
            )

    def close(self, lease: Lease, note: str) -> None:
        """A person has put right what stood of it in part, durably; `note` says who, when and what.

        Raises:
            JournalError: it is not unsettled, so nobody has to.
        """
        with (
            self._database.unit(durable=True) as unit,
            self._leases.changing(unit, lease, "closed") as change,
        ):
            closed = change.run(
                "transactions",
                "UPDATE transactions SET state = ?, note = ? WHERE txn = ? AND state = ?",
                (LocalTxn.CLOSED.value, note, lease.txn, LocalTxn.UNSETTLED.value),
                *("state", "note"),
            )
            if closed != 1:
                raise JournalError(
                    f"transaction {lease.txn[:12]} is not unsettled, and is not closed by hand"
                )

    def abort(self, lease: Lease, staging: int, note: str, calls: Sequence[Staged] = ()) -> None:
        """End a list that was never frozen. The arguments of `calls` stay readable. An earlier list in force is left
        as it is; it takes the note where it has none.
        """
        with (
            self._database.unit(durable=False) as unit,
            self._leases.changing(unit, lease, "aborted") as change,
        ):
            leave(change, staging)
            keep_readable(change, self._seals, staging, calls)
            change.run(
                "transactions",
                "UPDATE transactions SET state = ?, note = ? WHERE txn = ? AND staging IS NULL",
                (LocalTxn.ENDED.value, note, lease.txn),
                *("state", "note"),
            )
            change.run(
                "transactions",
                "UPDATE transactions SET note = ? WHERE txn = ? AND staging IS NOT NULL AND note IS NULL "
                "AND redeemed = 0 AND landed = 0",
                (f"a later run: {note}", lease.txn),
                "note",
            )

    def explain(self, lease: Lease, note: str) -> None:
        """Note why the list in force did not go through, where nothing is noted yet."""
        with (
            self._database.unit(durable=False) as unit,
            self._leases.changing(unit, lease, "explained") as change,
        ):
            change.run(
                "transactions",
                "UPDATE transactions SET note = ? WHERE txn = ? AND note IS NULL AND state <> ?",
                (note, lease.txn, LocalTxn.SETTLED.value),
                "note",
            )

    def abort_all(self, lease: Lease, note: str) -> None:
        """Forget every list of a transaction that has none in force: the process that staged it is gone."""
        with self._database.unit(durable=False) as unit:
            self._leases.require(unit, lease)
            row = unit.execute("SELECT stagings FROM transactions WHERE txn = ?", (lease.txn,)).fetchone()
        for staging in range(1, row["stagings"] + 1):
            self.abort(lease, staging, note)
        self.end(lease, LocalTxn.ENDED, note)

    def note(self, lease: Lease, note: str | None) -> None:
        """Leave word for people on a transaction that could not be finished; None takes it back."""
        with (
            self._database.unit(durable=False) as unit,
            changing(unit, lease.txn, "noted", self._clock.wall()) as change,
        ):
            change.run(
                "transactions",
                "UPDATE transactions SET note = ? WHERE txn = ? AND generation = ?",
                (note, lease.txn, lease.generation),
                "note",
            )

    def undone_alone(self, lease: Lease, staging: int, effect_ids: Sequence[str], why: str) -> None:
        """Note that nothing stands of these live effects, for one raised. Its list goes on without them: `why` tells
        them from those that are undone with it.
        """
        with (
            self._database.unit(durable=False) as unit,
            self._leases.changing(unit, lease, "raised") as change,
        ):
            for effect_id in effect_ids:
                move(change, staging, effect_id, LocalState.UNDONE, error=why)

    def note_returned(self, lease: Lease, staging: int, returned: Mapping[str, bytes]) -> None:
        """Note what the live tools of a rerun returned, whose list is never frozen."""
        if not returned:
            return
        with (
            self._database.unit(durable=False) as unit,
            self._leases.changing(unit, lease, "returned") as change,
        ):
            write_returned(change, staging, returned, self._seals)

    def end_live(self, lease: Lease, staging: int, to: LocalState, *, durable: bool = False) -> None:
        """Note that the live effects of a list were kept or undone; kept also says that the attempt landed."""
        with (
            self._database.unit(durable=durable) as unit,
            self._leases.changing(unit, lease, to.value) as change,
        ):
            change.run(
                "effects",
                "UPDATE effects SET state = ?, updated_at = ? WHERE txn = ? AND staging = ? AND lane = ? AND state = ?",
                (to.value, self._clock.wall(), lease.txn, staging, LIVE_LANE, LocalState.LIVE.value),
                *("state", "updated_at"),
            )
            if to is LocalState.KEPT:
                change.run(
                    "transactions",
                    "UPDATE transactions SET landed = 1 WHERE txn = ?",
                    (lease.txn,),
                    "landed",
                )


def _in_force(unit: Unit, txn: str) -> int:
    return int(unit.execute("SELECT staging FROM transactions WHERE txn = ?", (txn,)).fetchone()[0])


def _attempt_of_same_list(unit: Unit, txn: str, staging: int) -> str | None:
    """The attempt of the list in force, if the new list is the same: compared by (call_key, tool_digest) in
    order.
    """
    row = unit.execute("SELECT staging, attempt_id FROM transactions WHERE txn = ?", (txn,)).fetchone()
    if row["attempt_id"] is None or _list(unit, txn, row["staging"]) != _list(unit, txn, staging):
        return None
    return str(row["attempt_id"])


def _list(unit: Unit, txn: str, staging: int) -> list[tuple[str, str | None]]:
    rows = unit.execute(
        "SELECT call_key, tool_digest FROM effects WHERE txn = ? AND staging = ? AND lane = ? ORDER BY seq",
        (txn, staging, STAGED_LANE),
    )
    return [(row["call_key"], row["tool_digest"]) for row in rows]
