"""The rows of effects: staged, frozen, redeemed, FIRING, outcomes. This part of the journal must always be correct.

Rules for firing: FIRING is written durably before a tool is called, and only by the owner of the lease. The outcome of
effect k and the FIRING of effect k+1 share one durable commit. Every outcome enters the outbox in the commit that
writes it. A crash between FIRING and its outcome leaves FIRING, and nothing later treats that as "not done".

Rules for staged rows: the staged bytes are kept next to edited ones. Two seals of one value never compare equal, so
bytes are compared unsealed. What was sealed when it was staged stays sealed, even if its manifest changes. Calls
outside the submitted list stay readable; if their secret arguments are unknown, or there is no key, only the name of
the call is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from countersign.contract.effect import Effect
from countersign.contract.states import Outcome
from countersign.errors import JournalError
from countersign.journal.chain import Change
from countersign.journal.database import Row, Unit
from countersign.journal.leases import Lease, Leases
from countersign.journal.meta import REPORTED
from countersign.journal.records import STAGED_LANE, StagedRow, compensation_bytes
from countersign.journal.sealed_values import SealContext
from countersign.journal.sealing import Seals, is_sealed, is_secret_value, sealed_pointers
from countersign.journal.states import SOURCES, LocalState, LocalTxn


def write_effect(change: Change, staging: int, effect: Effect, secret: Collection[str], seals: Seals) -> None:
    """Complete a staged row with everything its digest covers. The staged bytes are kept next to edited ones."""
    args, staged_args = _arguments(change.unit, staging, effect, secret, seals)
    about = SealContext(effect.txn, effect.effect_id, "resource_id")
    is_secret = is_secret_value(effect.args_bytes, sealed_pointers(args), effect.resource.id)
    change.update(
        "effects",
        "txn = ? AND staging = ? AND lane = ? AND seq = ? AND effect_id = ?",
        (effect.txn, staging, STAGED_LANE, effect.seq, effect.effect_id),
        tool_digest=effect.tool_digest,
        resource_type=effect.resource.type,
        resource_id=seals.seal_text(change.unit, about, effect.resource.id, secret=is_secret),
        compensation=compensation_bytes(effect.compensation),
        effect_digest=effect.digest,
        staged_args=staged_args,
        args=args,
        updated_at=change.at,
    )


def _arguments(
    unit: Unit, staging: int, effect: Effect, secret: Collection[str], seals: Seals
) -> tuple[bytes, bytes | None]:
    """The columns `args` and `staged_args`: the bytes of this effect, and the staged ones if they differ."""
    about = SealContext(effect.txn, effect.effect_id, "args")
    row = unit.execute(
        "SELECT args, staged_args FROM effects WHERE txn = ? AND staging = ? AND lane = ? AND effect_id = ?",
        (effect.txn, staging, STAGED_LANE, effect.effect_id),
    ).fetchone()
    stored: bytes = b"" if row is None else row["args"]
    before = None if row is None else row["staged_args"]
    known = {*secret, *sealed_pointers(stored)}
    sealed = seals.seal(unit, about, effect.args_bytes, known)
    if not stored or (was := _open(seals, about, stored)) == effect.args_bytes or before is not None:
        return sealed, before
    return sealed, seals.seal(unit, replace(about, column="staged_args"), was, known)


def _open(seals: Seals, about: SealContext, stored: bytes) -> bytes:
    try:
        return seals.open(about, stored)
    except ValueError as error:
        raise JournalError(f"effect {about.effect_id[:12]} of the journal is damaged: {error}") from error


_SUPERSEDED: Final = "another list was submitted under this key"


def sealed_args(change: Change, seals: Seals, call: StagedRow) -> bytes:
    """A staged call's arguments as its column holds them, empty without its secrets. Raises JournalSealed."""
    if call.secret is None:
        return b""
    return seals.seal(change.unit, SealContext(change.txn, call.effect_id, "args"), call.args, call.secret)


def supersede(change: Change, staging: int) -> None:
    """Withdraw calls of an earlier list in force that this list does not contain, as the service does."""
    change.update(
        "effects",
        "txn = ? AND staging <> ? AND lane = ? AND state IN ('staged', 'review', 'released') "
        "AND effect_id NOT IN (SELECT effect_id FROM effects WHERE txn = ? AND staging = ?)",
        (change.txn, staging, STAGED_LANE, change.txn, staging),
        state=LocalState.WITHDRAWN.value,
        error=_SUPERSEDED,
    )


@dataclass(frozen=True, slots=True)
class EffectOutcome:
    """The outcome of one effect, to be written and reported."""

    effect_id: str
    outcome: Outcome
    attempt_id: str
    result: bytes | None = field(default=None, repr=False)
    report_result: bool = False  # only if a compensation takes an argument from it
    error: str | None = None


class EffectLog:
    """Redemption, FIRING and outcomes."""

    def __init__(self, leases: Leases, seals: Seals) -> None:
        self._leases = leases
        self._seals = seals

    def redeemed(self, lease: Lease, staging: int, effect_ids: Sequence[str]) -> None:
        """Record a verified receipt: the commit point is passed. Effects past it, and a stopped program, stay as
        they are. Not durable by itself: the FIRING that follows is, and until then the service knows.
        """
        with self._leases.unit(lease, "redeemed", durable=False) as change:
            for effect_id in effect_ids:
                transition(change, staging, effect_id, LocalState.REDEEMED, missing_ok=True)
            change.run(
                "transactions",
                "UPDATE transactions SET redeemed = 1, state = CASE WHEN state = ? THEN state ELSE ? END, parked = 0 "
                "WHERE txn = ?",
                (LocalTxn.STOPPED.value, LocalTxn.REDEEMED.value, lease.txn),
                *("redeemed", "state", "parked"),
            )

    def begin(
        self,
        lease: Lease,
        staging: int,
        *effect_ids: str,
        before: Sequence[EffectOutcome],
        lease_seconds: float,
    ) -> None:
        """Write the outcomes so far and FIRING for the next effects, in one durable commit.

        Raises:
            LeaseLost: another process has taken over; nothing may be called.
            JournalError: the effect has been fired already, or may not be.
        """
        with self._leases.unit(lease, "firing", durable=True, at_least=lease_seconds) as change:
            self._write(change, staging, before)
            for effect_id in effect_ids:
                transition(change, staging, effect_id, LocalState.FIRING, generation=lease.generation)

    def write(self, lease: Lease, staging: int, outcomes: Sequence[EffectOutcome]) -> None:
        """Write outcomes, durably."""
        with self._leases.unit(lease, "outcome", durable=True) as change:
            self._write(change, staging, outcomes)

    def _write(self, change: Change, staging: int, outcomes: Sequence[EffectOutcome]) -> None:
        for done in outcomes:
            to = LocalState(done.outcome.value)
            sealed = done.result is not None and has_secrets(change, staging, done.effect_id)
            result = self.sealed_result(change, done.effect_id, done.result, sealed=sealed)
            transition(change, staging, done.effect_id, to, result=result, error=done.error)
            text = done.result if done.report_result else None
            change.insert(
                "outbox",
                or_ignore=True,
                txn=change.txn,
                attempt_id=done.attempt_id,
                effect_id=done.effect_id,
                outcome=done.outcome.value,
                result=self.sealed_result(change, done.effect_id, text, sealed=sealed, column=REPORTED),
                error=done.error,
                written_at=change.at,
            )

    def sealed_result(
        self, change: Change, effect_id: str, raw: bytes | None, *, sealed: bool, column: str = "result"
    ) -> bytes | None:
        """A result as its column holds it. The result of a call with secrets is sealed whole, because it may quote
        them.
        """
        if raw is None or not sealed:
            return raw
        return self._seals.seal(change.unit, SealContext(change.txn, effect_id, column), raw, [""])


def has_secrets(change: Change, staging: int, effect_id: str) -> bool:
    row = effect_row(change.unit, change.txn, staging, effect_id)
    return row is not None and is_sealed(row["args"])


def effect_row(unit: Unit, txn: str, staging: int, effect_id: str) -> Row | None:
    found: Row | None = unit.execute(
        "SELECT args, compensation, settlements FROM effects WHERE txn = ? AND staging = ? AND effect_id = ?",
        (txn, staging, effect_id),
    ).fetchone()
    return found


def transition(
    change: Change,
    staging: int,
    effect_id: str,
    to: LocalState,
    *,
    missing_ok: bool = False,
    **also: bytes | str | int | None,
) -> None:
    """Change an effect's state by a conditional UPDATE that names the allowed source states. `also`: columns that
    belong to the transition, such as the lease of a FIRING or the result of an outcome.

    Raises:
        JournalError: the table allows no such transition from the effect's state (unless `missing_ok`).
    """
    updated = change.update(
        "effects",
        _may_become(to),
        (change.txn, staging, effect_id),
        state=to.value,
        updated_at=change.at,
        **also,
    )
    if updated != 1 and not missing_ok:
        raise JournalError(f"effect {effect_id[:12]} cannot become {to.value} from its state in the journal")


@cache
def _may_become(to: LocalState) -> str:
    sources = ", ".join(f"'{state.value}'" for state in sorted(SOURCES[to]))
    return f"txn = ? AND staging = ? AND effect_id = ? AND state IN ({sources})"
