"""`claude_server` and `claude_hooks`: gated tools and gated permissions for the Claude Agent SDK.

The server runs gated tools in this process. The hook decides about tools that Claude Code runs itself: firing means
that the permission is given, once for each release. A model reads why a call is denied or waits, and may go on.

Claude Code gives a repeated call another id, so the key of a call is the run's key, the tool and its arguments. A hook
that fails blocks the call. A `defer` is never returned: Claude Code ignores it if a message has several calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Unpack

from countersign.errors import CountersignError, ReviewPending
from countersign.integrations.conversation import ModelCall, ToolAnswer
from countersign.integrations.errors import require_package
from countersign.integrations.framework_calls import (
    CallOptions,
    FrameworkCalls,
    ToolDefinition,
    failed_answer,
    pending_answer,
    pending_payload,
)
from countersign.tools.tool import tool_of

OnPending = Callable[[dict[str, Any]], object]
"""Receives the review of a call that waits, as JSON."""

_GRACE_SECONDS: Final = 60.0  # for the service, after the wait for people
_ONCE: Final = (
    "not allowed again: this very call was allowed before, once. If it has to happen again, tell the user to start a "
    "new run."
)


def claude_server(
    tools: Sequence[Callable[..., Any]],
    *,
    key: str,
    name: str = "countersign",
    on_pending: OnPending | None = None,
    **options: Unpack[CallOptions],
) -> Any:
    """An in-process MCP server with these tools, for `ClaudeAgentOptions(mcp_servers={name: ...})`. Claude Code calls
    them `mcp__NAME__TOOL`; list those in `allowed_tools`.

    `key` is the key of a run, the same when its session is resumed.

    Raises:
        PackageMissing: `claude-agent-sdk` is not installed.
        RegistrationError: one is not decorated with `@tool`, or has an argument without a type.
        MisuseError: one is listed twice, or the key or an option is invalid.
    """
    framework = require_package("claude_agent_sdk", "claude-agent")
    calls = FrameworkCalls(tools, key, options)
    served = [
        framework.SdkMcpTool(one.name, one.description, one.schema, _handler(calls, one, on_pending))
        for one in calls
    ]
    return framework.create_sdk_mcp_server(name, tools=served)


def claude_hooks(
    tools: Mapping[str, Callable[..., Any]],
    *,
    key: str,
    on_pending: OnPending | None = None,
    **options: Unpack[CallOptions],
) -> dict[str, list[Any]]:
    """Hooks for `ClaudeAgentOptions(hooks=...)` that decide about the tools of these names, for example `Bash` or
    `mcp__shop__refund`, before Claude Code runs them. Each name has a gated tool with the arguments of Claude Code's
    tool. Its function is called when the call is allowed, and need not do anything.

    An equal call of the run is allowed once; with `@tool(..., repeat=True)` every repetition is decided anew. A tool
    that is not named is left to Claude Code's own permissions. `key` is the key of a run, the same when its session is
    resumed.

    Raises:
        PackageMissing: `claude-agent-sdk` is not installed.
        RegistrationError: one is not decorated with `@tool`, or has an argument without a type.
        MisuseError: one is listed twice, or the key or an option is invalid.
    """
    framework = require_package("claude_agent_sdk", "claude-agent")
    calls = FrameworkCalls(list(tools.values()), key, options)
    gated = dict(zip(tools, calls, strict=True))

    async def decide(hook_input: Any, tool_use_id: str | None, _context: Any) -> dict[str, Any]:
        name = hook_input["tool_name"]
        if name not in gated:
            return {}
        call = ModelCall(str(tool_use_id), gated[name].name, hook_input["tool_input"])
        repeats = tool_of(tools[name]).repeat
        return _permission(await _permitted(calls, call, on_pending, repeats=repeats))

    matcher = framework.HookMatcher(
        hooks=[decide], timeout=options.get("wait", 0.0) + _GRACE_SECONDS, on_failure="block"
    )
    return {"PreToolUse": [matcher]}


def _handler(
    calls: FrameworkCalls, one: ToolDefinition, on_pending: OnPending | None
) -> Callable[[dict[str, Any]], Any]:
    async def handle(args: dict[str, Any]) -> dict[str, Any]:
        call = ModelCall("", one.name, args)
        answer = await _answered(calls, call, calls.key_by_arguments(None, one.name, args), on_pending)
        return {"content": [{"type": "text", "text": answer.text}], "is_error": not answer.done}

    return handle


async def _permitted(
    calls: FrameworkCalls, call: ModelCall, on_pending: OnPending | None, *, repeats: bool
) -> ToolAnswer:
    """The answer for one permission. With `repeats`, that of the first equal call which is not allowed yet."""
    key = calls.key_by_arguments(None, call.name, call.arguments)  # type: ignore[arg-type]
    for number in itertools.count(1):
        answer = await _answered(calls, call, key if number == 1 else f"{key}/{number}", on_pending)
        if not (answer.done and answer.earlier):
            return answer
        if not repeats:
            return ToolAnswer(call.call_id, _ONCE, done=False)
    raise AssertionError("the count has no end")


async def _answered(
    calls: FrameworkCalls, call: ModelCall, run_key: str, on_pending: OnPending | None
) -> ToolAnswer:
    try:
        return await calls.answer(call, run_key)
    except ReviewPending as pending:
        if on_pending is not None:
            on_pending(pending_payload(pending))
        return pending_answer(call.call_id, pending)
    except CountersignError as error:
        return failed_answer(call, error)


def _permission(answer: ToolAnswer) -> dict[str, Any]:
    output: dict[str, Any] = {"hookEventName": "PreToolUse"}
    if not answer.done:
        output |= {"permissionDecision": "deny", "permissionDecisionReason": answer.text}
        return {"hookSpecificOutput": output}
    output |= {"permissionDecision": "allow", "permissionDecisionReason": "released by the policy service"}
    if answer.args is not None:
        output |= {"updatedInput": dict(answer.args), "additionalContext": answer.text}
    return {"hookSpecificOutput": output}
