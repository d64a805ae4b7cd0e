"""Evaluate: what would the policy say? Nothing is stored, nobody is told, nothing is promised.

But for live effects, which their agent runs as soon as this releases them: the answer decides, so it stands in the log,
and is given only where it does. An operator's stop holds for them as for what is staged, and nothing is counted in a
meter: nobody will ever report what became of them.
"""

from __future__ import annotations

from countersign.contract import Verdict
from countersign.contract.manifest import Lane
from countersign.contract.wire import EvaluationRequest, SubmitRequest
from policy_service.domain.decision import Decision
from policy_service.errors import ForbiddenError, InvalidRequestError
from policy_service.identity.agents import Caller
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.effects import manifest_for
from policy_service.storage.database import Tx
from policy_service.storage.tables import EffectRow
from policy_service.workflow import metering
from policy_service.workflow.active_commit import require_active_commit
from policy_service.workflow.authorization import require_active_caller
from policy_service.workflow.effects.digests import identify_transaction
from policy_service.workflow.effects.effect_rows import new_effect_row
from policy_service.workflow.effects.emergency_stop import require_not_stopped
from policy_service.workflow.effects.evaluation import (
    evaluate_policy,
    gather_facts,
    policy_request,
    require_current_bundle,
    with_stable_bundle,
)
from policy_service.workflow.transitions import agent_actor, audit_effect

LIVE_DECIDED = "live_decided"
"""The line of the log that says what an agent was answered about a live effect."""

_Decided = list[tuple[EffectRow, Decision]]


async def evaluate_request(
    ctx: Context, caller: Caller, request: SubmitRequest | EvaluationRequest
) -> list[tuple[str, Decision]]:
    """Each effect's tool and decision, as a submission would get them now.

    Raises:
        InvalidRequestError: as a submission.
        ForbiddenError: the agent is not enrolled.
    """
    decided = await _decide(ctx, ctx.active.current, caller, request)
    return [(effect.tool, decision) for effect, decision in decided]


async def decide_live(ctx: Context, caller: Caller, request: EvaluationRequest) -> list[tuple[str, Decision]]:
    """The same about effects that run at once where they are released; each answer is a line of the log.

    Raises:
        InvalidRequestError: as a submission; or a tool is staged, so it is to be submitted.
        ForbiddenError: the agent is frozen or not enrolled, or a tool is stopped.
        UnauthenticatedError: its key was revoked meanwhile.
    """

    async def once(bundle: Bundle) -> list[tuple[str, Decision]]:
        decided = await _decide(ctx, bundle, caller, request)
        for effect, _ in decided:
            _require_live(bundle, effect)
        await ctx.db.write(lambda tx: _note(tx, ctx, bundle, caller, decided))
        return [(effect.tool, decision) for effect, decision in decided]

    return await with_stable_bundle(ctx, once)


def _require_live(bundle: Bundle, effect: EffectRow) -> None:
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    if manifest is not None and manifest.lane is not Lane.LIVE:
        raise InvalidRequestError(
            f"{effect.tool!r} is staged in its reviewed manifest: submit it, and redeem its release before it runs"
        )


def _note(tx: Tx, ctx: Context, bundle: Bundle, caller: Caller, decided: _Decided) -> None:
    require_current_bundle(ctx, bundle)
    require_active_commit(tx, ctx, bundle)
    require_active_caller(tx, caller)
    require_not_stopped(tx, [effect.tool for effect, _ in decided])
    for effect, decision in decided:
        body = {
            "tool": effect.tool,
            "tool_digest": effect.tool_digest,
            "args_digest": effect.args_digest,
            "effect_digest": effect.effect_digest,
            "outcome": decision.outcome.value,
            "policies": list(decision.policies),
            "gates": [gate.policy_id for gate in decision.gates],
            "reasons": [reason.code for reason in decision.reasons],
            "bundle": decision.bundle,
            "commit": decision.commit,
        }
        audit_effect(tx, effect, LIVE_DECIDED, agent_actor(caller.agent), body)


async def _decide(
    ctx: Context, bundle: Bundle, caller: Caller, request: SubmitRequest | EvaluationRequest
) -> _Decided:
    named = identify_transaction(bundle, caller.agent, request)
    effects = [new_effect_row(bundle, effect, 1) for effect in named.effects]
    now = ctx.clock()
    facts = await gather_facts(bundle, effects, now)
    agent, sights = await ctx.db.read(
        lambda conn: (
            repository.agent_of(conn, caller.agent),
            [metering.read_meters(conn, bundle, effect, now) for effect in effects],
        )
    )
    if agent is None:
        raise ForbiddenError(f"the agent {caller.agent!r} is not enrolled")
    claimed = {} if request.claimed is None else request.claimed.model_dump(exclude_none=True)
    decided: _Decided = []
    going: list[EffectRow] = []  # the effects of one list see each other's parts
    for effect, sight in zip(effects, sights, strict=True):
        question = policy_request(
            ctx,
            agent,
            effect,
            facts[effect.effect_id],
            now=now,
            txn_size=len(effects),
            claimed=claimed,
            history=sight.after(going, effect).values,
            method=caller.method,
        )
        decision = evaluate_policy(bundle, effect, question)
        decided.append((effect, decision))
        if decision.outcome is not Verdict.DENY:
            going.append(effect)
    return decided
