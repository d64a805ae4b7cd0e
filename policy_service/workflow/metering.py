"""Metering: what the meters show an effect, and what it takes of them.

- A submission is alone with every agent and resource it is counted for, asked for in one order, before its first
  decision; each effect sees what others hold, is decided, and takes its part before the next one looks. So no two
  submissions both fit into what is left for one (I-10).
- What is denied takes nothing; what is released or waits for people holds its part.
- Asked about again, an effect sees what was held before its own part, in the window as it stood then: its own and every
  later part are left out. What came back meanwhile is not held any more. A meter that its bundle did not have yet
  counts it from then on.
- It comes back when the effect ends unspent. Once it was redeemed, only by a word from apart: of a redeemer that is not
  the agent, or of a person, that it did not fire. What fired, or may have, stays taken, compensated or not: a
  compensation is an effect of its own tool, and counts where a meter names that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from policy_service.storage.reservations import NEWEST, ReservationRow, Subject, resource_digest
from policy_service.storage.tables import EffectRow
from policy_service.storage.unit_of_work import Tx

_NOT_FIRED: Final = frozenset({EffectState.UNUSED, EffectState.FAILED})


@dataclass(frozen=True, slots=True)
class MeterReading:
    """What the meters show one effect, and the fields by which it holds nothing yet."""

    meters: tuple[tuple[Meter, int], ...] = ()
    at: datetime | None = None
    missing: frozenset[str] = field(default=frozenset())

    @property
    def values(self) -> dict[str, int]:
        """`context.history`: each meter's total, as far as a rule can still add to it."""
        return {meter.name: min(total, MAX_TOTAL) for meter, total in self.meters}

    def beside(self, facts: Facts) -> Facts:
        """The facts with what the meters showed, for people to read."""
        if self.at is None or not self.meters:
            return facts
        at = self.at
        shown = (
            DisplayedFact(meter.words, _in_words(meter, total), f"meter {meter.name}", at)
            for meter, total in self.meters
        )
        return replace(facts, shown=(*facts.shown, *shown))

    def after(self, going: Iterable[EffectRow], effect: EffectRow) -> MeterReading:
        """The same, had these effects of one list taken their parts before."""
        others = list(going)
        meters = tuple(
            (meter, total + sum(_part(meter, other, effect) for other in others))
            for meter, total in self.meters
        )
        return replace(self, meters=meters)


def _in_words(meter: Meter, total: int) -> str:
    return f"{total:,}" if meter.currency is None else money_text(total, meter.currency)


def _part(meter: Meter, other: EffectRow, effect: EffectRow) -> int:
    same = other.tool in meter.tools and _who(meter, other) == _who(meter, effect)
    return meter.amount(load(other.args)) if same else 0


def _subject(meter: Meter) -> Subject:
    return "agent" if meter.per == "principal" else "resource"


def _who(meter: Meter, effect: EffectRow) -> str:
    return effect.agent if meter.per == "principal" else _resource(effect)


def _resource(effect: EffectRow) -> str:
    return resource_digest(effect.resource_type, effect.resource_id)


# -- looking ---------------------------------------------------------------------------------------------------------


def read_meters(conn: Connection, bundle: Bundle, effect: EffectRow, now: datetime) -> MeterReading:
    """What the meters show an effect that holds nothing: all that others hold now."""
    meters = bundle.meters.get(effect.tool, ())
    shown = tuple((meter, _total(conn, meter, effect, now, NEWEST)) for meter in meters)
    return MeterReading(shown, now, frozenset(meter.field for meter in meters))


def reread_meters(tx: Tx, bundle: Bundle, effect: EffectRow) -> MeterReading:
    """What the meters show an effect that may hold its part already: what was held before it."""
    meters = bundle.meters.get(effect.tool, ())
    if not meters:
        return MeterReading()
    held = reservations.reservations_of(tx.conn, effect.effect_id, effect.rev)
    missing = frozenset(meter.field for meter in meters) - held.keys()
    if missing:
        lock_meters(tx, bundle, [effect])
    return MeterReading(_before_it(tx.conn, meters, effect, held, tx.now), tx.now, missing)


def read_past_meters(conn: Connection, bundle: Bundle, effect: EffectRow, now: datetime) -> MeterReading:
    """The same for whoever takes nothing: a shadow."""
    meters = bundle.meters.get(effect.tool, ())
    held = reservations.reservations_of(conn, effect.effect_id, effect.rev) if meters else {}
    return MeterReading(_before_it(conn, meters, effect, held, now), now)


def _before_it(
    conn: Connection,
    meters: Sequence[Meter],
    effect: EffectRow,
    held: Mapping[str, ReservationRow],
    now: datetime,
) -> tuple[tuple[Meter, int], ...]:
    """Each meter as it stood when the effect took its part; as it stands where it holds none."""
    shown = []
    for meter in meters:
        own = held.get(meter.field)
        at, before = (now, NEWEST) if own is None else (own.reserved_at, own.ordinal or 0)
        shown.append((meter, _total(conn, meter, effect, at, before)))
    return tuple(shown)


def _total(conn: Connection, meter: Meter, effect: EffectRow, at: datetime, before: int) -> int:
    return reservations.reserved_total(
        conn,
        _subject(meter),
        _who(meter, effect),
        meter.field,
        sorted(meter.tools),
        first=meter.window.first(at),
        before=before,
    )


# -- taking and giving back ------------------------------------------------------------------------------------------


def lock_meters(tx: Tx, bundle: Bundle, effects: Sequence[EffectRow]) -> None:
    """Be alone, until the unit ends, with every agent and resource these effects are counted for; all at once, or two
    units could wait for each other."""
    counted = {
        f"{_subject(meter)} {_who(meter, effect)}"
        for effect in effects
        for meter in bundle.meters.get(effect.tool, ())
    }
    if counted:
        lock_counters(tx, counted)


def lock_missing_meters(tx: Tx, bundle: Bundle, effects: Sequence[EffectRow]) -> None:
    """The same before several are asked about again, where the bundle counts one of them that holds nothing yet."""
    late = [
        effect
        for effect in effects
        if {meter.field for meter in bundle.meters.get(effect.tool, ())}
        - reservations.reservations_of(tx.conn, effect.effect_id, effect.rev).keys()
    ] if any(effect.tool in bundle.meters for effect in effects) else []  # fmt: skip
    lock_meters(tx, bundle, late)


def reserve(
    tx: Tx, bundle: Bundle, effect: EffectRow, fields: Iterable[str], at: datetime | None = None
) -> bool:
    """Let an effect that was not denied hold its part by these fields; whether it now holds more than before.

    INVARIANT: the unit is alone with its subjects since before it looked (I-10).
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
    """Count effects that were redeemed already, whatever that leaves: the rows they are about are not stored yet."""
    lock_meters(tx, bundle, effects)
    for effect in effects:
        fields = {meter.field for meter in bundle.meters.get(effect.tool, ())}
        effect.metered = reserve(tx, bundle, effect, fields, at)


def release_reservation(tx: Tx, effect: EffectRow, to: EffectState, actor: str) -> bool:
    """Give back what an effect holds if this move lets it; whether it did."""
    if not effect.metered or not _comes_back(effect, to, actor):
        return False
    reservations.release_reservations(tx, effect.effect_id, effect.rev)
    return True


def _comes_back(effect: EffectRow, to: EffectState, actor: str) -> bool:
    if to in ENDED_UNREDEEMED:
        return True
    # Whoever fires and says it did not would have a budget without end: the agent's own word gives nothing back.
    kind, _, name = actor.partition(":")
    apart = kind == "person" or (kind == "agent" and name != effect.agent)
    return to in _NOT_FIRED and apart
