"""`pydantic_ai_tools`: gated tools for Pydantic AI. A call that waits for people is deferred for approval.

The key of a call is the id of its conversation, which the message history keeps, and its tool call id. An approval in
`DeferredToolResults` makes the framework call the tool again under the same key, so the service's state decides. A call
that is still under review is deferred again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from countersign.errors import MisuseError, ReviewPending
from countersign.integrations.conversation import ModelCall
from countersign.integrations.errors import require_package
from countersign.integrations.framework_calls import (
    CallOptions,
    FrameworkCalls,
    RunKey,
    ToolDefinition,
    pending_payload,
)


def pydantic_ai_tools(
    tools: Sequence[Callable[..., Any]], *, key: RunKey | None = None, **options: Unpack[CallOptions]
) -> list[Any]:
    """The tools as `Tool`, for `Agent(tools=..., output_type=[..., DeferredToolRequests])`.

    `key` is the key of a run, or a function of the call's `RunContext`; without it, the conversation's id.

    While people decide, the output is a `DeferredToolRequests`; `output.metadata[tool_call_id]` is the review as JSON.
    Approving the call with any `DeferredToolResults` asks the service again. A denied call ends as `ToolFailed`.

    Raises:
        PackageMissing: `pydantic-ai-slim` is not installed.
        RegistrationError: one is not decorated with `@tool`, or has an argument without a type.
        MisuseError: one is listed twice, or the key or an option is invalid.
    """
    framework = require_package("pydantic_ai", "pydantic-ai")
    calls = FrameworkCalls(tools, key or _conversation_id, options)
    return [_tool(framework, calls, one) for one in calls]


def _tool(framework: Any, calls: FrameworkCalls, one: ToolDefinition) -> Any:
    async def run(run_context: Any, **args: Any) -> str:
        call_id = run_context.tool_call_id
        key = calls.key_by_id(run_context, call_id)
        try:
            answer = await calls.answer(ModelCall(call_id, one.name, args), key)
        except ReviewPending as pending:
            raise framework.ApprovalRequired(metadata=pending_payload(pending)) from pending
        if not answer.done:
            raise framework.ToolFailed(answer.text)
        return answer.text

    return framework.Tool.from_schema(run, one.name, one.description, one.schema, takes_ctx=True)


def _conversation_id(run_context: Any) -> str:
    if run_context.conversation_id is None:
        raise MisuseError("this run has no conversation id; give pydantic_ai_tools(..., key=...)")
    return str(run_context.conversation_id)
