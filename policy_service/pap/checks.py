"""What looks wrong in a valid bundle: questions that nobody could answer, and permits that speak of nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

from cedarpy import pst

from countersign.contract import manifest_file
from policy_service.domain.people import APPROVE, SETTLE, STOP
from policy_service.pap.parts import Parts
from policy_service.pap.policies import Policy
from policy_service.pap.problems import Problem
from policy_service.pdp.rules import UNSEEN
from policy_service.pdp.slices import may_match


def warnings_about(
    parts: Parts, policies: Mapping[str, Policy], *, allowed_outside: bool = False
) -> Iterator[Problem]:
    """Every suspicion about this bundle; ``allowed_outside`` where a service's allowlist was held against it."""
    for policy in policies.values():
        yield from _named("quorum-cannot-be-met", _too_few_people(parts, policy))
        yield from _named("reminders", _reminders(policy))
        yield from _named("unknown-unseen", _unknown_unseen(parts, policy))
    if not allowed_outside:
        # No fault of the bundle's, and nothing its author could write would mend it.
        for problem in _asks_outside(parts):
            yield problem.as_finding("asks-outside", "note")
    yield from _named("nobody-sees-unseen", _nobody_looks_at_unseen(parts))
    yield from _named("tool-without-permit", _tools_without_permit(parts, policies))
    yield from _named("nobody-may-approve", _nobody_may_approve(policies))
    yield from _named("nobody-may-settle", _only_forbids(policies, SETTLE, "settle a task"))
    yield from _named("nobody-may-stop", _only_forbids(policies, STOP, "stop anything"))


def _named(code: str, found: Iterable[Problem]) -> Iterator[Problem]:
    return (problem.as_finding(code) for problem in found)


def _too_few_people(parts: Parts, policy: Policy) -> Iterator[Problem]:
    gate = policy.source.gate
    if gate is None:
        return
    people = frozenset[str]().union(
        *(parts.directory.members(group) for group in gate.groups | gate.escalate)
    )
    asked_elsewhere = (gate.groups | gate.escalate) & parts.directory.elsewhere.keys()
    if len(people) < gate.quorum and not asked_elsewhere:
        asked = "|".join(sorted(gate.groups))
        message = f"asks for {gate.quorum} of {asked}, which has {len(people)}; nobody can ever meet it"
        yield policy.statement.problem(message, "approval")


_TOO_OFTEN = timedelta(minutes=1)


def _reminders(policy: Policy) -> Iterator[Problem]:
    """Reminders nobody would get, or nobody would read."""
    gate = policy.source.gate
    if gate is None or gate.remind is None:
        return
    if gate.remind >= gate.answer_within:
        yield policy.statement.problem("reminds after the time to answer is over: it never does", "remind")
    if gate.remind < _TOO_OFTEN:
        yield policy.statement.problem("reminds more often than once a minute; nobody reads that", "remind")


def _unknown_unseen(parts: Parts, policy: Policy) -> Iterator[Problem]:
    possible = frozenset[str]().union(
        *(
            version.unseen
            for version in parts.tools
            if may_match(policy.tree, version.tool, version.manifest.groups)
        )
    )
    for name in sorted(policy.source.unseen - possible):
        yield policy.statement.problem(
            f"@unseen names {name!r}, which no tool here has as an unseen field", "unseen"
        )


def _asks_outside(parts: Parts) -> Iterator[Problem]:
    for source in parts.config.source:
        if source.url is not None:
            message = f"source {source.name!r} asks {source.url}: a service that loads it needs that in [[facts_http]]"
            yield Problem("facts.toml", None, message)
    if parts.directory.elsewhere:
        names = ", ".join(sorted(parts.directory.elsewhere))
        message = f"{names}: a service that loads this must have a [directory] with these groups"
        yield Problem("groups.toml", None, message)


def _nobody_looks_at_unseen(parts: Parts) -> Iterator[Problem]:
    if UNSEEN in parts.directory.groups:
        return
    for version in parts.tools:
        if fields := ", ".join(version.unseen):
            message = (
                f"{fields}: policy cannot weigh this, and there is no group {UNSEEN!r} whose people could"
            )
            yield Problem(version.file, None, message)


def _tools_without_permit(parts: Parts, policies: Mapping[str, Policy]) -> Iterator[Problem]:
    permits = [
        policy for policy in policies.values() if policy.source.effect == "permit" and not policy.about_people
    ]
    for tool, manifest in parts.manifests.items():
        if not any(may_match(permit.tree, tool, manifest.groups) for permit in permits):
            nobody = "no permit names this tool, so every call is denied"
            yield Problem(f"tools/{manifest_file(tool)}", None, nobody)


def _nobody_may_approve(policies: Mapping[str, Policy]) -> Iterator[Problem]:
    """Without rules about approving everybody in the group may; the first such rule makes plain Cedar decide."""
    about = [policy for policy in policies.values() if APPROVE in policy.about_people]
    if not about or all(policy.source.gate is None for policy in policies.values()):
        return
    if all(policy.source.effect == "forbid" for policy in about):
        message = 'there is no permit for Action::"approve" beside it, so nobody may approve anything'
        yield about[0].statement.problem(message)
    for policy in about:
        if policy.source.effect == "forbid" and _holds_for_everybody(policy.tree):
            yield policy.statement.problem("nobody may approve anything: this holds for everybody, always")


def _only_forbids(policies: Mapping[str, Policy], action: str, doing: str) -> Iterator[Problem]:
    """The first rule about this makes plain Cedar decide who may, as above."""
    about = [policy for policy in policies.values() if action in policy.about_people]
    if about and all(policy.source.effect == "forbid" for policy in about):
        message = f'there is no permit for Action::"{action}" beside it, so nobody may {doing}'
        yield about[0].statement.problem(message)


def _holds_for_everybody(tree: pst.Template) -> bool:
    # About approving, a principal is always a User and a resource a Review: naming the type narrows nothing.
    scopes = (tree.principal, tree.resource)
    return not tree.clauses and all(isinstance(scope, pst.ScopeAny | pst.ScopeIs) for scope in scopes)
