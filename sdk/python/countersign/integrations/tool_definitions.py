"""Tool definitions for vendors' APIs: name, docstring, and the JSON Schema of the draft manifest.

Vendors accept letters, digits, `_` and `-`, at most 64 characters. A valid name stays as it is. In any other name each
invalid character becomes `_`. If the result is another tool's name or too long, it ends with a part of the name's
digest. One set of tools therefore always gets the same names, in any order.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from countersign.errors import MisuseError, RegistrationError
from countersign.manifests.drafts import args_schema
from countersign.tools.definition import Tool
from countersign.tools.tool import tool_of

MAX_NAME: Final = 64
_TAKEN: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_REFUSED: Final = re.compile(r"[^a-zA-Z0-9_-]")
_DIGEST_LETTERS: Final = 8


class OfferedTools:
    """The tools a model may call, by their vendor names."""

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        found = [(tool_of(function), function) for function in functions]
        _require_each_once([one for one, _ in found])
        self._named = _vendor_names([one.name for one, _ in found])
        self._offered = {self._named[one.name]: (one, function) for one, function in found}

    def __iter__(self) -> Iterator[tuple[str, Tool]]:
        """Each tool with its vendor name."""
        return ((name, one) for name, (one, _) in self._offered.items())

    @property
    def names(self) -> tuple[str, ...]:
        """As the model knows them."""
        return tuple(self._offered)

    def find(self, name: str) -> tuple[Tool, Callable[..., Any]] | None:
        """The tool with this vendor name, and the function that stages it."""
        return self._offered.get(name)


def _require_each_once(tools: Sequence[Tool]) -> None:
    names = [one.name for one in tools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise MisuseError(f"tools=... names {twice[0]!r} twice; name each tool once")


def _vendor_names(names: Sequence[str]) -> dict[str, str]:
    taken = {name for name in names if _TAKEN.match(name)}
    plain = {name: _REFUSED.sub("_", name) for name in names if name not in taken}
    chosen = {name: name for name in taken}
    for name, short in plain.items():
        shared = short in taken or list(plain.values()).count(short) > 1
        chosen[name] = _with_digest(name, short) if shared or len(short) > MAX_NAME else short
    if len(set(chosen.values())) != len(chosen):
        raise RegistrationError(
            f"two of the tools {', '.join(sorted(chosen))} would have one name; rename one"
        )
    return chosen


def _with_digest(name: str, short: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LETTERS]
    return f"{short[: MAX_NAME - _DIGEST_LETTERS - 1]}_{digest}"


def openai_tools(tools: Sequence[Callable[..., Any]]) -> list[dict[str, Any]]:
    """The function definitions of these tools, for `tools=` of OpenAI's chat completions.

    Raises:
        RegistrationError: one is not decorated with `@tool`, or has an argument without a type.
        MisuseError: one is listed twice.
    """
    return openai_definitions(OfferedTools(tools))


def anthropic_tools(tools: Sequence[Callable[..., Any]]) -> list[dict[str, Any]]:
    """The definitions of these tools, for `tools=` of Anthropic's messages.

    Raises:
        RegistrationError: one is not decorated with `@tool`, or has an argument without a type.
        MisuseError: one is listed twice.
    """
    return anthropic_definitions(OfferedTools(tools))


def openai_definitions(offered: OfferedTools) -> list[dict[str, Any]]:
    """The same, for tools that have vendor names already."""
    return [
        {
            "type": "function",
            "function": {"name": name, "description": description_of(one), "parameters": args_schema(one)},
        }
        for name, one in offered
    ]


def anthropic_definitions(offered: OfferedTools) -> list[dict[str, Any]]:
    """The same, for tools that have vendor names already."""
    return [
        {"name": name, "description": description_of(one), "input_schema": args_schema(one)}
        for name, one in offered
    ]


def description_of(one: Tool) -> str:
    """What a model reads of the tool: its docstring, or else its title."""
    return inspect.getdoc(one.fn) or one.draft.title or one.name.replace("_", " ")
