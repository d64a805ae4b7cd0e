"""Transactions in the journal: staged, frozen, answered by the service, ended.

Every write names the lease of its owner. A list is frozen once, durably, together with the attempt it may be redeemed
under. From then on its bytes change only by an edit the service accepted, and never after the redemption.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from countersign.clock import Clock
from countersign.contract.effect import Effect
from countersign.errors import JournalError
from countersign.journal.chain import record_changes
from countersign.journal.database import Database, Row, Unit
from countersign.journal.effects import sealed_args, supersede, transition, write_effect
from countersign.journal.leases import Lease, Leases
from countersign.journal.live_results import write_returned
from countersign.journal.records import (
    LIVE_LANE,
    STAGED_LANE,
    EffectRecord,
    StagedRow,
    TransactionRecord,
    effect_record,
    transaction_record,
)
from countersign.journal.sealing import Seals
from countersign.journal.states import LocalState, LocalTxn

_ATTEMPT_BYTES: Final = 16


class TransactionRows:
    """The tables `transactions` and `effects`, from the first call to the end of a commit."""

    def __init__(self, database: Database, leases: Leases, clock: Clock, seals: Seals) -> None:
        self._database = database
        self._seals = seals
        self._leases = leases
        self._clock = clock

    def get(self, txn: str) -> TransactionRecord | None:
        """One transaction, or None."""
        row = self._database.row("SELECT * FROM transactions WHERE txn = ?", (txn,))
        return None if row is None else transaction_record(row)

    def require(self, txn: str) -> TransactionRecord:
        """One transaction that must exist.

        Raises:
            JournalError: it does not.
        """
        found = self.get(txn)
        if found is None:
            raise JournalError(f"the journal has no transaction {txn[:12]}")
        return found

    def effects(self, record: TransactionRecord, lane: str = STAGED_LANE) -> tuple[EffectRecord, ...]:
        """The effects of the list in force, in order.

        Raises:
            JournalSealed: something is sealed under a key that is not available.
        """
        return tuple(effect_record(row, record.agent, self._seals) for row in self._rows(record, lane))

    def _rows(self, record: TransactionRecord, lane: str) -> list[Row]:
        return self._database.rows(
            "SELECT * FROM effects WHERE txn = ? AND staging = ? AND lane = ? ORDER BY seq",
            (record.txn, record.staging, lane),
        )

    def live_tools(self, txn: str) -> tuple[str, ...]:
        """The tools with live effects under this key that were neither kept nor undone, in any list: a process died.
        Includes effects that raised, because the session they opened may still exist.
        """
        rows = self._database.rows(
            "SELECT DISTINCT tool FROM effects WHERE txn = ? AND lane = ? AND (state = ? OR error IS NOT NULL) "
            "ORDER BY tool",
            (txn, LIVE_LANE, LocalState.LIVE.value),
        )
        return tuple(row["tool"] for row in rows)

    def state_of(self, txn: str, staging: int, effect_id: str) -> LocalState | None:
        """The state of one effect."""
        row = self._database.row(
            "SELECT state FROM effects WHERE txn = ? AND staging = ? AND effect_id = ?",
            (txn, staging, effect_id),
        )
        return None if row is None else LocalState(row["state"])

    def open(self, *, txn: str, agent: str, run_key: str, independent: bool) -> None:
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
        """Begin another list under this key. The list in force stays so until the new one is frozen."""
        with self._leases.unit(lease, "listing", durable=False) as change:
            change.run(
                "transactions",
                "UPDATE transactions SET stagings = stagings + 1 WHERE txn = ?",
                (lease.txn,),
                "stagings",
            )
            return int(transaction_row(change.unit, lease.txn)["stagings"])

    def stage(self, lease: Lease, staging: int, call: StagedRow) -> None:
        """Journal one call before its placeholder is returned, or before it runs live.

        Raises:
            JournalSealed: it has secrets, and there is no sealing key.
        """
        state = LocalState.LIVE if call.lane == LIVE_LANE else LocalState.STAGED
        with self._leases.unit(lease, "staged", durable=False) as change:
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
                args=sealed_args(change, self._seals, call),
                state=state.value,
                updated_at=change.at,
            )

    def freeze(
        self,
        lease: Lease,
        staging: int,
        effects: Sequence[Effect],
        *,
        secret: Mapping[str, Collection[str]],
        txn_digest: str,
        live: int,
        returned: Mapping[str, bytes] | None = None,
    ) -> str:
        """Put this list in force, durably, and name the attempt it may be redeemed under. `secret`: pointers to secret
        arguments by tool digest; `returned`: results of live tools by effect id.

        The same list as before keeps its attempt, so that a redemption whose answer was lost can still be found.

        Raises:
            JournalError: the list in force has been redeemed; nothing may replace it.
            JournalSealed: it has secrets, and there is no sealing key.
        """
        with self._leases.unit(lease, "frozen", durable=True) as change:
            for effect in effects:
                write_effect(change, staging, effect, secret[effect.tool_digest], self._seals)
            if returned:
                write_returned(change, staging, returned, self._seals)
            if staging > 1:
                supersede(change, staging)
            attempt_id = _attempt_of_same_list(change.unit, lease.txn, staging)
            attempt_id = attempt_id or secrets.token_urlsafe(_ATTEMPT_BYTES)
            updated = change.update(
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
            if updated != 1:
                raise JournalError(f"transaction {lease.txn[:12]} was redeemed; its list cannot be replaced")
        return attempt_id

    def see(
        self,
        lease: Lease,
        *,
        state: LocalTxn,
        rev: int,
        effects: Mapping[str, LocalState],
        parked: bool = False,
    ) -> None:
        """Record the service's state before the redemption; effects change only as the table allows. Parked stays
        parked, because the process that resumes it may crash too. An unchanged state writes nothing.
        """
        with self._leases.unit(lease, "seen", durable=False) as change:
            was = transaction_row(change.unit, lease.txn)
            for effect_id, to in effects.items():
                transition(change, was["staging"], effect_id, to, missing_ok=True)
            seen = {"state": state.value, "rev": rev, "parked": was["parked"] | int(parked)}
            if any(was[name] != value for name, value in seen.items()):
                change.update("transactions", "txn = ?", (lease.txn,), **seen)

    def end(self, lease: Lease, state: LocalTxn, note: str | None = None) -> None:
        """Record the transaction's state. Not durable, because it follows from the outcomes, which are. An unchanged
        state writes nothing, unless the `note` differs; a changed one takes this note, or none.
        """
        with self._leases.unit(lease, "stands", durable=False) as change:
            was = transaction_row(change.unit, lease.txn)
            if (was["state"], was["parked"]) == (state.value, 0) and note in {None, was["note"]}:
                return
            change.update("transactions", "txn = ?", (lease.txn,), state=state.value, parked=0, note=note)

    def end_live(self, lease: Lease, staging: int, to: LocalState, *, durable: bool = False) -> None:
        """Record that the live effects of a list were kept or undone. Kept also means that the attempt landed."""
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


def transaction_row(unit: Unit, txn: str) -> Row:
    """One row of `transactions`, inside a unit."""
    row: Row = unit.execute("SELECT * FROM transactions WHERE txn = ?", (txn,)).fetchone()
    return row


def _attempt_of_same_list(unit: Unit, txn: str, staging: int) -> str | None:
    """The attempt of the list in force, if the new list has the same (call_key, tool_digest) in order."""
    row = transaction_row(unit, txn)
    if row["attempt_id"] is None or _list(unit, txn, row["staging"]) != _list(unit, txn, staging):
        return None
    return str(row["attempt_id"])


def _list(unit: Unit, txn: str, staging: int) -> list[tuple[str, str | None]]:
    rows = unit.execute(
        "SELECT call_key, tool_digest FROM effects WHERE txn = ? AND staging = ? AND lane = ? ORDER BY seq",
        (txn, staging, STAGED_LANE),
    )
    return [(row["call_key"], row["tool_digest"]) for row in rows]
