"""An agent of the OpenAI Agents SDK: its own scripted model, and the run's state in a file."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agents import Agent, Runner, RunState, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
from scripted import FOLDER, ORDER, declare, options, report

from countersign.integrations import openai_agents_tools, settle_interruptions

FILE = FOLDER / "state.json"
CONTEXT = {"case": ORDER["key"]}


def agent(*, first: bool) -> Agent[Any]:
    """The model makes its calls in one message, and answers when it has read the results."""
    calls = [
        function_call("refund", ORDER.get("raw", args), call_id=f"call_{place}")
        for place, args in enumerate(ORDER["calls"])
    ]
    steps = [calls] if first else []
    tools = openai_agents_tools([declare()], key=lambda context: context["case"], **options())
    return Agent(name="desk", model=ScriptedModel([*steps, [assistant_message("Done.")]]), tools=tools)


async def main() -> None:
    """One run of the process."""
    if ORDER["step"] == "start":
        end = await Runner.run(agent(first=True), "Refund order o-1, please.", context=CONTEXT)
    else:
        mine = agent(first=False)
        state = await RunState.from_json(mine, json.loads(FILE.read_text()))
        if ORDER.get("blindly"):
            for one in state.get_interruptions():
                state.approve(one)
        else:
            await settle_interruptions(state, context=CONTEXT)
        end = await Runner.run(mine, state)
    state = end.to_state()
    FILE.write_text(json.dumps(state.to_json()))
    pending = await settle_interruptions(state, context=CONTEXT)
    heard = [one.output for one in end.new_items if one.type == "tool_call_output_item"]
    report(heard=heard, pending=pending, said=str(end.final_output))


if __name__ == "__main__":
    set_tracing_disabled(True)
    asyncio.run(main())
