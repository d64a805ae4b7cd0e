"""Reads the usage in responses of OpenAI, Anthropic, Google and Ollama, as objects and dicts.

Every count stays as the vendor reports it, and None if it is missing; a missing count is never taken for zero. `Billed`
is the same usage in the four kinds that have a price, because the vendors count differently. Cached tokens are part of
the input at OpenAI and Google and separate at Anthropic. Thinking tokens are part of the output at OpenAI and Anthropic
and separate at Google. A response in an unknown format is refused, not guessed at. The text of a response is never
read, except its reasoning on request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from countersign.llm.errors import UsageUnknown

MAX_TOKENS: Final = 10**8  # of one call; more is not plausible, and sums of it must fit 64 bits


def get(body: Any, *path: str) -> Any:
    """A member of an object or a dict, in snake case or camel case (`usage_metadata`, `usageMetadata`)."""
    for name in path:
        body = _of_mapping(body, name) if isinstance(body, Mapping) else getattr(body, name, None)
    return body


def _of_mapping(body: Mapping[Any, Any], name: str) -> Any:
    return body.get(name, body.get(_camel(name)))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def items(body: Any, name: str) -> list[Any]:
    found = get(body, name)
    return list(found) if isinstance(found, list | tuple) else []


def count(body: Any, *path: str) -> int | None:
    """A count of tokens; None if it is missing or invalid (true, 1.5, a mock)."""
    found = get(body, *path)
    return found if type(found) is int and 0 <= found <= MAX_TOKENS else None


def word(body: Any, *path: str) -> str | None:
    """A short text, or the name of an enum member."""
    found = get(body, *path)
    found = getattr(found, "name", found)
    return found if isinstance(found, str) and found else None


def words(found: Iterator[str | None]) -> tuple[str, ...]:
    return tuple(word for word in found if word is not None)


@dataclass(frozen=True, slots=True)
class Billed:
    """Usage by priced kind; the kinds do not overlap."""

    input: int  # neither read from a cache nor written to one
    cached: int
    written: int
    output: int  # reasoning included

    @property
    def total(self) -> int:
        """All of it."""
        return self.input + self.cached + self.written + self.output


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage in one response, as its vendor counts it."""

    provider: str | None = None
    model: str | None = None
    finish_reasons: tuple[str, ...] = ()  # one for each choice
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None  # read from a cache
    written_tokens: int | None = None  # written to a cache
    reasoning_tokens: int | None = None
    billed: Billed | None = None  # None: input or output is unknown
    reasoning: str | None = field(default=None, repr=False)  # only on request

    @property
    def finish_reason(self) -> str | None:
        """Of the first choice."""
        return self.finish_reasons[0] if self.finish_reasons else None


@dataclass(frozen=True, slots=True)
class _ResponseFormat:
    name: str
    looked_for: str
    is_it: Callable[[Any], bool]
    read: Callable[[Any], Usage]
    thoughts: Callable[[Any], Iterator[Any]]


def read_usage(response: object, *, unknown_tokens: bool = False, reasoning: bool = False) -> Usage:
    """The usage in a response. `unknown_tokens` accepts a response without it, with None for what is missing.

    Raises:
        UsageUnknown: the format is unknown, or a count is missing or invalid; the error lists what was searched for.
    """
    body = _unwrapped(response)
    shape = next((one for one in _FORMATS if one.is_it(body)), None)
    if shape is None:
        if unknown_tokens:
            return Usage(model=word(body, "model"))
        raise UsageUnknown(type(response).__name__, [f"{one.looked_for} ({one.name})" for one in _FORMATS])
    usage = shape.read(body)
    if usage.billed is None and not unknown_tokens:
        raise UsageUnknown(
            type(response).__name__, [f"{shape.looked_for} ({shape.name})"], "a count is missing or is none"
        )
    return _with_reasoning(usage, shape, body) if reasoning else usage


def _unwrapped(response: Any) -> Any:
    """The response inside an event of OpenAI's stream (`response.completed`, `response.incomplete`)."""
    kind = get(response, "type")
    if isinstance(kind, str) and kind.startswith("response."):
        return get(response, "response")
    return response


def _with_reasoning(usage: Usage, shape: _ResponseFormat, body: Any) -> Usage:
    texts = [text for text in shape.thoughts(body) if isinstance(text, str) and text]
    fields = {name: getattr(usage, name) for name in Usage.__dataclass_fields__}
    return Usage(**fields | {"reasoning": "\n".join(texts) or None})


def _billed(
    whole: int | None, output: int | None, *, cached: int | None, written: int | None = None
) -> Billed | None:
    """`whole` is all input, cached included. More cached tokens than input is invalid."""
    if whole is None or output is None or (cached or 0) + (written or 0) > whole:
        return None
    return Billed(whole - (cached or 0) - (written or 0), cached or 0, written or 0, output)


def _sum(*counts: int | None) -> int | None:
    """The sum, or None if the first count is unknown; vendors omit the others when they are zero."""
    first, *rest = counts
    return None if first is None else first + sum(one or 0 for one in rest)


# --------------------------------------------------------------------------------------------------- vendors


def _chat(body: Any) -> Usage:
    prompt = count(body, "usage", "prompt_tokens")
    completion = count(body, "usage", "completion_tokens")
    cached = count(body, "usage", "prompt_tokens_details", "cached_tokens")
    return Usage(
        provider="openai",
        model=word(body, "model"),
        finish_reasons=words(word(choice, "finish_reason") for choice in items(body, "choices")),
        input_tokens=prompt,
        output_tokens=completion,
        cached_tokens=cached,
        reasoning_tokens=count(body, "usage", "completion_tokens_details", "reasoning_tokens"),
        billed=_billed(prompt, completion, cached=cached),
    )


def _chat_thoughts(body: Any) -> Iterator[Any]:
    """OpenAI does not return reasoning; compatible vendors do."""
    for choice in items(body, "choices"):
        yield get(choice, "message", "reasoning_content") or get(choice, "message", "reasoning")


def _responses(body: Any) -> Usage:
    given, output = count(body, "usage", "input_tokens"), count(body, "usage", "output_tokens")
    cached = count(body, "usage", "input_tokens_details", "cached_tokens")
    reason = word(body, "incomplete_details", "reason") or word(body, "status")
    return Usage(
        provider="openai",
        model=word(body, "model"),
        finish_reasons=words(iter([reason])),
        input_tokens=given,
        output_tokens=output,
        cached_tokens=cached,
        reasoning_tokens=count(body, "usage", "output_tokens_details", "reasoning_tokens"),
        billed=_billed(given, output, cached=cached),
    )


def _responses_thoughts(body: Any) -> Iterator[Any]:
    for item in items(body, "output"):
        if get(item, "type") == "reasoning":
            for part in [*items(item, "summary"), *items(item, "content")]:
                yield get(part, "text")


def _anthropic(body: Any) -> Usage:
    given, output = count(body, "usage", "input_tokens"), count(body, "usage", "output_tokens")
    cached = count(body, "usage", "cache_read_input_tokens")
    written = count(body, "usage", "cache_creation_input_tokens")
    return Usage(
        provider="anthropic",
        model=word(body, "model"),
        finish_reasons=words(iter([word(body, "stop_reason") or word(body, "delta", "stop_reason")])),
        input_tokens=given,
        output_tokens=output,
        cached_tokens=cached,
        written_tokens=written,
        reasoning_tokens=count(body, "usage", "output_tokens_details", "thinking_tokens"),
        billed=_billed(_sum(given, cached, written), output, cached=cached, written=written),
    )


def _anthropic_thoughts(body: Any) -> Iterator[Any]:
    for block in items(body, "content"):
        if get(block, "type") == "thinking":
            yield get(block, "thinking")


def _google(body: Any) -> Usage:
    usage = get(body, "usage_metadata")
    prompt, total = count(usage, "prompt_token_count"), count(usage, "total_token_count")
    tools, thoughts = count(usage, "tool_use_prompt_token_count"), count(usage, "thoughts_token_count")
    candidates = count(usage, "candidates_token_count")
    cached = count(usage, "cached_content_token_count")
    whole = _sum(prompt, tools)
    if candidates is None and total is not None and whole is not None:
        # A blocked prompt, or one whose output was only thinking, has no candidates: the total gives the rest.
        rest = total - whole - (thoughts or 0)
        candidates = rest if rest >= 0 else None
    return Usage(
        provider="google",
        model=word(body, "model_version"),
        finish_reasons=words(word(one, "finish_reason") for one in items(body, "candidates")),
        input_tokens=prompt,
        output_tokens=candidates,
        cached_tokens=cached,
        reasoning_tokens=thoughts,
        billed=_billed(whole, _sum(candidates, thoughts), cached=cached),
    )


def _google_thoughts(body: Any) -> Iterator[Any]:
    for candidate in items(body, "candidates"):
        for part in items(get(candidate, "content"), "parts"):
            if get(part, "thought") is True:
                yield get(part, "text")


def _ollama(body: Any) -> Usage:
    """Ollama may omit the count of a cached prompt; then the input is unknown."""
    given, output = count(body, "prompt_eval_count"), count(body, "eval_count")
    return Usage(
        provider="ollama",
        model=word(body, "model"),
        finish_reasons=words(iter([word(body, "done_reason")])),
        input_tokens=given,
        output_tokens=output,
        billed=_billed(given, output, cached=None),
    )


def _ollama_thoughts(body: Any) -> Iterator[Any]:
    yield get(body, "message", "thinking")
    yield get(body, "thinking")


_FORMATS: Final = (
    _ResponseFormat(
        "OpenAI chat completions",
        "usage.prompt_tokens and usage.completion_tokens",
        lambda body: count(body, "usage", "prompt_tokens") is not None,
        _chat,
        _chat_thoughts,
    ),
    _ResponseFormat(
        "OpenAI responses",
        'object="response" with usage.input_tokens and usage.output_tokens',
        lambda body: word(body, "object") == "response" and get(body, "usage") is not None,
        _responses,
        _responses_thoughts,
    ),
    _ResponseFormat(
        "Anthropic messages",
        'type="message" or "message_delta" with usage.input_tokens and usage.output_tokens',
        lambda body: word(body, "type") in {"message", "message_delta"} and get(body, "usage") is not None,
        _anthropic,
        _anthropic_thoughts,
    ),
    _ResponseFormat(
        "Google",
        "usage_metadata.prompt_token_count with candidates_token_count or total_token_count",
        lambda body: get(body, "usage_metadata") is not None,
        _google,
        _google_thoughts,
    ),
    _ResponseFormat(
        "Ollama",
        "done=true with prompt_eval_count and eval_count",
        lambda body: get(body, "done") is True,
        _ollama,
        _ollama_thoughts,
    ),
)
