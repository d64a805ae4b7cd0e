"""`openai_agents_tools`: gated tools for the OpenAI Agents SDK. A call that waits for people interrupts the run.

The SDK asks `needs_approval` before it invokes a tool. There the call is submitted, and fires if it is released; the
invocation then finds the recorded result. An approval in the run's state is not read: a call that is still under review
raises `ReviewPending` instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Unpack

from countersign.errors import ReviewPending
from countersign.integrations.conversation import ModelCall, ToolAnswer
from countersign.integrations.errors import require_package
from countersign.integrations.framework_calls import (
    CallOptions,
    FrameworkCalls,
    RunKey,
    ToolDefinition,
    pending_payload,
)


def openai_agents_tools(
    tools: Sequence[Callable[..., Any]], *, key: RunKey, **options: Unpack[CallOptions]
) -> list[Any]:
    """The tools as `FunctionTool`, for `Agent(tools=...)`.

    `key` is the key of a run, or a function of the context that `Runner.run(context=...)` was given.

    While people decide, the result has `interruptions`. Give its state to `settle_interruptions` before you resume it.

    Raises:
        PackageMissing: `openai-agents` is not installed.
        RegistrationError: one is not decorated with `@tool`, or has an argument without a type.
        MisuseError: one is listed twice, or the key or an option is invalid.
    """
    require_package("agents", "openai-agents")
    calls = FrameworkCalls(tools, key, options)
    return [_function_tool(_GatedInvocation(calls, one.name), one) for one in calls]


async def settle_interruptions(state: Any, *, context: Any = None) -> list[dict[str, Any]]:
    """Ask the service about the interruptions of a `RunState`. Those that are decided fire if they were approved, and
    are marked in the state, so that `Runner.run(agent, state)` goes on. Returns the reviews that are still open, as
    JSON.

    `context` is the run's context, for tools whose key is a function of it. Interruptions of other tools are left
    alone.

    Raises:
        CountersignError: as leaving a transaction does, except refusals, which the model will read.
    """
    pending = []
    for one in state.get_interruptions():
        invocation = _invocation_of(one)
        if invocation is None:
            continue
        try:
            await invocation.answer(context, one.call_id, one.arguments)
        except ReviewPending as waits:
            pending.append(pending_payload(waits))
        else:
            state.approve(one)
    return pending


class _GatedInvocation:
    """What a `FunctionTool` calls."""

    def __init__(self, calls: FrameworkCalls, name: str) -> None:
        self._calls = calls
        self._name = name

    async def __call__(self, tool_context: Any, arguments: str) -> str:
        answer = await self.answer(tool_context.context, tool_context.tool_call_id, arguments)
        return answer.text

    async def needs_approval(self, run_context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        try:
            await self.answer(run_context.context, call_id, arguments)
        except ReviewPending:
            return True
        return False

    async def answer(self, context: Any, call_id: str, arguments: Any) -> ToolAnswer:
        key = self._calls.key_by_id(context, call_id)
        return await self._calls.answer(ModelCall(call_id, self._name, _parsed(arguments)), key)


def _function_tool(invocation: _GatedInvocation, one: ToolDefinition) -> Any:
    return import_module("agents").FunctionTool(
        name=one.name,
        description=one.description,
        params_json_schema=one.schema,
        on_invoke_tool=invocation,
        needs_approval=invocation.needs_approval,
        strict_json_schema=False,  # a strict schema has no optional arguments
    )


def _invocation_of(interruption: Any) -> _GatedInvocation | None:
    for one in interruption.agent.tools:
        invocation = getattr(one, "on_invoke_tool", None)
        if one.name == interruption.name and isinstance(invocation, _GatedInvocation):
            return invocation
    return None


def _parsed(arguments: Any) -> Any:
    """As `needs_approval` receives them, so that every step of a call submits the same; other text stays as it is."""
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
