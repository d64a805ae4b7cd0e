"""Where a conversation that was cut goes on: the calls without an answer, and where their answers stand.

A process may end between any two messages it keeps, and whoever keeps them may have added others since. Rules: what has
an answer keeps it, what has none is answered once; answers stand directly after the message that calls, before
anything else that was said since, for no vendor takes them elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from countersign.integrations.conversation import Dialect, Message, ModelCall


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


def open_turn(dialect: Dialect, messages: Sequence[Message]) -> OpenTurn | None:
    """The last message whose calls are not all answered."""
    for start, end in reversed([*_stretches(messages)]):
        calls = dialect.calls_of(messages[start])
        missing = _missing(dialect, calls, messages[start + 1 : end])
        if missing:
            return OpenTurn(start, calls, missing, end)
    return None


def new_turn(calls: tuple[ModelCall, ...], end: int) -> OpenTurn:
    """What the model has called now, with the last of so many messages."""
    return OpenTurn(end - 1, calls, tuple(range(len(calls))), end, is_new=True)


def in_order(dialect: Dialect, messages: Sequence[Message]) -> list[Message]:
    """The same conversation with each answer where it belongs: messages that were kept one by one may have got others
    between them.
    """
    ordered = list(messages)
    for start, end in reversed([*_stretches(messages)]):
        if dialect.calls_of(messages[start]):
            ordered[start + 1 : end] = dialect.in_place(messages[start + 1 : end])
    return ordered


def _stretches(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """From each message of the model to the next one."""
    starts = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
    yield from pairwise([*starts, len(messages)])


def _missing(dialect: Dialect, calls: Sequence[ModelCall], after: Sequence[Message]) -> tuple[int, ...]:
    """Counted, for not every vendor's ids differ."""
    answered = Counter(call_id for message in after for call_id, _ in dialect.answers_in(message))
    missing = []
    for place, call in enumerate(calls):
        if answered[call.call_id]:
            answered[call.call_id] -= 1
        else:
            missing.append(place)
    return tuple(missing)
