"""Meters: what they read for an effect, and the amounts that an effect reserves.

- A submission locks every agent and resource that its meters count, all at once, before its first decision. Each effect
  is then decided with the reservations of others in view and reserves its own amount before the next one is decided.
  So two submissions can never both use what is left for one (I-10).
- A denied effect reserves nothing. A released effect, or one in review, holds its reservation.
- A reevaluation reads the meters as they were before the effect's own reservation, in the window of that time. A meter
  that its bundle did not have then counts the effect from now on.
- A reservation is released when the effect ends unredeemed. After redemption it is released only if a redeemer other
  than the agent, or a person, reports that the effect did not fire. What fired or may have fired stays counted, also
  if it was compensated: a compensation is an effect of its own tool, counted where a meter names that tool.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from countersign.contract import ENDED_UNREDEEMED, EffectState, load
from policy_service.domain.policy_request import DisplayedFact, Facts
from policy_service.domain.values import money_text
from policy_service.facts.meters import MAX_TOTAL, Meter
from policy_service.pap.bundle import Bundle
from policy_service.storage import reservations
from policy_service.storage.advisory_locks import lock_counters
from policy_service.storage.reservations import NEWEST, ReservationRow, Subject
from policy_service.storage.tables import EffectRow
from policy_service.storage.unit_of_work import Tx

_NOT_FIRED: Final = frozenset({EffectState.UNUSED, EffectState.FAILED})


@dataclass(frozen=True, slots=True)
class MeterReading:
    """What the meters read for one effect, and the fields for which it has no reservation yet."""

    meters: tuple[tuple[Meter, int], ...] = ()
    at: datetime | None = None
    missing: frozenset[str] = frozenset()

    @property
    def values(self) -> dict[str, int]:
        """`context.history`: the total of each meter, capped so that a policy can still add to it."""
        return {meter.name: min(total, MAX_TOTAL) for meter, total in self.meters}

    def add_to(self, facts: Facts) -> Facts:
        """The facts with the readings added for display."""
        if self.at is None or not self.meters:
            return facts
        at = self.at
        shown = (
            DisplayedFact(meter.words, _total_text(meter, total), f"meter {meter.name}", at)
            for meter, total in self.meters
        )
        return replace(facts, shown=(*facts.shown, *shown))

    def after(self, earlier: Sequence[EffectRow], effect: EffectRow) -> MeterReading:
        """The reading as if these earlier effects of the same list had reserved their amounts."""
        meters = tuple(
            (meter, total + sum(_amount(meter, other, effect) for other in earlier))
            for meter, total in self.meters
        )
        return replace(self, meters=meters)


def _total_text(meter: Meter, total: int) -> str:
    return f"{total:,}" if meter.currency is None else money_text(total, meter.currency)


def _amount(meter: Meter, other: EffectRow, effect: EffectRow) -> int:
    same = other.tool in meter.tools and _subject_key(meter, other) == _subject_key(meter, effect)
    return meter.amount(load(other.args)) if same else 0


def _subject(meter: Meter) -> Subject:
    return "agent" if meter.per == "principal" else "resource"


def _subject_key(meter: Meter, effect: EffectRow) -> str:
    return effect.agent if meter.per == "principal" else _resource(effect)


def resource_digest(kind: str, name: str) -> str:
    """The key of a resource in the rows of reservations."""
    return hashlib.sha256(f"{len(kind)} {kind} {name}".encode()).hexdigest()


def _resource(effect: EffectRow) -> str:
    return resource_digest(effect.resource_type, effect.resource_id)


def _fields(bundle: Bundle, effect: EffectRow) -> frozenset[str]:
    return frozenset(meter.field for meter in bundle.meters.get(effect.tool, ()))


# -- reading -----------------------------------------------------------------------------------------------------------


def read_meters(conn: Connection, bundle: Bundle, effect: EffectRow, now: datetime) -> MeterReading:
    """Read the meters for an effect without reservations: everything that others hold now."""
    return _reading(conn, bundle, effect, {}, now)


def reread_meters(tx: Tx, bundle: Bundle, effect: EffectRow) -> MeterReading:
    """Read the meters for a stored effect as of its own reservations, and lock those it has none for."""
    reserved = _reservations(tx.conn, bundle, effect)
    if _fields(bundle, effect) - reserved.keys():
        lock_meters(tx, bundle, [effect])
    return _reading(tx.conn, bundle, effect, reserved, tx.now)


def read_past_meters(conn: Connection, bundle: Bundle, effect: EffectRow, now: datetime) -> MeterReading:
    """Read the meters for a stored effect as of its own reservations, for a shadow bundle that reserves nothing."""
    return _reading(conn, bundle, effect, _reservations(conn, bundle, effect), now)


def _reservations(conn: Connection, bundle: Bundle, effect: EffectRow) -> Mapping[str, ReservationRow]:
    if effect.tool not in bundle.meters:
        return {}
    return reservations.reservations_of(conn, effect.effect_id, effect.rev)


def _reading(
    conn: Connection, bundle: Bundle, effect: EffectRow, reserved: Mapping[str, ReservationRow], now: datetime
) -> MeterReading:
    """Each meter as it was when the effect reserved its amount; as it is now where it has no reservation."""
    totals = []
    for meter in bundle.meters.get(effect.tool, ()):
        own = reserved.get(meter.field)
        at, before = (now, NEWEST) if own is None else (own.reserved_at, own.ordinal or 0)
        total = reservations.reserved_total(
            conn,
            _subject(meter),
            _subject_key(meter, effect),
            meter.field,
            sorted(meter.tools),
            first=meter.window.first(at),
            before=before,
        )
        totals.append((meter, total))
    return MeterReading(tuple(totals), now, _fields(bundle, effect) - reserved.keys())


# -- reserving ---------------------------------------------------------------------------------------------------------


def lock_meters(tx: Tx, bundle: Bundle, effects: Sequence[EffectRow]) -> None:
    """Lock every agent and resource that these effects count for, until the unit ends.

    All at once: two units that locked them one by one could wait for each other.
    """
    counted = {
        f"{_subject(meter)} {_subject_key(meter, effect)}"
        for effect in effects
        for meter in bundle.meters.get(effect.tool, ())
    }
    if counted:
        lock_counters(tx, counted)


def lock_missing_meters(tx: Tx, bundle: Bundle, effects: Sequence[EffectRow]) -> None:
    """Lock the meters of those stored effects that lack a reservation, before the effects are reevaluated."""
    late = [e for e in effects if _fields(bundle, e) - _reservations(tx.conn, bundle, e).keys()]
    lock_meters(tx, bundle, late)


def reserve(
    tx: Tx, bundle: Bundle, effect: EffectRow, fields: Iterable[str], at: datetime | None = None
) -> bool:
    """Reserve an effect's amounts for these fields; whether there was anything to reserve.

    INVARIANT: the unit has held the locks since before it read the meters (I-10).
    """
    amounts = {meter.field: meter.amount(load(effect.args)) for meter in bundle.meters.get(effect.tool, ())}
    wanted = sorted(amounts.keys() & set(fields))
    for one in wanted:
        reservations.add_reservation(
            tx,
            effect_id=effect.effect_id,
            rev=effect.rev,
            field=one,
            tool=effect.tool,
            agent=effect.agent,
            resource=_resource(effect),
            amount=amounts[one],
            reserved_at=at or tx.now,
            given_back_at=None,
        )
    return bool(wanted)


def reserve_redeemed(tx: Tx, bundle: Bundle, effects: Sequence[EffectRow], at: datetime) -> None:
    """Count effects that were already redeemed, even beyond a limit. Call this before their rows are stored."""
    lock_meters(tx, bundle, effects)
    for effect in effects:
        effect.metered = reserve(tx, bundle, effect, _fields(bundle, effect), at)


def release_reservation(tx: Tx, effect: EffectRow, to: EffectState, actor: str) -> bool:
    """Release an effect's reservations if this transition permits it; whether it did."""
    if not effect.metered or not _permits_return(effect, to, actor):
        return False
    reservations.release_reservations(tx, effect.effect_id, effect.rev)
    return True


def _permits_return(effect: EffectRow, to: EffectState, actor: str) -> bool:
    if to in ENDED_UNREDEEMED:
        return True
    # An agent that redeems its own effects could fire, report that it did not, and never run out of budget.
    kind, _, name = actor.partition(":")
    independent = kind == "person" or (kind == "agent" and name != effect.agent)
    return to in _NOT_FIRED and independent
