"""Evaluate the policy for one effect: first at submission, and again whenever its decision is used.

Facts are gathered before the unit of work and passed in; each decision is stored as its own row.

- One bundle object is used from gathering facts to deciding. If another bundle becomes active in between, the unit
  refuses and the whole evaluation is repeated.
- Evaluating again only adds requirements: an effect keeps every gate that ever fired on it, and the shortest times.
- An effect may be released if policy does not deny it and all its gates are met now, by votes that still count, or by a
  break-glass approval that still counts.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import structlog

from countersign.contract import Effect, Verdict, load, reads_result
from policy_service import metrics
from policy_service.domain.gates import Gate
from policy_service.domain.policy_request import Claimed, Decision, Facts, PolicyRequest
from policy_service.domain.quorum import Tally
from policy_service.errors import StorageUnavailableError
from policy_service.identity.agents import Caller
from policy_service.pap.bundle import Bundle
from policy_service.pdp.engine import decide
from policy_service.pdp.rules import UNKNOWN_TOOL
from policy_service.queries.context import Context
from policy_service.queries.effects import gates_of, principal_of
from policy_service.queries.repository import Snapshot
from policy_service.queries.vote_eligibility import count_votes
from policy_service.storage.database import Tx
from policy_service.storage.tables import AgentRow, DecisionRow, EffectRow
from policy_service.storage.types import new_id, time_text
from policy_service.workflow import metering
from policy_service.workflow.active_commit import follow_active_commit
from policy_service.workflow.authorization import OutdatedBundleError
from policy_service.workflow.metering import MeterReading
from policy_service.workflow.transitions import SERVICE, TransitionReason, audit_effect, insert, set_columns

log = structlog.get_logger(__name__)

T = TypeVar("T")
_POLICY_ID = re.compile(r"policy `([^`]+)`")
_MAX_BUNDLE_CHANGES = 5  # activations during one request


class BundleChangedError(Exception):
    """Another bundle became active between gathering facts and deciding: repeat both."""


@dataclass(frozen=True)
class Evaluation:
    """A stored decision about an effect, with the gates that apply to it and the count of its votes."""

    decision: Decision
    decision_id: str
    gates: tuple[Gate, ...]  # every gate that ever fired on this revision
    tally: Tally

    @property
    def denied(self) -> bool:
        """Whether policy denies the effect now."""
        return self.decision.outcome is Verdict.DENY

    @property
    def releases(self) -> bool:
        """Whether the effect may be released now."""
        return not self.denied and (not self.gates or self.tally.permits_release)

    @property
    def valid_for(self) -> timedelta:
        """How long a release may be used: the shortest limit that applies."""
        limit = self.tally.valid_for_limit
        limits = [self.decision.valid_for, *(gate.valid_for for gate in self.gates)]
        return min(limits if limit is None else [*limits, limit])


async def with_stable_bundle(ctx: Context, work: Callable[[Bundle], Awaitable[T]]) -> T:
    """Run ``work`` under one bundle, and repeat it if another bundle becomes active meanwhile.

    Raises:
        StorageUnavailableError: bundles kept changing.
        PoliciesBehindError: another replica activated a bundle that this one does not have yet.
    """
    for _ in range(_MAX_BUNDLE_CHANGES):
        try:
            return await work(ctx.active.current)
        except BundleChangedError:
            continue
        except OutdatedBundleError:
            await follow_active_commit(ctx)
    raise StorageUnavailableError("the policies changed faster than this request could be decided; repeat it")


def require_current_bundle(ctx: Context, bundle: Bundle) -> None:
    """Refuse to decide under a bundle that is no longer active.

    Raises:
        BundleChangedError: another bundle is active.
    """
    if ctx.active.current is not bundle:
        raise BundleChangedError


async def gather_facts(
    bundle: Bundle, effects: Sequence[EffectRow | Effect], now: datetime
) -> dict[str, Facts]:
    """Gather the facts of all effects concurrently, by effect id. Call this before the unit of work."""

    async def for_one(effect: EffectRow | Effect) -> Facts:
        args = effect.args_bytes if isinstance(effect, Effect) else effect.args
        return await bundle.facts_for(
            effect.tool, load(args), args, agent=effect.agent, now=now, tool_digest=effect.tool_digest
        )

    gathered = await asyncio.gather(*(for_one(effect) for effect in effects))
    return {effect.effect_id: facts for effect, facts in zip(effects, gathered, strict=True)}


def policy_request(
    ctx: Context,
    agent: AgentRow,
    effect: EffectRow,
    facts: Facts,
    *,
    now: datetime,
    txn_size: int,
    claimed: Mapping[str, str],
    history: Mapping[str, int],
    reevaluated: bool = False,
    method: str = "key",
) -> PolicyRequest:
    """Build the policy request for one effect. The facts must be of the bundle that will evaluate it."""
    return PolicyRequest(
        agent=principal_of(agent),
        tool=effect.tool,
        tool_digest=effect.tool_digest,
        args=load(effect.args),
        facts=facts,
        now=now,
        env=ctx.settings.environment,
        txn_size=txn_size,
        claimed=Claimed(**claimed),
        reevaluated=reevaluated,
        reviewed_as_unknown=any(gate.policy_id == UNKNOWN_TOOL for gate in gates_of(effect)),
        method="api_key" if method == "api_key" else "key",
        history=history,
    )


def evaluate_policy(
    ctx: Context, bundle: Bundle, agent: AgentRow, effect: EffectRow, facts: Facts, **about: Any
) -> Decision:
    """Decide about one effect without storing anything. ``about``: the keyword arguments of `policy_request`."""
    decision = decide(bundle.rules, policy_request(ctx, agent, effect, facts, **about))
    if decision.alarms:
        metrics.POLICY_ERRORS.inc()
        # The engine's messages quote argument values, which may be secret, so only policy ids are logged.
        erring = sorted({name for alarm in decision.alarms for name in _POLICY_ID.findall(alarm)})
        log.error(
            "policy_error",
            policies=erring,
            tool=effect.tool,
            effect_id=effect.effect_id,
            bundle=bundle.digest,
        )
    if UNKNOWN_TOOL in decision.policies:
        log.warning(
            "UNKNOWN_TOOL_IN_DEV",
            tool=effect.tool,
            agent=effect.agent,
            says="people are asked because this is dev; everywhere else this is denied",
        )
    return decision


def evaluate_new_effect(
    tx: Tx, ctx: Context, bundle: Bundle, agent: AgentRow, effect: EffectRow, facts: Facts, **about: Any
) -> tuple[Decision, MeterReading]:
    """Decide about an effect that is not stored yet, and reserve its meters unless it is denied.

    Returns the meter reading too, for `record_decision`. The unit must hold the locks of the effect's meters.
    """
    reading = metering.read_meters(tx.conn, bundle, effect, tx.now)
    decision = evaluate_policy(ctx, bundle, agent, effect, facts, now=tx.now, history=reading.values, **about)
    if decision.outcome is not Verdict.DENY:
        effect.metered = metering.reserve(tx, bundle, effect, reading.missing)
    return decision, reading


def reevaluate(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    agent: AgentRow,
    snapshot: Snapshot,
    effect: EffectRow,
    facts: Facts,
    cause: TransitionReason,
    *,
    caller: Caller | None = None,
    counted: Tally | None = None,
) -> Evaluation:
    """Decide about a stored effect again, record the decision, and count its votes. The effect is not moved.

    ``caller``: the agent that wants to redeem or renew. Policy sees the weaker of its authentication methods, then and
    now. ``counted``: the count under the effect's known gates, if the caller has it; it is reused unless another gate
    fires.
    """
    reading = metering.reread_meters(tx, bundle, effect)
    decision = evaluate_policy(
        ctx,
        bundle,
        agent,
        effect,
        facts,
        now=tx.now,
        history=reading.values,
        txn_size=1 if effect.kind == "compensate" else len(snapshot.effects),
        claimed=snapshot.transaction.claimed,
        reevaluated=True,
        method=weakest_auth_method(snapshot, caller),
    )
    if decision.outcome is not Verdict.DENY and metering.reserve(tx, bundle, effect, reading.missing):
        set_columns(tx, effect, metered=True)
    gates = () if is_preapproved_compensation(snapshot, effect) else gates_of(effect, decision.gates)
    if counted is None or gates != gates_of(effect):
        counted = count_votes(ctx, bundle, snapshot, effect, agent, gates, tx.now)
    decision_id = record_decision(tx, snapshot, effect, decision, facts, reading, cause)
    return Evaluation(decision, decision_id, gates, counted)


def reevaluate_each(
    tx: Tx,
    ctx: Context,
    bundle: Bundle,
    agent: AgentRow,
    snapshot: Snapshot,
    effects: Sequence[EffectRow],
    facts: Mapping[str, Facts],
    cause: TransitionReason,
    caller: Caller,
) -> Iterator[tuple[EffectRow, Evaluation]]:
    """Reevaluate effects one by one, for a caller that redeems or renews them. Locks their meters first, at once."""
    metering.lock_missing_meters(tx, bundle, effects)
    for effect in effects:
        known = facts[effect.effect_id]
        yield effect, reevaluate(tx, ctx, bundle, agent, snapshot, effect, known, cause, caller=caller)


def weakest_auth_method(snapshot: Snapshot, caller: Caller | None) -> str:
    """The weaker of the agent's authentication methods: at submission, and now if it is the caller."""
    methods = {snapshot.transaction.method}
    if caller is not None and caller.agent == snapshot.transaction.agent:
        methods.add(caller.method)
    return "api_key" if "api_key" in methods else "key"


def is_preapproved_compensation(snapshot: Snapshot, effect: EffectRow) -> bool:
    """Whether an effect compensates one that people approved. They saw the compensation then, so its gates are met."""
    forward = snapshot.find(effect.compensates or "")
    if forward is None or forward.compensation is None:
        return False
    # Arguments taken from the result were unknown at the vote, and the agent reports the result.
    if reads_result(forward.compensation["map"]):
        return False
    approvals = (vote for vote in snapshot.votes_on(forward) if vote.verdict != "deny")
    return any(not vote.late and vote.revoked_at is None for vote in approvals)


def record_decision(
    tx: Tx,
    snapshot: Snapshot,
    effect: EffectRow,
    decision: Decision,
    facts: Facts,
    reading: MeterReading,
    cause: TransitionReason,
) -> str:
    """Store a decision with its facts and meter reading, and audit it; returns its id."""
    decision_id = new_id("dec", tx.now)
    body: dict[str, Any] = {
        "decision_id": decision_id,
        "outcome": decision.outcome.value,
        "cause": cause.why,
        "policies": list(decision.policies),
        "gates": [gate.policy_id for gate in decision.gates],
        "bundle": decision.bundle,
        "commit": decision.commit,
    }
    row = DecisionRow(
        effect_id=effect.effect_id,
        rev=effect.rev,
        reasons=[asdict(reason) for reason in decision.reasons],
        unseen=list(decision.unseen),
        facts=_facts_json(reading.add_to(facts)),
        history=reading.values,
        decided_at=tx.now,
        **body,
    )
    insert(tx, row)
    snapshot.decisions[decision_id] = row
    audit_effect(tx, effect, "decision_made", SERVICE, {**body, "effect_digest": effect.effect_digest})
    return decision_id


def _facts_json(facts: Facts) -> list[dict[str, str]]:
    return [
        {"label": fact.label, "value": fact.value, "source": fact.source, "as_of": time_text(fact.as_of)}
        for fact in facts.shown
    ]
