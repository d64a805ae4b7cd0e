"""OpenAI and Anthropic on loopback: their wire formats with scripted models behind them, for the vendors' own clients.

A script is a list of what the model answers, in order. What is sent is held against the rules that the vendors state
for a conversation, and refused as they refuse it (400), so that a loop that writes a wrong one is noticed: every call
of a message is answered once and at once, names of tools are of the letters they take, a schema is an object's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from tests.fakes.http_server import Quiet, served

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
OPENAI_PATH = "/v1/chat/completions"
ANTHROPIC_PATH = "/v1/messages"


@dataclass
class Vendor:
    """What the model will answer, and what it was sent."""

    script: list[Any]
    url: str = ""
    sent: list[dict[str, Any]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.sent.append(body)
        rules = {OPENAI_PATH: _openai_rules, ANTHROPIC_PATH: _anthropic_rules}
        if path not in rules:
            return 404, {"error": {"type": "not_found_error", "message": f"no {path}"}}
        if wrong := [one for one in rules[path](body) if one]:
            self.broken += wrong
            return 400, {"type": "error", "error": {"type": "invalid_request_error", "message": wrong[0]}}
        if not self.script:
            return 500, {"error": {"message": "the script is at its end"}}
        said = self.script.pop(0)
        return said if isinstance(said, tuple) else (200, said)

    def last_messages(self) -> list[dict[str, Any]]:
        """The messages of the last request."""
        return self.sent[-1]["messages"]

    def answers(self) -> list[str]:
        """The results sent to the model for the calls of its last message, in order."""
        last = self.last_messages()
        if last[-1]["role"] == "user":
            return [block["content"] for block in last[-1]["content"]]
        answered = takewhile(lambda message: message["role"] == "tool", reversed(last))
        return [message["content"] for message in answered][::-1]


@contextmanager
def vendor(*script: Any) -> Iterator[Vendor]:
    """Serve this script; `url` is the address."""
    one = Vendor(list(script))

    class Handler(Quiet):
        def respond(self) -> None:
            status, said = one.answer(self.path, json.loads(self.body()))
            headers = {"Content-Type": "application/json", "Retry-After-Ms": "1"}
            self.answer(status, json.dumps(said).encode(), headers)

    with served(Handler) as one.url:
        yield one
    assert one.broken == []


def _openai_rules(body: dict[str, Any]) -> Iterator[str]:
    for one in body.get("tools", ()):
        yield from _sound(one["function"]["name"], one["function"]["parameters"])
    open_calls: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                yield f"no call {message['tool_call_id']!r} is open"
                continue
            open_calls.remove(message["tool_call_id"])
        elif open_calls:
            yield f"tool_call_ids did not have response messages: {open_calls}"
        if message["role"] == "assistant":
            open_calls = [call["id"] for call in message.get("tool_calls", ())]
    if open_calls:
        yield f"tool_call_ids did not have response messages: {open_calls}"


def _anthropic_rules(body: dict[str, Any]) -> Iterator[str]:
    if not isinstance(body.get("max_tokens"), int):
        yield "max_tokens: field required"
    for one in body.get("tools", ()):
        yield from _sound(one["name"], one["input_schema"])
    open_calls: list[str] = []
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(answered) != sorted(open_calls):
            yield f"tool_use ids were found without tool_result blocks immediately after: {open_calls}"
        open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    if open_calls:
        yield "the conversation ends with a call"


def _sound(name: str, schema: dict[str, Any]) -> Iterator[str]:
    if not NAME.match(name):
        yield f"{name!r} does not match the pattern of names"
    if schema.get("type") != "object":
        yield f"the schema of {name!r} must be an object's"


# ------------------------------------------------------------------------------------------------ what models say


def openai_says(content: str | None, finish: str = "stop", **message: Any) -> dict[str, Any]:
    """One whole answer of chat completions."""
    said = {"role": "assistant", "content": content, "refusal": None, **message}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": "example-small-2026-01-15",
        "choices": [{"index": 0, "message": said, "logprobs": None, "finish_reason": finish}],
        "usage": {"prompt_tokens": 120, "completion_tokens": 30, "total_tokens": 150},
    }


def openai_calls(*calls: tuple[str, Any], said: str | None = None, turn: str = "") -> dict[str, Any]:
    """An answer that calls tools: names with arguments, a text as it is or a value as JSON. With a `turn` the ids are
    of this message alone, as the vendor makes them; without, they are those of every other, as some servers do.
    """
    made = [(name, args if isinstance(args, str) else json.dumps(args)) for name, args in calls]
    functions = [{"name": name, "arguments": args} for name, args in made]
    numbered = [(f"call_{turn}{number}", one) for number, one in enumerate(functions, 1)]
    tool_calls = [{"id": name, "type": "function", "function": one} for name, one in numbered]
    return openai_says(said, "tool_calls", tool_calls=tool_calls)


def anthropic_says(*blocks: dict[str, Any] | str, stop: str = "end_turn") -> dict[str, Any]:
    """One whole answer of messages: texts and other blocks."""
    return {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "example-opus-20260301",
        "content": [{"type": "text", "text": one} if isinstance(one, str) else one for one in blocks],
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 40},
    }


def anthropic_calls(
    *calls: tuple[str, Any], said: str = "", stop: str = "tool_use", turn: str = ""
) -> dict[str, Any]:
    """An answer that calls tools; `turn` as above."""
    kind, numbered = {"type": "tool_use"}, enumerate(calls, 1)
    blocks = [kind | {"id": f"toolu_{turn}{n}", "name": name, "input": args} for n, (name, args) in numbered]
    return anthropic_says(*([said] if said else []), *blocks, stop=stop)
