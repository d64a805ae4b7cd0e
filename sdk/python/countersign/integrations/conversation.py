"""A conversation with a model: its messages and calls, which turn each message is, and where one that was cut goes on.

A turn is the N in the key `KEY/turn-N` of its transaction, one more than the turn before it. The journal remembers each
turn by its calls (their ids, names, arguments), by their answers, and by all that stood before it. Rules: a turn is
remembered before any of it is done; the same list, given again, is the same turn, so nothing is done twice, also where
the list was shortened; messages that call are turns that follow one another; what nothing tells apart, as equal calls
with equal ids and answers, is taken for the earliest, where something was done already.

A process may end between any two messages. Rules: what has an answer keeps it, what has none is answered once; answers
stand directly after the message that calls, for no vendor takes them elsewhere.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol

from countersign.errors import ReviewPending
from countersign.journal.meta import Conversations

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
class ToolAnswer:
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
class ExecutedStep:
    """The calls of one message of the model, carried out as one transaction of this key, with what they were told."""

    key: str
    calls: tuple[ModelCall, ...]
    answers: tuple[ToolAnswer, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """How it ended. `pending` is None when the model had its last word, which is `text`; otherwise people are asked,
    the last message's calls wait for them, and `text` says for whom. `messages` is the whole conversation as JSON:
    given again under the same key, it goes on from there.
    """

    text: str
    messages: list[Message]
    steps: tuple[ExecutedStep, ...]
    pending: ReviewPending | None = None


class MessageFormat(Protocol):
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

    def answered(self, answers: Sequence[ToolAnswer]) -> list[Message]:
        """The messages that tell the model what became of its calls."""
        ...

    def answers_in(self, message: Message) -> tuple[tuple[str, object], ...]:
        """The ids of the calls that a message answers, each with its answer; none for most."""
        ...

    def answers_first(self, after: Sequence[Message]) -> list[Message]:
        """What follows a message that calls, its answers first."""
        ...


_EVERY: Final = "every turn"


class TurnNumbering:
    """The turns of one conversation."""

    def __init__(self, kept: Conversations, run: str, dialect: MessageFormat) -> None:
        self._kept = kept
        self._run = run
        self._dialect = dialect

    def known(self, before: Sequence[Message], message: Message) -> int | None:
        """Which turn a message is that stands after these, where its calls were carried out before."""
        named = self._turns(self._calls(message))
        turn = min(named & self._asked(before), default=0) or self._last([*before, message])
        return turn if turn in named else None

    def assign(self, before: Sequence[Message], message: Message, known: int | None = None) -> int:
        """Which turn a message is that the model has said after these, from now on."""
        with self._kept.deciding():
            turn = known or self._next(before, message)
            self._kept.keep(self._run, [self._calls(message), *self._whole(before), _EVERY], turn)
        return turn

    def later(self, turn: int) -> list[int]:
        """The turns after this one that were begun, in order."""
        return sorted(one for one in self._turns(_EVERY) if one > turn)

    def answered(self, message: Message, after: Sequence[Message], turn: int) -> None:
        """Remember what a turn was answered, before anybody hears it."""
        answers = self._answers(message, after)
        if answers is not None:
            self._kept.keep(self._run, [answers, _answered_mark(turn)], turn)

    def _next(self, before: Sequence[Message], message: Message) -> int:
        turn, asked = 1 + self._last(before), self._asked(before)
        return turn if not asked or turn in asked else min(asked)

    def _asked(self, before: Sequence[Message]) -> frozenset[int]:
        """The turns that were asked for with this very list, from where it calls first."""
        return frozenset(turn for mark in self._whole(before) for turn in self._turns(mark))

    def _last(self, before: Sequence[Message]) -> int:
        """The last turn in a list."""
        turns = functools.cache(self._turns)  # equal messages ask for the same marks, again and again
        may_be = [self._may_be(caller, after, turns) for caller, after in self._spans(before)]
        return _consecutive_turn(may_be) or _ascending_turn(may_be)

    def _may_be(
        self, caller: Message, after: Sequence[Message], turns: Callable[[str], frozenset[int]]
    ) -> frozenset[int] | None:
        """Which turns a message may be; None where it may be any, for another journal carried it out."""
        named = turns(self._calls(caller))
        if not named:
            return None
        answers = self._answers(caller, after)
        told = frozenset() if answers is None else named & turns(answers)
        without_health = {turn for turn in named if not turns(_answered_mark(turn))}
        return told | without_health if told else named

    def _turns(self, mark: str) -> frozenset[int]:
        return self._kept.turns(self._run, mark)

    def _spans(self, before: Sequence[Message]) -> Iterator[tuple[Message, Sequence[Message]]]:
        """Each message that calls, with what stands between it and the next one of the model."""
        for start, end in _split_by_turn(before):
            if self._dialect.calls_of(before[start]):
                yield before[start], before[start + 1 : end]

    def _calls(self, message: Message) -> str:
        """The mark of a message, by what it calls."""
        calls = self._dialect.calls_of(message)
        return _mark([[call.call_id, call.name, call.arguments] for call in calls])

    def _answers(self, caller: Message, after: Sequence[Message]) -> str | None:
        """The mark of what a message was answered; None where that is not whole."""
        answers = [one for message in after for one in self._dialect.answers_in(message)]
        whole = len(answers) == len(self._dialect.calls_of(caller))
        return _mark(["answers", self._calls(caller), answers]) if whole else None

    def _whole(self, before: Sequence[Message]) -> list[str]:
        """The mark of a list from the first message on that calls; none where none does: it says nothing of its place.
        The model's own words are no part of it, for asked anew it may say the same in others.
        """
        callers = [at for at, one in enumerate(before) if self._dialect.calls_of(one)]
        said = [
            self._calls(one) if one["role"] == "assistant" else one
            for at, one in enumerate(before)
            if at >= min(callers, default=len(before)) and (at in callers or one["role"] != "assistant")
        ]
        return [_mark(["whole", said])] if said else []


def _consecutive_turn(may_be: Sequence[frozenset[int] | None]) -> int:
    """The least last of turns that follow one another, each of which may be what it is; 0 where there are none."""
    firsts = {turn - at for at, turns in enumerate(may_be) for turn in turns or ()} or {1}
    fits = (
        first
        for first in sorted(firsts)
        if first > 0 and all(turns is None or first + at in turns for at, turns in enumerate(may_be))
    )
    return next(fits, 1 - len(may_be)) + len(may_be) - 1


def _ascending_turn(may_be: Sequence[frozenset[int] | None]) -> int:
    """The same of turns that only come one after the other, as where a list lacks one in the middle."""
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
    """A part of a message that is an object of the vendor's client."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", exclude_unset=True) if callable(dump) else str(value)


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """The last message that calls and is not answered whole: where it stands, what of its calls has no answer (by their
    places among them), and where the messages after it end that may answer it.
    """

    at: int
    calls: tuple[ModelCall, ...]
    missing: tuple[int, ...]
    end: int
    is_new: bool = False  # the model has said it now

    @property
    def is_partly_answered(self) -> bool:
        """Whether somebody has answered some of its calls."""
        return len(self.missing) < len(self.calls)


def open_turn(dialect: MessageFormat, messages: Sequence[Message]) -> OpenTurn | None:
    """The last message whose calls are not all answered."""
    for start, end in reversed([*_split_by_turn(messages)]):
        calls = dialect.calls_of(messages[start])
        missing = _missing(dialect, calls, messages[start + 1 : end])
        if missing:
            return OpenTurn(start, calls, missing, end)
    return None


def new_turn(calls: tuple[ModelCall, ...], end: int) -> OpenTurn:
    """What the model has called now, with the last of so many messages."""
    return OpenTurn(end - 1, calls, tuple(range(len(calls))), end, is_new=True)


def reorder_answers(dialect: MessageFormat, messages: Sequence[Message]) -> list[Message]:
    """The same conversation with each answer where it belongs: messages that were kept one by one may have got others
    between them.
    """
    ordered = list(messages)
    for start, end in reversed([*_split_by_turn(messages)]):
        if dialect.calls_of(messages[start]):
            ordered[start + 1 : end] = dialect.answers_first(messages[start + 1 : end])
    return ordered


def _split_by_turn(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """From each message of the model to the next one."""
    starts = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
    yield from pairwise([*starts, len(messages)])


def _missing(dialect: MessageFormat, calls: Sequence[ModelCall], after: Sequence[Message]) -> tuple[int, ...]:
    """Counted, for not every vendor's ids differ."""
    answered = Counter(call_id for message in after for call_id, _ in dialect.answers_in(message))
    missing = []
    for place, call in enumerate(calls):
        if answered[call.call_id]:
            answered[call.call_id] -= 1
        else:
            missing.append(place)
    return tuple(missing)
