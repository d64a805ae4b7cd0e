"""A LangGraph agent: a scripted model, a `ToolNode` with the gated tool, and a checkpoint in a file."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from scripted import FOLDER, ORDER, declare, options, report

from countersign.integrations import langgraph_tools

FILE = str(FOLDER / "checkpoints.db")
THREAD: Any = {"configurable": {"thread_id": ORDER["key"]}}


def model(state: MessagesState) -> dict[str, Any]:
    """The scripted model: it makes its calls in one message, and answers when it has read the results."""
    if len(state["messages"]) > 1:
        return {"messages": [AIMessage("Done.")]}
    calls = [
        {"name": "refund", "args": args, "id": f"call_{place}"} for place, args in enumerate(ORDER["calls"])
    ]
    return {"messages": [AIMessage("", tool_calls=calls)]}


def graph() -> StateGraph[Any]:
    """Model and tools in turn."""
    made = StateGraph(MessagesState)
    made.add_node("model", model)
    made.add_node("tools", ToolNode(langgraph_tools([declare()], **options())))
    made.add_edge(START, "model")
    made.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    made.add_edge("tools", "model")
    return made


def given() -> Any:
    """What the graph is invoked with."""
    if ORDER["step"] == "start":
        return {"messages": [HumanMessage("Refund order o-1, please.")]}
    return Command(resume=ORDER["answer"])


def run() -> dict[str, Any]:
    """One run of the process."""
    with SqliteSaver.from_conn_string(FILE) as kept:
        return graph().compile(checkpointer=kept).invoke(given(), THREAD)


async def run_async() -> dict[str, Any]:
    """The same in an event loop."""
    async with AsyncSqliteSaver.from_conn_string(FILE) as kept:
        return await graph().compile(checkpointer=kept).ainvoke(given(), THREAD)


if __name__ == "__main__":
    end = asyncio.run(run_async()) if ORDER.get("async") else run()
    heard = [one.content for one in end["messages"] if one.type == "tool"]
    report(
        heard=heard,
        pending=[one.value for one in end.get("__interrupt__", ())],
        said=end["messages"][-1].content,
    )
