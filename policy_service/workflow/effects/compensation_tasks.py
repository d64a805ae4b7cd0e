"""What fired and stands although it should not: its compensation failed, cannot be built, or nobody asks for it.

Each of these is a task: only a person can settle it, and nobody would be told otherwise (I-14).
"""

from __future__ import annotations

from countersign.contract import EffectState, TaskKind
from policy_service.queries.repository import Snapshot
from policy_service.storage.database import Tx
from policy_service.storage.tables import EffectRow
from policy_service.workflow.transitions import (
    TransitionReason,
    open_task,
    sync_transaction_state,
    transition_effect,
)

COMPENSATION_DUE = TaskKind.COMPENSATION_DUE
"""The kind of task for what fired beside something that did not, could be taken back, and was not."""


def compensation_failed(
    tx: Tx, snapshot: Snapshot, compensation: EffectRow, why: str, cause: TransitionReason
) -> None:
    """The forward effect of a compensation that will not happen stands."""
    forward = snapshot.find(compensation.compensates or "")
    if forward is not None and EffectState(forward.state) is EffectState.COMPENSATING:
        _stands(tx, snapshot, forward, why, cause)


def compensation_impossible(
    tx: Tx, snapshot: Snapshot, forward: EffectRow, why: str, cause: TransitionReason
) -> None:
    """A fired effect whose compensation cannot even be built stands."""
    transition_effect(tx, forward, EffectState.COMPENSATING, cause)
    _stands(tx, snapshot, forward, why, cause)


def compensation_due(tx: Tx, effect: EffectRow, cause: TransitionReason) -> None:
    """What fired should have been taken back by now, and nobody has asked to."""
    open_task(
        tx,
        effect,
        COMPENSATION_DUE,
        f"{effect.tool} fired, its siblings did not, and nobody took it back",
        cause,
    )


def _stands(tx: Tx, snapshot: Snapshot, forward: EffectRow, why: str, cause: TransitionReason) -> None:
    transition_effect(tx, forward, EffectState.COMPENSATION_FAILED, cause)
    open_task(tx, forward, TaskKind.COMPENSATION_FAILED, f"{forward.tool} fired and stands: {why}", cause)
    sync_transaction_state(tx, snapshot, cause)
