"""`run_openai`: a conversation with OpenAI's chat completions whose tool calls are staged, decided and fired.

It accepts complete messages with `finish_reason` `stop` or `tool_calls`. A refusal, a message that was cut off or
filtered, and a response without a choice end the run (`ModelStopped`), and no call of such a message is carried out.
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
from countersign.integrations.tool_definitions import OfferedTools, openai_definitions
from countersign.integrations.tool_execution import StepExecutor
from countersign.live.isolation import ABORT, Abort, Serialize

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

    from countersign.runtime import Runtime

_WHOLE: Final = frozenset({"stop", "tool_calls"})
# output-only members of a message
_NOT_SENT: Final = frozenset({"annotations", "audio", "parsed"})
_REFUSALS: Final = (
    "AuthenticationError",
    "BadRequestError",
    "NotFoundError",
    "PermissionDeniedError",
    "RateLimitError",
    "UnprocessableEntityError",
)


class OpenAIChat:
    """The message format of OpenAI's chat completions."""

    def plain(self, message: Any) -> Message:
        """A message as JSON, even if it is a client object."""
        dumped = (
            message.model_dump(mode="json", exclude_unset=True)
            if hasattr(message, "model_dump")
            else dict(message)
        )
        return {name: value for name, value in dumped.items() if value is not None and name not in _NOT_SENT}

    def read(self, response: Any) -> ModelTurn:
        """The first choice."""
        if not response.choices:
            return ModelTurn({}, "", stopped="no_choice")
        choice = response.choices[0]
        message = self.plain(choice.message)
        said = self.text_in(message)
        if message.get("refusal"):
            return ModelTurn(message, str(message["refusal"]), stopped="refusal")
        if choice.finish_reason not in _WHOLE:
            return ModelTurn(message, said, stopped=str(choice.finish_reason))
        return ModelTurn(message, said, self.calls_of(message))

    def calls_of(self, message: Message) -> tuple[ModelCall, ...]:
        """Its `tool_calls`."""
        return tuple(_call(one) for one in message.get("tool_calls") or ())

    def text_in(self, message: Message) -> str:
        """Its text."""
        content = message.get("content")
        if isinstance(content, list):
            return "".join(str(part.get("text", "")) for part in content)
        return content or ""

    def answered(self, answers: Sequence[ToolAnswer]) -> list[Message]:
        """A `tool` message for each call."""
        return [{"role": "tool", "tool_call_id": one.call_id, "content": one.text} for one in answers]

    def answers_in(self, message: Message) -> tuple[tuple[str, object], ...]:
        """A `tool` message answers one call."""
        if message.get("role") != "tool":
            return ()
        return ((str(message.get("tool_call_id")), message.get("content")),)

    def answers_first(self, after: Sequence[Message]) -> list[Message]:
        """The `tool` messages before all others."""
        return sorted(after, key=lambda message: message.get("role") != "tool")


def _call(given: Mapping[str, Any]) -> ModelCall:
    function = given.get("function")
    if function is None:
        kind = given.get("type")
        return ModelCall(
            given["id"], str(kind), "", problem=f"a call of type {kind!r} is no call of a function"
        )
    return ModelCall(given["id"], function["name"], function["arguments"])


@overload
def run_openai(
    client: OpenAI,
    *,
    model: str,
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
def run_openai(
    client: AsyncOpenAI,
    *,
    model: str,
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
def run_openai(
    client: Any,
    *,
    model: str,
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

    `key` names the conversation. Each model message with tool calls is one transaction, `KEY/turn-N`, which ends before
    the model gets the answers: results if it was done, the policy's reasons if it was denied. If a review is open, the
    run ends with `.pending`: pass its `messages` and the same key again after the vote, or set `wait=` seconds.
    `purpose`, `on_behalf_of` and `isolation` are as for `transaction`, for each message; reviewers also see what the
    model wrote. `on_message(message)` is called for each new message, to store the conversation of a run that may be
    killed. `options` are passed to the client with each call (`temperature`, `max_completion_tokens`, ...).
    `input_tokens(messages)` returns the most tokens that a call sends: budgets of tokens or money need it for messages
    with pictures, sound or files. An `AsyncOpenAI` returns a coroutine to await.

    Raises:
        ModelStopped, TurnLimit: the model gave no answer.
        OutcomeUnknown, PartlyFired: it is not known whether a tool acted; the model is not called again.
        BudgetExceeded: a further call would exceed a budget.
        MisuseError: invalid tools, client or options.
        CountersignError: as leaving a transaction does, except refusals, which are returned to the model.
    """
    vendor = require_package("openai")
    _require_client(vendor, client)
    message_format, runtime = OpenAIChat(), runtime_or_default(runtime)
    offered = OfferedTools(tools)
    awaits = isinstance(client, vendor.AsyncOpenAI)
    loop = Loop(
        message_format,
        ModelClient(
            cast("Callable[..., Any]", client.chat.completions.create),
            model,
            options,
            openai_definitions(offered),
            require_key(key),
            runtime,
            max_tokens=options.get("max_completion_tokens", options.get("max_tokens")),
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
    if not isinstance(client, vendor.OpenAI | vendor.AsyncOpenAI):
        raise MisuseError(
            f"run_openai talks through openai.OpenAI(...) or openai.AsyncOpenAI(...), this is {type(client).__name__}"
        )
