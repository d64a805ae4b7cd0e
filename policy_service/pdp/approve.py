"""Who may approve, as far as Cedar says: `Action::"approve"`, principal the person, resource the review.

Rules kept here: Cedar only narrows. Group membership and the requester's side are decided before and apart
from it; a bundle without any rule about approving narrows nothing; with one, plain Cedar decides, and doubt
is a no.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from policy_service.domain.cedar_values import datetime_value
from policy_service.domain.decision import Reason
from policy_service.domain.question import AgentPrincipal
from policy_service.pdp.cedar import Answer, Request, ask, entities_of, entity, uid
from policy_service.pdp.request import person_entity
from policy_service.pdp.rules import ApprovalRules, Rules

_REVIEW = "Review"


@dataclass(frozen=True, slots=True)
class Approver:
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
class Permission:
    """Whether Cedar lets this person vote; truthy when it does. `alarms` are for the operator."""

    granted: bool
    policies: tuple[str, ...] = ()
    reason: Reason | None = None
    alarms: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.granted


def can_approve(
    rules: Rules, approver: Approver, review: ReviewFacts, *, now: datetime, env: str = "production"
) -> Permission:
    """Ask the bundle's rules about approving."""
    if rules.approval is None:
        return Permission(True)
    answer = _ask(rules, rules.approval, approver, review, now, env)
    if answer.errors:
        text = "the rules about approving could not be evaluated, and doubt is a no"
        return Permission(False, reason=Reason("policy_error", text), alarms=answer.errors)
    policies = rules.in_order(answer.reasons)
    if answer.allowed:
        return Permission(True, policies)
    return Permission(False, policies, _refusal(rules, policies))


def _refusal(rules: Rules, forbids: tuple[str, ...]) -> Reason:
    if not forbids:
        return Reason("not_eligible", 'no permit for Action::"approve" covers this person and this review')
    policy = rules.policies[forbids[0]]
    return Reason("not_eligible", policy.doc or policy.title, policy=policy.id)


def _ask(
    rules: Rules, approval: ApprovalRules, approver: Approver, review: ReviewFacts, now: datetime, env: str
) -> Answer:
    context = {"assurance": approver.assurance, "now": datetime_value(now), "env": env}
    request = Request(
        principal=uid("User", approver.person),
        action=uid("Action", "approve"),
        resource=uid(_REVIEW, review.review_id),
        context=json.dumps(context),
    )
    try:
        entities = entities_of(_entities(rules, approver, review), approval.schema)
    except ValueError as error:
        return Answer(False, errors=(f"entities do not fit the schema: {error}",))
    return ask(approval.policies, request, entities, approval.schema)


def _entities(rules: Rules, approver: Approver, review: ReviewFacts) -> list[dict[str, Any]]:
    agent = review.agent
    agent_attributes: dict[str, Any] = {}
    people = [person_entity(approver.person, approver.groups)]
    if agent.owner is not None:
        agent_attributes["owner"] = {"__entity": uid("User", agent.owner)}
        if agent.owner != approver.person:
            people.append(person_entity(agent.owner, rules.groups_of(agent.owner)))
    parents = [uid("Role", role) for role in sorted(agent.roles)] + [
        uid("Group", team) for team in sorted(agent.teams)
    ]
    attributes = {
        "agent": {"__entity": uid("Agent", agent.name)},
        "tool": review.tool,
        "risk": review.risk,
        "gates": sorted(review.gates),
        "opened_at": datetime_value(review.opened_at),
    }
    return [
        *people,
        entity(uid("Agent", agent.name), agent_attributes, parents),
        entity(uid(_REVIEW, review.review_id), attributes),
    ]
