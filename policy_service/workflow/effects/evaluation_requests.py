"""Evaluation requests: what the policy would decide now. Nothing is stored, reserved or promised.

Live effects are the exception, because their agent runs them as soon as they are released. Their decisions are audited,
and returned only after the audit rows are committed. An operator's stop applies to them as well. They count in no
meter, because no one will ever report their outcome.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

from pydantic import ValidationError

from countersign.contract import JSON, Verdict
from countersign.contract.manifest import Lane
from countersign.contract.wire import EvaluationRequest
from policy_service.domain.gates import merge
from policy_service.domain.policy_request import Decision, Facts
from policy_service.errors import ForbiddenError, InvalidRequestError, NotFoundError
from policy_service.identity.agents import Caller
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.effects import manifest_for
from policy_service.queries.policies import EvaluatedCall, policy_row
from policy_service.queries.review_models import FactLine
from policy_service.storage.database import Tx
from policy_service.storage.tables import EffectRow
from policy_service.workflow import metering
from policy_service.workflow.authorization import (
    require_active_caller,
    require_active_commit,
    require_not_stopped,
)
from policy_service.workflow.effects.digests import identify_transaction, new_effect_row
from policy_service.workflow.effects.evaluation import (
    evaluate_policy,
    gather_facts,
    require_current_bundle,
    with_stable_bundle,
)
from policy_service.workflow.transitions import agent_actor, audit_effect

LIVE_DECIDED = "live_decided"
"""The audit kind of a decision about a live effect."""

_UNKNOWN_DIGEST = "0" * 64  # of no manifest
_Decided = list[tuple[EffectRow, Decision]]


async def evaluate_request(
    ctx: Context, caller: Caller, request: EvaluationRequest
) -> list[tuple[str, Decision]]:
    """The tool and decision of each effect, as a submission would get them now.

    Raises:
        InvalidRequestError: as for a submission.
        ForbiddenError: the agent is not enrolled.
    """
    decided = await _decide(ctx, ctx.active.current, caller, request)
    return [(effect.tool, decision) for effect, decision in decided]


async def decide_live(ctx: Context, caller: Caller, request: EvaluationRequest) -> list[tuple[str, Decision]]:
    """The tool and decision of each live effect; each decision is audited.

    Raises:
        InvalidRequestError: as for a submission; or a tool is staged, and so must be submitted.
        ForbiddenError: the agent is frozen or not enrolled, or a tool is stopped.
        UnauthenticatedError: its key was revoked meanwhile.
    """

    async def work(bundle: Bundle) -> list[tuple[str, Decision]]:
        decided = await _decide(ctx, bundle, caller, request)
        for effect, _ in decided:
            manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
            if manifest is not None and manifest.lane is not Lane.LIVE:
                raise InvalidRequestError(
                    f"{effect.tool!r} is staged in its reviewed manifest: submit it, and redeem its release "
                    "before it runs"
                )
        await ctx.db.write(lambda tx: _audit(tx, ctx, bundle, caller, decided))
        return [(effect.tool, decision) for effect, decision in decided]

    return await with_stable_bundle(ctx, work)


def _audit(tx: Tx, ctx: Context, bundle: Bundle, caller: Caller, decided: _Decided) -> None:
    require_current_bundle(ctx, bundle)
    require_active_commit(tx, ctx, bundle)
    stopped = require_active_caller(tx, caller).stopped
    require_not_stopped(stopped, [effect.tool for effect, _ in decided])
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


async def _decide(ctx: Context, bundle: Bundle, caller: Caller, request: EvaluationRequest) -> _Decided:
    named = identify_transaction(bundle, caller.agent, request)
    effects = [new_effect_row(bundle, effect, 1) for effect in named.effects]
    now = ctx.clock()
    facts = await gather_facts(bundle, effects, now)
    agent, readings = await ctx.db.read(
        lambda conn: (
            repository.agent_of(conn, caller.agent),
            [metering.read_meters(conn, bundle, effect, now) for effect in effects],
        )
    )
    if agent is None:
        raise ForbiddenError(f"the agent {caller.agent!r} is not enrolled")
    claimed = {} if request.claimed is None else request.claimed.model_dump(exclude_none=True)
    decided: _Decided = []
    counted: list[EffectRow] = []  # later effects of a list count the earlier ones
    for effect, reading in zip(effects, readings, strict=True):
        decision = evaluate_policy(
            ctx,
            bundle,
            agent,
            effect,
            facts[effect.effect_id],
            now=now,
            txn_size=len(effects),
            claimed=claimed,
            history=reading.after(counted, effect).values,
            method=caller.method,
        )
        decided.append((effect, decision))
        if decision.outcome is not Verdict.DENY:
            counted.append(effect)
    return decided


# -- one call that a person enters -------------------------------------------------------------------------------------


async def try_effect(ctx: Context, agent: str, tool: str, args: JSON) -> EvaluatedCall:
    """The decision an agent would get now for one call.

    Raises:
        InvalidRequestError: the arguments or the tool's name could never be submitted.
        NotFoundError: the agent is not enrolled.
    """
    bundle = ctx.active.current
    known = await ctx.db.read(lambda conn: repository.agent_of(conn, agent))
    if known is None:
        raise NotFoundError(f"no agent {agent!r} is enrolled here")
    manifest = bundle.manifests.get(tool)
    digest = _UNKNOWN_DIGEST if manifest is None else manifest.digest
    try:
        request = EvaluationRequest.model_validate(
            {"run_key": "try", "effects": [{"tool": tool, "tool_digest": digest, "args": args}]}
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = "/".join(map(str, first["loc"]))
        raise InvalidRequestError(f"{where}: {first['msg']}") from error
    (named,) = identify_transaction(bundle, agent, request).effects
    effect, now = new_effect_row(bundle, named, 1), ctx.clock()
    facts = (await gather_facts(bundle, [effect], now))[effect.effect_id]
    reading = await ctx.db.read(lambda conn: metering.read_meters(conn, bundle, effect, now))
    decision = evaluate_policy(
        ctx, bundle, known, effect, facts, now=now, txn_size=1, claimed={}, history=reading.values
    )
    return _evaluated_call(bundle, decision, reading.add_to(facts), now)


def _evaluated_call(bundle: Bundle, decision: Decision, facts: Facts, now: datetime) -> EvaluatedCall:
    sources = (bundle.describe(policy_id) for policy_id in decision.policies)
    asks = tuple(
        f"{gate.quorum} of {' or '.join(bundle.directory.title_of(group) for group in sorted(gate.groups))}"
        for gate in merge(decision.gates)
    )
    return EvaluatedCall(
        outcome=decision.outcome.value,
        policies=tuple(policy_row(bundle, source, Counter()) for source in sources if source is not None),
        asks=asks,
        reasons=tuple(reason.text for reason in decision.reasons),
        advice=tuple(reason.advice for reason in decision.reasons if reason.advice is not None),
        unseen=decision.unseen,
        facts=tuple(
            FactLine(
                label=fact.label,
                value=fact.value,
                source=fact.source,
                age=max(now - fact.as_of, timedelta()),
            )
            for fact in facts.shown
        ),
    )
