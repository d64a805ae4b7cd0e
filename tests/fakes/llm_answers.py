"""What models answer, in the shapes their vendors document: as JSON has it, and as objects with attributes.

Written by hand from the vendors' references (fields, nesting, which are left out and which are null); the numbers and
texts are ours. Each is a full answer, so that a reader that takes the wrong member is noticed.
"""

from __future__ import annotations

import re
from enum import Enum
from types import SimpleNamespace
from typing import Any

from tests.fakes.model_vendors import anthropic_says, openai_says

SECRET = "the customer's card is 4111 1111 1111 1111"

_PREDICTED = {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
OPENAI_CHAT: dict[str, Any] = openai_says("Done.") | {
    "usage": {"prompt_tokens": 1200, "completion_tokens": 300, "total_tokens": 1500}
    | {"prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 0}}
    | {"completion_tokens_details": {"reasoning_tokens": 192, "audio_tokens": 0, **_PREDICTED}},
    "service_tier": "default",
    "system_fingerprint": "fp_1",
}
"""Cached tokens are part of the prompt, reasoning is part of the completion."""

OPENAI_STREAM_END: dict[str, Any] = {
    "id": "chatcmpl-2",
    "object": "chat.completion.chunk",
    "model": "example-small-2026-01-15",
    "created": 1_790_000_000,
    "choices": [],
    "usage": {"prompt_tokens": 20, "completion_tokens": 7, "total_tokens": 27},
}
"""The last chunk of a stream with `include_usage`; the chunks before it have `usage: null`."""

OPENAI_RESPONSES: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1_790_000_000,
    "status": "incomplete",
    "incomplete_details": {"reason": "max_output_tokens"},
    "model": "example-large-2026-02-01",
    "output": [
        {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": SECRET}]},
        {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
        | {"content": [{"type": "output_text", "text": "Done.", "annotations": []}]},
    ],
    "usage": {"input_tokens": 500, "output_tokens": 250, "total_tokens": 750}
    | {"input_tokens_details": {"cached_tokens": 128}, "output_tokens_details": {"reasoning_tokens": 200}},
}
OPENAI_STREAM_COMPLETED: dict[str, Any] = {"type": "response.completed", "sequence_number": 40}
OPENAI_STREAM_COMPLETED["response"] = OPENAI_RESPONSES | {"status": "completed", "incomplete_details": None}

_THOUGHT = {"type": "thinking", "thinking": SECRET, "signature": "EqQB"}
ANTHROPIC: dict[str, Any] = anthropic_says(_THOUGHT, "Done.") | {
    "usage": {"input_tokens": 100, "cache_creation_input_tokens": 400, "cache_read_input_tokens": 2000}
    | {"cache_creation": {"ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 0}}
    | {"output_tokens": 150, "output_tokens_details": {"thinking_tokens": 90}}
    | {"server_tool_use": None, "service_tier": "standard"},
}
"""Cached tokens are not part of the input, thoughts are part of the output."""

ANTHROPIC_STREAM_END: dict[str, Any] = {
    "type": "message_delta",
    "delta": {"stop_reason": "tool_use", "stop_sequence": None},
    "usage": {"input_tokens": 30, "output_tokens": 12}
    | {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0},
}

GOOGLE: dict[str, Any] = {
    "candidates": [
        {
            "content": {"role": "model", "parts": [{"text": SECRET, "thought": True}, {"text": "Done."}]},
            "finishReason": "STOP",
            "index": 0,
        }
    ],
    "usageMetadata": {"promptTokenCount": 600, "cachedContentTokenCount": 512, "candidatesTokenCount": 40}
    | {"thoughtsTokenCount": 160, "toolUsePromptTokenCount": 25, "totalTokenCount": 825},
    "modelVersion": "example-flash-001",
    "responseId": "r-1",
}
"""As JSON over the wire. Cached tokens are part of the prompt; thoughts and the prompts of tools are separate."""

GOOGLE_BLOCKED: dict[str, Any] = {"promptFeedback": {"blockReason": "SAFETY"}}
GOOGLE_BLOCKED |= {"usageMetadata": {"promptTokenCount": 9, "totalTokenCount": 9}}
GOOGLE_BLOCKED["modelVersion"] = "example-flash-001"

OLLAMA: dict[str, Any] = {
    "model": "example-local:8b",
    "created_at": "2026-09-01T10:00:00.000000Z",
    "message": {"role": "assistant", "content": "Done.", "thinking": SECRET},
    "done": True,
    "done_reason": "stop",
    "total_duration": 5_191_566_416,
    "load_duration": 2_154_458,
    "prompt_eval_count": 26,
    "prompt_eval_duration": 383_809_000,
    "eval_count": 298,
    "eval_duration": 4_799_921_000,
}


class FinishReason(Enum):
    """The client of Google gives a member of an enum."""

    STOP = "STOP"


def google_object() -> Any:
    """As the Python client has it: snake case, and null for a member that the wire had not."""

    def snake(answer: Any) -> Any:
        if isinstance(answer, dict):
            return {re.sub("(?=[A-Z])", "_", name).lower(): snake(value) for name, value in answer.items()}
        return [snake(one) for one in answer] if isinstance(answer, list) else answer

    found = as_object(snake(GOOGLE) | {"prompt_feedback": None})
    found.candidates[0].finish_reason = FinishReason.STOP
    found.candidates[0].content.parts[1].thought = None
    found.usage_metadata.traffic_type = None
    return found


def as_object(answer: Any) -> Any:
    """The same with attributes, as the vendors' clients hand it out."""
    if isinstance(answer, dict):
        return SimpleNamespace(**{name: as_object(value) for name, value in answer.items()})
    if isinstance(answer, list):
        return [as_object(one) for one in answer]
    return answer


def without(answer: dict[str, Any], *path: str) -> dict[str, Any]:
    """A copy that lacks one member."""
    first, *rest = path
    if not rest:
        return {name: value for name, value in answer.items() if name != first}
    return answer | {first: without(answer[first], *rest)}


def with_count(answer: dict[str, Any], value: object, *path: str) -> dict[str, Any]:
    """A copy in which one member is another."""
    first, *rest = path
    return answer | {first: with_count(answer[first], value, *rest) if rest else value}
