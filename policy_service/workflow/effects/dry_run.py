"""Try an effect: what would be decided about a call that a person has pasted. Nothing is stored, nobody is told."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

from pydantic import ValidationError

from countersign.contract import JSON
from countersign.contract.wire import EvaluationRequest
from policy_service.domain.decision import Decision
from policy_service.domain.gates import merge
from policy_service.domain.policy_request import Facts
from policy_service.errors import InvalidRequestError, NotFoundError
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.policies import EvaluatedCall, policy_row
from policy_service.queries.review_models import FactLine
from policy_service.workflow.effects.digests import identify_transaction
from policy_service.workflow.effects.effect_rows import new_effect_row
from policy_service.workflow.effects.evaluation import evaluate_policy, gather_facts, policy_request
from policy_service.workflow.metering import read_meters

_NONE = timedelta()
_UNKNOWN = "0" * 64  # the digest of a manifest that nobody has


async def try_effect(ctx: Context, agent: str, tool: str, args: JSON) -> EvaluatedCall:
    """The answer an agent would get now for one call.

    Raises:
        InvalidRequestError: arguments, or a tool's name, that could never be submitted.
        NotFoundError: no such agent is enrolled.
    """
    bundle = ctx.active.current
    known = await ctx.db.read(lambda conn: repository.agent_of(conn, agent))
    if known is None:
        raise NotFoundError(f"no agent {agent!r} is enrolled here")
    manifest = bundle.manifests.get(tool)
    digest = _UNKNOWN if manifest is None else manifest.digest
    try:
        wish = EvaluationRequest.model_validate(
            {"run_key": "try", "effects": [{"tool": tool, "tool_digest": digest, "args": args}]}
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = "/".join(map(str, first["loc"]))
        raise InvalidRequestError(f"{where}: {first['msg']}") from error
    (named,) = identify_transaction(bundle, agent, wish).effects
    effect, now = new_effect_row(bundle, named, 1), ctx.clock()
    facts = (await gather_facts(bundle, [effect], now))[effect.effect_id]
    sight = await ctx.db.read(lambda conn: read_meters(conn, bundle, effect, now))
    question = policy_request(
        ctx, known, effect, facts, now=now, txn_size=1, claimed={}, history=sight.values
    )
    decision = evaluate_policy(bundle, effect, question)
    return _tried(bundle, decision, sight.beside(facts), now)


def _tried(bundle: Bundle, decision: Decision, facts: Facts, now: datetime) -> EvaluatedCall:
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
            FactLine(label=fact.label, value=fact.value, source=fact.source, age=max(now - fact.as_of, _NONE))
            for fact in facts.shown
        ),
    )
