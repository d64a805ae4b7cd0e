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

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from countersign.contract.admission import load
from countersign.contract.effect import Effect
from countersign.contract.states import Outcome
from countersign.errors import JournalError, JournalSealed
from countersign.journal.chain import Change
from countersign.journal.database import Row, Unit
from countersign.journal.leases import Lease, Leases
from countersign.journal.meta import REPORTED
from countersign.journal.queries import COMPENSATE_LANE, LIVE_LANE, STAGED_LANE
from countersign.journal.records import StagedRow, compensation_bytes, parse_settlements
from countersign.journal.sealing import (
    MARK,
    SealContext,
    Seals,
    inherited_pointers,
    is_sealed,
    is_secret_value,
    sealed_pointers,
)
from countersign.journal.states import LocalState, LocalTxn, transition


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


def write_returned(change: Change, staging: int, returned: Mapping[str, bytes], seals: Seals) -> None:
    """Write canonical results, by effect id, into the live rows of a list, so that a replay can compare them.

    If anything of the transaction is sealed, all results are sealed whole: the result of one live call may be the
    secret of the next. Without a sealing key they are not kept; nothing is refused for that.
    """
    if not returned:
        return
    places = [""] if _any_sealed(change) else []
    for effect_id, raw in returned.items():
        about = SealContext(change.txn, effect_id, "result")
        try:
            stored = seals.seal(change.unit, about, raw, places)
        except JournalSealed:
            return
        write_result(change, staging, effect_id, stored)


def write_result(change: Change, staging: int, effect_id: str, stored: object) -> None:
    """Write what a live call returned, as its column holds it."""
    change.update(
        "effects",
        "txn = ? AND staging = ? AND lane = ? AND effect_id = ?",
        (change.txn, staging, LIVE_LANE, effect_id),
        result=stored,
    )


def _any_sealed(change: Change) -> bool:
    """Whether anything under this key is sealed, including calls that were rolled back."""
    found = change.unit.execute(
        "SELECT 1 FROM effects WHERE txn = ? AND substr(args, 1, ?) = ? LIMIT 1",
        (change.txn, len(MARK), MARK),
    ).fetchone()
    return found is not None


_SUPERSEDED: Final = "another list was submitted under this key"


def end_unfrozen(change: Change, staging: int) -> None:
    """End a list that was never frozen: its staged calls are withdrawn, its live effects were undone."""
    for lane, to in ((STAGED_LANE, LocalState.WITHDRAWN), (LIVE_LANE, LocalState.UNDONE)):
        change.update(
            "effects",
            "txn = ? AND staging = ? AND lane = ? AND state IN ('staged', 'live')",
            (change.txn, staging, lane),
            state=to.value,
        )


def sealed_args(change: Change, seals: Seals, call: StagedRow) -> bytes:
    """A staged call's arguments as its column holds them, empty without its secrets. Raises JournalSealed."""
    if call.secret is None:
        return b""
    return seals.seal(change.unit, SealContext(change.txn, call.effect_id, "args"), call.args, call.secret)


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


@dataclass(frozen=True, slots=True)
class RemoteOutcome:
    """The outcome of one effect as the service has it: the states leading to it, and what people settled."""

    effect_id: str
    way: tuple[LocalState, ...]
    settlements: bytes | None = field(default=None, repr=False)
    # as a person entered it; our own result takes precedence
    result: bytes | None = field(default=None, repr=False)


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

    def compensation_redeemed(self, lease: Lease, staging: int, effect_id: str) -> None:
        """Record the verified receipt of a compensation."""
        with self._leases.unit(lease, "compensation_redeemed", durable=False) as change:
            transition(change, staging, effect_id, LocalState.REDEEMED, missing_ok=True)

    def settle_compensated(
        self, lease: Lease, staging: int, effect_id: str, to: LocalState, why: str | None = None
    ) -> None:
        """Record how the compensation of a fired effect ended, and `why` it failed."""
        with self._leases.unit(lease, "compensation_settled", durable=True) as change:
            transition(change, staging, effect_id, LocalState.COMPENSATING, missing_ok=True)
            transition(change, staging, effect_id, to, error=why)

    def learn(self, lease: Lease, staging: int, news: Sequence[RemoteOutcome]) -> None:
        """Adopt what the service knows and this journal does not: what people settled. A transition that the table
        does not allow is skipped: what this journal knows for certain is never overwritten.
        """
        with self._leases.unit(lease, "learned", durable=True) as change:
            for one in news:
                for to in one.way:
                    transition(change, staging, one.effect_id, to, missing_ok=True)
                if one.settlements is None or one.settlements == self._known_settlements(
                    change, staging, one.effect_id
                ):
                    continue
                settlements, result = self._seal_settlements(change, staging, one)
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
        """Journal a compensation before it is redeemed, and return the attempt it is redeemed under. `secret` are
        its own manifest's pointers; arguments taken from sealed ones of the forward call are sealed too. A
        compensation has one row forever: a second call returns the attempt of the first.
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
            text = done.result if done.report_result else None
            change.insert(
                "outbox",
                or_ignore=True,
                txn=change.txn,
                attempt_id=done.attempt_id,
                effect_id=done.effect_id,
                outcome=done.outcome.value,
                result=self._result(change, done.effect_id, text, sealed=sealed, column=REPORTED),
                error=done.error,
                written_at=change.at,
            )

    def _known_settlements(self, change: Change, staging: int, effect_id: str) -> bytes | None:
        """What people had settled as of the last poll."""
        found = _row(change.unit, change.txn, staging, effect_id)
        if found is None or found["settlements"] is None:
            return None
        return self._seals.open(SealContext(change.txn, effect_id, "settlements"), found["settlements"])

    def _seal_settlements(
        self, change: Change, staging: int, news: RemoteOutcome
    ) -> tuple[bytes | None, bytes | None]:
        """What people settled, and their result, sealed like the tool's own result would be."""
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
        """A result as its column holds it. The result of a call with secrets is sealed whole, because it may quote
        them.
        """
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
    """The arguments of this effect's compensation that repeat sealed ones."""
    if forward is None or forward["compensation"] is None or not is_sealed(forward["args"]):
        return ()
    rule = load(forward["compensation"])
    mapping = rule["map"] if isinstance(rule, dict) else {}
    if not isinstance(mapping, dict):
        raise JournalError("the journal's compensation is damaged: it has no map")
    return inherited_pointers(
        {name: str(source) for name, source in mapping.items()}, sealed_pointers(forward["args"])
    )
