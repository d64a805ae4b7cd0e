"""Which turn of its conversation a message of the model is: the N in the key `KEY/turn-N` of its transaction.

The journal remembers each turn by its calls (their ids, names, arguments) and by the point where the model was asked
for it: the calls before, their answers, and what it was told since. Rules: a turn is remembered before any of it is
done; a message that was carried out before is the turn it was then, wherever it stands in a list that was shortened
since; a model that is asked anew at a point where it has called something takes the turn of then, whatever it calls now
and whatever ids its calls have, so nothing is done twice. Only a new point has a new turn, the one after the last that
stands before it.

A server that gives every message the same ids makes equal messages, and equal points where answers and words are equal
too. Then the turns that the messages before may be say which point it is; where several are left the first is meant,
which is right of every list that was not shortened.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from countersign.integrations.conversation import Dialect, Message
from countersign.journal.conversations import FORGOTTEN, Conversations


class Numbering:
    """The turns of one conversation."""

    def __init__(self, kept: Conversations, run: str, dialect: Dialect) -> None:
        self._kept = kept
        self._run = run
        self._dialect = dialect

    def known(self, before: Sequence[Message], message: Message) -> int | None:
        """Which turn a message is that stands after these, where its calls were carried out before."""
        named, asked = self._named(message), self._asked(before, message)
        last = self._last(before)
        return min(asked & named if asked else {turn for turn in named if turn > last}, default=None)

    def assign(self, before: Sequence[Message], message: Message, known: int | None = None) -> int:
        """Which turn a message is that the model has said after these, from now on."""
        with self._kept.deciding():
            turn = known or min(self._asked(before, message), default=1 + self._last(before))
            marks = [self._calls(message), *self._points(before)]
            self._kept.keep(self._run, marks, turn)
        return turn

    def _asked(self, before: Sequence[Message], message: Message) -> set[int]:
        """The turns that the model may have been asked for here."""
        callers = [at for at, one in enumerate(before) if self._dialect.calls_of(one)]
        asked = {turn for point in self._points(before) for turn in self._kept.turns(self._run, point)}
        if not asked and FORGOTTEN in self._named(message):
            # A journal from before kept no points, and of equal messages one number: it may stand for either.
            equal = [at for at in callers if self._calls(before[at]) == self._calls(message)]
            asked = set(self._named(message)) if equal else set()
        return {turn for turn in asked if self._can_follow([before[at] for at in callers], turn)}

    def _can_follow(self, callers: Sequence[Message], turn: int) -> bool:
        """Whether these may be the turns before this one."""
        first = turn - len(callers)
        return first > 0 and all(self._may_be(caller, one) for one, caller in enumerate(callers, first))

    def _may_be(self, message: Message, turn: int) -> bool:
        """Of what another journal carried out, or one from before, nothing says that it may not."""
        named = self._named(message)
        return not named or FORGOTTEN in named or turn in named

    def _last(self, before: Sequence[Message]) -> int:
        """The last turn that stands before: of another journal's messages each is counted where it stands."""
        uncounted = 0
        for message in reversed(before):
            if self._dialect.calls_of(message):
                if named := self._named(message):
                    return max(named) + uncounted
                uncounted += 1
        return uncounted

    def _named(self, message: Message) -> frozenset[int]:
        return self._kept.turns(self._run, self._calls(message))

    def _calls(self, message: Message) -> str:
        """The mark of a message, by what it calls."""
        calls = self._dialect.calls_of(message)
        return _mark([[call.call_id, call.name, call.arguments] for call in calls])

    def _points(self, before: Sequence[Message]) -> list[str]:
        """The mark of what stands before a message, back to the one that called last. None where none did: a list that
        was shortened so far says nothing of its place. The model's own words are no part of it, for asked anew it may
        say the same in others.
        """
        callers = [at for at, message in enumerate(before) if self._dialect.calls_of(message)]
        return [
            _mark(
                ["after", self._calls(before[at]), [one for one in before[at:] if one["role"] != "assistant"]]
            )
            for at in callers[-1:]
        ]


def _mark(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_as_json).encode()).hexdigest()


def _as_json(value: object) -> object:
    """A part of a message that is an object of the vendor's client."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", exclude_unset=True) if callable(dump) else str(value)
