"""A model that is called again after a fault: each call happens once, with any ids its server gives.

Each row describes a conversation of three turns that call the same with the same arguments. The third is cut, run again
twice from the messages that were kept, and a fourth follows.
"""

from collections.abc import Callable, Sequence

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


Kept = Callable[[list[Message]], list[Message]]
STORIES: dict[str, tuple[bool, bool, bool, Kept, int]] = {
    # equal ids, equal answers, user messages between, what was kept, and how many of the four are found done because
    # nothing distinguishes their messages from earlier ones
    "own ids": (False, False, True, list, 0),
    "own ids, no user message between": (False, False, False, list, 0),
    "own ids, equal answers": (False, True, True, list, 0),
    "own ids, shortened": (False, False, True, last_turn, 0),
    "own ids, equal answers, shortened": (False, True, True, last_turn, 0),
    "own ids, no user message between, shortened": (False, False, False, last_turn_after_the_question, 0),
    "equal ids": (True, False, True, list, 0),
    "equal ids, no user message between": (True, False, False, list, 0),
    "equal ids, equal answers": (True, True, True, list, 0),
    "equal ids, equal answers, no user message between": (True, True, False, list, 0),
    "equal ids, shortened": (True, False, True, last_turn, 0),
    "equal ids, shortened to begin as it began": (True, False, True, last_turn_after_the_question, 0),
    "equal ids, no user message between, shortened": (True, False, False, last_turn, 0),
    "equal ids and answers, shortened: the third equals the second": (True, True, True, last_turn, 1),
    "the same, no user message between": (True, True, False, last_turn, 1),
}


def two_turns(one: Program, spoken: bool, key: str) -> list[Message]:
    """Two turns that ended well, and then the question that the third answers."""
    if not spoken:
        return one.cut([ASK], one.calls(), one.calls(), LINE_CUT, key=key)
    messages = [ASK]
    for _ in range(2):
        messages = [*one.run(messages, one.calls(), last_word(), key=key).messages, MORE]
    return messages


def to_the_end(one: Program, messages: list[Message]) -> list:
    """What the model says where it has called something since it was last spoken to, and where it has not."""
    earlier = messages[-1]["role"] == "tool" or bool(messages[-1].get("tool_calls"))
    return [last_word()] if earlier else [one.calls(), last_word()]


def fired(one: Program, spoken: bool, keeps: Kept, fault: Fault, key: str) -> int:
    """How often the tool has fired at the end."""
    one.done.clear()
    before = keeps(two_turns(one, spoken, key))
    kept = fault(one, before, key)
    for _ in range(2):
        script = [one.calls(), last_word()] if kept == before else to_the_end(one, kept)
        end = one.run(kept, *script, key=key)
    one.run([*end.messages, says("And a last one.")], one.calls(), last_word(), key=key)
    return len(one.done)


@pytest.mark.parametrize("story", STORIES)
def test_each_call_happens_once_after_any_interruption(story: str, desk: Desk) -> None:
    """Each story with every third fault, so that each fault is in every third story."""
    equal_ids, equal_answers, spoken, keeps, found = STORIES[story]
    faults = [*FAULTS][[*STORIES].index(story) % 3 :: 3]
    with program(desk, equal_ids=equal_ids, equal_answers=equal_answers) as one:
        counted = {name: fired(one, spoken, keeps, FAULTS[name], name) for name in faults}
    assert counted == dict.fromkeys(faults, 4 - found)


# ------------------------------------------------------------------------------- equal ids, and what distinguishes them


def talk(one: Program, messages: Sequence[Message], *turns: str):
    """The model calls this for the customers of each turn, and then has its last word."""
    return one.run(messages, *[one.calls(*turn.split()) for turn in turns], last_word(), key="k")


def keys(end) -> list[str]:
    return [step.key for step in end.steps]


def since(messages: list[Message], turn: int) -> list[Message]:
    return messages[called(messages)[turn] :]


def cut_answer(messages: list[Message]) -> list[Message]:
    return [since(messages, 1)[0], {**messages[4], "content": "[cut]"}, MORE]


TURNS: dict[str, tuple[bool, bool, list[str], Kept, list[str], int, int]] = {
    # equal ids, equal answers, earlier turns, what is kept of them, the next turn, its number, the calls made
    "the list that was not shortened": (
        True, True, ["c-1", "c-1", "c-1 c-2"], lambda m: m[:3], ["c-1"], 2, 4),
    "the turns that follow each other": (
        True, True, ["c-1", "c-2", "c-1", "c-1"], lambda m: [*since(m, 2), MORE], ["c-1"], 5, 5),
    "an open message that called this": (
        True, True, ["c-1", "c-2", "c-1", "c-3"], lambda m: since(m, 2)[:3], [], 4, 4),
    "an open message, other answers": (
        True, False, ["c-1", "c-2", "c-1", "c-3"], lambda m: since(m, 2)[:3], [], 4, 4),
    "the earliest turn, where answers were overwritten": (True, False, ["c-1", "c-1"], cut_answer, ["c-1"], 2, 2),
}  # fmt: skip


@pytest.mark.parametrize("by", TURNS)
def test_the_turn_is_found_by(by: str, desk: Desk) -> None:
    equal_ids, equal_answers, earlier, keeps, then, number, done = TURNS[by]
    with program(desk, equal_ids=equal_ids, equal_answers=equal_answers) as one:
        end = talk(one, keeps(talk(one, [ASK], *earlier).messages), *then)
        assert (keys(end), len(one.done)) == ([f"k/turn-{number}"], done)


def test_other_calls_at_an_earlier_equal_point_are_refused(desk: Desk) -> None:
    """Turns 2 and 3 began at indistinguishable points; the list that was not shortened means 2."""
    with program(desk, equal_ids=True, equal_answers=True) as one:
        early = talk(one, [ASK], "c-1", "c-1", "c-1 c-2").messages[:3]
        for refused in ("c-2", "c-1 c-2"):
            with pytest.raises(AlreadyRedeemed):
                talk(one, early, refused)
        assert len(one.done) == 4


def test_earlier_messages_distinguish_equal_points(desk: Desk) -> None:
    """Turn 3 was requested at an equal point, but with other turns before it than this list has."""
    with program(desk, equal_ids=True, equal_answers=True) as one:
        messages = [ASK]
        for customer in ("c-1", "c-1", "c-2", "c-1"):
            messages = [*talk(one, messages, customer).messages, MORE]
        assert keys(talk(one, since(messages, 2), "c-1")) == ["k/turn-5"] and len(one.done) == 5


def test_a_later_equal_message_that_is_answered_in_part_is_answered_from_the_journal(desk: Desk) -> None:
    with program(desk, equal_ids=True) as one:
        end = talk(one, talk(one, [ASK], "c-1 c-2", "c-1 c-2").messages[:6])
        assert keys(end) == ["k/turn-2"] and len(one.done) == 4
        answers = [message["content"] for message in end.messages if message["role"] == "tool"]
        assert answers == [f"credited {n}" for n in (1, 2, 3, 4)]


EQUAL_OR_NOT = pytest.mark.parametrize("equal_ids", [True, False], ids=["equal ids", "own ids"])


@EQUAL_OR_NOT
def test_other_words_at_the_same_place_are_no_other_turn(equal_ids: bool, desk: Desk) -> None:
    """What was called there may have been done, by a run that was killed before its messages were kept."""
    with program(desk, equal_ids=equal_ids) as one:
        first = talk(one, [ASK], "c-1").messages
        for words in ("And once more.", "And once more, please."):
            assert keys(talk(one, [*first, says(words)], "c-1")) == ["k/turn-2"]
        with pytest.raises(AlreadyRedeemed):
            talk(one, [*first, says("For c-2, I meant.")], "c-2")
        assert len(one.done) == 2


@EQUAL_OR_NOT
def test_a_word_that_was_typed_after_a_fault_carries_nothing_out_again(equal_ids: bool, desk: Desk) -> None:
    with program(desk, equal_ids=equal_ids) as one:
        kept = one.cut([ASK], one.calls(), one.calls(), key="k", hears=3)[:3]
        one.cut(kept, one.calls(), key="k", hears=2)
        talk(one, [*kept, says("Hello? Please go on.")], "c-1")
        assert len(one.done) == 2


@EQUAL_OR_NOT
@pytest.mark.parametrize("equal_answers", [True, False])
def test_going_back_does_nothing_twice(equal_answers: bool, equal_ids: bool, desk: Desk) -> None:
    with program(desk, equal_ids=equal_ids, equal_answers=equal_answers) as one:
        earlier = talk(one, [ASK], "c-0", "c-1", "c-1").messages
        for _ in range(3):
            one.cut([*earlier[:5], says("Once more for the other order.")], one.calls(), key="k", hears=2)
        assert one.done == ["c-0", "c-1", "c-1"]


def test_the_same_list_is_always_the_same_turn(desk: Desk) -> None:
    """Also when an earlier turn, which was denied then, has called since what the list begins with."""
    with program(desk, equal_ids=True, equal_answers=True) as one:
        policy, first = desk.service.policy, talk(one, [ASK], "c-9").messages
        desk.service.policy = lambda *_: Verdict.DENY
        second = talk(one, [*first, MORE], "c-8").messages
        desk.service.policy = policy
        short = [*since(talk(one, [*second, MORE], "c-1").messages, 2), MORE]
        one.cut(short, one.calls("c-7"), key="k", hears=2)
        talk(one, [*first, says("Or so.")], "c-1")
        assert (keys(talk(one, short, "c-7")), one.done) == (["k/turn-4"], ["c-9", "c-1", "c-7"])
