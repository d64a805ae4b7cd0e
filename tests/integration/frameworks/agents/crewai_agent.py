"""A crew of one agent with a scripted model. Nothing is kept in files: a restart begins the task again."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

os.environ |= {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
}

from crewai import Agent, BaseLLM, Crew, Task
from scripted import ORDER, declare, options, report

from countersign.integrations import crewai_tools

HEARD: list[str] = []


class Scripted(BaseLLM):
    """The scripted model: it makes its calls in one message, and answers when it has read the results."""

    def call(self, messages: Any, tools: Any = None, *_: Any, **__: Any) -> Any:
        """One answer of the model."""
        results = [one["content"] for one in messages if one["role"] == "tool"]
        HEARD[:] = results
        if results or not tools:
            return "Done."
        calls = enumerate(ORDER["calls"])
        return [
            {
                "id": f"call_{at}",
                "type": "function",
                "function": {"name": "refund", "arguments": json.dumps(args)},
            }
            for at, args in calls
        ]

    async def acall(self, *given: Any, **named: Any) -> Any:
        """The same in an event loop."""
        return self.call(*given, **named)

    def supports_function_calling(self) -> bool:
        """CrewAI then uses native tool calls."""
        return True


def main() -> None:
    """One run of the process."""
    model = Scripted(model="scripted")
    agent = Agent(
        role="desk", goal="refund", backstory="a desk", llm=model,
        tools=crewai_tools([declare()], key=ORDER["key"], **options()),
    )  # fmt: skip
    task = Task(description="Refund order o-1, please.", expected_output="a word", agent=agent)
    crew = Crew(agents=[agent], tasks=[task])
    end = asyncio.run(crew.akickoff()) if ORDER.get("async") else crew.kickoff()
    failures = [one.failure for one in end.tasks_output[0].tool_failures]
    pending = [one.details for one in failures if one.code == "review_pending"]
    report(heard=HEARD, pending=pending, said=end.raw, codes=[one.code for one in failures])


if __name__ == "__main__":
    main()
