"""Learning what became of effects from the service: people settle there what nobody here can tell.

Rules: what this journal still has to tell is told first; then the service's word is taken over, through the journal's
one mover and no further than its table leads, together with who said it and why. What is taken over is only what the
journal could not know: a word that contradicts what it does know moves nothing here, and the service learns of the
contradiction by our report.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import orjson

from countersign.commit.plan import Plan
from countersign.commit.reporting import flush
from countersign.contract.canonical import canonicalize
from countersign.contract.states import EffectState
from countersign.contract.wire import Settlement, TransactionView
from countersign.engine import Engine
from countersign.errors import ServiceUnavailable
from countersign.journal import Lease, LocalState, News

log: Final = logging.getLogger("countersign")

_S: Final = LocalState
_WAYS: Final = {  # what is under way is this journal's own business
    EffectState.FIRED: (_S.FIRED,),
    # what never was called is unused here, what was called and did not happen has failed: the same to a person
    EffectState.FAILED: (_S.FAILED, _S.UNUSED),
    EffectState.UNUSED: (_S.UNUSED, _S.FAILED),
    EffectState.COMPENSATED: (_S.FIRED, _S.COMPENSATING, _S.COMPENSATED),
    EffectState.COMPENSATION_FAILED: (_S.FIRED, _S.COMPENSATING, _S.COMPENSATION_FAILED),
}


async def learn(engine: Engine, lease: Lease, plan: Plan) -> None:
    """Tell what we know and take over what the service knows; while it cannot be asked, nothing changes here."""
    await flush(engine, plan.txn)
    try:
        view = await engine.service.view(plan.txn)
    except ServiceUnavailable as error:
        log.warning("what people settled of transaction %s could not be asked: %s", plan.txn[:12], error)
        return
    engine.journal.firing.learn(lease, plan.staging, list(_news(view)))


def _news(view: TransactionView) -> Iterator[News]:
    for one in view.effects:
        yield News(one.effect_id, _WAYS.get(one.state, ()), _kept(one.settlements), _result(one.settlements))
        if (undo := one.compensation) is not None:
            yield News(undo.effect_id, _WAYS.get(undo.state, ()), _kept(undo.settlements))


def _kept(settlements: Sequence[Settlement]) -> bytes | None:
    if not settlements:
        return None
    return canonicalize([orjson.loads(said.model_dump_json(exclude_none=True)) for said in settlements])


def _result(settlements: Sequence[Settlement]) -> bytes | None:
    told = [said.result for said in settlements if said.result is not None]
    return canonicalize(told[-1]) if told else None
