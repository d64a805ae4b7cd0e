"""An agent of Pydantic AI: a function as its model, and the messages in a file."""

from __future__ import annotations

import json

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolApproved
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from scripted import FOLDER, ORDER, declare, options, report

from countersign.integrations import pydantic_ai_tools

MESSAGES, WAITING = FOLDER / "messages.json", FOLDER / "waiting.json"


def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """The scripted model: it makes its calls in one message, and answers when it has read the results."""
    if len(messages) > 1:
        return ModelResponse([TextPart("Done.")])
    calls = enumerate(ORDER["calls"])
    return ModelResponse([ToolCallPart("refund", args, f"call_{place}") for place, args in calls])


def main() -> None:
    """One run of the process."""
    agent = Agent(
        FunctionModel(model),
        tools=pydantic_ai_tools([declare()], **options()),
        output_type=[str, DeferredToolRequests],
    )
    if ORDER["step"] == "start":
        end = agent.run_sync("Refund order o-1, please.", conversation_id=ORDER["key"])
    else:
        approved = ToolApproved(override_args=ORDER["override"]) if "override" in ORDER else True
        results = DeferredToolResults(approvals=dict.fromkeys(json.loads(WAITING.read_text()), approved))
        history = ModelMessagesTypeAdapter.validate_json(MESSAGES.read_bytes())
        end = agent.run_sync(message_history=history, deferred_tool_results=results)
    MESSAGES.write_bytes(end.all_messages_json())
    waits = end.output if isinstance(end.output, DeferredToolRequests) else DeferredToolRequests()
    WAITING.write_text(json.dumps([one.tool_call_id for one in waits.approvals]))
    parts = [part for message in end.all_messages() for part in message.parts]
    report(
        heard=[part.content for part in parts if isinstance(part, ToolReturnPart)],
        pending=[waits.metadata[one.tool_call_id] for one in waits.approvals],
        said="" if waits.approvals else end.output,
    )


if __name__ == "__main__":
    main()
