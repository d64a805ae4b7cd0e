"""Checking a bundle's bytes: everything that takes long or could end a process, and none of what only a service has.

Rules kept here: what is checked is told as plain values, which another process can send: engine objects are made of
them afterwards (`bundle.py`), in one place and the same way wherever the checking was done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from policy_service.facts.outside import Outside
from policy_service.facts.schema import APPROVE, SETTLE
from policy_service.pap.checks import warnings_about
from policy_service.pap.compile import (
    WrittenSet,
    WrittenTool,
    approving_schema,
    schema_json,
    schema_of,
    shapes_in,
    written_tool,
)
from policy_service.pap.parts import Parts, read_parts
from policy_service.pap.policies import MAX_OF_ONE_TOOL, Policy, read_policies, validate
from policy_service.pap.problems import BundleError, Problem
from policy_service.pap.suggesting import suggested
from policy_service.pap.tools import ToolVersion
from policy_service.pdp.rules import PolicySource
from policy_service.pdp.slices import may_match


@dataclass(frozen=True)
class Checked:
    """A bundle without a fault, before the engine has it. ``tools`` stand in the order of ``parts.tools``."""

    parts: Parts
    policies: Mapping[str, PolicySource]
    tools: tuple[WrittenTool, ...]
    people: Mapping[str, WrittenSet]  # by what they do
    warnings: tuple[Problem, ...] = ()


def check_files(
    files: Mapping[str, bytes], outside: Outside | None = None, *, allowed_outside: bool | None = None
) -> Checked:
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
    tools = tuple(written_tool(version, about_tools, parts) for version in parts.tools)
    if problems := _too_long_to_decide(tools):
        raise BundleError(problems)
    known = outside is not None if allowed_outside is None else allowed_outside
    return Checked(
        parts=parts,
        policies={name: policy.source for name, policy in policies.items()},
        tools=tools,
        people={action: _about(policies, action) for action in (APPROVE, SETTLE)},
        warnings=tuple(warnings_about(parts, policies, allowed_outside=known)),
    )


def _about(policies: Mapping[str, Policy], action: str) -> WrittenSet:
    return {name: policy.tree for name, policy in policies.items() if action in policy.about_people}


def _schema_problems(parts: Parts, policies: Mapping[str, Policy]) -> list[Problem]:
    try:
        schema = schema_of(shapes_in(parts), parts.config)
    except ValueError as error:
        return [Problem("tools", None, f"these manifests and facts make no Cedar schema: {error}")]
    # A folder without tools is a beginning: no rule about tools can be weighed there yet, and every call is denied.
    weighed = [policy for policy in policies.values() if parts.tools or policy.about_people]
    problems = validate(weighed, schema, approving_schema())
    if problems:
        return suggested(problems, schema_json(shapes_in(parts), parts.config))
    for version in parts.tools:
        if version.label is not None and not problems:
            problems = _other_version_problems(parts, version, policies)
    return problems


def _other_version_problems(
    parts: Parts, version: ToolVersion, policies: Mapping[str, Policy]
) -> list[Problem]:
    """What a version beside the current one has against the rules that weigh its calls as well."""
    try:
        schema = schema_of(shapes_in(parts, version), parts.config)
    except ValueError as error:
        return [Problem(version.file, None, f"this manifest makes no Cedar schema: {error}")]
    weighed = [
        policy
        for policy in policies.values()
        if not policy.about_people and may_match(policy.tree, version.tool, version.manifest.groups)
    ]
    advice = "ask `has` first, or write a rule for each; take the file away when the rollout is over"
    return [
        replace(problem, message=f"{problem.message} (in {version.file}, a version still in force: {advice})")
        for problem in validate(weighed, schema, approving_schema())
    ]


def _too_long_to_decide(tools: tuple[WrittenTool, ...]) -> list[Problem]:
    """A decision cannot be interrupted inside the engine, so what it may cost is bounded before it is in force."""
    return [
        Problem(
            f"tools/{tool.name}.json",
            None,
            f"{len(tool.everything)} policies can match this tool, and {MAX_OF_ONE_TOOL} is the limit: each call "
            "weighs them all; let them name their actions, or put what differs into facts",
        )
        for tool in tools
        if len(tool.everything) > MAX_OF_ONE_TOOL
    ]
