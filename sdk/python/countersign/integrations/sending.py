"""What one call of a loop sends, for the budgets that count tokens.

Text has at most as many tokens as bytes, so all that goes into the request counts: messages, tools and the options that
the client writes into it. A picture, a sound or a file has more tokens than the bytes that name it: of a message that
holds one only the program can tell the most it takes, and without its word a budget that counts tokens says no.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_NOT_SENT_AS_TEXT: Final = frozenset({"timeout", "extra_headers", "extra_query"})
_TEXT: Final = frozenset("text refusal tool_use tool_result thinking redacted_thinking search_result".split())


def sent_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> object:
    """All that is sent, as JSON; None where it holds more than text."""
    if not all(_is_text(message) for message in messages):
        return None
    told = {key: value for key, value in options.items() if key not in _NOT_SENT_AS_TEXT and _is_json(value)}
    return [messages, tools, told]


def _is_text(message: Mapping[str, Any]) -> bool:
    return message.get("audio") is None and _are_text(message.get("content"))


def _are_text(content: object) -> bool:
    """A text, or parts that are; what a tool answered may hold parts itself."""
    if isinstance(content, Mapping):
        return content.get("type") in _TEXT and _are_text(content.get("content"))
    return not isinstance(content, Iterable) or isinstance(content, str) or all(map(_are_text, content))


def _is_json(value: object) -> bool:
    """What is none is not sent either: a client's own word for "not given"."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
