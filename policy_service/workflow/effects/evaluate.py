"""Evaluate: what would the policy say? Nothing is stored, nobody is told, nothing is promised."""

from __future__ import annotations

from countersign.contract import Verdict
from countersign.contract.wire import EvaluationRequest, SubmitRequest
from policy_service.domain.decision import Decision
from policy_service.errors import ForbiddenError
from policy_service.identity.callers import Caller
from policy_service.storage.tables import EffectRow
from policy_service.workflow import metering, records
from policy_service.workflow.context import Context
from policy_service.workflow.effects.asking import evaluate, gather_facts, question_about
from policy_service.workflow.effects.effect_rows import undecided
from policy_service.workflow.effects.naming import name_transaction


async def evaluate_request(
    ctx: Context, caller: Caller, request: SubmitRequest | EvaluationRequest
) -> list[tuple[str, Decision]]:
    """Each effect's tool and decision, as a submission would get them now.

    Raises:
        InvalidRequestError: as a submission.
        ForbiddenError: the agent is not enrolled.
    """
    bundle = ctx.active.current
    named = name_transaction(bundle, caller.agent, request)
    effects = [undecided(bundle, effect, 1) for effect in named.effects]
    now = ctx.clock()
    facts = await gather_facts(bundle, effects, now)
    agent, sights = await ctx.db.read(
        lambda conn: (
            records.agent_of(conn, caller.agent),
            [metering.look(conn, bundle, effect, now) for effect in effects],
        )
    )
    if agent is None:
        raise ForbiddenError(f"the agent {caller.agent!r} is not enrolled")
    claimed = {} if request.claimed is None else request.claimed.model_dump(exclude_none=True)
    decisions: list[tuple[str, Decision]] = []
    going: list[EffectRow] = []  # the effects of one list see each other's parts
    for effect, sight in zip(effects, sights, strict=True):
        question = question_about(
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
        decision = evaluate(bundle, effect, question)
        decisions.append((effect.tool, decision))
        if decision.outcome is not Verdict.DENY:
            going.append(effect)
    return decisions
