"""The part of the journal that must never lie: what was redeemed, what is firing, what became of it.

Rules: FIRING is written, durably, before a tool is called, by the owner of the lease and by nobody else; the
outcome of effect k and the FIRING of effect k+1 share one durable commit; every outcome goes into the outbox
in the commit that writes it. A crash between FIRING and its outcome leaves FIRING, and nothing later takes
that for "not done".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from countersign.clock import Clock
from countersign.contract.effect import Effect
from countersign.contract.states import Outcome
from countersign.journal.chain import Change
from countersign.journal.database import Database
from countersign.journal.leases import Lease, Leases
from countersign.journal.moves import LocalState, LocalTxn
from countersign.journal.moving import move
from countersign.journal.reading import COMPENSATE_LANE
from countersign.journal.records import compensation_bytes


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one effect, to be written and reported."""

    effect_id: str
    outcome: Outcome
    attempt_id: str
    result: bytes | None = None
    report_result: bool = False  # only where a compensation takes an argument from it
    error: str | None = None


@dataclass(frozen=True, slots=True)
class News:
    """What became of one effect by the service's word: the states on the way there, and what people said."""

    effect_id: str
    way: tuple[LocalState, ...]
    settlements: bytes | None = None
    result: bytes | None = None  # as a person told it; ours stands where we have one


class Firing:
    """Redemption, FIRING and outcomes."""

    def __init__(self, database: Database, leases: Leases, clock: Clock) -> None:
        self._database = database
        self._leases = leases
        self._clock = clock

    def redeemed(self, lease: Lease, staging: int, effect_ids: Sequence[str]) -> None:
        """Note a verified receipt: the commit point is passed. Effects already past it stay as they are.

        Not durable by itself: the FIRING that follows is, and carries this with it; until then the service
        knows.
        """
        with (
            self._database.unit(durable=False) as unit,
            self._leases.changing(unit, lease, "redeemed") as change,
        ):
            for effect_id in effect_ids:
                move(change, staging, effect_id, LocalState.REDEEMED, missing_ok=True)
            change.run(
                "transactions",
                "UPDATE transactions SET redeemed = 1, state = ?, parked = 0 WHERE txn = ?",
                (LocalTxn.REDEEMED.value, lease.txn),
                *("redeemed", "state", "parked"),
            )

    def begin(
        self,
        lease: Lease,
        staging: int,
        *effect_ids: str,
        before: Sequence[Done],
        lease_seconds: float,
    ) -> None:
        """Write the outcomes so far and FIRING for the next effects, in one durable commit: one, or a group.

        Raises:
            LeaseLost: somebody took the transaction over; nothing may be called.
            JournalError: the effect has been fired already, or may not be.
        """
        with (
            self._database.unit(durable=True) as unit,
            self._leases.changing(unit, lease, "firing", at_least=lease_seconds) as change,
        ):
            _write(change, staging, before)
            for effect_id in effect_ids:
                move(change, staging, effect_id, LocalState.FIRING, generation=lease.generation)

    def write(self, lease: Lease, staging: int, outcomes: Sequence[Done]) -> None:
        """Write outcomes, durably."""
        with (
            self._database.unit(durable=True) as unit,
            self._leases.changing(unit, lease, "outcome") as change,
        ):
            _write(change, staging, outcomes)

    def compensation_redeemed(self, lease: Lease, staging: int, effect_id: str) -> None:
        """Note the verified receipt of a compensation."""
        with (
            self._database.unit(durable=False) as unit,
            self._leases.changing(unit, lease, "compensation_redeemed") as change,
        ):
            move(change, staging, effect_id, LocalState.REDEEMED, missing_ok=True)

    def settle_compensated(self, lease: Lease, staging: int, effect_id: str, to: LocalState) -> None:
        """Note how the taking back of a fired effect ended."""
        with (
            self._database.unit(durable=True) as unit,
            self._leases.changing(unit, lease, "compensation_settled") as change,
        ):
            move(change, staging, effect_id, LocalState.COMPENSATING, missing_ok=True)
            move(change, staging, effect_id, to)

    def learn(self, lease: Lease, staging: int, news: Sequence[News]) -> None:
        """Take over what the service knows and this journal does not: what people settled. A move the table does not
        lead to is left out: what this journal knows for sure, nobody talks it out of.
        """
        with (
            self._database.unit(durable=True) as unit,
            self._leases.changing(unit, lease, "learned") as change,
        ):
            for one in news:
                for to in one.way:
                    move(change, staging, one.effect_id, to, missing_ok=True)
                change.run(
                    "effects",
                    "UPDATE effects SET settlements = ?, result = coalesce(result, ?) "
                    "WHERE txn = ? AND staging = ? AND effect_id = ?",
                    (one.settlements, one.result, lease.txn, staging, one.effect_id),
                    *("settlements", "result"),
                )

    def begin_compensation(
        self, lease: Lease, staging: int, effect: Effect, *, compensates: str, attempt_id: str
    ) -> str:
        """Write a compensation down before it is redeemed, and answer the attempt it is redeemed under.

        A compensation has one row for ever: a second call answers the attempt of the first.
        """
        with (
            self._database.unit(durable=True) as unit,
            self._leases.changing(unit, lease, "compensating") as change,
        ):
            change.run(
                "effects",
                "INSERT INTO effects (txn, staging, lane, seq, effect_id, tool, call_key, args, tool_digest, "
                "resource_type, resource_id, compensation, effect_digest, state, attempt_id, compensates, updated_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (
                    *(
                        lease.txn,
                        staging,
                        COMPENSATE_LANE,
                        effect.seq,
                        effect.effect_id,
                        effect.tool,
                        effect.call_key,
                    ),
                    *(effect.args_bytes, effect.tool_digest, effect.resource.type, effect.resource.id),
                    *(compensation_bytes(effect.compensation), effect.digest, LocalState.STAGED.value),
                    *(attempt_id, compensates, self._clock.wall()),
                ),
            )
            move(change, staging, compensates, LocalState.COMPENSATING, missing_ok=True)
            row = unit.execute(
                "SELECT attempt_id FROM effects WHERE txn = ? AND staging = ? AND effect_id = ?",
                (lease.txn, staging, effect.effect_id),
            ).fetchone()
            return str(row["attempt_id"])


def _write(change: Change, staging: int, outcomes: Sequence[Done]) -> None:
    for done in outcomes:
        to = LocalState(done.outcome.value)
        move(change, staging, done.effect_id, to, result=done.result, error=done.error)
        change.run(
            "outbox",
            "INSERT INTO outbox (txn, attempt_id, effect_id, outcome, result, error, written_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (
                *(change.txn, done.attempt_id, done.effect_id, done.outcome.value),
                *(done.result if done.report_result else None, done.error, change.at),
            ),
        )
