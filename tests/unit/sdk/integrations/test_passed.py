"""A run that kept nothing, or less than the run before it: where that did nothing in a turn and something in a later
one, nothing is done in the earlier turn any more, for the model may ask there for what was done next.
"""

from __future__ import annotations

from typing import Any

import pytest

from countersign import AlreadyRedeemed, MemoryAdapter, Moved, tool
from countersign.contract import Verdict
from countersign.live.work import LiveWork
from tests.fakes.desk import Desk, refund_tool
from tests.fakes.talking import Talk
from tests.unit.sdk.integrations.talks import GARBAGE, LARGE, REFUND

DONE_FIRST_TURN_NOT = pytest.mark.parametrize(
    "first", [GARBAGE, ("refund", LARGE)], ids=["garbage", "denied"]
)


def ran_two_turns(talk: Talk, desk: Desk, refund: Any, first: Any) -> None:
    """Nothing was done in the first turn, the refund in the second, and nobody kept the conversation."""

    def large_is_denied(_: str, args: Any) -> Verdict:
        return Verdict.DENY if args["amount_cents"] == LARGE["amount_cents"] else Verdict.RELEASE

    desk.service.policy = large_is_denied
    script = [talk.calls(first, turn="a"), talk.calls(("refund", REFUND), turn="b"), talk.says("Done.")]
    end = talk.run(script, [refund], runtime=desk.runtime)
    assert [one.answers[0].done for one in end.steps] == [False, True]


@DONE_FIRST_TURN_NOT
def test_what_a_later_turn_has_done_is_not_done_in_an_earlier_one_by_a_run_that_kept_nothing(
    first: Any, desk: Desk, talk: Talk
) -> None:
    """Asked anew the model calls at once what it came to in its second message."""
    refund = refund_tool(desk)
    ran_two_turns(talk, desk, refund, first)
    script = [talk.calls(("refund", REFUND), turn=turn) for turn in ("c", "d")]
    end = talk.run([*script, talk.says("Done.")], [refund], runtime=desk.runtime)
    passed, found = (one.answers[0] for one in end.steps)
    assert not passed.done and "call again what is still to be done" in passed.text
    assert found.done and found.text == '{"refund_id":"r-o-4-1200"}' and len(desk.done) == 1


@DONE_FIRST_TURN_NOT
def test_something_else_than_a_later_turn_has_done_is_not_done_beside_it(
    first: Any, desk: Desk, talk: Talk
) -> None:
    refund = refund_tool(desk)
    ran_two_turns(talk, desk, refund, first)
    other = {**REFUND, "amount_cents": 1300}
    script = [talk.calls(("refund", other), turn=turn) for turn in ("c", "d")]
    with pytest.raises(AlreadyRedeemed, match="another list of calls was committed"):
        talk.run(script, [refund], runtime=desk.runtime)
    assert len(desk.done) == 1


def test_where_no_later_turn_has_done_anything_the_first_may(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    desk.service.policy = lambda *_: Verdict.RELEASE
    nothing = [talk.calls(GARBAGE, turn="a"), talk.calls(GARBAGE, turn="b"), talk.says("I cannot.")]
    talk.run(nothing, [refund], runtime=desk.runtime)
    end = talk.run(
        [talk.calls(("refund", REFUND), turn="c"), talk.says("Done.")], [refund], runtime=desk.runtime
    )
    assert end.steps[0].answers[0].done and len(desk.done) == 1


# ------------------------------------------------------------------------------- the same, which may be done by now


def denied_once(desk: Desk) -> None:
    """The rule is lifted after the first denial."""
    answers = iter([Verdict.DENY])
    desk.service.policy = lambda *_: next(answers, Verdict.RELEASE)


def denied_and_then_done(talk: Talk, desk: Desk, refund: Any) -> list[Any]:
    """The same call in two turns; the conversation as it was."""
    denied_once(desk)
    script = [talk.calls(("refund", REFUND), turn=turn) for turn in ("a", "b")]
    end = talk.run([*script, talk.says("Done.")], [refund], runtime=desk.runtime)
    assert [one.answers[0].done for one in end.steps] == [False, True]
    return end.messages


def test_what_was_denied_and_done_in_the_next_turn_is_not_done_once_more_in_its_own(
    desk: Desk, talk: Talk
) -> None:
    refund = refund_tool(desk)
    denied_and_then_done(talk, desk, refund)
    script = [talk.calls(("refund", REFUND), turn=turn) for turn in ("c", "d")]
    end = talk.run([*script, talk.says("Done.")], [refund], runtime=desk.runtime)
    assert [one.answers[0].done for one in end.steps] == [False, True] and len(desk.done) == 1
    assert end.steps[0].answers[0].text.startswith("denied, nothing was done: refund: ")


def test_nor_where_the_message_itself_was_kept_and_its_answer_was_not(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    kept = denied_and_then_done(talk, desk, refund)[:2]
    end = talk.run([talk.says("Done.")], [refund], runtime=desk.runtime, messages=kept)
    assert not end.steps[0].answers[0].done and len(desk.done) == 1


def test_nor_less_of_it_by_another_amount(desk: Desk, talk: Talk) -> None:
    """2,000 was denied, 1,200 was done: 2,000 that may be done by now are none beside them."""
    refund = refund_tool(desk)
    denied_once(desk)
    more = {**REFUND, "amount_cents": 2_000}
    script = [talk.calls(("refund", more), turn="a"), talk.calls(("refund", REFUND), turn="b")]
    talk.run([*script, talk.says("Done.")], [refund], runtime=desk.runtime)
    script = [talk.calls(("refund", more), turn="c"), talk.calls(("refund", REFUND), turn="d")]
    end = talk.run([*script, talk.says("Done.")], [refund], runtime=desk.runtime)
    assert [one.answers[0].done for one in end.steps] == [False, True]
    assert desk.done == [("refund", "o-4", 1200)]


def test_nor_a_part_of_it(desk: Desk, talk: Talk) -> None:
    """Of two calls one was denied, so the other was made alone."""
    refund = refund_tool(desk)
    desk.service.policy = lambda _, args: Verdict.DENY if args["order_id"] == "o-5" else Verdict.RELEASE
    one, two = ("refund", REFUND), ("refund", {**REFUND, "order_id": "o-5"})
    script = [talk.calls(one, two, turn="a"), talk.calls(one, turn="b"), talk.says("Done.")]
    talk.run(script, [refund], runtime=desk.runtime)
    desk.service.policy = lambda *_: Verdict.RELEASE
    end = talk.run([talk.calls(one, two, turn="c"), talk.says("Done.")], [refund], runtime=desk.runtime)
    assert [answer.done for answer in end.steps[0].answers] == [False, False]
    assert desk.done == [("refund", "o-4", 1200)]


def test_nor_what_somebody_else_had_come_in_between(
    desk: Desk, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    script = [talk.calls(*both, turn="a"), talk.calls(*both, turn="b"), talk.says("Done.")]
    end = talk.run(script, [mark, refund], runtime=desk.runtime)
    assert [one.answers[1].done for one in end.steps] == [False, True]
    end = talk.run([talk.calls(*both, turn="c"), talk.says("Done.")], [mark, refund], runtime=desk.runtime)
    assert not end.steps[0].answers[1].done and len(desk.done) == 1
