"""Each call of a conversation happens exactly once, in order, wherever the conversation is cut.

The loop, its numbers and the journal are the real ones. The model calls what its script says for its last input, in
varying words. The world returns the first result of each key.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from countersign.concurrency import run_sync
from countersign.integrations.conversation import Message, ToolAnswer, TurnNumbering
from countersign.integrations.model_loop import Loop, ModelClient
from countersign.integrations.openai_chat import OpenAIChat
from countersign.integrations.tool_execution import StepExecutor
from countersign.journal import Journal

KEYS = (f"case-{number}" for number in count())
FAULTS = ("before it is asked", "as it is asked", "before it fires", "after it fired", "as it is heard")


class CutError(BaseException):
    """The line or the process was cut."""


@dataclass
class Cutter:
    """Cuts at the nth time that a place is passed."""

    place: str = ""
    left: int = 0

    def passes(self, place: str) -> None:
        if place == self.place:
            self.left -= 1
            if self.left == 0:
                raise CutError


@dataclass
class World:
    """Executes each key once: the same call gets the same answer, another one is refused."""

    equal_answers: bool
    cutter: Cutter = field(default_factory=Cutter)
    done: dict[str, str] = field(default_factory=dict)

    async def take(self, calls: Any, *, key: str, said: str, later: Iterable[str]) -> tuple[ToolAnswer, ...]:
        (call,) = calls
        in_order = key in self.done or self.done.keys().isdisjoint(later)
        assert in_order, "a turn is done after one that follows it"
        assert self.done.get(key, call.arguments) == call.arguments, "the key was spent on other calls"
        self.cutter.passes("before it fires")
        self.done[key] = str(call.arguments)
        self.cutter.passes("after it fired")
        text = "done" if self.equal_answers else f"done under {key}"
        return (ToolAnswer(call.call_id, text, done=True),)


@dataclass
class Model:
    """Makes the calls of its script for the last input, one a message, and then sends its final message."""

    script: Sequence[Sequence[str]]
    equal_ids: bool
    cutter: Cutter
    asked: int = 0

    def next_of(self, messages: Sequence[Message]) -> str | None:
        spoken = [at for at, one in enumerate(messages) if one["role"] == "user"]
        called = sum("tool_calls" in one for one in messages[spoken[-1] :])
        wanted = self.script[len(spoken) - 1]
        return wanted[called] if called < len(wanted) else None

    async def ask(self, messages: list[Message]) -> Any:
        self.cutter.passes("before it is asked")
        self.asked += 1
        message: Message = {"role": "assistant", "content": f"In the words of today ({self.asked})."}
        if (arguments := self.next_of(messages)) is not None:
            call_id = "call_0" if self.equal_ids else f"call_{self.asked}"
            function = {"name": "credit", "arguments": arguments}
            message["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
        self.cutter.passes("as it is asked")
        return _Response(message)


class _Response:
    """A response in the form of the dialect."""

    def __init__(self, message: Message) -> None:
        self.message, self.finish_reason = message, "stop"
        self.choices = [self]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journal]:
    opened = Journal(Path(tmp_path_factory.mktemp("cut")) / "journal.db")
    yield opened
    opened.close()


WHOLE = [("", 0, 0, 0)] * 10
"""No cut any more, for as many words as there may be."""

SCRIPTS = st.lists(st.lists(st.sampled_from(["1", "2"]), max_size=3), min_size=1, max_size=4)
# where, at which time, how many of the last messages are lost, and how many of the first turns are left out
CUT = st.tuples(st.sampled_from(FAULTS), st.integers(1, 4), st.integers(0, 8), st.integers(0, 3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(SCRIPTS, st.lists(CUT, max_size=5), st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_each_call_happens_exactly_once_wherever_it_is_cut(
    journal: Journal, script: list[list[str]], cuts: list[tuple[str, int, int, int]], equal: tuple[bool, ...]
) -> None:
    equal_ids, equal_answers, equal_words = equal
    key, world = next(KEYS), World(equal_answers)
    model = Model(script, equal_ids, world.cutter)
    said = ["Once more." if equal_words else f"Word {at}." for at in range(len(script))]
    words = [{"role": "user", "content": one} for one in said]
    messages: list[Message] = [words[0]]
    distinct, least = not (equal_ids and equal_answers), 1  # what was shortened loses nothing any more
    for world.cutter.place, world.cutter.left, lost, left_out in [*cuts, *WHOLE]:
        try:
            messages = _talk(journal, model, world, key, messages)
        except _CutAt as cut:
            heard = cut.heard[: max(least, len(cut.heard) - lost)]
            messages = _shortened(heard, left_out if distinct else 0)
            least = len(messages) if len(messages) < len(heard) else least
            continue
        spoken = sum(one["role"] == "user" for one in messages)
        if spoken == len(words):
            break
        messages = [*messages, words[spoken]]
    asked = [call for calls in script for call in calls]
    assert [*world.done.values()] == asked
    assert [*world.done] == [f"{key}/turn-{number}" for number in range(1, len(asked) + 1)]


def _shortened(messages: list[Message], turns: int) -> list[Message]:
    """Without the given number of finished turns, keeping one that is answered."""
    words = max(at for at, one in enumerate(messages) if one["role"] == "user")
    answered = [at for at, one in enumerate(messages) if one["role"] == "tool"]
    gone = {at for at in answered[:-1][:turns] if at < words}
    return [one for at, one in enumerate(messages) if at not in gone and at + 1 not in gone]


class _CutAt(Exception):
    """The process ended with this input."""

    def __init__(self, heard: list[Message]) -> None:
        self.heard = heard


def _talk(journal: Journal, model: Model, world: World, key: str, messages: list[Message]) -> list[Message]:
    """One process: until the final message, or a cut."""
    if messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
        return messages  # its last word was kept
    heard = list(messages)

    def hear(message: Message) -> None:
        heard.append(json.loads(json.dumps(message)))
        world.cutter.passes("as it is heard")

    dialect = OpenAIChat()
    numbers = TurnNumbering(journal.conversations, key, dialect)
    both = (cast("ModelClient", model), cast("StepExecutor", world))
    loop = Loop(dialect, *both, key, list(messages), numbers, on_message=hear)
    try:
        return run_sync(loop.run()).messages
    except CutError:
        raise _CutAt(heard) from None
