"""Check a bundle's bytes: all problems, with suggestions for misspelt names, and warnings.

The result is plain values that another process can send. `bundle.py` compiles engine objects from them afterwards, in
the same way wherever the check ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from countersign.contract import manifest_file
from policy_service.domain.person_actions import APPROVE, SETTLE, STOP
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
from policy_service.pap.parts import BundleParts, ToolVersion, read_parts
from policy_service.pap.policies import (
    MAX_POLICIES_PER_TOOL,
    Policy,
    is_unconditional,
    read_policies,
    schema_problems,
)
from policy_service.pap.problems import BundleError, Problem, did_you_mean
from policy_service.pdp.rules import UNSEEN, PolicySource, scope_may_match


def bundle_warnings(
    parts: BundleParts, policies: Mapping[str, Policy], *, allowed_outside: bool = False
) -> Iterator[Problem]:
    """Every warning about this bundle; ``allowed_outside``: it was already checked against a service's allowlist."""
    for policy in policies.values():
        yield from _named("quorum-cannot-be-met", _too_few_people(parts, policy))
        yield from _named("reminders", _reminders(policy))
        yield from _named("unknown-unseen", _unknown_unseen(parts, policy))
    if not allowed_outside:
        # Not a fault of the bundle: no change by its author could fix it.
        for problem in _asks_outside(parts):
            yield problem.as_finding("asks-outside", "note")
    yield from _named("nobody-sees-unseen", _unseen_without_reviewers(parts))
    yield from _named("tool-without-permit", _tools_without_permit(parts, policies))
    yield from _named("nobody-may-approve", _no_approver(policies))
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
        message = f"asks for {gate.quorum} of {asked}, which has {len(people)}; this quorum can never be met"
        yield policy.statement.problem(message, "approval")


_TOO_OFTEN = timedelta(minutes=1)


def _reminders(policy: Policy) -> Iterator[Problem]:
    """Reminders that are never sent, or sent too often."""
    gate = policy.source.gate
    if gate is None or gate.remind is None:
        return
    if gate.remind >= gate.answer_within:
        yield policy.statement.problem("reminds only after the time to answer is over, so never", "remind")
    if gate.remind < _TOO_OFTEN:
        yield policy.statement.problem(
            "reminds more often than once a minute; choose a longer time", "remind"
        )


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


def _unseen_without_reviewers(parts: BundleParts) -> Iterator[Problem]:
    if UNSEEN in parts.directory.groups:
        return
    for version in parts.tools:
        if fields := ", ".join(version.unseen):
            message = f"{fields}: policy cannot evaluate this, and there is no group {UNSEEN!r} to review it"
            yield Problem(version.file, None, message)


def _tools_without_permit(parts: BundleParts, policies: Mapping[str, Policy]) -> Iterator[Problem]:
    permits = [
        policy for policy in policies.values() if policy.source.effect == "permit" and not policy.about_people
    ]
    for tool, manifest in parts.manifests.items():
        if not any(scope_may_match(permit.tree, tool, manifest.groups) for permit in permits):
            message = "no permit names this tool, so every call is denied"
            yield Problem(f"tools/{manifest_file(tool)}", None, message)


def _no_approver(policies: Mapping[str, Policy]) -> Iterator[Problem]:
    """Without rules about approving, every member of the group may approve. With one, plain Cedar decides."""
    about = [policy for policy in policies.values() if APPROVE in policy.about_people]
    if not about or all(policy.source.gate is None for policy in policies.values()):
        return
    if all(policy.source.effect == "forbid" for policy in about):
        message = 'no permit for Action::"approve" exists, so no person may approve anything'
        yield about[0].statement.problem(message)
    for policy in about:
        if policy.source.effect == "forbid" and is_unconditional(policy.tree):
            yield policy.statement.problem("no person may approve anything: this forbid always applies")


def _only_forbids(policies: Mapping[str, Policy], action: str, doing: str) -> Iterator[Problem]:
    """With the first rule about an action, plain Cedar decides who may do it, as above."""
    about = [policy for policy in policies.values() if action in policy.about_people]
    if about and all(policy.source.effect == "forbid" for policy in about):
        message = f'no permit for Action::"{action}" exists, so no person may {doing}'
        yield about[0].statement.problem(message)


_UNKNOWN: Final = (
    (re.compile(r"attribute `([^`]+)` .*not found"), "attributes"),
    (re.compile(r'unrecognized action `Action::"([^"]+)"`'), "actions"),
    (re.compile(r"unrecognized entity type `([^`]+)`"), "entityTypes"),
)
_METERS: Final = "history."


def with_suggestions(problems: Iterable[Problem], schema: Mapping[str, Any]) -> list[Problem]:
    """The same problems; one about an unknown name suggests a similar name, or where such names are declared."""
    (space,) = schema.values()
    known = {"attributes": frozenset(_attributes(space))}
    known |= {kind: frozenset(space.get(kind, ())) for kind in ("actions", "entityTypes")}
    return [replace(problem, message=problem.message + _hint(problem.message, known)) for problem in problems]


def _hint(message: str, known: Mapping[str, frozenset[str]]) -> str:
    for pattern, kind in _UNKNOWN:
        found = pattern.search(message)
        if found is None:
            continue
        word = found.group(1)
        otherwise = "meters.toml names the meters of each tool" if word.startswith(_METERS) else ""
        if hint := did_you_mean(word.rpartition(".")[2], known[kind], otherwise):
            return f"; {hint}"
    return ""


def _attributes(part: Any) -> Iterator[str]:
    """Every attribute's name, at any depth."""
    if isinstance(part, Mapping):
        for key, value in part.items():
            if key == "attributes" and isinstance(value, Mapping):
                yield from value
            yield from _attributes(value)


@dataclass(frozen=True)
class CheckedBundle:
    """A valid bundle before compilation. ``tools`` have the order of ``parts.tools``."""

    parts: BundleParts
    policies: Mapping[str, PolicySource]
    tools: tuple[ToolRulesSource, ...]
    people: Mapping[str, PolicySetSource]  # by action
    warnings: tuple[Problem, ...] = ()


def check_files(
    files: Mapping[str, bytes], outside: Allowlist | None = None, *, allowed_outside: bool | None = None
) -> CheckedBundle:
    """Check the bytes of a bundle. Blocks, for about two milliseconds a policy.

    ``outside`` is the service's allowlist; ``allowed_outside`` says that the caller checks it instead.

    Raises:
        BundleError: all problems of them.
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
        people=people_policies(policies),
        warnings=tuple(bundle_warnings(parts, policies, allowed_outside=known)),
    )


def _schema_problems(parts: BundleParts, policies: Mapping[str, Policy]) -> list[Problem]:
    try:
        schema = compile_schema(tool_shapes(parts), parts.config)
    except ValueError as error:
        return [Problem("tools", None, f"these manifests and facts make no Cedar schema: {error}")]
    # A new folder without tools: no rule about tools can be validated yet, and every call is denied.
    applicable = [policy for policy in policies.values() if parts.tools or policy.about_people]
    problems = schema_problems(applicable, schema, people_schema())
    if problems:
        return with_suggestions(problems, cedar_schema_json(tool_shapes(parts), parts.config))
    for version in parts.tools:
        if version.label is not None and not problems:
            problems = _other_version_problems(parts, version, policies)
    return problems


def _other_version_problems(
    parts: BundleParts, version: ToolVersion, policies: Mapping[str, Policy]
) -> list[Problem]:
    """Validate the rules that apply to a non-current version against its schema."""
    try:
        schema = compile_schema(tool_shapes(parts, version), parts.config)
    except ValueError as error:
        return [Problem(version.file, None, f"this manifest makes no Cedar schema: {error}")]
    applicable = [
        policy
        for policy in policies.values()
        if not policy.about_people and scope_may_match(policy.tree, version.tool, version.manifest.groups)
    ]
    advice = "test with `has` first, or write a rule for each; remove the file when the rollout is over"
    return [
        replace(problem, message=f"{problem.message} (in {version.file}, a version still in force: {advice})")
        for problem in schema_problems(applicable, schema, people_schema())
    ]


def _too_long_to_decide(tools: tuple[ToolRulesSource, ...]) -> list[Problem]:
    """A decision cannot be interrupted inside the engine, so its cost is bounded before activation."""
    return [
        Problem(
            f"tools/{tool.name}.json",
            None,
            f"{len(tool.everything)} policies can match this tool, and {MAX_POLICIES_PER_TOOL} is the limit: each call "
            "evaluates them all; let them name their actions, or move differences into facts",
        )
        for tool in tools
        if len(tool.everything) > MAX_POLICIES_PER_TOOL
    ]
