"""Evaluate the bundle's rules about actions of people: approving a review, settling a task, stopping a tool.

The principal is the person. Separation of duties and the groups of a gate are checked before this, elsewhere. A bundle
without rules about approving does not narrow who may approve. With one, plain Cedar decides, and an error is a
refusal. For any other action a bundle without rules gives no answer, and the caller must apply a rule of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from policy_service.domain.person_actions import APPROVE, RESOURCE_TYPES
from policy_service.domain.policy_request import AgentPrincipal, Reason, datetime_value
from policy_service.pdp.rules import (
    CedarAnswer,
    CedarRequest,
    PeopleRules,
    Rules,
    agent_entity_json,
    build_entities,
    entity_json,
    entity_uid,
    evaluate_policies,
    person_entity_json,
)


@dataclass(frozen=True, slots=True)
class PersonFacts:
    """A person who wants to act, with their current groups."""

    person: str
    groups: frozenset[str]
    assurance: Literal["oidc", "dev"]


@dataclass(frozen=True, slots=True)
class ReviewFacts:
    """The review as policy sees it. `gates` are the ids of the policies that ask."""

    review_id: str
    agent: AgentPrincipal
    tool: str
    risk: str
    gates: frozenset[str]
    opened_at: datetime


@dataclass(frozen=True, slots=True)
class TaskFacts(ReviewFacts):
    """A task as policy sees it; `review_id` is the task's id here, `gates` those of its effect."""

    kind: str = ""


@dataclass(frozen=True, slots=True)
class StopFacts:
    """The target of a stop or restart: an `agent` or a `tool` by name, or `everything`."""

    what: Literal["agent", "tool", "everything"]
    name: str = ""

    @property
    def id(self) -> str:
        return f"{self.what}:{self.name}" if self.name else self.what


@dataclass(frozen=True, slots=True)
class Permission:
    """Whether Cedar lets this person do it; truthy when it does. `alarms` are for the operator."""

    granted: bool
    policies: tuple[str, ...] = ()
    reason: Reason | None = None
    alarms: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.granted


def check_approve_rules(
    rules: Rules, approver: PersonFacts, review: ReviewFacts, *, now: datetime, env: str = "production"
) -> Permission:
    """Evaluate the bundle's rules about approving; granted when it has none."""
    granted = check_people_rules(rules, APPROVE, approver, review, now=now, env=env)
    return Permission(True) if granted is None else granted


def check_people_rules(
    rules: Rules,
    action: str,
    person: PersonFacts,
    what: ReviewFacts | StopFacts,
    *,
    now: datetime,
    env: str = "production",
) -> Permission | None:
    """Evaluate the bundle's rules about one action of people; None when it has none."""
    about = rules.people.get(action)
    if about is None:
        return None
    context = {"assurance": person.assurance, "now": datetime_value(now), "env": env}
    request = CedarRequest(
        principal=entity_uid("User", person.person),
        action=entity_uid("Action", action),
        resource=entity_uid(
            RESOURCE_TYPES[action], what.review_id if isinstance(what, ReviewFacts) else what.id
        ),
        context=json.dumps(context),
    )
    answer = _evaluate(about, request, _entities(rules, action, person, what))
    if answer.errors:
        text = (
            f'the rules about Action::"{action}" could not be evaluated, and doubt is a no; the policy\'s owner has to '
            "fix them (the service's log says which)"
        )
        return Permission(False, reason=Reason("policy_error", text), alarms=answer.errors)
    policies = rules.in_order(answer.reasons)
    if answer.allowed:
        return Permission(True, policies)
    return Permission(False, policies, _refusal(rules, action, policies))


def _refusal(rules: Rules, action: str, forbids: tuple[str, ...]) -> Reason:
    if not forbids:
        doing = f"{action.replace('_', ' ')} this {RESOURCE_TYPES[action].lower()}"
        return Reason("not_eligible", f"no policy permits you to {doing}; ask your administrator who may")
    policy = rules.policies[forbids[0]]
    return Reason("not_eligible", policy.doc or f"{policy.title} ({policy.place})", policy=policy.id)


def _evaluate(about: PeopleRules, request: CedarRequest, entities: list[dict[str, Any]]) -> CedarAnswer:
    try:
        built = build_entities(entities, about.schema)
    except ValueError as error:
        return CedarAnswer(False, errors=(f"entities do not fit the schema: {error}",))
    return evaluate_policies(about.policies, request, built, about.schema)


def _entities(
    rules: Rules, action: str, person: PersonFacts, what: ReviewFacts | StopFacts
) -> list[dict[str, Any]]:
    people = [person_entity_json(person.person, person.groups)]
    if isinstance(what, StopFacts):
        stop = entity_json(entity_uid("Stop", what.id), {"what": what.what, "name": what.name})
        return [*people, stop]
    agent = what.agent
    if agent.owner is not None and agent.owner != person.person:
        people.append(person_entity_json(agent.owner, rules.groups_of(agent.owner)))
    attributes = {
        "agent": {"__entity": entity_uid("Agent", agent.name)},
        "tool": what.tool,
        "risk": what.risk,
        "gates": sorted(what.gates),
        "opened_at": datetime_value(what.opened_at),
        **({"kind": what.kind} if isinstance(what, TaskFacts) else {}),
    }
    return [
        *people,
        agent_entity_json(agent, {}),
        entity_json(entity_uid(RESOURCE_TYPES[action], what.review_id), attributes),
    ]
