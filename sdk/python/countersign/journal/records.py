"""The journal's rows as values. Every row is verified when it is read, and a damaged one is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from countersign.contract.admission import JSON, load
from countersign.contract.digests import canonicalize
from countersign.contract.effect import Compensation, Effect, Resource
from countersign.contract.errors import ContractError
from countersign.contract.states import TaskAnswer
from countersign.errors import JournalError
from countersign.journal.database import Row
from countersign.journal.sealed_values import SealContext
from countersign.journal.sealing import Seals
from countersign.journal.states import LocalState, LocalTxn

STAGED_LANE: Final = "staged"
LIVE_LANE: Final = "live"
COMPENSATE_LANE: Final = "compensate"

SEALED: Final = ("args", "staged_args", "result", "settlements")
"""The columns of bytes in which values may be sealed."""


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """The transaction of one run key."""

    txn: str
    agent: str
    run_key: str
    independent: bool
    state: LocalTxn
    stagings: int
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
    chain_hash: str
    created_at: float
    updated_at: float

    @property
    def last_list(self) -> int:
        """The list in force or, if there never was one, the last list begun."""
        return self.stagings if self.staging is None else self.staging

    @property
    def display_state(self) -> str:
        """The state for people: `parked`, or the transaction's state."""
        return "parked" if self.parked else self.state.value


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """One call of one list, unsealed. `effect` is complete once the list is frozen; before that `args` is empty if
    its secrets were unknown.
    """

    txn: str
    staging: int
    lane: str
    seq: int
    effect_id: str
    tool: str
    call_key: str
    args: bytes = field(repr=False)
    staged_args: bytes | None = field(repr=False)
    state: LocalState
    effect: Effect | None
    compensates: str | None
    attempt_id: str | None
    result: bytes | None = field(repr=False)
    error: str | None
    settlements: bytes | None = field(repr=False)
    updated_at: float

    @property
    def label(self) -> str:
        """The name people see: `refund#2`."""
        return f"{self.tool}#{self.seq}"

    @property
    def parsed_settlements(self) -> tuple[Mapping[str, JSON], ...]:
        """What people settled about it, oldest first."""
        return () if self.settlements is None else parse_settlements(self.settlements)

    @property
    def kept_by_person(self) -> bool:
        """Whether a person settled that it stays as it fired."""
        return any(one.get("answer") == TaskAnswer.LEFT_STANDING.value for one in self.parsed_settlements)

    def frozen(self) -> Effect:
        """The effect that the digests cover.

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
    """One outcome to report to the service."""

    id: int
    txn: str
    attempt_id: str
    effect_id: str
    outcome: str
    result: bytes | None = field(repr=False)
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
        raise damaged("transaction", row["txn"], f"unknown state {row['state']!r}") from error
    try:
        for moment in ("created_at", "updated_at"):
            datetime.fromtimestamp(row[moment], UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise damaged("transaction", row["txn"], f"its {moment} is no time") from error
    for flag in ("independent", "redeemed", "landed", "parked"):
        values[flag] = bool(row[flag])
    return TransactionRecord(**values)


def effect_record(row: Row, agent: str, seals: Seals) -> EffectRecord:
    """Read one row of `effects`, unsealed; every digest is computed again from its bytes.

    Raises:
        JournalSealed: the sealing key is not available.
        JournalError: the row was changed or damaged; nothing is fired from it.
    """
    skipped = {"state", "effect"}
    values: dict[str, Any] = {n: row[n] for n in EffectRecord.__dataclass_fields__ if n not in skipped}
    try:
        values |= {name: _open_column(row, name, seals) for name in SEALED}
        effect = _effect(row, agent, values["args"], seals)
        return EffectRecord(**values, state=LocalState(row["state"]), effect=effect)
    except (ContractError, ValueError, KeyError, TypeError) as error:
        raise damaged("effect", row["effect_id"], str(error)) from error


def parse_settlements(raw: bytes) -> tuple[Mapping[str, JSON], ...]:
    """The settlements of an effect, from its column. The size limits of args apply to one result, not to all of them
    together.
    """
    return settlement_texts(orjson.loads(raw))


def compensation_bytes(compensation: Compensation | None) -> bytes | None:
    """A compensation as its column holds it."""
    return None if compensation is None else canonicalize(compensation.to_json())


def _open_column(row: Row, column: str, seals: Seals) -> bytes | None:
    stored: bytes | None = row[column]
    return None if stored is None else seals.open(SealContext(row["txn"], row["effect_id"], column), stored)


def _effect(row: Row, agent: str, args: bytes, seals: Seals) -> Effect | None:
    if row["effect_digest"] is None:
        return None
    resource = seals.open_text(SealContext(row["txn"], row["effect_id"], "resource_id"), row["resource_id"])
    effect = Effect(
        agent=agent,
        txn=row["txn"],
        effect_id=row["effect_id"],
        seq=row["seq"],
        tool=row["tool"],
        tool_digest=row["tool_digest"],
        resource=Resource(row["resource_type"], str(resource)),
        args_bytes=args,
        call_key=row["call_key"],
        compensation=_compensation(row["compensation"]),
    )
    if effect.digest != row["effect_digest"]:
        raise ValueError("its bytes do not match the stored digest")
    return effect


def _compensation(raw: bytes | None) -> Compensation | None:
    if raw is None:
        return None
    value = load(raw)
    if not isinstance(value, dict) or not isinstance(value["map"], dict):
        raise ValueError("its compensation is not an object")
    mapping = {str(name): str(source) for name, source in value["map"].items()}
    return Compensation(str(value["tool"]), str(value["tool_digest"]), mapping)


def damaged(what: str, name: str, why: str) -> JournalError:
    """The error for a row that cannot be read."""
    return JournalError(
        f"the journal's {what} {str(name)[:12]} is damaged: {why}. Nothing is fired from it; keep the file, restore "
        "a copy, tell the operator"
    )


@dataclass(frozen=True, slots=True)
class StagedRow:
    """One call as it was staged. `secret`: pointers to its secret arguments, as far as known. None if unknown,
    because the manifest is read later: then they are written when the list is frozen.
    """

    effect_id: str
    call_key: str
    tool: str
    args: bytes = field(repr=False)
    lane: str
    seq: int
    secret: tuple[str, ...] | None
    tool_digest: str | None = None  # of the manifest that declares them, if known


def settlement_texts(settlements: JSON) -> tuple[Mapping[str, JSON], ...]:
    """The settlements of an effect, oldest first."""
    return tuple(one for one in settlements if isinstance(one, dict)) if isinstance(settlements, list) else ()
