"""Who may do what people do here, as far as Cedar says: `Action::"approve"` on a review, `Action::"settle"` on a task,
`Action::"stop"` on what is to be stopped; the principal is the person.

Rules kept here: the requester's side, and the groups a gate asks, are decided before and apart from it; a bundle
without any rule about approving narrows nothing; with one, plain Cedar decides, and doubt is a no. A bundle without any
rule about something else says nothing about it, and the caller must have a rule of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from policy_service.domain.decision import Reason
from policy_service.domain.person_actions import APPROVE, RESOURCE_TYPES
from policy_service.domain.policy_request import AgentPrincipal
from policy_service.domain.values import datetime_value
from policy_service.pdp.cedar import (
    CedarAnswer,
    CedarRequest,
    build_entities,
    entity_json,
    entity_uid,
    evaluate_policies,
    person_entity_json,
)
from policy_service.pdp.rules import PeopleRules, Rules


@dataclass(frozen=True, slots=True)
class PersonFacts:
    """A person who wants to vote, in the groups they are in now."""

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
    """What is to be stopped, or to go on: an `agent` or a `tool` by name, or `everything`."""

    what: Literal["agent", "tool", "everything"]
    name: str = ""


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
    """Ask the bundle's rules about approving."""
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
    """Ask the bundle's rules about something people do; None when it has none."""
    about = rules.people.get(action)
    return None if about is None else _permission(rules, about, action, person, what, now, env)


def _permission(
    rules: Rules,
    about: PeopleRules,
    action: str,
    who: PersonFacts,
    what: ReviewFacts | StopFacts,
    now: datetime,
    env: str,
) -> Permission:
    answer = _ask(rules, about, action, who, what, now, env)
    if answer.errors:
        text = (
            f'the rules about Action::"{action}" could not be evaluated, and doubt is a no; the policy\'s owner mends '
            "them (the service's log says which)"
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


def _ask(
    rules: Rules,
    about: PeopleRules,
    action: str,
    approver: PersonFacts,
    what: ReviewFacts | StopFacts,
    now: datetime,
    env: str,
) -> CedarAnswer:
    asked = (
        _stop_entities(approver, what)
        if isinstance(what, StopFacts)
        else _entities(rules, action, approver, what)
    )
    context = {"assurance": approver.assurance, "now": datetime_value(now), "env": env}
    request = CedarRequest(
        principal=entity_uid("User", approver.person),
        action=entity_uid("Action", action),
        resource=entity_uid(RESOURCE_TYPES[action], _id_of(what)),
        context=json.dumps(context),
    )
    try:
        entities = build_entities(asked, about.schema)
    except ValueError as error:
        return CedarAnswer(False, errors=(f"entities do not fit the schema: {error}",))
    return evaluate_policies(about.policies, request, entities, about.schema)


def _id_of(what: ReviewFacts | StopFacts) -> str:
    if isinstance(what, ReviewFacts):
        return what.review_id
    return f"{what.what}:{what.name}" if what.name else what.what


def _stop_entities(person: PersonFacts, what: StopFacts) -> list[dict[str, Any]]:
    attributes = {"what": what.what, "name": what.name}
    return [
        person_entity_json(person.person, person.groups),
        entity_json(entity_uid("Stop", _id_of(what)), attributes),
    ]


def _entities(rules: Rules, action: str, approver: PersonFacts, review: ReviewFacts) -> list[dict[str, Any]]:
    agent = review.agent
    agent_attributes: dict[str, Any] = {}
    people = [person_entity_json(approver.person, approver.groups)]
    if agent.owner is not None:
        agent_attributes["owner"] = {"__entity": entity_uid("User", agent.owner)}
        if agent.owner != approver.person:
            people.append(person_entity_json(agent.owner, rules.groups_of(agent.owner)))
    parents = [entity_uid("Role", role) for role in sorted(agent.roles)] + [
        entity_uid("Group", team) for team in sorted(agent.teams)
    ]
    attributes = {
        "agent": {"__entity": entity_uid("Agent", agent.name)},
        "tool": review.tool,
        "risk": review.risk,
        "gates": sorted(review.gates),
        "opened_at": datetime_value(review.opened_at),
        **({"kind": review.kind} if isinstance(review, TaskFacts) else {}),
    }
    return [
        *people,
        entity_json(entity_uid("Agent", agent.name), agent_attributes, parents),
        entity_json(entity_uid(RESOURCE_TYPES[action], review.review_id), attributes),
    ]
