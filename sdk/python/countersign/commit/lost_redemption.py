"""Whether a spent transaction was spent by us: an answer that got lost must not be taken for somebody else's.

The journal named the attempt before it was sent, so the question has an answer: the service says whose attempt redeemed
the list, or knows ours or does not when asked to renew it. Nothing here fires.
"""

from __future__ import annotations

from typing import Final

from countersign.commit.plan import Plan
from countersign.contract.states import ENDED_UNSPENT, EffectState
from countersign.contract.wire import TransactionView
from countersign.engine import Engine
from countersign.errors import ReleaseRefused, ServiceRefused
from countersign.journal import Lease

_NOT_REDEEMED: Final = frozenset({EffectState.REVIEW, EffectState.RELEASED}) | ENDED_UNSPENT
_NOT_OURS: Final = frozenset({403, 404})  # not_redeemer, unknown_attempt; any other refusal knows the attempt


async def look(engine: Engine, txn: str) -> TransactionView | None:
    """The transaction as the service holds it; None if it never arrived there."""
    try:
        return await engine.service.view(txn)
    except ServiceRefused as refused:
        if refused.is_not_there:
            return None
        raise


def is_of_list(view: TransactionView, plan: Plan) -> bool:
    """Whether the service's revision is of our list: compared by (call_key, tool_digest) in order."""
    return tuple((one.call_key, one.tool_digest) for one in view.effects) == plan.list_key


async def redeemed_by_us(engine: Engine, plan: Plan, view: TransactionView) -> bool:
    """Whether the list was redeemed, and under our attempt.

    Raises:
        ReleaseRefused: by our attempt, and it was of other bytes than the journal holds.
    """
    if all(one.state in _NOT_REDEEMED for one in view.effects) or not await _is_ours(engine, plan, view):
        return False
    if view.txn_digest != plan.txn_digest:
        raise ReleaseRefused(plan.txn, "our attempt redeemed other bytes than the journal holds")
    return True


async def _is_ours(engine: Engine, plan: Plan, view: TransactionView) -> bool:
    if view.attempt_id is not None:
        return view.attempt_id == plan.attempt_id
    try:
        await engine.service.renew(plan.attempt_id, [effect.effect_id for effect in plan.effects])
    except ServiceRefused as refused:
        return refused.status not in _NOT_OURS
    return True


async def adopt(engine: Engine, lease: Lease, plan: Plan, view: TransactionView) -> bool:
    """Note that our attempt was redeemed, if it was: the commit point is behind us.

    Raises:
        ReleaseRefused: it redeemed other bytes than the journal holds.
    """
    if not is_of_list(view, plan) or not await redeemed_by_us(engine, plan, view):
        return False
    engine.journal.firing.redeemed(lease, plan.staging, [effect.effect_id for effect in plan.effects])
    return True
