"""Stopping by a person: whoever may vote on anything stops an agent, a tool or everything; few start it again.

Numbered as they run, for both:

1. the person still decides here, and is in a group;
2. policy lets them: with a rule about ``Action::"stop"`` plain Cedar alone says who; without one whoever some gate
   of the bundle asks may. Starting again is another permission, ``Action::"start_again"``, and without a rule about it
   an operator alone ends a stop;
3. it has a reason, and what is named is there: a stop of a name nobody has stops nothing and looks as if it did;
4. what ``effects/stops.py`` and ``identity/agents.py`` do for an operator is done under the person's name, in one unit
   with its line.
"""

from __future__ import annotations

from countersign.contract import ErrorCode
from policy_service.domain.person_actions import START_AGAIN, STOP
from policy_service.errors import ForbiddenError, InvalidRequestError, NotFoundError
from policy_service.identity.agents import find_agent, freeze, unfreeze
from policy_service.pap.bundle import Bundle
from policy_service.queries.context import Context
from policy_service.queries.stops import Target, stop_refusal
from policy_service.queries.voter import Voter
from policy_service.storage.database import Tx
from policy_service.workflow.authorization import require_active_person
from policy_service.workflow.effects.emergency_stop import freeze_tool, unfreeze_tool
from policy_service.workflow.effects.evaluation import require_current_bundle, with_stable_bundle
from policy_service.workflow.transitions import person_actor


async def stop(ctx: Context, voter: Voter, target: Target, reason: str) -> None:
    """Stop it, at once; what is stopped already stays so.

    Raises:
        ForbiddenError: not_eligible.
        InvalidRequestError: reason_required, or no tool of that name.
        NotFoundError: no agent of that name.
    """
    await _each(ctx, voter, target, reason, begins=True)


async def start_again(ctx: Context, voter: Voter, target: Target, reason: str) -> None:
    """End a stop. What lapsed meanwhile stays lapsed; what is stopped in another way stays stopped.

    Raises:
        ForbiddenError: not_eligible.
        InvalidRequestError: reason_required.
        NotFoundError: no agent of that name.
    """
    await _each(ctx, voter, target, reason, begins=False)


async def _each(ctx: Context, voter: Voter, target: Target, reason: str, *, begins: bool) -> None:
    async def under(bundle: Bundle) -> None:
        await ctx.db.write(lambda tx: _do(tx, ctx, bundle, voter, target, reason.strip(), begins))

    await with_stable_bundle(ctx, under)


def _do(
    tx: Tx, ctx: Context, bundle: Bundle, voter: Voter, target: Target, reason: str, begins: bool
) -> None:
    require_current_bundle(ctx, bundle)
    require_active_person(tx, voter.iss, voter.sub)
    refused = stop_refusal(ctx, bundle, voter, STOP if begins else START_AGAIN, target, tx.now)
    if refused is not None:
        raise ForbiddenError(refused, code=ErrorCode.NOT_ELIGIBLE)
    if not reason:
        raise InvalidRequestError("say why: everybody reads it", code=ErrorCode.REASON_REQUIRED)
    actor = person_actor(voter.iss, voter.sub)
    if target.what == "agent":
        if find_agent(tx.conn, target.name) is None:
            raise NotFoundError(f"no agent {target.name!r} is enrolled here, so nothing was stopped")
        (freeze if begins else unfreeze)(tx, target.name, reason, actor=actor)
        return
    tool = _tool(bundle, target) if begins else target.name or None
    if begins:
        freeze_tool(tx, tool, reason, actor=actor)
    else:
        unfreeze_tool(tx, tool, reason, actor=actor)


def _tool(bundle: Bundle, target: Target) -> str | None:
    if target.what == "everything":
        return None
    if target.name not in bundle.manifests:
        known = ", ".join(sorted(bundle.manifests)[:20])
        raise InvalidRequestError(
            f"the bundle holds no tool {target.name!r}, so nothing was stopped; it holds {known}"
        )
    return target.name
