"""Build the engine's requests and entities, and ask it; every way in which it may fail to answer is an error.

Rules kept here (reproduced in the tests): Cedar skips a policy that errs, so an erring forbid would let the
request through: errors are read every time. A request outside the schema is no decision, never an empty one.
Policies, entities and schema are handles made before; entities are always made with the schema, because
otherwise no action group ever matches. Resource, flags and groups come from the bundle's manifest, never from the
agent; the agent and the resource are always supplied as entities, because a rule that reads an attribute of a missing
entity errs; only this code writes typed Cedar values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from cedarpy import Decision as CedarDecision
from cedarpy import Entities, PolicySet, Schema, is_authorized

from countersign.contract import Resource
from policy_service.domain.policy_request import Claimed, EncodedArgs, PolicyRequest
from policy_service.domain.values import datetime_value
from policy_service.pdp.rules import Rules, ToolRules

Uid: TypeAlias = dict[str, str]

_FAILED_POLICY: Final = re.compile(r"error while evaluating policy `([A-Za-z0-9._-]+)`")


@dataclass(frozen=True, slots=True)
class CedarRequest:
    """Who, what, on which, in which context; `context` is JSON text, written once for both questions."""

    principal: Uid
    action: Uid
    resource: Uid
    context: str


@dataclass(frozen=True, slots=True)
class CedarAnswer:
    """What the engine said of one policy set. Where `errors` is not empty, nothing else may be believed."""

    allowed: bool
    reasons: frozenset[str] = frozenset()
    errors: tuple[str, ...] = ()


def entity_uid(kind: str, name: str) -> Uid:
    """An entity's id as data, safe for any characters."""
    return {"type": kind, "id": name}


def entity_json(of: Uid, attrs: Mapping[str, Any], parents: Sequence[Uid] = ()) -> dict[str, Any]:
    """One entity in Cedar's JSON."""
    return {"uid": of, "attrs": attrs, "parents": parents}


def build_entities(entities: Sequence[Mapping[str, Any]], schema: Schema) -> Entities:
    """The entities of one request, checked against the schema.

    Raises:
        ValueError: one of them does not fit: an attribute is missing, unknown or of another type.
    """
    return Entities.from_json_str(json.dumps(entities), schema)


def evaluate_policies(
    policies: PolicySet, request: CedarRequest, entities: Entities, schema: Schema
) -> CedarAnswer:
    """Ask one policy set. Any input the engine will not take is an answer with errors."""
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
    """The request both policy sets are asked about."""
    manifest = tool.manifest
    context: dict[str, Any] = {
        "input": encoded.input,
        "effect": {"compensable": manifest.compensation is not None, "idempotent": manifest.idempotent},
        "txn": {"size": question.txn_size},
        # what a question does not say reads 0: only a dry run without a history leaves it out
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
    """Agent, resource, and the people the policy may ask about, with their groups."""
    agent = question.agent
    attributes: dict[str, Any] = {**question.facts.agent, "proof": question.method}
    if agent.owner is not None:
        attributes["owner"] = {"__entity": entity_uid("User", agent.owner)}
    parents = [entity_uid("Role", role) for role in sorted(agent.roles)] + [
        entity_uid("Group", team) for team in sorted(agent.teams)
    ]
    people = {person for person in (agent.owner, question.on_behalf_of) if person is not None}
    return [
        entity_json(entity_uid("Agent", agent.name), attributes, parents),
        entity_json(entity_uid(resource.type, resource.id), question.facts.resource),
        *(person_entity_json(person, rules.groups_of(person)) for person in sorted(people)),
    ]


def person_entity_json(person: str, groups: frozenset[str]) -> dict[str, Any]:
    """A person in their groups."""
    return entity_json(
        entity_uid("User", person), {}, [entity_uid("Group", group) for group in sorted(groups)]
    )


def missing_facts(question: PolicyRequest, tool: ToolRules) -> tuple[str, ...]:
    """Attributes every effect of this tool must have and this one has not."""
    return (
        *sorted(tool.resource_attributes.difference(question.facts.resource)),
        *sorted(tool.agent_attributes.difference(question.facts.agent)),
    )


def _claimed(claimed: Claimed) -> Mapping[str, str]:
    said = {"purpose": claimed.purpose, "reasoning": claimed.reasoning, "on_behalf_of": claimed.on_behalf_of}
    return {name: text for name, text in said.items() if text is not None}
