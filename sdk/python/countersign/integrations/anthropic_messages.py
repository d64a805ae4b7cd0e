"""`run_anthropic`: a conversation with Anthropic's messages API whose tool calls are staged, decided and fired.

It accepts complete messages with `stop_reason` `end_turn`, `stop_sequence`, `tool_use` or `pause_turn` (the model is
then called again unchanged). Any other stop reason, a refusal too, ends the run (`ModelStopped`), and no call of such a
message is carried out. Thinking blocks are sent back unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast, overload

from countersign.commit.review import OnQuestion
from countersign.concurrency import run_sync
from countersign.errors import MisuseError
from countersign.integrations.conversation import (
    Conversation,
    Message,
    ModelCall,
    ModelTurn,
    ToolAnswer,
    TurnNumbering,
)
from countersign.integrations.errors import require_package
from countersign.integrations.model_loop import (
    MAX_TURNS,
    InputTokens,
    Loop,
    ModelClient,
    OnMessage,
    as_json,
    require_key,
    runtime_or_default,
)
from countersign.integrations.tool_definitions import OfferedTools, anthropic_definitions
from countersign.integrations.tool_execution import StepExecutor
from countersign.live.isolation import ABORT, Abort, Serialize

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic

    from countersign.runtime import Runtime

_WHOLE: Final = frozenset({"end_turn", "stop_sequence", "tool_use", "pause_turn"})
_REFUSALS: Final = (
    "AuthenticationError",
    "BadRequestError",
    "NotFoundError",
    "PermissionDeniedError",
    "RateLimitError",
    "UnprocessableEntityError",
)


class AnthropicMessages:
    """The message format of Anthropic's messages API."""

    def plain(self, message: Any) -> Message:
        """A message as JSON, even if it or one of its blocks is a client object."""
        whole = _dumped(message)
        content = whole["content"]
        if not isinstance(content, str):
            content = [_dumped(block) for block in content]
        return {"role": whole["role"], "content": content}

    def read(self, response: Any) -> ModelTurn:
        """Every block, in order."""
        message = self.plain(response)
        said = self.text_in(message)
        if response.stop_reason not in _WHOLE:
            return ModelTurn(message, said, stopped=str(response.stop_reason))
        return ModelTurn(message, said, self.calls_of(message), paused=response.stop_reason == "pause_turn")

    def calls_of(self, message: Message) -> tuple[ModelCall, ...]:
        """Its `tool_use` blocks; server-side tools are excluded."""
        return tuple(
            ModelCall(block["id"], block["name"], block["input"])
            for block in _blocks(message)
            if block["type"] == "tool_use"
        )

    def text_in(self, message: Message) -> str:
        """Its text, without thinking."""
        return "\n".join(str(block["text"]) for block in _blocks(message) if block["type"] == "text")

    def answered(self, answers: Sequence[ToolAnswer]) -> list[Message]:
        """One user message with a result for each call."""
        content = [
            {"type": "tool_result", "tool_use_id": one.call_id, "content": one.text, "is_error": not one.done}
            for one in answers
        ]
        return [{"role": "user", "content": content}]

    def answers_in(self, message: Message) -> tuple[tuple[str, object], ...]:
        """Each `tool_result` block answers one call."""
        return tuple((str(block["tool_use_id"]), block.get("content")) for block in _results(message))

    def answers_first(self, after: Sequence[Message]) -> list[Message]:
        """All results at the start of one user message, directly after the calls, as the API requires."""
        results = [block for message in after for block in _results(message)]
        if not results or _blocks(after[0])[: len(results)] == results:
            return list(after)
        users = [message for message in after if message["role"] == "user"]
        rest = [block for one in users for block in _blocks(one) if block["type"] != "tool_result"]
        others = [message for message in after if message["role"] != "user"]
        return [{"role": "user", "content": [*results, *rest]}, *others]


def _dumped(value: Any) -> dict[str, Any]:
    if hasattr(value, "model_dump"):
        return cast("dict[str, Any]", value.model_dump(mode="json", exclude_unset=True))
    return dict(value)


def _blocks(message: Message) -> list[Mapping[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _results(message: Message) -> list[Mapping[str, Any]]:
    return [block for block in _blocks(message) if block["type"] == "tool_result"]


@overload
def run_anthropic(
    client: Anthropic,
    *,
    model: str,
    max_tokens: int,
    messages: Sequence[Any],
    tools: Sequence[Callable[..., Any]],
    key: str,
    wait: float = 0.0,
    max_turns: int = MAX_TURNS,
    purpose: str | None = None,
    on_behalf_of: str | None = None,
    input_tokens: InputTokens | None = None,
    on_message: OnMessage | None = None,
    on_question: OnQuestion | None = None,
    isolation: Abort | Serialize = ABORT,
    runtime: Runtime | None = None,
    **options: Any,
) -> Conversation: ...
@overload
def run_anthropic(
    client: AsyncAnthropic,
    *,
    model: str,
    max_tokens: int,
    messages: Sequence[Any],
    tools: Sequence[Callable[..., Any]],
    key: str,
    wait: float = 0.0,
    max_turns: int = MAX_TURNS,
    purpose: str | None = None,
    on_behalf_of: str | None = None,
    input_tokens: InputTokens | None = None,
    on_message: OnMessage | None = None,
    on_question: OnQuestion | None = None,
    isolation: Abort | Serialize = ABORT,
    runtime: Runtime | None = None,
    **options: Any,
) -> Coroutine[Any, Any, Conversation]: ...
def run_anthropic(
    client: Any,
    *,
    model: str,
    max_tokens: int,
    messages: Sequence[Any],
    tools: Sequence[Callable[..., Any]],
    key: str,
    wait: float = 0.0,
    max_turns: int = MAX_TURNS,
    purpose: str | None = None,
    on_behalf_of: str | None = None,
    input_tokens: InputTokens | None = None,
    on_message: OnMessage | None = None,
    on_question: OnQuestion | None = None,
    isolation: Abort | Serialize = ABORT,
    runtime: Runtime | None = None,
    **options: Any,
) -> Any:
    """Run a conversation until the model's final answer; its calls go through your `@tool`s.

    Like `run_openai`, with Anthropic's parameters: `max_tokens` for each message, and `system=...` among the options.
    An `AsyncAnthropic` returns a coroutine to await.

    Raises:
        ModelStopped, TurnLimit: the model gave no answer.
        OutcomeUnknown, PartlyFired: it is not known whether a tool acted; the model is not called again.
        BudgetExceeded: a further call would exceed a budget.
        MisuseError: invalid tools, client or options.
        CountersignError: as leaving a transaction does, except refusals, which are returned to the model.
    """
    vendor = require_package("anthropic")
    _require_client(vendor, client)
    message_format, runtime = AnthropicMessages(), runtime_or_default(runtime)
    offered = OfferedTools(tools)
    awaits = isinstance(client, vendor.AsyncAnthropic)
    loop = Loop(
        message_format,
        ModelClient(
            cast("Callable[..., Any]", client.messages.create),
            model,
            {**options, "max_tokens": max_tokens},
            anthropic_definitions(offered),
            require_key(key),
            runtime,
            max_tokens=max_tokens,
            input_tokens=input_tokens,
            not_made=tuple(getattr(vendor, name) for name in _REFUSALS) if client.max_retries == 0 else (),
        ),
        StepExecutor(offered, awaits, wait, purpose, on_behalf_of, on_question, runtime, isolation),
        key,
        as_json(message_format, messages),
        TurnNumbering(runtime.journal.conversations, key, message_format),
        max_turns,
        on_message,
    )
    return loop.run() if awaits else run_sync(loop.run())


def _require_client(vendor: Any, client: Any) -> None:
    if not isinstance(client, vendor.Anthropic | vendor.AsyncAnthropic):
        raise MisuseError(
            "run_anthropic talks through anthropic.Anthropic(...) or anthropic.AsyncAnthropic(...), this is "
            f"{type(client).__name__}"
        )
