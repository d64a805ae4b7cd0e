"""Effects after they fired: their compensation, and what people settle about them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from countersign.contract.admission import load
from countersign.contract.effect import Effect
from countersign.contract.pointers import pointer_to
from countersign.errors import JournalError
from countersign.journal.chain import Change
from countersign.journal.database import Row
from countersign.journal.effects import EffectLog, effect_row, has_secrets, transition
from countersign.journal.leases import Lease, Leases
from countersign.journal.records import COMPENSATE_LANE, compensation_bytes, parse_settlements
from countersign.journal.sealed_values import SealContext
from countersign.journal.sealing import Seals, is_sealed, is_secret_value, sealed_pointers
from countersign.journal.states import LocalState


class Settlements:
    """Compensations of fired effects, and the outcomes that people settled."""

    def __init__(self, leases: Leases, seals: Seals, effects: EffectLog) -> None:
        self._leases = leases
        self._seals = seals
        self._effects = effects

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
            forward = effect_row(unit, lease.txn, staging, compensates)
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

    def _known_settlements(self, change: Change, staging: int, effect_id: str) -> bytes | None:
        """What people had settled as of the last poll."""
        found = effect_row(change.unit, change.txn, staging, effect_id)
        if found is None or found["settlements"] is None:
            return None
        return self._seals.open(SealContext(change.txn, effect_id, "settlements"), found["settlements"])

    def _seal_settlements(
        self, change: Change, staging: int, news: RemoteOutcome
    ) -> tuple[bytes | None, bytes | None]:
        """What people settled, and their result, sealed like the tool's own result would be."""
        if news.settlements is None or not has_secrets(change, staging, news.effect_id):
            return news.settlements, news.result
        about = SealContext(change.txn, news.effect_id, "settlements")
        said = parse_settlements(news.settlements)
        places = [f"/{n}/result" for n, one in enumerate(said) if "result" in one]
        settlements = self._seals.seal(change.unit, about, news.settlements, places)
        return settlements, self._effects.sealed_result(change, news.effect_id, news.result, sealed=True)


@dataclass(frozen=True, slots=True)
class RemoteOutcome:
    """The outcome of one effect as the service has it: the states leading to it, and what people settled."""

    effect_id: str
    way: tuple[LocalState, ...]
    settlements: bytes | None = field(default=None, repr=False)
    # as a person entered it; our own result takes precedence
    result: bytes | None = field(default=None, repr=False)


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


def inherited_pointers(mapping: Mapping[str, str], sealed: Collection[str]) -> tuple[str, ...]:
    """The arguments of a compensation that repeat sealed ones of the forward call, or come from its result: a tool
    with secret arguments may have returned them.
    """
    if not sealed:
        return ()
    return tuple(pointer_to(name) for name, source in mapping.items() if _repeats(source, sealed))


def _repeats(source: str, sealed: Collection[str]) -> bool:
    kind, _, pointer = source.partition(":")
    return kind == "result" or (kind == "args" and any(_overlap(pointer, one) for one in sealed))


def _overlap(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
