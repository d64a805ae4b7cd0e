"""The loop: ask the model, carry out what it calls, tell it what became of that, until it has its last word.

One message of the model is one transaction, with the key `KEY/turn-N`: the Nth message of the conversation that calls
tools. Rules: N is counted in the conversation itself, so that one that is given again goes on where it stood and finds
the same review and the same results, and nothing fires twice; a message whose calls have no answer yet is carried out
before the model is asked anything; the model is asked outside of any transaction, so nothing is held open meanwhile.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from countersign.errors import MisuseError, ReviewPending
from countersign.integrations.errors import ModelStopped, TurnLimit
from countersign.integrations.taking import StepTaker
from countersign.integrations.turns import Conversation, Dialect, Message, ModelCall, ModelTurn, TakenStep
from countersign.llm.calling import Calling, llm_call
from countersign.runtime import default_runtime

if TYPE_CHECKING:
    from countersign.runtime import Runtime

MAX_TURNS: Final = 20
"""How often a model is asked in one run unless the program says otherwise."""

_MAX_KEY: Final = 180  # leaves room for the turn in the key of a transaction
_OURS: Final = ("messages", "model", "n", "stream", "tools")

OnMessage = Callable[[Message], object]


@dataclass(frozen=True, slots=True)
class Asking:
    """How the model is asked: the client's own function, what it is told each time, and which of its exceptions mean
    that no call was made.
    """

    create: Callable[..., Any]
    model: str
    options: dict[str, Any]
    tools: list[dict[str, Any]]
    run: str
    runtime: Runtime
    max_tokens: int | None = None
    not_made: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        ours = [name for name in _OURS if name in self.options]
        if ours:
            raise MisuseError(
                f"{ours[0]}=... is the loop's own: it asks for one whole message each time, with the tools it is given"
            )

    async def ask(self, messages: list[Message]) -> Any:
        """One call of the model, asked of the budgets first and written down after.

        Raises:
            BudgetExceeded: a budget has no room; the model was not called.
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

    def _counted(self, messages: list[Message]) -> Calling:
        timeout = self.options.get("timeout")
        return llm_call(
            self.model,
            max_tokens=self.max_tokens,
            prompt=[messages, self.tools, self.options.get("system")],
            timeout=timeout if isinstance(timeout, int | float) else None,
            run=self.run,
            unknown_tokens=not self.runtime.ledger.declared(),  # where nothing is counted, nothing need be known
            not_made=self.not_made,
            runtime=self.runtime,
        )


@dataclass(slots=True)
class Loop:
    """One run of a conversation."""

    dialect: Dialect
    asking: Asking
    taker: StepTaker
    key: str
    messages: list[Message]
    max_turns: int = MAX_TURNS
    on_message: OnMessage | None = None
    _steps: list[TakenStep] = field(default_factory=list)

    async def run(self) -> Conversation:
        """Until the model has its last word, or people are asked.

        Raises:
            ModelStopped: a message of the model is no whole one.
            TurnLimit: it was asked `max_turns` times.
            CountersignError: as leaving a transaction does, but for refusals that the model is told.
        """
        if self.messages and (left := self.dialect.calls_of(self.messages[-1])):
            pending = await self._take(left, self.dialect.said_in(self.messages[-1]))
            if pending is not None:
                return self._waiting(pending)
        for _ in range(self.max_turns):
            turn = await self._ask()
            if turn.calls:
                pending = await self._take(turn.calls, turn.said)
                if pending is not None:
                    return self._waiting(pending)
            elif not turn.goes_on:
                return Conversation(turn.said, self.messages, tuple(self._steps))
        raise TurnLimit(self.max_turns, self.messages)

    async def _ask(self) -> ModelTurn:
        turn = self.dialect.read(await self.asking.ask(self.messages))
        if turn.stopped is not None:
            raise ModelStopped(turn.stopped, turn.said, self.messages)
        self._add([turn.message])
        return turn

    async def _take(self, calls: tuple[ModelCall, ...], said: str) -> ReviewPending | None:
        number = sum(1 for message in self.messages if self.dialect.calls_of(message))
        key = f"{self.key}/turn-{number}"
        try:
            answers = await self.taker.take(calls, key=key, said=said)
        except ReviewPending as pending:
            return pending
        self._steps.append(TakenStep(key, calls, answers))
        self._add(self.dialect.answered(answers))
        return None

    def _add(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.messages.append(message)
            if self.on_message is not None:
                self.on_message(message)

    def _waiting(self, pending: ReviewPending) -> Conversation:
        return Conversation(str(pending), self.messages, tuple(self._steps), pending)


def require_key(key: str) -> str:
    """The key of a run, which the keys of its steps begin with.

    Raises:
        MisuseError: it is no text, or leaves no room for them.
    """
    if not isinstance(key, str):
        raise MisuseError(
            f"the key of a conversation is text: write key={str(key)!r} in place of key={key!r}"
        )
    if not 0 < len(key) <= _MAX_KEY:
        raise MisuseError(
            f"the key of a conversation has 1 to {_MAX_KEY} characters, this has {len(key)}: its steps add their own"
        )
    return key


def chosen(runtime: Runtime | None) -> Runtime:
    """The runtime that was given, or the process's own."""
    return runtime or default_runtime()
