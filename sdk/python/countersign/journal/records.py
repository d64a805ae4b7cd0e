"""What the journal holds, as values; reading checks every row and says which one is damaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from countersign.contract.admission import JSON, load
from countersign.contract.canonical import canonicalize
from countersign.contract.effect import Compensation, Effect, Resource
from countersign.contract.errors import ContractError
from countersign.contract.states import TaskAnswer
from countersign.errors import JournalError
from countersign.journal.database import Row
from countersign.journal.moves import LocalState, LocalTxn


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """One run key's transaction."""

    txn: str
    agent: str
    run_key: str
    independent: bool
    state: LocalTxn
    staging: int | None
    live: int
    rev: int | None
    txn_digest: str | None
    attempt_id: str | None
    redeemed: bool
    landed: bool
    parked: bool
    note: str | None
    holder: str | None
    generation: int
    lease_until: float
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """One call of one staged list. `effect` is complete once the list is frozen."""

    txn: str
    staging: int
    lane: str
    seq: int
    effect_id: str
    tool: str
    call_key: str
    args: bytes
    staged_args: bytes | None
    state: LocalState
    effect: Effect | None
    compensates: str | None
    attempt_id: str | None
    result: bytes | None
    error: str | None
    settlements: bytes | None
    updated_at: float

    @property
    def said(self) -> tuple[Mapping[str, JSON], ...]:
        """What people said of it, oldest first."""
        found = [] if self.settlements is None else load(self.settlements)
        return tuple(one for one in found if isinstance(one, dict)) if isinstance(found, list) else ()

    @property
    def left_standing(self) -> bool:
        """Whether a person settled that it stays as it fired."""
        return any(one.get("answer") == TaskAnswer.LEFT_STANDING.value for one in self.said)

    def frozen(self) -> Effect:
        """The effect as digests cover it.

        Raises:
            JournalError: the list was never frozen.
        """
        if self.effect is None:
            raise JournalError(
                f"effect {self.effect_id[:12]} of {self.tool!r} was never frozen; stage it again"
            )
        return self.effect


@dataclass(frozen=True, slots=True)
class Report:
    """One outcome the service still has to be told."""

    id: int
    txn: str
    attempt_id: str
    effect_id: str
    outcome: str
    result: bytes | None
    error: str | None


def transaction_record(row: Row) -> TransactionRecord:
    """Read one row of `transactions`.

    Raises:
        JournalError: the row holds what no version of this SDK writes.
    """
    values = {name: row[name] for name in TransactionRecord.__dataclass_fields__}
    try:
        values["state"] = LocalTxn(row["state"])
    except ValueError as error:
        raise _damaged("transaction", row["txn"], f"unknown state {row['state']!r}") from error
    for flag in ("independent", "redeemed", "landed", "parked"):
        values[flag] = bool(row[flag])
    return TransactionRecord(**values)


def effect_record(row: Row, agent: str) -> EffectRecord:
    """Read one row of `effects`, every digest computed again from its bytes.

    Raises:
        JournalError: the row was changed or damaged; nothing is fired from it.
    """
    skipped = {"state", "effect"}
    values: dict[str, Any] = {n: row[n] for n in EffectRecord.__dataclass_fields__ if n not in skipped}
    try:
        effect = _effect(row, agent)
        return EffectRecord(**values, state=LocalState(row["state"]), effect=effect)
    except (ContractError, ValueError, KeyError, TypeError) as error:
        raise _damaged("effect", row["effect_id"], str(error)) from error


def compensation_bytes(compensation: Compensation | None) -> bytes | None:
    """A compensation as the column holds it."""
    return None if compensation is None else canonicalize(compensation.to_json())


def _effect(row: Row, agent: str) -> Effect | None:
    if row["effect_digest"] is None:
        return None
    effect = Effect(
        agent=agent,
        txn=row["txn"],
        effect_id=row["effect_id"],
        seq=row["seq"],
        tool=row["tool"],
        tool_digest=row["tool_digest"],
        resource=Resource(row["resource_type"], row["resource_id"]),
        args_bytes=row["args"],
        call_key=row["call_key"],
        compensation=_compensation(row["compensation"]),
    )
    if effect.digest != row["effect_digest"]:
        raise ValueError("its bytes do not have the digest written beside them")
    return effect


def _compensation(raw: bytes | None) -> Compensation | None:
    if raw is None:
        return None
    value = load(raw)
    if not isinstance(value, dict) or not isinstance(value["map"], dict):
        raise ValueError("its compensation is not an object")
    mapping = {str(name): str(source) for name, source in value["map"].items()}
    return Compensation(str(value["tool"]), str(value["tool_digest"]), mapping)


def _damaged(what: str, name: str, why: str) -> JournalError:
    return JournalError(f"the journal's {what} {str(name)[:12]} is damaged: {why}. Nothing is fired from it")
