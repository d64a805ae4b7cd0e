"""The agent loop: call the model, carry out its tool calls, return the results, until it answers without calls.

One message of the model is one transaction with the key `KEY/turn-N`, where N counts the messages that call tools
(conversation.py). A conversation that is passed again continues where it stopped and finds the same review and the same
results, and nothing fires twice. A message with unanswered calls is carried out before the model is called again. The
model is called outside any transaction, so no lock is held meanwhile.

For budgets, a text has at most as many tokens as bytes, and the whole request counts. A picture, a sound or a file has
more tokens than its reference has bytes: the program states the maximum, or a budget of tokens refuses the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from countersign.errors import MisuseError, ReviewPending
from countersign.integrations.conversation import (
    Conversation,
    ExecutedStep,
    Message,
    MessageFormat,
    ModelTurn,
    OpenTurn,
    TurnNumbering,
    new_turn,
    open_turn,
    reorder_answers,
)
from countersign.integrations.errors import ModelStopped, TurnLimit
from countersign.integrations.tool_execution import StepExecutor
from countersign.llm.calls import LlmCallBlock, llm_call
from countersign.process_runtime import default_runtime
from countersign.transactions.opening import require_key as require_key_of

if TYPE_CHECKING:
    from countersign.runtime import Runtime

_NOT_SENT_AS_TEXT: Final = frozenset({"timeout", "extra_headers", "extra_query"})
_NOT_GIVEN: Final = frozenset({"NotGiven", "Omit"})  # the clients' sentinels for parameters that are not sent
_CONTENT: Final = frozenset({"system"})  # options that contain message content
_TEXT: Final = tuple("text refusal tool_use tool_result thinking redacted_thinking search_result".split())
_MORE_THAN_TEXT: Final = tuple(
    "image image_url input_image document file input_file container_upload audio input_audio video".split()
)


class _NotTextError(Exception):
    """It contains values that cannot be written as JSON."""


def request_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> object:
    """The whole request as JSON; None if it contains more than text."""
    try:
        said = [_plain(message) for message in messages]
        sent = {key: _plain(value) for key, value in options.items() if _is_sent(key, value)}
    except _NotTextError:
        return None
    text = all(map(_is_text, said)) and all(_is_option(key, value) for key, value in sent.items())
    return [said, tools, sent] if text else None


def _is_sent(key: str, value: object) -> bool:
    return key not in _NOT_SENT_AS_TEXT and type(value).__name__ not in _NOT_GIVEN


def _plain(value: Any) -> Any:
    """The value as the client serialises it. Iterators are excluded, because reading one here would leave it empty for
    the client.
    """
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
    """Whether it is a text, or a list of text parts; a tool result may itself contain parts."""
    if isinstance(content, Mapping):
        return content.get("type") in _TEXT and _are_text(content.get("content"))
    return not isinstance(content, Iterable) or isinstance(content, str) or all(map(_are_text, content))


def _is_option(key: str, value: object) -> bool:
    return _are_text(value) if key in _CONTENT else not _holds_more(value)


def _holds_more(value: object) -> bool:
    """Whether it contains a picture, a sound or a file anywhere."""
    if isinstance(value, Mapping):
        return value.get("type") in _MORE_THAN_TEXT or any(map(_holds_more, value.values()))
    return isinstance(value, list) and any(map(_holds_more, value))


MAX_TURNS: Final = 20
"""The default number of model calls in one run."""

_MAX_KEY: Final = 180  # leaves space for the turn in the key of a transaction
_RESERVED_OPTIONS: Final = ("messages", "model", "n", "stream", "tools")

OnMessage = Callable[[Message], object]
InputTokens = Callable[[list[Message]], int]
"""For messages with more than text: the most tokens that they, the tools and the options contain."""


@dataclass(frozen=True, slots=True)
class ModelClient:
    """How to call the model: the client's function, its parameters, and the exceptions which mean that no call was
    made.
    """

    create: Callable[..., Any]
    model: str
    options: dict[str, Any]
    tools: list[dict[str, Any]]
    run: str
    runtime: Runtime
    max_tokens: int | None = None
    input_tokens: InputTokens | None = None
    not_made: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        ours = [name for name in _RESERVED_OPTIONS if name in self.options]
        if ours:
            raise MisuseError(
                f"{ours[0]}=... is set by the loop: it requests one complete message each time, with the tools "
                "it is given"
            )

    async def ask(self, messages: list[Message]) -> Any:
        """Call the model once, after reserving in the budgets, and record the usage.

        Raises:
            BudgetExceeded: the call would exceed a budget; the model was not called.
        """
        sent = {**self.options, "model": self.model, "messages": messages}
        if self.tools:
            sent["tools"] = self.tools
        with self._counted(messages) as call:
            response = self.create(**sent)
            if inspect.isawaitable(response):
                response = await response
            call.record(response)
        return response

    def _counted(self, messages: list[Message]) -> LlmCallBlock:
        timeout = self.options.get("timeout")
        said = self.input_tokens
        return llm_call(
            self.model,
            max_tokens=self.max_tokens,
            input_tokens=None if said is None else said(messages),
            prompt=request_text(messages, self.tools, self.options) if said is None else None,
            timeout=timeout if isinstance(timeout, int | float) else None,
            run=self.run,
            unknown_tokens=not self.runtime.ledger.declared(),  # without budgets, usage need not be known
            not_made=self.not_made,
            runtime=self.runtime,
        )


@dataclass(slots=True)
class Loop:
    """One run of a conversation."""

    message_format: MessageFormat
    client: ModelClient
    taker: StepExecutor
    key: str
    messages: list[Message]
    numbering: TurnNumbering
    max_turns: int = MAX_TURNS
    on_message: OnMessage | None = None
    _steps: list[ExecutedStep] = field(default_factory=list)

    async def run(self) -> Conversation:
        """Run until the model's final answer, or until a review is open.

        Raises:
            ModelStopped: a message of the model is incomplete.
            TurnLimit: it was called `max_turns` times.
            CountersignError: as leaving a transaction does, except refusals, which are returned to the model.
        """
        self.messages = reorder_answers(self.message_format, self.messages)
        if (left := open_turn(self.message_format, self.messages)) is not None:
            pending = await self._take(left)
            if pending is not None:
                return self._waiting(pending)
        for _ in range(self.max_turns):
            turn = await self._ask()
            if turn.calls:
                pending = await self._take(new_turn(turn.calls, len(self.messages)))
                if pending is not None:
                    return self._waiting(pending)
            elif not turn.paused:
                return Conversation(turn.said, self.messages, tuple(self._steps))
        raise TurnLimit(self.max_turns, self.messages)

    async def _ask(self) -> ModelTurn:
        turn = self.message_format.read(await self.client.ask(self.messages))
        if turn.stopped is not None:
            raise ModelStopped(turn.stopped, turn.said, self.messages)
        self.messages.append(turn.message)
        self._notify([turn.message])
        return turn

    async def _take(self, turn: OpenTurn) -> ReviewPending | None:
        message = self.messages[turn.at]
        number = self._number(turn, message)
        key = self._key(number)
        later = map(self._key, self.numbering.later(number))
        try:
            answers = await self.taker.take(
                turn.calls, key=key, said=self.message_format.text_in(message), later=later
            )
        except ReviewPending as pending:
            return pending
        self._steps.append(ExecutedStep(key, turn.calls, answers))
        new = self.message_format.answered([answers[place] for place in turn.missing])
        after = self.messages[turn.at + 1 : turn.end]
        answered = self.messages[turn.at + 1 : turn.end] = self.message_format.answers_first([*after, *new])
        self.numbering.answered(message, answered, number)
        self._notify(new)
        return None

    def _number(self, turn: OpenTurn, message: Message) -> int:
        """Determine the turn of a message. One that was answered in part elsewhere was not carried out here, and cannot
        be carried out in part.

        Raises:
            MisuseError: it was.
        """
        before = self.messages[: turn.at]
        known = None if turn.is_new else self.numbering.known(before, message)
        if known is None and turn.is_partly_answered:
            open_call = turn.calls[turn.missing[0]]
            raise MisuseError(
                f"the call {open_call.call_id!r} of {open_call.name!r} has no answer, another one of its message "
                "has, and this journal has a record of neither: calls of one message go together, so pass "
                "answers to all of them or to none, or use the journal of the run that began"
            )
        return self.numbering.assign(before, message, known)

    def _key(self, number: int) -> str:
        return f"{self.key}/turn-{number}"

    def _notify(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if self.on_message is not None:
                self.on_message(message)

    def _waiting(self, pending: ReviewPending) -> Conversation:
        return Conversation(str(pending), self.messages, tuple(self._steps), pending)


def require_key(key: str) -> str:
    """The key of a run, the prefix of the keys of its steps.

    Raises:
        MisuseError: it is not text, or too long for the suffix.
    """
    return require_key_of(key, "conversation", longest=_MAX_KEY, why=": its steps add their own")


def as_json(message_format: MessageFormat, messages: Iterable[Any]) -> list[Message]:
    """The initial messages as JSON.

    Raises:
        MisuseError: they are a text, or a single message.
    """
    if isinstance(messages, str | Mapping):
        raise MisuseError('messages is a list: write messages=[{"role": "user", "content": "..."}]')
    return [message_format.plain(message) for message in messages]


def runtime_or_default(runtime: Runtime | None) -> Runtime:
    """The given runtime, or the process's default."""
    return runtime or default_runtime()
