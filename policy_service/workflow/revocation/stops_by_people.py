"""Emergency stops by people: begin or end the stop of an agent, a tool or everything.

1. The person must be active, and in a group.
2. Policy must permit it. If the bundle has rules about ``Action::"stop"``, Cedar alone decides. Otherwise anyone in a
   group that some gate of the bundle asks may stop. Ending a stop is a separate permission, ``Action::"start_again"``;
   without a rule about it, only an operator may.
3. A reason is required, and the target must exist: a stop of an unknown name would stop nothing and look as if it did.
4. The stop and its audit row are written in one unit, with the person as actor.
"""

from __future__ import annotations

from countersign.contract import ErrorCode
from policy_service.domain.person_actions import START_AGAIN, STOP
from policy_service.errors import ForbiddenError, InvalidRequestError, NotFoundError
from policy_service.identity.agents import find_agent, freeze, unfreeze
from policy_service.pap.bundle import Bundle
from policy_service.queries.context import Context
from policy_service.queries.stops import Target, stop_refusal
from policy_service.queries.vote_eligibility import Voter
from policy_service.storage.database import Tx
from policy_service.workflow.authorization import freeze_tool, require_active_person, unfreeze_tool
from policy_service.workflow.effects.evaluation import require_current_bundle, with_stable_bundle
from policy_service.workflow.transitions import person_actor


async def stop(ctx: Context, voter: Voter, target: Target, reason: str) -> None:
    """Stop a target at once. One that is stopped already stays so.

    Raises:
        ForbiddenError: not_eligible.
        InvalidRequestError: reason_required, or there is no such tool.
        NotFoundError: there is no such agent.
    """
    await _set_stop(ctx, voter, target, reason, begins=True)


async def start_again(ctx: Context, voter: Voter, target: Target, reason: str) -> None:
    """End a stop. What expired meanwhile stays expired, and other stops stay in force.

    Raises:
        ForbiddenError: not_eligible.
        InvalidRequestError: reason_required.
        NotFoundError: there is no such agent.
    """
    await _set_stop(ctx, voter, target, reason, begins=False)


async def _set_stop(ctx: Context, voter: Voter, target: Target, reason: str, *, begins: bool) -> None:
    async def work(bundle: Bundle) -> None:
        await ctx.db.write(
            lambda tx: _set_stop_in_unit(tx, ctx, bundle, voter, target, reason.strip(), begins)
        )

    await with_stable_bundle(ctx, work)


def _set_stop_in_unit(
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
    tool = _tool_name(bundle, target) if begins else target.name or None
    if begins:
        freeze_tool(tx, tool, reason, actor=actor)
    else:
        unfreeze_tool(tx, tool, reason, actor=actor)


def _tool_name(bundle: Bundle, target: Target) -> str | None:
    if target.what == "everything":
        return None
    if target.name not in bundle.manifests:
        known = ", ".join(sorted(bundle.manifests)[:20])
        raise InvalidRequestError(
            f"the bundle holds no tool {target.name!r}, so nothing was stopped; it holds {known}"
        )
    return target.name
