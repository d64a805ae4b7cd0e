"""Agent loops for the clients of model vendors, and gated tools for agent frameworks. A package of a vendor or a
framework is imported on first use.

from countersign.integrations import run_openai
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from countersign.integrations.anthropic_messages import run_anthropic
    from countersign.integrations.claude_agent import claude_hooks, claude_server
    from countersign.integrations.conversation import Conversation, ExecutedStep, ModelCall, ToolAnswer
    from countersign.integrations.crewai import crewai_tools
    from countersign.integrations.errors import ModelStopped, PackageMissing, TurnLimit
    from countersign.integrations.langgraph import langgraph_tools
    from countersign.integrations.mcp_session import GatedSession, McpToolError, gate_mcp
    from countersign.integrations.openai_agents import openai_agents_tools, settle_interruptions
    from countersign.integrations.openai_chat import run_openai
    from countersign.integrations.pydantic_ai import pydantic_ai_tools
    from countersign.integrations.tool_definitions import anthropic_tools, openai_tools

_HOMES = {
    "anthropic_messages": ("run_anthropic",),
    "claude_agent": ("claude_hooks", "claude_server"),
    "conversation": ("ToolAnswer", "Conversation", "ModelCall", "ExecutedStep"),
    "tool_definitions": ("anthropic_tools", "openai_tools"),
    "errors": ("ModelStopped", "PackageMissing", "TurnLimit"),
    "crewai": ("crewai_tools",),
    "langgraph": ("langgraph_tools",),
    "mcp_session": ("GatedSession", "McpToolError", "gate_mcp"),
    "openai_agents": ("openai_agents_tools", "settle_interruptions"),
    "openai_chat": ("run_openai",),
    "pydantic_ai": ("pydantic_ai_tools",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Conversation",
    "ExecutedStep",
    "GatedSession",
    "McpToolError",
    "ModelCall",
    "ModelStopped",
    "PackageMissing",
    "ToolAnswer",
    "TurnLimit",
    "anthropic_tools",
    "claude_hooks",
    "claude_server",
    "crewai_tools",
    "gate_mcp",
    "langgraph_tools",
    "openai_agents_tools",
    "openai_tools",
    "pydantic_ai_tools",
    "run_anthropic",
    "run_openai",
    "settle_interruptions",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return [*__all__]
