"""`crewai_tools`: gated tools for CrewAI. The model reads that a call waits for people, and the crew goes on.

CrewAI keeps no id of a call over a restart, so the key of a call is the run's key, the tool and its arguments: an equal
call of the same run is the same call. What was not done is a `ToolFailure`, which the program finds in the task's
output. CrewAI gives every exception of a tool to the model, so errors that a model cannot handle are logged as well.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Unpack

from pydantic import BaseModel

from countersign.errors import CountersignError, ReviewPending
from countersign.integrations.conversation import ModelCall
from countersign.integrations.errors import require_package
from countersign.integrations.framework_calls import (
    CallOptions,
    FrameworkCalls,
    ToolDefinition,
    failed_answer,
    pending_answer,
    pending_payload,
)


def crewai_tools(
    tools: Sequence[Callable[..., Any]], *, key: str, **options: Unpack[CallOptions]
) -> list[Any]:
    """The tools as `BaseTool`, for `Agent(tools=...)` or `Task(tools=...)`.

    `key` is the key of a run, the same when it runs again. A call that is not done has a record in
    `TaskOutput.tool_failures`; its `failure.code` is `not_done`, `review_pending` or the code of an error. For
    `review_pending`, `failure.details` is the review as JSON.

    Raises:
        PackageMissing: `crewai` is not installed.
        RegistrationError: one is not decorated with `@tool`, or has an argument without a type.
        MisuseError: one is listed twice or is async, or the key or an option is invalid.
    """
    require_package("crewai")
    calls = FrameworkCalls(tools, key, options, awaits=False)
    return [_base_tool(calls, one) for one in calls]


def _base_tool(calls: FrameworkCalls, one: ToolDefinition) -> Any:
    failure = import_module("crewai.tools").ToolFailure

    def run(self: Any, **args: Any) -> Any:
        call = ModelCall("", one.name, args)
        code, details = "not_done", {}
        try:
            answer = calls.answer_blocking(call, calls.key_by_arguments(None, one.name, args))
        except ReviewPending as pending:
            answer, details = pending_answer("", pending), pending_payload(pending)
            code = pending.code
        except CountersignError as error:
            answer, code = failed_answer(call, error), error.code
        if answer.done:
            return answer.text
        return failure(message=answer.text, code=code, details=details, retryable=bool(details))

    async def run_in_thread(self: Any, **args: Any) -> Any:
        return await asyncio.to_thread(self._run, **args)

    members = {"__module__": __name__, "_run": run, "_arun": run_in_thread}
    gated: Any = type("GatedTool", (import_module("crewai.tools").BaseTool,), members)
    return gated(
        name=one.name,
        description=one.description,
        args_schema=_arguments_model(one),
        cache_function=_never,  # a stored "not done yet" would outlive the approval
    )


def _never(_args: Any = None, _result: Any = None) -> bool:
    return False


def _arguments_model(one: ToolDefinition) -> type[BaseModel]:
    """A model with the tool's own schema that passes arguments on as they are: the tool validates them itself."""

    class Arguments(BaseModel, extra="allow"):
        @classmethod
        def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
            return copy.deepcopy(one.schema)

    return Arguments
