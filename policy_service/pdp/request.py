"""From a question to what the engine is given: principal, action, resource, context and the entities behind
them.

Rules kept here: resource, flags and groups come from the bundle's manifest, never from the agent; the agent
and the resource are always supplied as entities, because a rule that reads an attribute of a missing entity
errs; only this code writes typed Cedar values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from countersign.contract import Resource
from policy_service.domain.question import Claimed, Encoded, Question
from policy_service.domain.values import datetime_value
from policy_service.pdp.cedar import Request, entity, uid
from policy_service.pdp.rules import Rules, ToolRules


def request_for(question: Question, tool: ToolRules, resource: Resource, encoded: Encoded) -> Request:
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


def entities_for(question: Question, rules: Rules, resource: Resource) -> list[dict[str, Any]]:
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


def missing_facts(question: Question, tool: ToolRules) -> tuple[str, ...]:
    """Attributes every effect of this tool must have and this one has not."""
    return (
        *sorted(tool.resource_attributes.difference(question.facts.resource)),
        *sorted(tool.agent_attributes.difference(question.facts.agent)),
    )


def _claimed(claimed: Claimed) -> Mapping[str, str]:
    said = {"purpose": claimed.purpose, "reasoning": claimed.reasoning, "on_behalf_of": claimed.on_behalf_of}
    return {name: text for name, text in said.items() if text is not None}
