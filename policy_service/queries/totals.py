"""The meters an effect touches, with what was held before it, what it adds, and the limit where a rule has a plain one.

The figures are those the decision saw: a meter as at the effect's own reservation, its own and every later part left
out (design section 4). Nothing is summed again for a page.
"""

from __future__ import annotations

from countersign.contract import load, pointer_tokens
from policy_service.facts.meters import COUNT, Meter
from policy_service.pap.bundle import Bundle
from policy_service.pdp.limits import limit_of
from policy_service.queries.beside import Limit, MeterLine
from policy_service.queries.hiding import is_hidden
from policy_service.queries.past import secret_now
from policy_service.storage.tables import DecisionRow, EffectRow

_SOURCE = "meter "


def totals(bundle: Bundle, effect: EffectRow, decision: DecisionRow) -> tuple[MeterLine, ...]:
    """Every meter of the bundle in force that the decision has seen."""
    return tuple(
        _line(bundle, effect, meter, decision.history[meter.name])
        for meter in bundle.meters.get(effect.tool, ())
        if meter.name in decision.history
    )


def is_meter(source: str, bundle: Bundle, effect: EffectRow, decision: DecisionRow) -> bool:
    """Whether a fact is the figure of a meter that has a line of its own."""
    name = source.removeprefix(_SOURCE)
    known = (meter.name for meter in bundle.meters.get(effect.tool, ()))
    return source.startswith(_SOURCE) and name in decision.history and name in known


def _line(bundle: Bundle, effect: EffectRow, meter: Meter, before: int) -> MeterLine:
    hidden = meter.field != COUNT and is_hidden(secret_now(bundle, effect), meter.field)
    return MeterLine(
        name=meter.name,
        doc=meter.doc,
        per=meter.per,
        window=meter.window.words,
        until=meter.window.ends(effect.asked_at),
        before=before,
        this=None if hidden else meter.amount(load(effect.args)),
        currency=meter.currency,
        limit=_limit(bundle, effect, meter),
    )


def _limit(bundle: Bundle, effect: EffectRow, meter: Meter) -> Limit | None:
    manifest = bundle.manifests.get(effect.tool)
    found = limit_of(
        bundle.policies.values(),
        meter=meter.name,
        field=tuple(pointer_tokens(meter.field)),
        action=effect.tool,
        groups=frozenset() if manifest is None else frozenset(manifest.groups),
    )
    if found is None:
        return None
    return Limit(found.total, found.source.id, found.source.title, found.asks)
