"""Break-glass: who may open what a gate holds without the people it asks.

A signature is a vote of its own kind (``vote.py``): it names the same bytes and is cast, kept and counted anew like
every vote. What is different stands here: who may give one, and that a stop comes before any emergency.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from countersign.contract import ErrorCode
from policy_service.domain.gates import merge, step_up_suffices
from policy_service.domain.people import BREAK_GLASS, BREAK_GLASS_ALONE
from policy_service.errors import ForbiddenError
from policy_service.pap.bundle import Bundle
from policy_service.storage.database import Tx
from policy_service.workflow.context import Context
from policy_service.workflow.effects.ballots import groups_now, requesters_side
from policy_service.workflow.effects.cases import Case
from policy_service.workflow.effects.openings import is_named
from policy_service.workflow.effects.stops import require_going
from policy_service.workflow.parties import agent_behind


@dataclass(frozen=True, slots=True)
class MayOpen:
    """What one person may do in an emergency: ``why_not`` is the sentence that tells them why nothing, ``alone``
    whether their signature is enough by itself, with a review afterwards.
    """

    why_not: str | None
    alone: bool = False


def may_open(
    ctx: Context,
    bundle: Bundle,
    case: Case,
    person: str,
    from_token: frozenset[str],
    assurance: str,
    now: datetime,
) -> MayOpen:
    """What this person may do about this review."""
    if person in requesters_side(case.agent, case.review):
        return MayOpen(
            f"you own {case.agent.name}, or changed what it asks; nobody opens what their own side asks for"
        )
    groups = groups_now(bundle, person, from_token)
    as_one, alone = (
        is_named(ctx, bundle, case.agent, case.review, case.gates, action, person, groups, assurance, now)
        for action in (BREAK_GLASS, BREAK_GLASS_ALONE)
    )
    if as_one or alone:
        return MayOpen(None, alone)
    return MayOpen(
        "no policy lets you open this in an emergency; ask somebody whom one names, or an operator"
    )


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
