"""`langgraph_tools`: gated tools for LangGraph. A call that waits for people interrupts the graph.

The key of a call is its thread id and tool call id, which a checkpoint keeps. Resuming runs the call again under the
same key, so the service's state decides. The value of the resume is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Unpack

from countersign.errors import MisuseError, ReviewPending
from countersign.integrations.conversation import ModelCall, ToolAnswer
from countersign.integrations.errors import require_package
from countersign.integrations.framework_calls import (
    CallOptions,
    FrameworkCalls,
    RunKey,
    ToolDefinition,
    pending_payload,
)


def langgraph_tools(
    tools: Sequence[Callable[..., Any]], *, key: RunKey | None = None, **options: Unpack[CallOptions]
) -> list[Any]:
    """The tools as `StructuredTool`, for a `ToolNode` or a prebuilt agent. The graph needs a checkpointer.

    `key` is the key of a run, or a function of the call's `ToolRuntime`; without it, the thread id.

    While people decide, the graph is interrupted. The interrupt's value is the review as JSON: `state`, `message`,
    `reviews` with `url` and `waiting_for`. `Command(resume=...)` with any value asks the service again.

    Raises:
        PackageMissing: `langgraph` is not installed.
        RegistrationError: one is not decorated with `@tool`, or has an argument without a type.
        MisuseError: one is listed twice, or the key or an option is invalid.
    """
    require_package("langgraph")
    calls = FrameworkCalls(tools, key or _thread_id, options)
    return [_structured_tool(calls, one) for one in calls]


def _structured_tool(calls: FrameworkCalls, one: ToolDefinition) -> Any:
    interrupt: Callable[[Any], Any] = import_module("langgraph.types").interrupt

    def run(countersign_runtime: Any, **args: Any) -> Any:
        key, call = _named(countersign_runtime, args)
        while True:
            try:
                return _result(calls.answer_blocking(call, key), call)
            except ReviewPending as pending:
                payload = pending_payload(pending)
            interrupt(payload)  # a resume returns from it, and the service is asked again

    async def run_async(countersign_runtime: Any, **args: Any) -> Any:
        key, call = _named(countersign_runtime, args)
        while True:
            try:
                return _result(await calls.answer(call, key), call)
            except ReviewPending as pending:
                payload = pending_payload(pending)
            interrupt(payload)

    def _named(runtime: Any, args: dict[str, Any]) -> tuple[str, ModelCall]:
        key = calls.key_by_id(runtime, runtime.tool_call_id)
        return key, ModelCall(runtime.tool_call_id, one.name, args)

    # LangGraph recognizes the argument by this type and hides it from the model.
    runtime_type = import_module("langgraph.prebuilt.tool_node").ToolRuntime
    for function in (run, run_async):
        function.__annotations__ = {"countersign_runtime": runtime_type, "args": Any, "return": Any}
    return import_module("langchain_core.tools").StructuredTool(
        name=one.name, description=one.description, args_schema=one.schema, func=run, coroutine=run_async
    )


def _thread_id(runtime: Any) -> str:
    thread = runtime.config.get("configurable", {}).get("thread_id")
    if thread is None:
        raise MisuseError(
            'the graph runs without a thread id: invoke it with {"configurable": {"thread_id": ...}}, or give '
            "langgraph_tools(..., key=...)"
        )
    return str(thread)


def _result(answer: ToolAnswer, call: ModelCall) -> Any:
    message = import_module("langchain_core.messages").ToolMessage
    return message(
        answer.text, tool_call_id=call.call_id, name=call.name, status="success" if answer.done else "error"
    )
