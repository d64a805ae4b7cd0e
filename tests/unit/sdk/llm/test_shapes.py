"""A response is read as its vendor counts, and what it does not say is never taken for zero."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from countersign import Usage, UsageUnknown
from countersign.llm.shapes import Billed, read_usage
from tests.fakes.llm_answers import (
    ANTHROPIC,
    ANTHROPIC_STREAM_END,
    GOOGLE,
    GOOGLE_BLOCKED,
    OLLAMA,
    OPENAI_CHAT,
    OPENAI_RESPONSES,
    OPENAI_STREAM_COMPLETED,
    OPENAI_STREAM_END,
    SECRET,
    as_object,
    google_object,
    with_count,
    without,
)

CHAT = Usage(
    provider="openai", model="example-small-2026-01-15", finish_reasons=("stop",), input_tokens=1200,
    output_tokens=300, cached_tokens=1024, reasoning_tokens=192, billed=Billed(176, 1024, 0, 300),
)  # fmt: skip
RESPONSES = Usage(
    provider="openai", model="example-large-2026-02-01", finish_reasons=("max_output_tokens",), input_tokens=500,
    output_tokens=250, cached_tokens=128, reasoning_tokens=200, billed=Billed(372, 128, 0, 250),
)  # fmt: skip
MESSAGE = Usage(
    provider="anthropic", model="example-opus-20260301", finish_reasons=("end_turn",), input_tokens=100,
    output_tokens=150, cached_tokens=2000, written_tokens=400, reasoning_tokens=90, billed=Billed(100, 2000, 400, 150),
)  # fmt: skip
GEMINI = Usage(
    provider="google", model="example-flash-001", finish_reasons=("STOP",), input_tokens=600, output_tokens=40,
    cached_tokens=512, reasoning_tokens=160, billed=Billed(113, 512, 0, 200),
)  # fmt: skip
LOCAL = Usage(
    provider="ollama", model="example-local:8b", finish_reasons=("stop",), input_tokens=26, output_tokens=298,
    billed=Billed(26, 0, 0, 298),
)  # fmt: skip

READ: dict[str, tuple[Any, Usage]] = {
    "chat completions, a dict": (OPENAI_CHAT, CHAT),
    "chat completions, an object": (as_object(OPENAI_CHAT), CHAT),
    "responses, a dict": (OPENAI_RESPONSES, RESPONSES),
    "responses, an object": (as_object(OPENAI_RESPONSES), RESPONSES),
    "Anthropic, a dict": (ANTHROPIC, MESSAGE),
    "Anthropic, an object": (as_object(ANTHROPIC), MESSAGE),
    "Google, as over the wire": (GOOGLE, GEMINI),
    "Google, as its client has it": (google_object(), GEMINI),
    "Ollama, a dict": (OLLAMA, LOCAL),
    "Ollama, an object": (as_object(OLLAMA), LOCAL),
}


@pytest.mark.parametrize(("answer", "expected"), READ.values(), ids=READ.keys())
def test_every_vendor_is_read_as_it_counts(answer: Any, expected: Usage) -> None:
    """W21 of AgentRelay: usage with attributes raised AttributeError, after the call was paid for."""
    assert read_usage(answer) == expected


@pytest.mark.parametrize("to", [lambda one: one, as_object], ids=["dict", "object"])
def test_the_last_usage_of_a_stream_is_read(to: Any) -> None:
    chunk = read_usage(to(OPENAI_STREAM_END))
    assert (chunk.billed, chunk.cached_tokens, chunk.finish_reasons) == (Billed(20, 0, 0, 7), None, ())
    event = read_usage(to(OPENAI_STREAM_COMPLETED))
    assert (event.billed, event.finish_reason) == (Billed(372, 128, 0, 250), "completed")
    delta = read_usage(to(ANTHROPIC_STREAM_END))
    assert (delta.billed, delta.finish_reason, delta.model) == (Billed(30, 0, 0, 12), "tool_use", None)


def test_the_total_of_google_says_what_an_answer_without_candidates_took() -> None:
    blocked = read_usage(GOOGLE_BLOCKED)
    assert (blocked.output_tokens, blocked.billed) == (0, Billed(9, 0, 0, 0))
    thoughts = read_usage(without(GOOGLE, "usageMetadata", "candidatesTokenCount"))
    assert (thoughts.output_tokens, thoughts.billed) == (40, Billed(113, 512, 0, 200))


def test_several_choices_finish_for_several_reasons() -> None:
    two = OPENAI_CHAT | {
        "choices": [*OPENAI_CHAT["choices"], OPENAI_CHAT["choices"][0] | {"finish_reason": "length"}]
    }
    assert read_usage(two).finish_reasons == ("stop", "length")


REASONED = {
    "responses": (OPENAI_RESPONSES, SECRET),
    "Anthropic": (as_object(ANTHROPIC), SECRET),
    "Google": (google_object(), SECRET),
    "Ollama": (OLLAMA, SECRET),
    "chat completions of others": (
        OPENAI_CHAT | {"choices": [{"message": {"content": "Done.", "reasoning_content": SECRET}}]},
        SECRET,
    ),
    "chat completions keep theirs": (OPENAI_CHAT, None),
}


@pytest.mark.parametrize(("answer", "said"), REASONED.values(), ids=REASONED.keys())
def test_reasoning_is_read_only_where_it_is_asked_for(answer: Any, said: str | None) -> None:
    assert read_usage(answer).reasoning is None
    assert SECRET not in repr(read_usage(answer))
    assert read_usage(answer, reasoning=True).reasoning == said


def prompt(tokens: Any) -> dict[str, Any]:
    return with_count(OPENAI_CHAT, tokens, "usage", "prompt_tokens")


UNREADABLE: dict[str, tuple[Any, str]] = {
    "nothing": (None, "usage.prompt_tokens"),
    "text": ("Done.", "usage.prompt_tokens"),
    "an empty dict": ({}, "done=true with prompt_eval_count"),
    "a mock that has every attribute": (MagicMock(), "usage_metadata.prompt_token_count"),
    "a chunk before the last": (OPENAI_STREAM_END | {"usage": None}, "usage.prompt_tokens"),
    "an event before the last": ({"type": "response.output_text.delta", "delta": "Do"}, "usage.input_tokens"),
    "a chunk of Ollama before the last": (OLLAMA | {"done": False}, "done=true"),
    "chat without a completion": (
        without(OPENAI_CHAT, "usage", "completion_tokens"),
        "usage.completion_tokens",
    ),
    "a prompt of true tokens": (prompt(True), "usage.prompt_tokens"),
    "a prompt of -1 tokens": (prompt(-1), "usage.prompt_tokens"),
    "a prompt of 1.5 tokens": (prompt(1.5), "usage.prompt_tokens"),
    "a prompt of text": (prompt("12"), "usage.prompt_tokens"),
    "more tokens than there are": (prompt(10**30), "usage.prompt_tokens"),
    "more cached than sent": (
        with_count(OPENAI_CHAT, 1201, "usage", "prompt_tokens_details", "cached_tokens"),
        "usage.prompt_tokens",
    ),
    "a response without usage": (OPENAI_RESPONSES | {"usage": None}, "usage.input_tokens"),
    "a response that lacks its input": (
        without(OPENAI_RESPONSES, "usage", "input_tokens"),
        "usage.input_tokens",
    ),
    "the beginning of a message": (
        without(ANTHROPIC_STREAM_END, "usage", "input_tokens"),
        'type="message" or "message_delta"',
    ),
    "usage that names no vendor": ({"usage": {"input_tokens": 1, "output_tokens": 1}}, 'object="response"'),
    "Google without candidates or total": (
        without(GOOGLE_BLOCKED, "usageMetadata", "totalTokenCount"),
        "candidates_token_count or total_token_count",
    ),
    "Google with a total that is too small": (
        with_count(GOOGLE_BLOCKED, 3, "usageMetadata", "totalTokenCount"),
        "total_token_count",
    ),
    "Ollama with its prompt still in its cache": (without(OLLAMA, "prompt_eval_count"), "prompt_eval_count"),
    "a type that is a list": ({"type": ["message"], "object": {}}, "usage.prompt_tokens"),
}


@pytest.mark.parametrize(("answer", "looked_for"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_does_not_say_is_an_error_and_never_zero(answer: Any, looked_for: str) -> None:
    with pytest.raises(UsageUnknown) as error:
        read_usage(answer)
    assert looked_for in str(error.value)
    assert type(answer).__name__ in str(error.value)
    usage = read_usage(answer, unknown_tokens=True)
    assert usage.billed is None
    assert 0 not in {usage.input_tokens, usage.output_tokens}


def test_an_error_quotes_nothing_of_the_response() -> None:
    with pytest.raises(UsageUnknown) as error:
        read_usage({SECRET: SECRET, "type": SECRET, "usage": {SECRET: 1}})
    assert SECRET not in str(error.value)
