"""What a vendor's client is told of tools: name, docstring, and the JSON Schema that the manifest's draft has too.

For programs with a loop of their own; `run_openai` and `run_anthropic` use the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from countersign.integrations.naming import OfferedTools
from countersign.manifests.drafting import args_schema
from countersign.tools.tool import Tool


def openai_tools(tools: Sequence[Callable[..., Any]]) -> list[dict[str, Any]]:
    """The function definitions of these tools, for `tools=` of OpenAI's chat completions.

    Raises:
        RegistrationError: one is not decorated with `@tool`, or does not say what an argument may hold.
        MisuseError: one is named twice.
    """
    return openai_definitions(OfferedTools(tools))


def anthropic_tools(tools: Sequence[Callable[..., Any]]) -> list[dict[str, Any]]:
    """The definitions of these tools, for `tools=` of Anthropic's messages.

    Raises:
        RegistrationError: one is not decorated with `@tool`, or does not say what an argument may hold.
        MisuseError: one is named twice.
    """
    return anthropic_definitions(OfferedTools(tools))


def openai_definitions(offered: OfferedTools) -> list[dict[str, Any]]:
    """The same, of tools that have their names already."""
    return [
        {
            "type": "function",
            "function": {"name": name, "description": _description(one), "parameters": args_schema(one)},
        }
        for name, one in offered
    ]


def anthropic_definitions(offered: OfferedTools) -> list[dict[str, Any]]:
    """The same, of tools that have their names already."""
    return [
        {"name": name, "description": _description(one), "input_schema": args_schema(one)}
        for name, one in offered
    ]


def _description(one: Tool) -> str:
    return inspect.getdoc(one.fn) or one.draft.title or one.name.replace("_", " ")
