"""Whether the agent of a transaction has pending work.

It has while the transaction is approved and not redeemed, or while fired effects of an incomplete transaction are not
compensated, unless an outcome is open or a compensation waits for people.
"""

from __future__ import annotations

from typing import Final

from countersign.contract import EffectState, TxnState
from policy_service.domain.settlement import has_missing_effect
from policy_service.queries import repository

_OPEN: Final = frozenset({EffectState.REDEEMED, EffectState.COMPENSATING, EffectState.UNKNOWN})


def has_pending_work(snapshot: repository.Snapshot) -> bool:
    """Whether its agent has something to redeem or to compensate."""
    if snapshot.transaction.state == TxnState.READY.value:
        return True
    if any(undo.state == EffectState.RELEASED.value for undo in snapshot.compensations):
        return True
    parts = snapshot.parts()
    return (
        has_missing_effect(parts)
        and any(
            part.state is EffectState.FIRED and part.can_compensate and not part.left_standing
            for part in parts
        )
        and not any(part.state in _OPEN for part in parts)
    )
