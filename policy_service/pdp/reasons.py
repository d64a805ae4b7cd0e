"""Why an effect is denied, in words its agent may act on, each with the command or line that would change it.

Rules kept here: values of args are quoted only where the manifest's own check does it; what the engine said
in an error goes to the operator, not here; text an author wrote (`@doc`, `@title`) is passed on as it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

from countersign.contract import DenyCode, Resource, manifest_file
from policy_service.domain.decision import Reason
from policy_service.domain.question import Question
from policy_service.pdp.cedar import failed_policies
from policy_service.pdp.rules import Rules, ToolRules

_SHOWN = 12  # digits of a digest, enough to tell two manifests apart by eye


def unknown_tool(question: Question) -> Reason:
    """The bundle has never heard of it."""
    tool = question.tool
    return Reason(
        DenyCode.UNKNOWN_TOOL.value,
        f"the active bundle holds no tool {tool!r}, so nothing permits it",
        advice="draft its manifest with `countersign tools export --tools MODULE`, have it reviewed as "
        f"tools/{manifest_file(tool)}, and add a permit; until then do not stage it again",
    )


def tool_changed(question: Question, reviewed: str | None) -> Reason:
    """The tool is not, or no longer, the one this effect was staged for."""
    tool = question.tool
    now = f"is {reviewed[:_SHOWN]}" if reviewed is not None else "is gone"
    mend = (
        f"put the reviewed manifest (GET {_route(tool)}) in place of "
        f"tools/{manifest_file(tool)} beside your code, "
        "check that the call still means what you want, and stage it anew"
        if reviewed is not None
        else f"if it should be there, the policy's owner puts tools/{manifest_file(tool)} back into the bundle "
        "(`countersign tools export --tools MODULE` drafts it); then stage the call anew"
    )
    return Reason(
        DenyCode.TOOL_CHANGED.value,
        f"this effect was staged for the manifest {question.tool_digest[:_SHOWN]} of {question.tool!r}; "
        f"the active one {now}",
        advice=mend,
    )


def invalid_args(question: Question, problem: str) -> Reason:
    """The args do not fit the reviewed manifest."""
    return Reason(
        DenyCode.INVALID_ARGS.value,
        problem,
        advice=f"correct the arguments and stage the call anew: tools/{manifest_file(question.tool)} of the bundle "
        f"says what it takes (GET {_route(question.tool)})",
    )


def facts_unavailable(problem: str) -> Reason:
    """A fact the decision needs is not to be had."""
    return Reason(
        DenyCode.FACTS_UNAVAILABLE.value,
        problem,
        advice="check the ids in the arguments; if they are right, the source of that fact in the bundle's facts.toml "
        "has to answer first (the service's log says what failed); then stage the call again",
    )


def policy_errors(rules: Rules, errors: Sequence[str]) -> tuple[Reason, ...]:
    """The policy could not be evaluated. One reason for each policy that is known to have failed."""
    failed = rules.in_order(failed_policies(errors))
    return tuple(_policy_error(rules, policy_id) for policy_id in failed) or (_policy_error(rules, None),)


def _policy_error(rules: Rules, policy_id: str | None) -> Reason:
    place = "it" if policy_id is None else rules.policies[policy_id].place
    which = "the policy" if policy_id is None else f"policy {policy_id!r} ({place})"
    return Reason(
        DenyCode.POLICY_ERROR.value,
        f"{which} could not be evaluated for these arguments, and doubt is a no",
        policy=policy_id,
        advice=f"the policy's owner has to mend {place} (the service's log says what failed, `policy-service check` "
        "whether it loads); the same arguments will be denied until then",
    )


def forbidden(rules: Rules, policy_ids: Sequence[str]) -> tuple[Reason, ...]:
    """Plain forbids: nobody can lift them by approving."""
    return tuple(
        Reason(
            DenyCode.FORBIDDEN_BY_POLICY.value,
            policy.doc or policy.title,
            policy=policy.id,
            advice=f"no approval lifts {policy.id!r}; only its owner can make it a question, with "
            f'`@approval("...")` at {policy.place}',
        )
        for policy in (rules.policies[policy_id] for policy_id in policy_ids)
    )


def no_permit(question: Question, rules: Rules, tool: ToolRules, resource: Resource) -> Reason:
    """Nothing permits it; says which permits were looked at, and the line that would."""
    agent, name = question.agent, question.tool
    permits = ", ".join(f"{permit} ({rules.policies[permit].place})" for permit in tool.permits)
    looked_at = (
        f"the permits for this tool do not cover it: {permits}"
        if permits
        else "there is no permit for this tool"
    )
    line = f"permit (principal == Agent::{_quoted(agent.name)}, action == Action::{_quoted(name)}, resource);"
    return Reason(
        DenyCode.NO_PERMIT.value,
        f"nothing permits agent {agent.name!r} to {name} on {resource.type} {resource.id!r}; {looked_at}",
        advice=f'if it should, the policy\'s owner can add `@id("...") {line}`',
    )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _route(tool: str) -> str:
    return f"/v1/tools/{quote(tool, safe='')}"
