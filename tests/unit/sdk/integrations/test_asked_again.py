"""A model that is called again after a fault: each call happens once, with any ids its server gives.

Each row describes a conversation of three turns that call the same with the same arguments. The third is cut, run again
twice from the messages that were kept, and a fourth follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from countersign import AlreadyRedeemed
from countersign.contract import Verdict
from tests.fakes.cutting import LINE_CUT, Message, Program, last_word, program, says
from tests.fakes.desk import Desk

ASK = says("Give c-1 money back.")
MORE = says("And once more.")


Fault = Callable[[Program, list[Message], str], list[Message]]


def not_heard(one: Program, messages: list[Message], key: str) -> list[Message]:
    one.cut(messages, LINE_CUT, key=key)
    return messages


def killed_before_the_number(one: Program, messages: list[Message], key: str) -> list[Message]:
    return one.cut(messages, one.calls(), key=key, hears=1)


def killed_after_the_number(one: Program, messages: list[Message], key: str) -> list[Message]:
    with one.policy_kills():
        return one.cut(messages, one.calls(), key=key)


def killed_when_done(one: Program, messages: list[Message], key: str) -> list[Message]:
    return one.cut(messages, one.calls(), key=key, hears=2)[:-1]


def line_cut_after_answer(one: Program, messages: list[Message], key: str) -> list[Message]:
    return one.cut(messages, one.calls(), LINE_CUT, key=key)


def keeping_nothing(fault: Fault) -> Fault:
    """The same, by a program that has kept no message since."""

    def and_nothing_kept(one: Program, messages: list[Message], key: str) -> list[Message]:
        fault(one, messages, key)
        return messages

    return and_nothing_kept


KILLED = (killed_before_the_number, killed_after_the_number, killed_when_done, line_cut_after_answer)
FAULTS: dict[str, Fault] = {
    "not heard": not_heard,
    **{fault.__name__: fault for fault in KILLED},
    **{f"{fault.__name__}, keeping nothing": keeping_nothing(fault) for fault in KILLED},
}


def called(messages: Sequence[Message]) -> list[int]:
    """Where the model calls."""
    return [at for at, one in enumerate(messages) if one.get("tool_calls")]


def last_turn(messages: list[Message]) -> list[Message]:
    return messages[called(messages)[-1] :]


def last_turn_after_the_question(messages: list[Message]) -> list[Message]:
    return [ASK, *last_turn(messages)]


@dataclass(frozen=True)
class Row:
    equal_ids: bool = True
    equal_answers: bool = False
    spoken: bool = True
    kept: Callable[[list[Message]], list[Message]] = list
    found: int = 0
    """How many of the four are found done, because nothing distinguishes their messages from earlier ones."""


OWN: dict[str, Any] = {"equal_ids": False}
SAME: dict[str, Any] = {"equal_answers": True}
SILENT: dict[str, Any] = {"spoken": False}
LAST: dict[str, Any] = {"kept": last_turn}
LAST_ASKED: dict[str, Any] = {"kept": last_turn_after_the_question}
UNTOLD: dict[str, Any] = {"found": 1}
STORIES = {
    "ids of their own": Row(**OWN),
    "ids of their own, no user message between": Row(**OWN | SILENT),
    "ids of their own, equal answers": Row(**OWN | SAME),
    "ids of their own, shortened": Row(**OWN | LAST),
    "ids of their own, equal answers, shortened": Row(**OWN | SAME | LAST),
    "ids of their own, no user message between, shortened": Row(**OWN | SILENT | LAST_ASKED),
    "equal ids": Row(),
    "equal ids, no user message between": Row(**SILENT),
    "equal ids, equal answers": Row(**SAME),
    "equal ids, equal answers, no user message between": Row(**SAME | SILENT),
    "equal ids, shortened": Row(**LAST),
    "equal ids, shortened to begin as it began": Row(**LAST_ASKED),
    "equal ids, no user message between, shortened": Row(**SILENT | LAST),
    "equal ids and answers, shortened: the third equals the second": Row(**SAME | LAST | UNTOLD),
    "the same, no user message between": Row(**SAME | SILENT | LAST | UNTOLD),
}


def two_turns(one: Program, row: Row, key: str) -> list[Message]:
    """Two turns that ended well, and then the question that the third answers."""
    if not row.spoken:
        return one.cut([ASK], one.calls(), one.calls(), LINE_CUT, key=key)
    messages = [ASK]
    for _ in range(2):
        end = one.run(messages, one.calls(), last_word(), key=key)
        messages = [*end.messages, MORE]
    return messages


def to_the_end(one: Program, messages: list[Message]) -> list[Any]:
    """What the model says where it has called something since it was last spoken to, and where it has not."""
    earlier = messages[-1]["role"] == "tool" or bool(messages[-1].get("tool_calls"))
    return [last_word()] if earlier else [one.calls(), last_word()]


def fired(one: Program, row: Row, fault: Fault, key: str) -> int:
    """How often the tool has fired at the end."""
    one.done.clear()
    before = row.kept(two_turns(one, row, key))
    kept = fault(one, before, key)
    for _ in range(2):
        script = [one.calls(), last_word()] if kept == before else to_the_end(one, kept)
        end = one.run(kept, *script, key=key)
    one.run([*end.messages, says("And a last one.")], one.calls(), last_word(), key=key)
    return len(one.done)


@pytest.mark.parametrize("story", STORIES)
def test_each_call_happens_once_after_any_interruption(story: str, desk: Desk) -> None:
    """Each story with every third fault, so that each fault is in every third story."""
    row, faults = STORIES[story], [*FAULTS][[*STORIES].index(story) % 3 :: 3]
    with program(desk, equal_ids=row.equal_ids, equal_answers=row.equal_answers) as one:
        counted = {name: fired(one, row, FAULTS[name], name) for name in faults}
    assert counted == dict.fromkeys(faults, 4 - row.found)


# ------------------------------------------------------------------------------- equal ids, and what distinguishes them


def keys(end: Any) -> list[str]:
    return [step.key for step in end.steps]


def test_other_calls_at_an_earlier_equal_point_are_refused(desk: Desk) -> None:
    """Turns 2 and 3 began at indistinguishable points; the list that was not shortened means 2."""
    with program(desk, equal_ids=True, equal_answers=True) as one:
        calls = [one.calls(), one.calls(), one.calls("c-1", "c-2")]
        earlier = one.run([ASK], *calls, last_word(), key="k")
        early = earlier.messages[:3]
        end = one.run(early, one.calls(), last_word(), key="k")
        assert keys(end) == ["k/turn-2"]
        for refused in (("c-2",), ("c-1", "c-2")):
            with pytest.raises(AlreadyRedeemed):
                one.run(early, one.calls(*refused), key="k")
        assert len(one.done) == 4


def test_earlier_messages_distinguish_equal_points(desk: Desk) -> None:
    """Turn 3 was asked for at an equal point, but with other turns before it than this list has."""
    with program(desk, equal_ids=True, equal_answers=True) as one:
        messages = [ASK]
        for customer in ("c-1", "c-1", "c-2", "c-1"):
            messages = [*one.run(messages, one.calls(customer), last_word(), key="k").messages, MORE]
        end = one.run(messages[called(messages)[2] :], one.calls(), last_word(), key="k")
        assert (keys(end), len(one.done)) == (["k/turn-5"], 5)


def test_consecutive_turns_distinguish_equal_ones(desk: Desk) -> None:
    with program(desk, equal_ids=True, equal_answers=True) as one:
        calls = [one.calls(), one.calls("c-2"), one.calls(), one.calls()]
        earlier = one.run([ASK], *calls, last_word(), key="k")
        last = [*earlier.messages[called(earlier.messages)[2] :], MORE]
        end = one.run(last, one.calls(), last_word(), key="k")
        assert keys(end) == ["k/turn-5"] and len(one.done) == 5


@pytest.mark.parametrize("equal_answers", [True, False])
def test_an_open_message_is_the_one_that_called_this(equal_answers: bool, desk: Desk) -> None:
    """Turn 2 called something else at an equal point."""
    with program(desk, equal_ids=True, equal_answers=equal_answers) as one:
        said = [one.calls(), one.calls("c-2"), one.calls(), one.calls("c-3"), last_word()]
        earlier = one.run([ASK], *said, key="k")
        opened = earlier.messages[called(earlier.messages)[2] :][:3]
        end = one.run(opened, last_word(), key="k")
        assert keys(end) == ["k/turn-4"] and len(one.done) == 4


def test_a_later_equal_message_that_is_answered_in_part_is_answered_from_the_journal(desk: Desk) -> None:
    with program(desk, equal_ids=True) as one:
        said = [one.calls("c-1", "c-2"), one.calls("c-1", "c-2"), last_word()]
        earlier = one.run([ASK], *said, key="k")
        end = one.run(earlier.messages[:6], last_word(), key="k")
        assert keys(end) == ["k/turn-2"] and len(one.done) == 4
        answers_now = [one["content"] for one in end.messages if one["role"] == "tool"]
        assert answers_now == [f"credited {n}" for n in (1, 2, 3, 4)]


def test_other_text_with_equal_calls_is_the_same_turn(desk: Desk) -> None:
    """A run that kept nothing: the program says its words again, and the model ends its turn in words of today."""
    with program(desk, equal_ids=True) as one:
        for words in ("Done.", "It is done."):
            first = one.run([ASK], one.calls(), last_word(words), key="k")
            one.run([*first.messages, MORE], one.calls(), last_word(words), key="k")
        assert len(one.done) == 2


EQUAL_OR_NOT = pytest.mark.parametrize("equal_ids", [True, False], ids=["equal ids", "ids of their own"])


@EQUAL_OR_NOT
def test_other_words_at_the_same_place_are_no_other_turn(equal_ids: bool, desk: Desk) -> None:
    """What was asked for there may have been done, by a run that was killed before anybody kept it."""
    with program(desk, equal_ids=equal_ids) as one:
        first = one.run([ASK], one.calls(), last_word(), key="k")
        for words in ("And once more.", "And once more, please."):
            end = one.run([*first.messages, says(words)], one.calls(), last_word(), key="k")
            assert keys(end) == ["k/turn-2"]
        with pytest.raises(AlreadyRedeemed):
            one.run([*first.messages, says("For c-2, I meant.")], one.calls("c-2"), key="k")
        assert len(one.done) == 2


@EQUAL_OR_NOT
def test_a_word_that_was_typed_after_a_fault_carries_nothing_out_again(equal_ids: bool, desk: Desk) -> None:
    with program(desk, equal_ids=equal_ids) as one:
        kept = one.cut([ASK], one.calls(), one.calls(), key="k", hears=3)[:3]
        one.cut(kept, one.calls(), key="k", hears=2)
        one.run([*kept, says("Hello? Please go on.")], one.calls(), last_word(), key="k")
        assert len(one.done) == 2


@EQUAL_OR_NOT
@pytest.mark.parametrize("equal_answers", [True, False])
def test_going_back_and_running_again_does_nothing_twice(
    equal_answers: bool, equal_ids: bool, desk: Desk
) -> None:
    with program(desk, equal_ids=equal_ids, equal_answers=equal_answers) as one:
        calls = [one.calls("c-0"), one.calls(), one.calls()]
        earlier = one.run([ASK], *calls, last_word(), key="k")
        back = [*earlier.messages[:5], says("Once more for the other order.")]
        for _ in range(3):
            one.cut(back, one.calls(), key="k", hears=2)
        assert one.done == ["c-0", "c-1", "c-1"]


def test_the_same_list_is_always_the_same_turn(desk: Desk) -> None:
    """Also when an earlier turn, which was denied then, has called since what the list begins with."""
    with program(desk, equal_ids=True, equal_answers=True) as one:
        policy = desk.service.policy
        first = one.run([ASK], one.calls("c-9"), last_word(), key="k")
        desk.service.policy = lambda *_: Verdict.DENY
        second = one.run([*first.messages, MORE], one.calls("c-8"), last_word(), key="k")
        desk.service.policy = policy
        third = one.run([*second.messages, MORE], one.calls(), last_word(), key="k")
        short = [*third.messages[called(third.messages)[2] :], MORE]
        one.cut(short, one.calls("c-7"), key="k", hears=2)
        one.run([*first.messages, says("Or so.")], one.calls(), last_word(), key="k")
        end = one.run(short, one.calls("c-7"), last_word(), key="k")
        assert (keys(end), one.done) == (["k/turn-4"], ["c-9", "c-1", "c-7"])


def test_a_list_that_lacks_a_turn_in_the_middle_goes_on_after_its_last(desk: Desk) -> None:
    with program(desk, equal_ids=False) as one:
        earlier = one.run([ASK], one.calls(), one.calls(), one.calls(), last_word(), key="k").messages
        gap = [*earlier[: called(earlier)[1]], *earlier[called(earlier)[2] :], MORE]
        end = one.run(gap, one.calls(), last_word(), key="k")
        assert keys(end) == ["k/turn-4"] and len(one.done) == 4


def test_overwritten_answers_match_the_earliest_turn(desk: Desk) -> None:
    with program(desk, equal_ids=True) as one:
        earlier = one.run([ASK], one.calls(), one.calls(), last_word(), key="k")
        last = [
            {**earlier.messages[called(earlier.messages)[1]]},
            {**earlier.messages[4], "content": "[cut]"},
            MORE,
        ]
        end = one.run(last, one.calls(), last_word(), key="k")
        assert keys(end) == ["k/turn-2"] and len(one.done) == 2


def test_answers_are_stored_before_they_are_delivered(desk: Desk) -> None:
    """A process that ends as it hears them has kept them, and goes on from that turn alone."""
    with program(desk, equal_ids=True) as one:
        whole = one.cut([ASK], one.calls(), one.calls(), key="k", hears=4)
        end = one.run([*whole[-2:], MORE], one.calls(), last_word(), key="k")
        assert keys(end) == ["k/turn-3"] and len(one.done) == 3
