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
class Request:
    """Who, what, on which, in which context; `context` is JSON text, written once for both questions."""

    principal: Uid
    action: Uid
    resource: Uid
    context: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engine said of one policy set. Where `errors` is not empty, nothing else may be believed."""

    allowed: bool
    reasons: frozenset[str] = frozenset()
    errors: tuple[str, ...] = ()


def uid(kind: str, name: str) -> Uid:
    """An entity's id as data, safe for any characters."""
    return {"type": kind, "id": name}


def entity(of: Uid, attrs: Mapping[str, Any], parents: Sequence[Uid] = ()) -> dict[str, Any]:
    """One entity in Cedar's JSON."""
    return {"uid": of, "attrs": attrs, "parents": parents}


def entities_of(entities: Sequence[Mapping[str, Any]], schema: Schema) -> Entities:
    """The entities of one request, checked against the schema.

    Raises:
        ValueError: one of them does not fit: an attribute is missing, unknown or of another type.
    """
    return Entities.from_json_str(json.dumps(entities), schema)


def ask(policies: PolicySet, request: Request, entities: Entities, schema: Schema) -> Answer:
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
        return Answer(False, errors=errors or ("the engine came to no decision and did not say why",))
    return Answer(result.decision is CedarDecision.Allow, frozenset(result.diagnostics.reasons), errors)


def failed_policies(errors: Sequence[str]) -> tuple[str, ...]:
    """Ids of the policies these errors are about."""
    return tuple(match.group(1) for error in errors if (match := _FAILED_POLICY.match(error)))


def request_for(question: PolicyRequest, tool: ToolRules, resource: Resource, encoded: EncodedArgs) -> Request:
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
        context["on_behalf_of"] = {"__entity": uid("User", question.on_behalf_of)}
    return Request(
        principal=uid("Agent", question.agent.name),
        action=uid("Action", manifest.tool),
        resource=uid(resource.type, resource.id),
        context=json.dumps(context),
    )


def entities_for(question: PolicyRequest, rules: Rules, resource: Resource) -> list[dict[str, Any]]:
    """Agent, resource, and the people the policy may ask about, with their groups."""
    agent = question.agent
    attributes: dict[str, Any] = {**question.facts.agent, "proof": question.method}
    if agent.owner is not None:
        attributes["owner"] = {"__entity": uid("User", agent.owner)}
    parents = [uid("Role", role) for role in sorted(agent.roles)] + [
        uid("Group", team) for team in sorted(agent.teams)
    ]
    people = {person for person in (agent.owner, question.on_behalf_of) if person is not None}
    return [
        entity(uid("Agent", agent.name), attributes, parents),
        entity(uid(resource.type, resource.id), question.facts.resource),
        *(person_entity(person, rules.groups_of(person)) for person in sorted(people)),
    ]


def person_entity(person: str, groups: frozenset[str]) -> dict[str, Any]:
    """A person in their groups."""
    return entity(uid("User", person), {}, [uid("Group", group) for group in sorted(groups)])


def missing_facts(question: PolicyRequest, tool: ToolRules) -> tuple[str, ...]:
    """Attributes every effect of this tool must have and this one has not."""
    return (
        *sorted(tool.resource_attributes.difference(question.facts.resource)),
        *sorted(tool.agent_attributes.difference(question.facts.agent)),
    )


def _claimed(claimed: Claimed) -> Mapping[str, str]:
    said = {"purpose": claimed.purpose, "reasoning": claimed.reasoning, "on_behalf_of": claimed.on_behalf_of}
    return {name: text for name, text in said.items() if text is not None}
