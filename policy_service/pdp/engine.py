"""Decide one effect: release, review or deny, with the reasons (design section 4, "The rule").

The steps are numbered as in the code. A step that fails is a deny, and no later step runs:

1. The bundle holds the tool, by name and digest; several versions of a tool may be in force. In dev, a tool the bundle
   never held asks people instead.
2. The args fit the reviewed manifest; the resource follows from them.
3. The facts are present, fresh, and of this bundle.
4. The engine evaluates guards and gates, with schema and entities. Every error is read.
5. One table combines the answers of guards and gates.
6. Fields Cedar cannot evaluate ask people, unless one satisfied permit names every such field present.

The table of step 5:

guards (permits, plain forbids) | gates fired | outcome
any error in either             |             | policy_error: a deny, and an alarm
deny                            | any         | deny: a gate never turns a plain forbid into a question
allow                           | none        | release
allow                           | some        | review: every gate that fired must be met

A reason quotes values of args only where the manifest's own check does. Engine errors go to the operator, never into a
reason. Text an author wrote (`@doc`, `@title`) is passed on unchanged.

Pure: no clock, no IO. Bad input yields an answer, never an exception. The cost is one engine call on prepared
handles, and a second when a gate fired.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from cedarpy import Entities

from countersign.contract import ContractError, DenyCode, Resource, Verdict, manifest_file
from policy_service.domain.gates import DEFAULT_VALID_FOR, Gate
from policy_service.domain.policy_request import (
    Decision,
    EncodedArgs,
    InvalidArgsError,
    PolicyRequest,
    Reason,
)
from policy_service.pdp.rules import (
    DEV,
    UNKNOWN_TOOL,
    UNKNOWN_TOOL_GATE,
    UNSEEN,
    UNSEEN_GATE,
    CedarAnswer,
    CedarRequest,
    Rules,
    ToolRules,
    build_entities,
    build_request,
    entities_json,
    evaluate_policies,
    failed_policy_ids,
    missing_facts,
)


@dataclass(frozen=True, slots=True)
class RulesOutcome:
    """The verdict, and which policies determined it."""

    verdict: Verdict
    determining: frozenset[str]
    fired: frozenset[str] = frozenset()
    errors: tuple[str, ...] = ()


def combine_outcome(guards: CedarAnswer, fired: frozenset[str]) -> RulesOutcome:
    """The table of step 5."""
    # Cedar skips a policy that raises an error. A skipped forbid would permit, so any error denies.
    if guards.errors:
        return RulesOutcome(Verdict.DENY, frozenset(), errors=guards.errors)
    if not guards.allowed:
        return RulesOutcome(Verdict.DENY, guards.reasons)
    if not fired:
        return RulesOutcome(Verdict.RELEASE, guards.reasons)
    return RulesOutcome(Verdict.REVIEW, guards.reasons | fired, fired=fired)


def evaluate_rules(tool: ToolRules, request: CedarRequest, entities: Entities) -> RulesOutcome:
    """Evaluate guards and gates, in one engine call where possible.

    Evaluated together they name every satisfied forbid, gates and plain ones, and every error. Only the permits are
    hidden when a gate fires; then the guards are evaluated once more alone.
    """
    together = evaluate_policies(tool.everything, request, entities, tool.schema)
    fired = together.reasons & tool.gates
    if together.errors or not fired:
        return combine_outcome(together, frozenset())
    return combine_outcome(evaluate_policies(tool.guards, request, entities, tool.schema), fired)


def decide(rules: Rules, question: PolicyRequest) -> Decision:
    """Decide one question by these rules."""
    current = rules.tools.get(question.tool)  # step 1
    if current is None:
        return _unknown(rules, question)
    tool = rules.versions.get((question.tool, question.tool_digest))
    if tool is None:
        return _deny(rules, (tool_changed_reason(question, current.manifest.digest),))
    try:  # step 2
        encoded = tool.codec.encode(question.args)
        resource = tool.manifest.resource_of(question.args)
    except (InvalidArgsError, ContractError) as error:
        return _deny(rules, (invalid_args_reason(question, str(error)),))
    if problem := _facts_problem(rules, question, tool):  # step 3
        alarms = () if question.facts.alarm is None else (question.facts.alarm,)
        return _deny(rules, (facts_unavailable_reason(problem),), unseen=encoded.unseen, alarms=alarms)
    outcome = _ask(rules, question, tool, resource, encoded)  # steps 4 and 5
    if outcome.verdict is Verdict.DENY:
        return _denied(rules, question, tool, resource, outcome, encoded.unseen)
    return _granted(rules, outcome, encoded.unseen)  # step 6


def _unknown(rules: Rules, question: PolicyRequest) -> Decision:
    if question.env == DEV and (question.reviewed_as_unknown or not question.reevaluated):
        return Decision(
            outcome=Verdict.REVIEW,
            bundle=rules.digest,
            commit=rules.commit,
            policies=(UNKNOWN_TOOL,),
            gates=(UNKNOWN_TOOL_GATE,),
        )
    if question.reevaluated:
        return _deny(rules, (tool_changed_reason(question, None),))
    return _deny(rules, (unknown_tool_reason(question),))


def _facts_problem(rules: Rules, question: PolicyRequest, tool: ToolRules) -> str | None:
    facts = question.facts
    if facts.failed is not None:
        return facts.failed
    # Facts are read before the unit of work; another bundle may ask for others, or mean something else by them.
    if facts.bundle != rules.digest:
        return "the rules changed while the facts were read"
    if missing := missing_facts(question, tool):
        return f"the fact {missing[0]!r} is not known"
    return None


def _ask(
    rules: Rules, question: PolicyRequest, tool: ToolRules, resource: Resource, encoded: EncodedArgs
) -> RulesOutcome:
    try:
        entities = build_entities(entities_json(question, rules, resource), tool.schema)
    except ValueError as error:
        return RulesOutcome(Verdict.DENY, frozenset(), errors=(f"entities do not fit the schema: {error}",))
    request = build_request(question, tool, resource, encoded)
    return evaluate_rules(tool, request, entities)


def _granted(rules: Rules, outcome: RulesOutcome, unseen: tuple[str, ...]) -> Decision:
    determining = rules.in_order(outcome.determining)
    fired = [rules.policies[policy_id].gate for policy_id in rules.in_order(outcome.fired)]
    gates: tuple[Gate, ...] = tuple(gate for gate in fired if gate is not None)
    # INVARIANT: a gate that fired is never dropped before it reaches the people it asks.
    if len(gates) != len(outcome.fired):
        errors = (f"gates fired that these rules do not hold: {sorted(outcome.fired)}",)
        return _deny(rules, policy_error_reasons(rules, errors), unseen=unseen, alarms=errors)
    # Cedar cannot evaluate these fields. Unless a permit names them, a person looks at them.
    if unseen and not _named_by_a_permit(rules, determining, unseen):
        gates, determining = (*gates, UNSEEN_GATE), (*determining, UNSEEN)
    return Decision(
        outcome=Verdict.REVIEW if gates else Verdict.RELEASE,
        bundle=rules.digest,
        commit=rules.commit,
        policies=determining,
        gates=gates,
        unseen=unseen,
        valid_for=min((gate.valid_for for gate in gates), default=DEFAULT_VALID_FOR),
    )


def _named_by_a_permit(rules: Rules, determining: Sequence[str], unseen: tuple[str, ...]) -> bool:
    """Whether a single satisfied permit names every unseen field present. Two permits do not add up."""
    return any(rules.policies[policy_id].unseen.issuperset(unseen) for policy_id in determining)


def _denied(
    rules: Rules,
    question: PolicyRequest,
    tool: ToolRules,
    resource: Resource,
    outcome: RulesOutcome,
    unseen: tuple[str, ...],
) -> Decision:
    if outcome.errors:
        return _deny(rules, policy_error_reasons(rules, outcome.errors), unseen=unseen, alarms=outcome.errors)
    forbids = rules.in_order(outcome.determining)
    if forbids:
        return _deny(rules, forbidden_reasons(rules, forbids), policies=forbids, unseen=unseen)
    return _deny(rules, (no_permit_reason(question, rules, tool, resource),), unseen=unseen)


def _deny(
    rules: Rules,
    why: tuple[Reason, ...],
    *,
    policies: tuple[str, ...] = (),
    unseen: tuple[str, ...] = (),
    alarms: tuple[str, ...] = (),
) -> Decision:
    return Decision(
        outcome=Verdict.DENY,
        bundle=rules.digest,
        commit=rules.commit,
        policies=policies,
        reasons=why,
        unseen=unseen,
        alarms=alarms,
    )


_SHOWN = 12  # digits of a digest, enough to distinguish two manifests by eye


def unknown_tool_reason(question: PolicyRequest) -> Reason:
    tool = question.tool
    return Reason(
        DenyCode.UNKNOWN_TOOL.value,
        f"the active bundle holds no tool {tool!r}, so nothing permits it",
        advice="draft its manifest with `countersign tools export --tools MODULE`, have it reviewed as "
        f"tools/{manifest_file(tool)}, and add a permit; until then do not stage it again",
    )


def tool_changed_reason(question: PolicyRequest, reviewed: str | None) -> Reason:
    """The active manifest is not, or no longer, the one this effect was staged for."""
    tool = question.tool
    now = f"is {reviewed[:_SHOWN]}" if reviewed is not None else "is gone"
    advice = (
        f"replace tools/{manifest_file(tool)} next to your code with the reviewed manifest (GET {_route(tool)}), "
        "check that the call still means what you want, and stage it again"
        if reviewed is not None
        else f"if it should be there, the policy's owner puts tools/{manifest_file(tool)} back into the bundle "
        "(`countersign tools export --tools MODULE` drafts it); then stage the call again"
    )
    return Reason(
        DenyCode.TOOL_CHANGED.value,
        f"this effect was staged for the manifest {question.tool_digest[:_SHOWN]} of {question.tool!r}; "
        f"the active one {now}",
        advice=advice,
    )


def invalid_args_reason(question: PolicyRequest, problem: str) -> Reason:
    return Reason(
        DenyCode.INVALID_ARGS.value,
        problem,
        advice=f"correct the arguments and stage the call again: tools/{manifest_file(question.tool)} of the bundle "
        f"describes them (GET {_route(question.tool)})",
    )


def facts_unavailable_reason(problem: str) -> Reason:
    return Reason(
        DenyCode.FACTS_UNAVAILABLE.value,
        problem,
        advice="check the ids in the arguments; if they are right, the source of that fact in the bundle's facts.toml "
        "has to answer first (the service's log says what failed); then stage the call again",
    )


def policy_error_reasons(rules: Rules, errors: Sequence[str]) -> tuple[Reason, ...]:
    """One reason for each policy that is known to have failed."""
    failed = rules.in_order(failed_policy_ids(errors))
    return tuple(_policy_error(rules, policy_id) for policy_id in failed) or (_policy_error(rules, None),)


def _policy_error(rules: Rules, policy_id: str | None) -> Reason:
    place = "it" if policy_id is None else rules.policies[policy_id].place
    which = "the policy" if policy_id is None else f"policy {policy_id!r} ({place})"
    return Reason(
        DenyCode.POLICY_ERROR.value,
        f"{which} could not be evaluated for these arguments, and doubt is a no",
        policy=policy_id,
        advice=f"the policy's owner has to fix {place} (the service's log says what failed, `policy-service check` "
        "whether it loads); the same arguments will be denied until then",
    )


def forbidden_reasons(rules: Rules, policy_ids: Sequence[str]) -> tuple[Reason, ...]:
    """Plain forbids; no approval lifts them."""
    return tuple(
        Reason(
            DenyCode.FORBIDDEN_BY_POLICY.value,
            policy.doc or policy.title,
            policy=policy.id,
            advice=f"no approval lifts {policy.id!r}; only its owner can make it a question, with "
            f'`@approval("...")` at {policy.place}',
        )
        for policy in (rules.policies[policy_id] for policy_id in policy_ids)
    )


def no_permit_reason(question: PolicyRequest, rules: Rules, tool: ToolRules, resource: Resource) -> Reason:
    """Names the permits that were evaluated, and the line that would permit the call."""
    agent, name = question.agent, question.tool
    permits = ", ".join(f"{permit} ({rules.policies[permit].place})" for permit in tool.permits)
    looked_at = (
        f"the permits for this tool do not cover it: {permits}"
        if permits
        else "there is no permit for this tool"
    )
    line = f"permit (principal == Agent::{_quoted(agent.name)}, action == Action::{_quoted(name)}, resource);"
    return Reason(
        DenyCode.NO_PERMIT.value,
        f"nothing permits agent {agent.name!r} to {name} on {resource.type} {resource.id!r}; {looked_at}",
        advice=f'if it should, the policy\'s owner can add `@id("...") {line}`',
    )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _route(tool: str) -> str:
    return f"/v1/tools/{quote(tool, safe='')}"
