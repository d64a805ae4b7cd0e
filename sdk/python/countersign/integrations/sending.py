"""What one call of a loop sends, for the budgets that count tokens.

Text has at most as many tokens as bytes, so all that goes into the request counts: messages, tools and the options that
the client writes into it, objects of the client as it writes them. A picture, a sound or a file has more tokens than
the bytes that name it, and of what cannot be written as JSON here, or only once, nobody knows them: where a call sends
such a thing only the program can tell the most it takes, and without its word a budget that counts tokens says no.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_NOT_SENT_AS_TEXT: Final = frozenset({"timeout", "extra_headers", "extra_query"})
_NOT_GIVEN: Final = frozenset({"NotGiven", "Omit"})  # the clients' own words for what is not sent at all
_CONTENT: Final = frozenset({"system"})  # the options that hold what a message does
_TEXT: Final = tuple("text refusal tool_use tool_result thinking redacted_thinking search_result".split())
_MORE_THAN_TEXT: Final = tuple(
    "image image_url input_image document file input_file container_upload audio input_audio video".split()
)


class _NotTextError(Exception):
    """It holds what cannot be written as JSON."""


def sent_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> object:
    """All that is sent, as JSON; None where it holds more than text."""
    try:
        said = [_plain(message) for message in messages]
        told = {key: _plain(value) for key, value in options.items() if _is_sent(key, value)}
    except _NotTextError:
        return None
    text = all(map(_is_text, said)) and all(_is_option(key, value) for key, value in told.items())
    return [said, tools, told] if text else None


def _is_sent(key: str, value: object) -> bool:
    return key not in _NOT_SENT_AS_TEXT and type(value).__name__ not in _NOT_GIVEN


def _plain(value: Any) -> Any:
    """As the client writes it. An iterator is none: looked at here, it would be empty when the client does."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        try:
            return dump(mode="json", exclude_unset=True)
        except (TypeError, ValueError) as error:
            raise _NotTextError from error
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise _NotTextError


def _is_text(message: Mapping[str, Any]) -> bool:
    return message.get("audio") is None and _are_text(message.get("content"))


def _are_text(content: object) -> bool:
    """A text, or parts that are; what a tool answered may hold parts itself."""
    if isinstance(content, Mapping):
        return content.get("type") in _TEXT and _are_text(content.get("content"))
    return not isinstance(content, Iterable) or isinstance(content, str) or all(map(_are_text, content))


def _is_option(key: str, value: object) -> bool:
    return _are_text(value) if key in _CONTENT else not _holds_more(value)


def _holds_more(value: object) -> bool:
    """Whether there is a picture, a sound or a file anywhere in it."""
    if isinstance(value, Mapping):
        return value.get("type") in _MORE_THAN_TEXT or any(map(_holds_more, value.values()))
    return isinstance(value, list) and any(map(_holds_more, value))
