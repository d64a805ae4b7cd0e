"""A turn of the model that a run passed without doing it: what a later turn has done is not done in it as well."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from countersign import AlreadyRedeemed, MemoryAdapter, Moved, tool
from countersign.contract import Verdict
from countersign.live.work import LiveWork
from tests.fakes.desk import Desk, refund_tool
from tests.fakes.talking import Talk
from tests.unit.sdk.integrations.talks import GARBAGE, LARGE, REFUND

ONE = ("refund", REFUND)
DENIED, OTHER = ("refund", LARGE), ("refund", {**REFUND, "order_id": "o-5"})
NUMBERS = itertools.count()


def answers(talk: Talk, tools: Sequence[Any], *turns: Sequence[Any]) -> list[Any]:
    """What a run that kept nothing of earlier ones is told, turn by turn. Each message has ids of its own."""
    script = [talk.calls(*calls, turn=f"{next(NUMBERS)}-") for calls in turns]
    return [step.answers for step in talk.run([*script, talk.says("Done.")], tools).steps]


def first_is_denied(desk: Desk) -> None:
    """The rule is lifted after the first denial."""
    verdicts = iter([Verdict.DENY])
    desk.service.policy = lambda *_: next(verdicts, Verdict.RELEASE)


PASSED: dict[str, tuple[Any, Any, list[list[bool]], str]] = {
    "what was garbage, and is called at once": (
        [[GARBAGE], [ONE]],
        [[ONE], [ONE]],
        [[False], [True]],
        "call again",
    ),
    "what was denied, and is called less at once": (
        [[DENIED], [ONE]],
        [[ONE], [ONE]],
        [[False], [True]],
        "call again",
    ),
    "what was denied and then done": (
        [[ONE], [ONE]],
        [[ONE], [ONE]],
        [[False], [True]],
        "denied, nothing was done",
    ),
    "what was denied and done for less": (
        [[DENIED], [ONE]],
        [[DENIED], [ONE]],
        [[False], [True]],
        "denied, nothing",
    ),
    "what was denied and done in part": (
        [[ONE, OTHER], [ONE]],
        [[ONE, OTHER]],
        [[False, False]],
        "nothing was done",
    ),
    "nothing was done later": ([[GARBAGE], [GARBAGE]], [[ONE]], [[True]], "r-o-4-1200"),
}


@pytest.mark.parametrize("row", PASSED)
def test_what_a_later_turn_has_done_is_not_done_in_an_earlier_one(row: str, desk: Desk, talk: Talk) -> None:
    before, again, done, says = PASSED[row]
    refund = refund_tool(desk)
    desk.service.policy = lambda *_: Verdict.RELEASE
    if GARBAGE not in before[0]:
        first_is_denied(desk)
    answers(talk, [refund], *before)
    told = answers(talk, [refund], *again)
    assert [[one.done for one in turn] for turn in told] == done and says in told[0][0].text
    assert desk.done == [("refund", "o-4", 1200)]
    assert not done[-1][0] or told[-1][0].text == '{"refund_id":"r-o-4-1200"}'


@pytest.mark.parametrize("first", [GARBAGE, DENIED], ids=["garbage", "denied"])
def test_something_else_than_a_later_turn_has_done_is_refused(first: Any, desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    if first is DENIED:
        first_is_denied(desk)
    answers(talk, [refund], [first], [ONE])
    other = ("refund", {**REFUND, "amount_cents": 1300})
    with pytest.raises(AlreadyRedeemed, match="another list of calls was committed"):
        answers(talk, [refund], [other], [other])
    assert len(desk.done) == 1


def test_nor_where_the_message_itself_was_kept_and_its_answer_was_not(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    first_is_denied(desk)
    script = [talk.calls(ONE, turn=turn) for turn in ("a", "b")]
    kept = talk.run([*script, talk.says("Done.")], [refund]).messages[:2]
    end = talk.run([talk.says("Done.")], [refund], messages=kept)
    assert not end.steps[0].answers[0].done and len(desk.done) == 1


def test_nor_what_moved_in_between(desk: Desk, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told to run again, and did, in the next turn."""
    memory, refund = MemoryAdapter(), refund_tool(desk)
    unmoved, moved = LiveWork.verify_unmoved, iter([Moved("memory", "o-4", read=True, expected="1", now="2")])

    @tool("mark", lane="live", adapter=memory, registry=desk.registry)
    def mark(order_id: str) -> str:
        """Mark an order."""
        memory[order_id] = "marked"
        return "marked"

    def verify(work: LiveWork) -> None:
        if work and (error := next(moved, None)) is not None:
            raise error
        unmoved(work)

    monkeypatch.setattr(LiveWork, "verify_unmoved", verify)
    both = ("mark", {"order_id": "o-4"}), ("refund", REFUND)
    first, second = answers(talk, [mark, refund], both, both)
    assert (first[1].done, second[1].done) == (False, True)
    ((_, again),) = answers(talk, [mark, refund], both)
    assert not again.done and len(desk.done) == 1
