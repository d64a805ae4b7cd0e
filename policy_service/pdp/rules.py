"""The rules of one bundle as decisions use them, and the calls of the Cedar engine that evaluate them.

Guards are the permits and plain forbids; gates are the forbids that ask people. The two are never mixed. The policy
sets of a tool hold exactly the policies whose action scope can match it. Leaving out the others changes no answer,
because Cedar evaluates the scope before the conditions. The action hierarchy must be the schema's own, so a policy set
belongs to one bundle.

Rules of evaluation, each reproduced in the tests:
- Cedar skips a policy that errs, so an erring forbid would let the request through. Errors are read after every call.
- A request outside the schema yields an error, never an empty answer.
- Entities are always built with the schema, because without it no action group ever matches.
- The agent and the resource are always supplied, because reading an attribute of a missing entity errs.
- Resource, flags and groups come from the bundle's manifest, never from the agent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

from cedarpy import Decision as CedarDecision
from cedarpy import Entities, PolicySet, Schema, is_authorized, pst

from countersign.contract import JSON, Resource, ToolManifest
from policy_service.domain.gates import Gate
from policy_service.domain.policy_request import (
    AgentPrincipal,
    Claimed,
    EncodedArgs,
    PolicyRequest,
    datetime_value,
)

UNSEEN: Final = "unseen"
"""Policy id and group of the built-in gate for fields Cedar cannot evaluate; no author's policy may use the id."""

UNSEEN_GATE: Final = Gate(
    UNSEEN, frozenset({UNSEEN}), shared=True, title="Carries fields the policy cannot evaluate"
)

UNKNOWN_TOOL: Final = "unknown-tool"
"""Policy id of the built-in gate for unknown tools. It applies in dev only; elsewhere an unknown tool is denied."""

UNKNOWN_TOOL_GATE: Final = Gate(
    UNKNOWN_TOOL, frozenset({UNSEEN}), title="UNKNOWN TOOL: it has no reviewed manifest"
)

DEV: Final = "dev"
"""The only environment in which an unknown tool asks people; settings keep it on loopback."""


class Codec(Protocol):
    """Encodes the args of one tool as `context.input`."""

    def encode(self, args: JSON) -> EncodedArgs:
        """The args as policy sees them; raises ArgsRefusedError."""

    @property
    def possible_unseen(self) -> frozenset[str]:
        """The fields that policy cannot evaluate when they are present."""


@dataclass(frozen=True, slots=True)
class PolicySource:
    """One policy as its author wrote it, and where. `gate` is set on a forbid that asks people."""

    id: str
    effect: Literal["permit", "forbid"]
    file: str
    line: int
    text: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    gate: Gate | None = None
    unseen: frozenset[str] = frozenset()
    people_action: str | None = (
        None  # the action of people it is about (approve, settle, stop), else a tool's
    )

    @property
    def title(self) -> str:
        """A short title, or the id."""
        return self.annotations.get("title") or self.id

    @property
    def doc(self) -> str:
        return self.annotations.get("doc", "")

    @property
    def kind(self) -> str:
        """`permit`, `forbid` or `gate`, for people."""
        return self.effect if self.gate is None else "gate"

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class ToolRules:
    """Everything needed to decide a call of one version of a tool. `everything` is guards and gates together."""

    manifest: ToolManifest
    codec: Codec
    schema: Schema
    guards: PolicySet
    gates: frozenset[str]
    everything: PolicySet
    permits: tuple[str, ...] = ()
    resource_attributes: frozenset[str] = frozenset()
    agent_attributes: frozenset[str] = frozenset()
    meters: tuple[str, ...] = ()  # those that count this tool


@dataclass(frozen=True, slots=True)
class PeopleRules:
    """The policies about one action of people: `Action::"approve"`, `Action::"stop"`."""

    schema: Schema
    policies: PolicySet


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one bundle. `tools` are the current versions by name, `versions` all by name and digest."""

    digest: str
    commit: str
    tools: Mapping[str, ToolRules]
    versions: Mapping[tuple[str, str], ToolRules]
    policies: Mapping[str, PolicySource]
    groups_of: Callable[[str], frozenset[str]]
    people: Mapping[str, PeopleRules] = field(default_factory=dict)  # by action: approve, settle, stop, ...
    asked: frozenset[str] = frozenset()  # the groups that any gate names
    places: Mapping[str, int] = field(init=False, repr=False)  # position of each policy, by file and line

    def __post_init__(self) -> None:
        # Computed once, so that a decision does not iterate over the policies of other tools.
        places = {policy_id: place for place, policy_id in enumerate(self.policies)}
        object.__setattr__(self, "places", places)

    def in_order(self, policy_ids: Iterable[str]) -> tuple[str, ...]:
        """The known ones of these ids in file order, so that equal questions give equal answers."""
        known = {policy_id for policy_id in policy_ids if policy_id in self.places}
        return tuple(sorted(known, key=self.places.__getitem__))


def scope_actions(policy: pst.Template) -> frozenset[str] | None:
    """Ids of the actions and groups in a policy's scope; None when it is open to every action."""
    match policy.action:
        case pst.ActionEq(entity=entity):
            return frozenset({entity.id})
        case pst.ActionIn(entities=entities):
            return frozenset(entity.id for entity in entities)
    return None


def scope_may_match(policy: pst.Template, action: str, groups: Iterable[str]) -> bool:
    """Whether this policy's action scope can match that action, itself or through one of its groups."""
    match policy.action:
        case pst.ActionEq(entity=entity):
            return bool(entity.id == action)
        case pst.ActionIn(entities=entities):
            reachable = {action, *groups}
            return any(entity.id in reachable for entity in entities)
    return True


def policy_set(policies: Mapping[str, pst.Template]) -> PolicySet:
    """The engine's handle of these policies; its reasons and errors carry their ids."""
    return PolicySet.from_pst(pst.PolicySet(templates={}, static_policies=dict(policies), template_links=()))


# -- evaluation --------------------------------------------------------------------------------------------------------

Uid: TypeAlias = dict[str, str]
_FAILED_POLICY: Final = re.compile(r"error while evaluating policy `([A-Za-z0-9._-]+)`")


@dataclass(frozen=True, slots=True)
class CedarRequest:
    """One authorization request; `context` is JSON text, written once for both policy sets."""

    principal: Uid
    action: Uid
    resource: Uid
    context: str


@dataclass(frozen=True, slots=True)
class CedarAnswer:
    """The engine's answer for one policy set. If `errors` is not empty, nothing else in it is valid."""

    allowed: bool
    reasons: frozenset[str] = frozenset()
    errors: tuple[str, ...] = ()


def entity_uid(kind: str, name: str) -> Uid:
    """An entity's id as data, safe for any characters."""
    return {"type": kind, "id": name}


def entity_json(of: Uid, attrs: Mapping[str, Any], parents: Sequence[Uid] = ()) -> dict[str, Any]:
    return {"uid": of, "attrs": attrs, "parents": parents}


def person_entity_json(person: str, groups: frozenset[str]) -> dict[str, Any]:
    return entity_json(entity_uid("User", person), {}, [entity_uid("Group", name) for name in sorted(groups)])


def agent_entity_json(agent: AgentPrincipal, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """An agent with its owner, its roles and teams, and these other attributes."""
    owner = {} if agent.owner is None else {"owner": {"__entity": entity_uid("User", agent.owner)}}
    roles = [entity_uid("Role", role) for role in sorted(agent.roles)]
    teams = [entity_uid("Group", team) for team in sorted(agent.teams)]
    return entity_json(entity_uid("Agent", agent.name), {**attributes, **owner}, roles + teams)


def build_entities(entities: Sequence[Mapping[str, Any]], schema: Schema) -> Entities:
    """The entities of one request, checked against the schema.

    Raises:
        ValueError: one of them does not fit: an attribute is missing, unknown or of another type.
    """
    return Entities.from_json_str(json.dumps(entities), schema)


def evaluate_policies(
    policies: PolicySet, request: CedarRequest, entities: Entities, schema: Schema
) -> CedarAnswer:
    """Evaluate one policy set. Input the engine rejects yields an answer with errors."""
    result = is_authorized(
        {
            "principal": request.principal,
            "action": request.action,
            "resource": request.resource,
            "context": request.context,
        },
        policies,
        entities,
        schema,
    )
    errors = tuple(result.diagnostics.errors)
    if result.decision not in (CedarDecision.Allow, CedarDecision.Deny):
        return CedarAnswer(False, errors=errors or ("the engine came to no decision and did not say why",))
    return CedarAnswer(result.decision is CedarDecision.Allow, frozenset(result.diagnostics.reasons), errors)


def failed_policy_ids(errors: Sequence[str]) -> tuple[str, ...]:
    """Ids of the policies these errors are about."""
    return tuple(match.group(1) for error in errors if (match := _FAILED_POLICY.match(error)))


def build_request(
    question: PolicyRequest, tool: ToolRules, resource: Resource, encoded: EncodedArgs
) -> CedarRequest:
    """The request that guards and gates are evaluated on."""
    manifest = tool.manifest
    context: dict[str, Any] = {
        "input": encoded.input,
        "effect": {"compensable": manifest.compensation is not None, "idempotent": manifest.idempotent},
        "txn": {"size": question.txn_size},
        # A meter without a value reads 0: only a dry run without a history leaves one out.
        "history": {name: question.history.get(name, 0) for name in tool.meters},
        "claimed": _claimed(question.claimed),
        "now": datetime_value(question.now),
        "env": question.env,
    }
    if question.on_behalf_of is not None:
        context["on_behalf_of"] = {"__entity": entity_uid("User", question.on_behalf_of)}
    return CedarRequest(
        principal=entity_uid("Agent", question.agent.name),
        action=entity_uid("Action", manifest.tool),
        resource=entity_uid(resource.type, resource.id),
        context=json.dumps(context),
    )


def entities_json(question: PolicyRequest, rules: Rules, resource: Resource) -> list[dict[str, Any]]:
    """Agent, resource, and the people a policy may refer to, with their groups."""
    agent = question.agent
    people = {person for person in (agent.owner, question.on_behalf_of) if person is not None}
    return [
        agent_entity_json(agent, {**question.facts.agent, "proof": question.method}),
        entity_json(entity_uid(resource.type, resource.id), question.facts.resource),
        *(person_entity_json(person, rules.groups_of(person)) for person in sorted(people)),
    ]


def missing_facts(question: PolicyRequest, tool: ToolRules) -> tuple[str, ...]:
    """Required attributes that this question does not carry."""
    return (
        *sorted(tool.resource_attributes.difference(question.facts.resource)),
        *sorted(tool.agent_attributes.difference(question.facts.agent)),
    )


def _claimed(claimed: Claimed) -> Mapping[str, str]:
    said = {"purpose": claimed.purpose, "reasoning": claimed.reasoning, "on_behalf_of": claimed.on_behalf_of}
    return {name: text for name, text in said.items() if text is not None}
