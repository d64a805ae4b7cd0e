"""What a loop is made of: a call as the model wrote it, its answer, a message of the model, the end of it all.

Values only. `Dialect` is how one vendor writes them; a dialect reads and writes messages and asks nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from countersign.errors import ReviewPending

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call as the model wrote it: `arguments` is JSON text, or what a client has read already. `problem` says why
    it cannot be a call of a tool.
    """

    call_id: str
    name: str
    arguments: str | Mapping[str, Any]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model is told about one call. `done`: it happened, and `text` is its result."""

    call_id: str
    text: str
    done: bool


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One message of the model. `stopped` is the vendor's word for a message that is no whole one; `goes_on`: the
    vendor paused the model, which is to be asked again as it is.
    """

    message: Message
    said: str
    calls: tuple[ModelCall, ...] = ()
    stopped: str | None = None
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class TakenStep:
    """The calls of one message of the model, carried out as one transaction of this key, with what they were told."""

    key: str
    calls: tuple[ModelCall, ...]
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """How it ended. `pending` is None when the model had its last word, which is `text`; otherwise people are asked,
    the last message's calls wait for them, and `text` says for whom. `messages` is the whole conversation as JSON:
    given again under the same key, it goes on from there.
    """

    text: str
    messages: list[Message]
    steps: tuple[TakenStep, ...]
    pending: ReviewPending | None = None


class Dialect(Protocol):
    """How a vendor writes a conversation."""

    def plain(self, message: Any) -> Message:
        """A message as JSON, also where it is an object of the vendor's client."""
        ...

    def read(self, response: Any) -> ModelTurn:
        """What the model said."""
        ...

    def calls_of(self, message: Message) -> tuple[ModelCall, ...]:
        """The calls a message of the model makes; none for every other message."""
        ...

    def said_in(self, message: Message) -> str:
        """The text of a message of the model."""
        ...

    def answered(self, answers: Sequence[Answer]) -> list[Message]:
        """The messages that tell the model what became of its calls."""
        ...

    def answers_in(self, message: Message) -> tuple[tuple[str, object], ...]:
        """The ids of the calls that a message answers, each with its answer; none for most."""
        ...

    def in_place(self, after: Sequence[Message]) -> list[Message]:
        """What follows a message that calls, its answers first."""
        ...
