"""Asking the policy about one effect, the first time and every time after.

Facts are gathered before the deciding unit of work and handed in; the answer is recorded as a row of its own. Rules:

- one bundle object serves from the gathering of facts to the decision; when another became active in between, the unit
  refuses and the whole question is asked again;
- asking again only adds: the gates of an effect are all that ever fired on it, merged, and its times the shortest;
- an effect may be released when the policy does not deny and every gate it ever met is met now, by votes of people who
  may still cast them, or opened in an emergency by people who still may.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import structlog

from countersign.contract import Effect, Verdict, load, reads_result
from policy_service import metrics
from policy_service.domain.decision import Decision
from policy_service.domain.gates import Gate
from policy_service.domain.person_actions import BREAK_GLASS
from policy_service.domain.policy_request import Claimed, Facts, PolicyRequest
from policy_service.domain.quorum import BREAK_GLASS_VALID_FOR, Tally
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
from policy_service.workflow.active_commit import OutdatedBundleError
from policy_service.workflow.bundle_refresh import follow_active_commit
from policy_service.workflow.transitions import SERVICE, TransitionReason, audit_effect, insert, set_columns

log = structlog.get_logger(__name__)

T = TypeVar("T")
FactsByEffect = Mapping[str, Facts]
_POLICY_ID = re.compile(r"policy `([^`]+)`")
_LET_GO = frozenset({"approve", BREAK_GLASS})
_SWAPS_BORNE = 5  # activations in a row during one request; more means somebody is pushing in a loop


class BundleChangedError(Exception):
    """Another bundle became active between the facts and the decision: gather and ask again."""


@dataclass(frozen=True)
class Evaluation:
    """What the policy said about an effect and what that means for it."""

    decision: Decision
    decision_id: str
    gates: tuple[Gate, ...]  # every gate that ever fired on this revision
    tally: Tally

    @property
    def denied(self) -> bool:
        """Whether the policy forbids the effect now."""
        return self.decision.outcome is Verdict.DENY

    @property
    def releases(self) -> bool:
        """Whether the effect may be released now."""
        return not self.denied and (not self.gates or self.tally.permits_release)

    @property
    def valid_for(self) -> timedelta:
        """How long a release may be used: the shortest that ever applied."""
        emergency = [] if self.tally.opened is None else [BREAK_GLASS_VALID_FOR]
        return min([self.decision.valid_for, *(gate.valid_for for gate in self.gates), *emergency])


async def with_stable_bundle(ctx: Context, work: Callable[[Bundle], Awaitable[T]]) -> T:
    """Run ``work`` under one bundle from facts to decision, anew when another became active meanwhile.

    Raises:
        StorageUnavailableError: bundles kept changing.
        PoliciesBehindError: another replica has a bundle in force that this one does not have yet.
    """
    for _ in range(_SWAPS_BORNE):
        try:
            return await work(ctx.active.current)
        except BundleChangedError:
            continue
        except OutdatedBundleError:
            await follow_active_commit(ctx)
    raise StorageUnavailableError("the policies changed faster than this request could be decided; repeat it")


def require_current_bundle(ctx: Context, bundle: Bundle) -> None:
    """Refuse to decide under a bundle that is not active any more.

    Raises:
        BundleSwappedError: another one is.
    """
    if ctx.active.current is not bundle:
        raise BundleChangedError


async def gather_facts(
    bundle: Bundle, effects: Sequence[EffectRow | Effect], now: datetime
) -> dict[str, Facts]:
    """Facts for every effect, stored or only named, read side by side, before any unit of work begins."""

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
    """What a bundle is asked about one effect; the facts are of that bundle."""
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


def evaluate_policy(bundle: Bundle, effect: EffectRow, question: PolicyRequest) -> Decision:
    """Ask the bundle about one effect; nothing is stored."""
    decision = decide(bundle.rules, question)
    if decision.alarms:
        metrics.POLICY_ERRORS.inc()
        # The engine's words quote values from the args, which may be secret: the log gets the policies' ids.
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
) -> tuple[Decision, metering.MeterReading]:
    """Ask about an effect that is not stored yet, and let it hold its part of the meters unless it is denied. With what
    the meters showed, to be recorded. The unit is alone with those the effect is counted for."""
    sight = metering.read_meters(tx.conn, bundle, effect, tx.now)
    question = policy_request(ctx, agent, effect, facts, now=tx.now, history=sight.values, **about)
    decision = evaluate_policy(bundle, effect, question)
    if decision.outcome is not Verdict.DENY:
        effect.metered = metering.reserve(tx, bundle, effect, sight.missing)
    return decision, sight


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
    """Ask about a known effect, record the answer, keep the gates that fired, and count its votes: ``counted`` is their
    count under the gates it had, which holds where no other gate fires.

    The effect is not moved; the caller does that with what it learns here. ``caller`` is who wants to spend or renew
    it: policy sees the weaker of the two proofs, so that a rule about API keys holds at the end as at the beginning.
    """
    sight = metering.reread_meters(tx, bundle, effect)
    question = policy_request(
        ctx,
        agent,
        effect,
        facts,
        now=tx.now,
        history=sight.values,
        txn_size=1 if effect.kind == "compensate" else len(snapshot.effects),
        claimed=snapshot.transaction.claimed,
        reevaluated=True,
        method=weakest_auth_method(snapshot, caller),
    )
    decision = evaluate_policy(bundle, effect, question)
    if decision.outcome is not Verdict.DENY and metering.reserve(tx, bundle, effect, sight.missing):
        set_columns(tx, effect, metered=True)
    gates = () if is_preapproved_compensation(snapshot, effect) else gates_of(effect, decision.gates)
    if counted is None or gates != gates_of(effect):
        counted = count_votes(ctx, bundle, snapshot, effect, agent, gates, tx.now)
    decision_id = record_decision(tx, snapshot, effect, decision, facts, sight, cause)
    return Evaluation(decision, decision_id, gates, counted)


def weakest_auth_method(snapshot: Snapshot, caller: Caller | None) -> str:
    """How the agent proved itself, at its weakest: at submission or now, when it calls for itself."""
    methods = {snapshot.transaction.method}
    if caller is not None and caller.agent == snapshot.transaction.agent:
        methods.add(caller.method)
    return "api_key" if "api_key" in methods else "key"


def is_preapproved_compensation(snapshot: Snapshot, effect: EffectRow) -> bool:
    """Whether an effect is the compensation of one that people approved: they saw it then, its gates count as met."""
    forward = snapshot.find(effect.compensates or "")
    if forward is None or forward.compensation is None:
        return False
    # What comes from the result was not known when they voted, and it is the agent that reports it.
    if reads_result(forward.compensation["map"]):
        return False
    approvals = (vote for vote in snapshot.votes_on(forward) if vote.verdict in _LET_GO)
    return any(not vote.late and vote.revoked_at is None for vote in approvals)


def record_decision(
    tx: Tx,
    snapshot: Snapshot,
    effect: EffectRow,
    decision: Decision,
    facts: Facts,
    sight: metering.MeterReading,
    cause: TransitionReason,
) -> str:
    """Store one decision with the facts and the meters it was made on, and its line in the log. Its id."""
    decision_id = new_id("dec", tx.now)
    gates = [gate.policy_id for gate in decision.gates]
    body: dict[str, Any] = {
        "decision_id": decision_id,
        "outcome": decision.outcome.value,
        "cause": cause.why,
        "policies": list(decision.policies),
        "gates": gates,
        "bundle": decision.bundle,
        "commit": decision.commit,
    }
    row = DecisionRow(
        effect_id=effect.effect_id,
        rev=effect.rev,
        reasons=[asdict(reason) for reason in decision.reasons],
        unseen=list(decision.unseen),
        facts=_shown(sight.beside(facts)),
        history=sight.values,
        decided_at=tx.now,
        **body,
    )
    insert(tx, row)
    snapshot.decisions[decision_id] = row
    audit_effect(tx, effect, "decision_made", SERVICE, {**body, "effect_digest": effect.effect_digest})
    return decision_id


def _shown(facts: Facts) -> list[dict[str, str]]:
    return [
        {"label": fact.label, "value": fact.value, "source": fact.source, "as_of": time_text(fact.as_of)}
        for fact in facts.shown
    ]
