"""A conversation with a model: messages, calls and numbered turns, and where an interrupted conversation continues.

A turn is the N in the key `KEY/turn-N` of its transaction; turns are numbered consecutively. The journal stores for
each turn marks of its calls (their ids, names, arguments), of their answers, and of all messages before it. A turn is
stored before any of it is carried out. The same message list always gives the same turn, also if the list was
shortened, so nothing is done twice. Messages with calls are consecutive turns. If nothing distinguishes two turns
(equal calls with equal ids and answers), the earliest turn that did something is assumed.

A process may end between any two messages. Answered calls keep their answer, and every other call is answered once.
Answers directly follow the message with the calls, because every vendor requires that.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Protocol

from countersign.errors import ReviewPending
from countersign.journal.conversations import Conversations

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call as the model wrote it: `arguments` is JSON text, or already parsed by a client. `problem` says why it
    cannot be a tool call.
    """

    call_id: str
    name: str
    arguments: str | Mapping[str, Any]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer to one call for the model. `done`: it happened, and `text` is its result. `args`: the arguments in
    force, if a reviewer changed them. `earlier`: an earlier run had done it.
    """

    call_id: str
    text: str
    done: bool
    args: Mapping[str, Any] | None = field(default=None, repr=False)  # some may be secret
    earlier: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One message of the model. `stopped`: the vendor's reason for an incomplete message. `paused`: the vendor paused
    the model, which must be called again unchanged.
    """

    message: Message
    said: str
    calls: tuple[ModelCall, ...] = ()
    stopped: str | None = None
    paused: bool = False


@dataclass(frozen=True, slots=True)
class ExecutedStep:
    """The calls of one model message, carried out as one transaction with this key, and their answers."""

    key: str
    calls: tuple[ModelCall, ...]
    answers: tuple[ToolAnswer, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The result of a run. `pending` is None if the model finished, and `text` is its answer. Otherwise a review is
    open, the last message's calls wait for it, and `text` names the groups. `messages` is the whole conversation
    as JSON: pass it again with the same key to continue.
    """

    text: str
    messages: list[Message]
    steps: tuple[ExecutedStep, ...]
    pending: ReviewPending | None = None


class MessageFormat(Protocol):
    """The message format of a vendor's API."""

    def plain(self, message: Any) -> Message:
        """A message as JSON, even if it is a client object."""
        ...

    def read(self, response: Any) -> ModelTurn:
        """The model's message in a response."""
        ...

    def calls_of(self, message: Message) -> tuple[ModelCall, ...]:
        """The calls in a message of the model; none for every other message."""
        ...

    def text_in(self, message: Message) -> str:
        """The text of a message of the model."""
        ...

    def answered(self, answers: Sequence[ToolAnswer]) -> list[Message]:
        """The messages that return the answers to the model."""
        ...

    def answers_in(self, message: Message) -> tuple[tuple[str, object], ...]:
        """The ids of the calls that a message answers, each with its answer; usually none."""
        ...

    def answers_first(self, after: Sequence[Message]) -> list[Message]:
        """What follows a message with calls, its answers first."""
        ...


_EVERY: Final = "every turn"


class TurnNumbering:
    """Numbers the turns of one conversation."""

    def __init__(self, kept: Conversations, run: str, message_format: MessageFormat) -> None:
        self._kept = kept
        self._run = run
        self._dialect = message_format

    def known(self, before: Sequence[Message], message: Message) -> int | None:
        """The turn of a message after these, if its calls were carried out before."""
        named = self._turns(self._calls(message))
        turn = min(named & self._stored_turns(before), default=0) or self._last([*before, message])
        return turn if turn in named else None

    def assign(self, before: Sequence[Message], message: Message, known: int | None = None) -> int:
        """Assign and store the turn of a new message after these."""
        with self._kept.deciding():
            turn = known or self._next(before, message)
            self._kept.keep(self._run, [self._calls(message), *self._whole(before), _EVERY], turn)
        return turn

    def later(self, turn: int) -> list[int]:
        """The later turns that were begun, in order."""
        return sorted(one for one in self._turns(_EVERY) if one > turn)

    def answered(self, message: Message, after: Sequence[Message], turn: int) -> None:
        """Store the answers of a turn, before they are delivered."""
        answers = self._answers(message, after)
        if answers is not None:
            self._kept.keep(self._run, [answers, _answered_mark(turn)], turn)

    def _next(self, before: Sequence[Message], message: Message) -> int:
        turn, stored = 1 + self._last(before), self._stored_turns(before)
        return turn if not stored or turn in stored else min(stored)

    def _stored_turns(self, before: Sequence[Message]) -> frozenset[int]:
        """The turns stored for this very list, from its first message with calls."""
        return frozenset(turn for mark in self._whole(before) for turn in self._turns(mark))

    def _last(self, before: Sequence[Message]) -> int:
        """The last turn in a list."""
        turns = functools.cache(self._turns)  # equal messages query the same marks repeatedly
        may_be = [self._may_be(caller, after, turns) for caller, after in self._spans(before)]
        return _consecutive_turn(may_be) or _ascending_turn(may_be)

    def _may_be(
        self, caller: Message, after: Sequence[Message], turns: Callable[[str], frozenset[int]]
    ) -> frozenset[int] | None:
        """The possible turns of a message; None for any, if another journal carried it out."""
        named = turns(self._calls(caller))
        if not named:
            return None
        answers = self._answers(caller, after)
        matching = frozenset() if answers is None else named & turns(answers)
        unanswered = {turn for turn in named if not turns(_answered_mark(turn))}
        return matching | unanswered if matching else named

    def _turns(self, mark: str) -> frozenset[int]:
        return self._kept.turns(self._run, mark)

    def _spans(self, before: Sequence[Message]) -> Iterator[tuple[Message, Sequence[Message]]]:
        """Each message with calls, and the messages up to the next one of the model."""
        for start, end in _split_by_turn(before):
            if self._dialect.calls_of(before[start]):
                yield before[start], before[start + 1 : end]

    def _calls(self, message: Message) -> str:
        """The mark of a message: its calls."""
        calls = self._dialect.calls_of(message)
        return _mark([[call.call_id, call.name, call.arguments] for call in calls])

    def _answers(self, caller: Message, after: Sequence[Message]) -> str | None:
        """The mark of a message's answers; None if they are incomplete."""
        answers = [one for message in after for one in self._dialect.answers_in(message)]
        whole = len(answers) == len(self._dialect.calls_of(caller))
        return _mark(["answers", self._calls(caller), answers]) if whole else None

    def _whole(self, before: Sequence[Message]) -> list[str]:
        """The mark of a list from its first message with calls; None if there is none. The model's text is excluded,
        because it may differ when the model is called again.
        """
        callers = [at for at, one in enumerate(before) if self._dialect.calls_of(one)]
        said = [
            self._calls(one) if one["role"] == "assistant" else one
            for at, one in enumerate(before)
            if at >= min(callers, default=len(before)) and (at in callers or one["role"] != "assistant")
        ]
        return [_mark(["whole", said])] if said else []


def _consecutive_turn(may_be: Sequence[frozenset[int] | None]) -> int:
    """The smallest last turn of consecutive turns that match the possible ones; 0 if there is none."""
    firsts = {turn - at for at, turns in enumerate(may_be) for turn in turns or ()} or {1}
    fits = (
        first
        for first in sorted(firsts)
        if first > 0 and all(turns is None or first + at in turns for at, turns in enumerate(may_be))
    )
    return next(fits, 1 - len(may_be)) + len(may_be) - 1


def _ascending_turn(may_be: Sequence[frozenset[int] | None]) -> int:
    """The same for ascending turns with gaps, for lists with missing messages."""
    last = 0
    for turns in may_be:
        last = min((turn for turn in turns or () if turn > last), default=last + 1)
    return last


def _answered_mark(turn: int) -> str:
    """The mark of a turn that was answered with this journal."""
    return _mark(["answered", turn])


def _mark(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_as_json).encode()).hexdigest()


def _as_json(value: object) -> object:
    """A client object in a message, as JSON."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", exclude_unset=True) if callable(dump) else str(value)


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """The last message whose calls are not all answered: its position, the positions of its unanswered calls, and the
    end of the messages that may answer it.
    """

    at: int
    calls: tuple[ModelCall, ...]
    missing: tuple[int, ...]
    end: int
    is_new: bool = False  # the model has just sent it

    @property
    def is_partly_answered(self) -> bool:
        """Whether some of its calls are answered."""
        return len(self.missing) < len(self.calls)


def open_turn(message_format: MessageFormat, messages: Sequence[Message]) -> OpenTurn | None:
    """The last message whose calls are not all answered."""
    for start, end in reversed([*_split_by_turn(messages)]):
        calls = message_format.calls_of(messages[start])
        missing = _missing(message_format, calls, messages[start + 1 : end])
        if missing:
            return OpenTurn(start, calls, missing, end)
    return None


def new_turn(calls: tuple[ModelCall, ...], end: int) -> OpenTurn:
    """The turn of a new message at the end of a list of `end` messages."""
    return OpenTurn(end - 1, calls, tuple(range(len(calls))), end, is_new=True)


def reorder_answers(message_format: MessageFormat, messages: Sequence[Message]) -> list[Message]:
    """The same conversation with each answer after its call: messages stored one by one may be out of order."""
    ordered = list(messages)
    for start, end in reversed([*_split_by_turn(messages)]):
        if message_format.calls_of(messages[start]):
            ordered[start + 1 : end] = message_format.answers_first(messages[start + 1 : end])
    return ordered


def _split_by_turn(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """Split at each message of the model."""
    starts = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
    yield from pairwise([*starts, len(messages)])


def _missing(
    message_format: MessageFormat, calls: Sequence[ModelCall], after: Sequence[Message]
) -> tuple[int, ...]:
    """Counts calls and answers, because not every vendor's ids are unique."""
    answered = Counter(call_id for message in after for call_id, _ in message_format.answers_in(message))
    missing = []
    for place, call in enumerate(calls):
        if answered[call.call_id]:
            answered[call.call_id] -= 1
        else:
            missing.append(place)
    return tuple(missing)
