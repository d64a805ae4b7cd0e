"""What an agent has left to do in a transaction that people have answered about. Pure.

Rules: what was approved is left until it is spent; what fired beside something that did not is left until it is taken
back, but not while an outcome is open or its taking back waits for people. What only a person can settle is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from countersign.contract import EffectState, TaskAnswer, TxnState
from policy_service.domain.settlement import Part, did_not_go_through
from policy_service.queries.records import Snapshot

_OPEN: Final = frozenset({EffectState.REDEEMED, EffectState.COMPENSATING, EffectState.UNKNOWN})

APPROVED: Final = "approved"
SETTLED: Final = "settled"
ANOTHER_RUN: Final[Mapping[str, str]] = MappingProxyType(
    {APPROVED: "another run would ask again", SETTLED: "another run would do it all again"}
)
"""What people have said, and why a step without a key is not run again for it."""

HEARD_BY_AGENTS: Final = frozenset(
    answer.value
    for answer in (
        TaskAnswer.FIRED,
        TaskAnswer.NOT_FIRED,
        TaskAnswer.COMPENSATED,
        TaskAnswer.LEFT_STANDING,
    )
)
"""The answers that an agent goes on from; the others move nothing, or end the transaction unspent."""


def is_left(snapshot: Snapshot) -> bool:
    """Whether its agent has something to spend or to take back."""
    if snapshot.transaction.state == TxnState.READY.value:
        return True
    if any(undo.state == EffectState.RELEASED.value for undo in snapshot.compensations):
        return True
    parts = snapshot.parts()
    return (
        did_not_go_through(parts)
        and any(_can_be_taken_back(part) for part in parts)
        and not any(part.state in _OPEN for part in parts)
    )


def _can_be_taken_back(part: Part) -> bool:
    return part.state is EffectState.FIRED and part.can_compensate and not part.left_standing
