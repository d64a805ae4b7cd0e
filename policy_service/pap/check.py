"""Check a bundle's bytes: every fault, with suggestions for misspelt names, and warnings about what looks wrong.

Rules kept here: the result is plain values, which another process can send: engine objects are made from
them afterwards (`bundle.py`), in one place and the same way wherever the checking was done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final

from cedarpy import pst

from countersign.contract import manifest_file
from policy_service.domain.person_actions import APPROVE, RESOURCE_TYPES, SETTLE, STOP
from policy_service.facts.allowlist import Allowlist
from policy_service.pap.compile import (
    PolicySetSource,
    ToolRulesSource,
    cedar_schema_json,
    compile_schema,
    people_policies,
    people_schema,
    tool_rules_source,
    tool_shapes,
)
from policy_service.pap.parts import BundleParts, read_parts
from policy_service.pap.policies import MAX_POLICIES_PER_TOOL, Policy, read_policies, schema_problems
from policy_service.pap.problems import BundleError, Problem
from policy_service.pap.tools import ToolVersion
from policy_service.pdp.rules import UNSEEN, PolicySource, scope_may_match


def bundle_warnings(
    parts: BundleParts, policies: Mapping[str, Policy], *, allowed_outside: bool = False
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


def _too_few_people(parts: BundleParts, policy: Policy) -> Iterator[Problem]:
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


def _unknown_unseen(parts: BundleParts, policy: Policy) -> Iterator[Problem]:
    possible = frozenset[str]().union(
        *(
            version.unseen
            for version in parts.tools
            if scope_may_match(policy.tree, version.tool, version.manifest.groups)
        )
    )
    for name in sorted(policy.source.unseen - possible):
        yield policy.statement.problem(
            f"@unseen names {name!r}, which no tool here has as an unseen field", "unseen"
        )


def _asks_outside(parts: BundleParts) -> Iterator[Problem]:
    for source in parts.config.source:
        if source.url is not None:
            message = f"source {source.name!r} asks {source.url}: a service that loads it needs that in [[facts_http]]"
            yield Problem("facts.toml", None, message)
    if parts.directory.elsewhere:
        names = ", ".join(sorted(parts.directory.elsewhere))
        message = f"{names}: a service that loads this must have a [directory] with these groups"
        yield Problem("groups.toml", None, message)


def _nobody_looks_at_unseen(parts: BundleParts) -> Iterator[Problem]:
    if UNSEEN in parts.directory.groups:
        return
    for version in parts.tools:
        if fields := ", ".join(version.unseen):
            message = (
                f"{fields}: policy cannot weigh this, and there is no group {UNSEEN!r} whose people could"
            )
            yield Problem(version.file, None, message)


def _tools_without_permit(parts: BundleParts, policies: Mapping[str, Policy]) -> Iterator[Problem]:
    permits = [
        policy for policy in policies.values() if policy.source.effect == "permit" and not policy.about_people
    ]
    for tool, manifest in parts.manifests.items():
        if not any(scope_may_match(permit.tree, tool, manifest.groups) for permit in permits):
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


@dataclass(frozen=True, slots=True)
class SchemaNames:
    """What a schema knows, by what it is."""

    attributes: frozenset[str]
    actions: frozenset[str]
    types: frozenset[str]


_UNKNOWN: Final[tuple[tuple[re.Pattern[str], Callable[[SchemaNames], frozenset[str]]], ...]] = (
    (re.compile(r"attribute `([^`]+)` .*not found"), lambda names: names.attributes),
    (re.compile(r'unrecognized action `Action::"([^"]+)"`'), lambda names: names.actions),
    (re.compile(r"unrecognized entity type `([^`]+)`"), lambda names: names.types),
)
_METERS: Final = "history."


def with_suggestions(problems: Iterable[Problem], schema: Mapping[str, Any]) -> list[Problem]:
    """The same problems; those about an unknown name say which one is near, or where such names come from."""
    names = _names(schema)
    return [replace(problem, message=problem.message + _hint(problem.message, names)) for problem in problems]


def _hint(message: str, names: SchemaNames) -> str:
    for pattern, known_of in _UNKNOWN:
        found = pattern.search(message)
        if found is None:
            continue
        word = found.group(1)
        close = get_close_matches(word.rpartition(".")[2], known_of(names), n=1)
        if close:
            return f"; did you mean {close[0]!r}?"
        if word.startswith(_METERS):
            return "; meters.toml names the meters of each tool"
    return ""


def _names(schema: Mapping[str, Any]) -> SchemaNames:
    (space,) = schema.values()
    return SchemaNames(
        frozenset(_attributes(space)),
        frozenset(space.get("actions", ())),
        frozenset(space.get("entityTypes", ())),
    )


def _attributes(part: Any) -> Iterator[str]:
    """Every attribute's name, however deep."""
    if isinstance(part, Mapping):
        for key, value in part.items():
            if key == "attributes" and isinstance(value, Mapping):
                yield from value
            yield from _attributes(value)


@dataclass(frozen=True)
class CheckedBundle:
    """A bundle without a fault, before the engine has it. ``tools`` stand in the order of ``parts.tools``."""

    parts: BundleParts
    policies: Mapping[str, PolicySource]
    tools: tuple[ToolRulesSource, ...]
    people: Mapping[str, PolicySetSource]  # by what they do
    warnings: tuple[Problem, ...] = ()


def check_files(
    files: Mapping[str, bytes], outside: Allowlist | None = None, *, allowed_outside: bool | None = None
) -> CheckedBundle:
    """Check the bytes of a bundle. Blocks, for about two milliseconds a policy.

    ``outside`` is what its sources may ask; ``allowed_outside`` says that somebody else holds them against that.

    Raises:
        BundleError: everything that is wrong with them.
    """
    parts, problems = read_parts(files, outside)
    policies, policy_problems = read_policies(files, parts.directory.groups)
    problems += policy_problems
    if not problems:
        problems = _schema_problems(parts, policies)
    if problems:
        raise BundleError(problems)
    about_tools = {name: policy for name, policy in policies.items() if not policy.about_people}
    tools = tuple(tool_rules_source(version, about_tools, parts) for version in parts.tools)
    if problems := _too_long_to_decide(tools):
        raise BundleError(problems)
    known = outside is not None if allowed_outside is None else allowed_outside
    return CheckedBundle(
        parts=parts,
        policies={name: policy.source for name, policy in policies.items()},
        tools=tools,
        people={action: people_policies(policies, action) for action in RESOURCE_TYPES},
        warnings=tuple(bundle_warnings(parts, policies, allowed_outside=known)),
    )


def _schema_problems(parts: BundleParts, policies: Mapping[str, Policy]) -> list[Problem]:
    try:
        schema = compile_schema(tool_shapes(parts), parts.config)
    except ValueError as error:
        return [Problem("tools", None, f"these manifests and facts make no Cedar schema: {error}")]
    # A folder without tools is a beginning: no rule about tools can be weighed there yet, and every call is denied.
    weighed = [policy for policy in policies.values() if parts.tools or policy.about_people]
    problems = schema_problems(weighed, schema, people_schema())
    if problems:
        return with_suggestions(problems, cedar_schema_json(tool_shapes(parts), parts.config))
    for version in parts.tools:
        if version.label is not None and not problems:
            problems = _other_version_problems(parts, version, policies)
    return problems


def _other_version_problems(
    parts: BundleParts, version: ToolVersion, policies: Mapping[str, Policy]
) -> list[Problem]:
    """What a version beside the current one has against the rules that weigh its calls as well."""
    try:
        schema = compile_schema(tool_shapes(parts, version), parts.config)
    except ValueError as error:
        return [Problem(version.file, None, f"this manifest makes no Cedar schema: {error}")]
    weighed = [
        policy
        for policy in policies.values()
        if not policy.about_people and scope_may_match(policy.tree, version.tool, version.manifest.groups)
    ]
    advice = "ask `has` first, or write a rule for each; take the file away when the rollout is over"
    return [
        replace(problem, message=f"{problem.message} (in {version.file}, a version still in force: {advice})")
        for problem in schema_problems(weighed, schema, people_schema())
    ]


def _too_long_to_decide(tools: tuple[ToolRulesSource, ...]) -> list[Problem]:
    """A decision cannot be interrupted inside the engine, so what it may cost is bounded before it is in force."""
    return [
        Problem(
            f"tools/{tool.name}.json",
            None,
            f"{len(tool.everything)} policies can match this tool, and {MAX_POLICIES_PER_TOOL} is the limit: each call "
            "weighs them all; let them name their actions, or put what differs into facts",
        )
        for tool in tools
        if len(tool.everything) > MAX_POLICIES_PER_TOOL
    ]
