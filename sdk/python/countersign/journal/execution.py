"""The part of the journal that must never lie: what was redeemed, what is firing, what became of it.

Rules: FIRING is written, durably, before a tool is called, by the owner of the lease and by nobody else; the
outcome of effect k and the FIRING of effect k+1 share one durable commit; every outcome goes into the outbox
in the commit that writes it. A crash between FIRING and its outcome leaves FIRING, and nothing later takes
that for "not done".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from countersign.contract.admission import load
from countersign.contract.effect import Effect
from countersign.contract.states import Outcome
from countersign.errors import JournalError
from countersign.journal.chain import Change
from countersign.journal.database import Row, Unit
from countersign.journal.leases import Lease, Leases
from countersign.journal.outbox import REPORTED
from countersign.journal.queries import COMPENSATE_LANE
from countersign.journal.records import compensation_bytes, parse_settlements
from countersign.journal.sealing import (
    SealContext,
    Seals,
    inherited_pointers,
    is_sealed,
    is_secret_value,
    sealed_pointers,
)
from countersign.journal.states import LocalState, LocalTxn, transition


@dataclass(frozen=True, slots=True)
class EffectOutcome:
    """What became of one effect, to be written and reported."""

    effect_id: str
    outcome: Outcome
    attempt_id: str
    result: bytes | None = field(default=None, repr=False)
    report_result: bool = False  # only where a compensation takes an argument from it
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RemoteOutcome:
    """What became of one effect by the service's word: the states on the way there, and what people said."""

    effect_id: str
    way: tuple[LocalState, ...]
    settlements: bytes | None = field(default=None, repr=False)
    # as a person told it; ours stands where we have one
    result: bytes | None = field(default=None, repr=False)


class ExecutionLog:
    """Redemption, FIRING and outcomes."""

    def __init__(self, leases: Leases, seals: Seals) -> None:
        self._leases = leases
        self._seals = seals

    def redeemed(self, lease: Lease, staging: int, effect_ids: Sequence[str]) -> None:
        """Note a verified receipt: the commit point is passed. Effects already past it stay as they are, and a program
        that was stopped stays so.

        Not durable by itself: the FIRING that follows is, and carries this with it; until then the service
        knows.
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
        """Write the outcomes so far and FIRING for the next effects, in one durable commit: one, or a group.

        Raises:
            LeaseLost: somebody took the transaction over; nothing may be called.
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

    def compensation_redeemed(self, lease: Lease, staging: int, effect_id: str) -> None:
        """Note the verified receipt of a compensation."""
        with self._leases.unit(lease, "compensation_redeemed", durable=False) as change:
            transition(change, staging, effect_id, LocalState.REDEEMED, missing_ok=True)

    def settle_compensated(
        self, lease: Lease, staging: int, effect_id: str, to: LocalState, why: str | None = None
    ) -> None:
        """Note how the taking back of a fired effect ended, and `why` it was in vain."""
        with self._leases.unit(lease, "compensation_settled", durable=True) as change:
            transition(change, staging, effect_id, LocalState.COMPENSATING, missing_ok=True)
            transition(change, staging, effect_id, to, error=why)

    def learn(self, lease: Lease, staging: int, news: Sequence[RemoteOutcome]) -> None:
        """Take over what the service knows and this journal does not: what people settled. A move the table does not
        lead to is left out: what this journal knows for sure, nobody talks it out of.
        """
        with self._leases.unit(lease, "learned", durable=True) as change:
            for one in news:
                for to in one.way:
                    transition(change, staging, one.effect_id, to, missing_ok=True)
                if one.settlements is None or one.settlements == self._told(change, staging, one.effect_id):
                    continue
                settlements, result = self._as_told(change, staging, one)
                change.run(
                    "effects",
                    "UPDATE effects SET settlements = ?, result = coalesce(result, ?) "
                    "WHERE txn = ? AND staging = ? AND effect_id = ?",
                    (settlements, result, lease.txn, staging, one.effect_id),
                    *("settlements", "result"),
                )

    def begin_compensation(
        self,
        lease: Lease,
        staging: int,
        effect: Effect,
        *,
        secret: Collection[str],
        compensates: str,
        attempt_id: str,
    ) -> str:
        """Write a compensation down before it is redeemed, and answer the attempt it is redeemed under. `secret` is
        what its own manifest calls secret; what it takes over of a secret of the forward call is sealed as well.

        A compensation has one row for ever: a second call answers the attempt of the first.
        """
        with self._leases.unit(lease, "compensating", durable=True) as change:
            unit = change.unit
            forward = _row(unit, lease.txn, staging, compensates)
            places = {*secret, *_inherited_secrets(forward)}
            about = SealContext(lease.txn, effect.effect_id, "args")
            is_secret = is_secret_value(effect.args_bytes, places, effect.resource.id)
            resource_id = self._seals.seal_text(
                unit, replace(about, column="resource_id"), effect.resource.id, secret=is_secret
            )
            change.insert(
                "effects",
                or_ignore=True,
                txn=lease.txn,
                staging=staging,
                lane=COMPENSATE_LANE,
                seq=effect.seq,
                effect_id=effect.effect_id,
                tool=effect.tool,
                call_key=effect.call_key,
                args=self._seals.seal(unit, about, effect.args_bytes, places),
                tool_digest=effect.tool_digest,
                resource_type=effect.resource.type,
                resource_id=resource_id,
                compensation=compensation_bytes(effect.compensation),
                effect_digest=effect.digest,
                state=LocalState.STAGED.value,
                attempt_id=attempt_id,
                compensates=compensates,
                updated_at=change.at,
            )
            transition(change, staging, compensates, LocalState.COMPENSATING, missing_ok=True)
            written = unit.execute(
                "SELECT attempt_id FROM effects WHERE txn = ? AND staging = ? AND effect_id = ?",
                (lease.txn, staging, effect.effect_id),
            ).fetchone()
            return str(written["attempt_id"])

    def _write(self, change: Change, staging: int, outcomes: Sequence[EffectOutcome]) -> None:
        for done in outcomes:
            to = LocalState(done.outcome.value)
            sealed = done.result is not None and _has_secrets(change, staging, done.effect_id)
            result = self._result(change, done.effect_id, done.result, sealed=sealed)
            transition(change, staging, done.effect_id, to, result=result, error=done.error)
            told = done.result if done.report_result else None
            change.insert(
                "outbox",
                or_ignore=True,
                txn=change.txn,
                attempt_id=done.attempt_id,
                effect_id=done.effect_id,
                outcome=done.outcome.value,
                result=self._result(change, done.effect_id, told, sealed=sealed, column=REPORTED),
                error=done.error,
                written_at=change.at,
            )

    def _told(self, change: Change, staging: int, effect_id: str) -> bytes | None:
        """What people had settled as of the last look."""
        found = _row(change.unit, change.txn, staging, effect_id)
        if found is None or found["settlements"] is None:
            return None
        return self._seals.open(SealContext(change.txn, effect_id, "settlements"), found["settlements"])

    def _as_told(
        self, change: Change, staging: int, news: RemoteOutcome
    ) -> tuple[bytes | None, bytes | None]:
        """What people settled, and the result they told; sealed as the tool's own would be."""
        if news.settlements is None or not _has_secrets(change, staging, news.effect_id):
            return news.settlements, news.result
        about = SealContext(change.txn, news.effect_id, "settlements")
        said = parse_settlements(news.settlements)
        places = [f"/{n}/result" for n, one in enumerate(said) if "result" in one]
        settlements = self._seals.seal(change.unit, about, news.settlements, places)
        return settlements, self._result(change, news.effect_id, news.result, sealed=True)

    def _result(
        self, change: Change, effect_id: str, raw: bytes | None, *, sealed: bool, column: str = "result"
    ) -> bytes | None:
        """A result as its column holds it. That of a call with a secret is sealed whole: it may repeat the secret."""
        if raw is None or not sealed:
            return raw
        return self._seals.seal(change.unit, SealContext(change.txn, effect_id, column), raw, [""])


def _has_secrets(change: Change, staging: int, effect_id: str) -> bool:
    row = _row(change.unit, change.txn, staging, effect_id)
    return row is not None and is_sealed(row["args"])


def _row(unit: Unit, txn: str, staging: int, effect_id: str) -> Row | None:
    found: Row | None = unit.execute(
        "SELECT args, compensation, settlements FROM effects WHERE txn = ? AND staging = ? AND effect_id = ?",
        (txn, staging, effect_id),
    ).fetchone()
    return found


def _inherited_secrets(forward: Row | None) -> tuple[str, ...]:
    """Which arguments of the compensation of this effect repeat what is sealed of it."""
    if forward is None or forward["compensation"] is None or not is_sealed(forward["args"]):
        return ()
    rule = load(forward["compensation"])
    mapping = rule["map"] if isinstance(rule, dict) else {}
    if not isinstance(mapping, dict):
        raise JournalError("the journal's compensation is damaged: it has no map")
    return inherited_pointers(
        {name: str(source) for name, source in mapping.items()}, sealed_pointers(forward["args"])
    )
