"""Break-glass: who may open what a gate holds without the people it asks.

A signature is a vote of its own kind (``vote.py``): it names the same bytes and is cast, kept and counted anew like
every vote. What is different stands here: who may give one, and that a stop comes before any emergency.
"""

from __future__ import annotations

from countersign.contract import ErrorCode
from policy_service.domain.gates import merge, step_up_suffices
from policy_service.errors import ForbiddenError
from policy_service.pap.bundle import Bundle
from policy_service.queries.cases import Case
from policy_service.queries.context import Context
from policy_service.queries.voter import may_open
from policy_service.storage.database import Tx
from policy_service.workflow.effects.stops import require_going
from policy_service.workflow.parties import agent_behind


def require_openable(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    case: Case,
    person: str,
    from_token: frozenset[str],
    assurance: str,
    step_up: str | None,
) -> None:
    """Refuse a signature that could not count. A stop comes before any emergency: what is frozen, nobody opens.

    Raises:
        ForbiddenError: not_eligible, step_up_required, frozen.
    """
    reason = may_open(ctx, bundle, case, person, from_token, assurance, tx.now).why_not
    if reason is not None:
        raise ForbiddenError(reason, code=ErrorCode.NOT_ELIGIBLE)
    if not all(step_up_suffices(step_up, gate.step_up) for gate in merge(case.gates)):
        raise ForbiddenError(
            "a gate here asks for a passkey, and an emergency does not do without it: confirm with yours",
            code=ErrorCode.STEP_UP_REQUIRED,
        )
    agent_behind(tx, case.effect.agent, case.effect.kind)
    require_going(tx, [case.effect.tool])
