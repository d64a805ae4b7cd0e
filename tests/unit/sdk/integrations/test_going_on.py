"""A conversation whose process ended goes on: each effect happened once, each call is answered once, in its place."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from countersign import AlreadyRedeemed, MisuseError, NotDone, SQLiteAdapter, resume, tool
from countersign.contract.states import Verdict
from countersign.integrations import Conversation
from tests.fakes.desk import (
    Desk,
    charge_tools,
    failing_tool,
    note_tool,
    notes_database,
    notes_in,
    refund_tool,
)
from tests.fakes.service import Reason
from tests.fakes.talking import ASK, Talk
from tests.unit.sdk.integrations.talks import REFUND, killed

HUGE = {"order_id": "o-4", "amount_cents": 900_000}


def refunds(*orders: str) -> list[tuple[str, Any]]:
    return [("refund", {"order_id": order, "amount_cents": 100}) for order in orders]


def tools_of(desk: Desk) -> list[Any]:
    return [refund_tool(desk), charge_tools(desk), failing_tool(desk, NotDone("no address"), acts=False)]


def script(talk: Talk, run: str) -> list[dict[str, Any]]:
    """Done, taken back after a failure, denied, done again; the ids are this run's, as vendors make them."""
    return [
        talk.calls(*refunds("o-1", "o-2", "o-3"), said="Three.", turn=f"{run}a"),
        talk.calls(("charge", REFUND), ("notify", {"order_id": "o-4"}), turn=f"{run}b"),
        talk.calls(*refunds("o-5"), ("refund", HUGE), turn=f"{run}c"),
        talk.calls(*refunds("o-6"), turn=f"{run}d"),
        talk.says("All done."),
    ]


def answers_in(messages: list[dict[str, Any]]) -> list[list[str]]:
    """What the model was told, message by message of its own."""
    told: list[list[str]] = []
    for message in messages:
        if message["role"] == "assistant":
            told.append([])
        elif message["role"] == "tool":
            told[-1].append(message["content"])
        elif isinstance(message["content"], list):
            told[-1] += [block["content"] for block in message["content"] if block["type"] == "tool_result"]
    return told


def cuts(messages: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The conversation as it may have been kept: after each message but the last word, and in the middle of one with
    several answers.
    """
    for end in range(1, len(messages)):
        kept = messages[:end]
        last = kept[-1]["content"] if kept[-1]["role"] == "user" else None
        for blocks in range(1, len(last)) if isinstance(last, list) else ():
            yield [*kept[:-1], {**kept[-1], "content": last[:blocks]}]
        yield kept


def turns_in(messages: list[dict[str, Any]]) -> int:
    return sum(message["role"] == "assistant" for message in messages)


def test_cut_anywhere_it_goes_on_and_nothing_happens_twice(desk: Desk, talk: Talk) -> None:
    tools = tools_of(desk)
    whole = talk.run(script(talk, "0"), tools, runtime=desk.runtime)
    done, told = list(desk.done), answers_in(whole.messages)
    assert [one[0] for one in done] == ["refund", "refund", "refund", "charge", "void", "refund"]
    assert [len(one) for one in told] == [3, 2, 2, 1, 0]
    kept = [*cuts(whole.messages)]
    assert len(kept) == 13
    for number, messages in enumerate(kept, 1):
        left = script(talk, str(number))[turns_in(messages) :]
        end = talk.run(left, tools, runtime=desk.runtime, messages=copy.deepcopy(messages))
        assert (desk.done, answers_in(end.messages)) == (done, told), f"cut {number}"


# ------------------------------------------------------------------------------------------- what was told before


def test_a_failure_nobody_told_the_model_is_told_in_the_same_words(desk: Desk, talk: Talk) -> None:
    tools = tools_of(desk)
    calls = [*refunds("o-1"), ("charge", REFUND), ("notify", {"order_id": "o-4"})]
    other = talk.run([talk.calls(*calls), talk.says("I see.")], tools, runtime=desk.runtime, key="another")
    kept = killed(talk, desk, tools, talk.calls(*calls))
    done = list(desk.done)
    end = talk.run([talk.says("I see.")], tools, runtime=desk.runtime, messages=kept)
    assert desk.done == done
    assert end.steps[0].answers == other.steps[0].answers
    assert [one.done for one in end.steps[0].answers] == [True, False, False]
    assert "no address" in end.steps[0].answers[2].text


@pytest.mark.parametrize("secret", [False, True])
def test_what_a_live_tool_answered_then_is_told_where_it_cannot_be_asked_again(
    desk: Desk, talk: Talk, secret: bool
) -> None:
    """As it is in the journal: that nobody had kept it was told once."""
    database, refund = SQLiteAdapter(notes_database(desk.folder)), refund_tool(desk)
    world = {"left": 3}
    given = {"secret": ["pin"]} if secret else {}

    @tool(
        "take", lane="live", adapter=database, resource=("Order", "order_id"), registry=desk.registry, **given
    )
    def take(order_id: str, pin: str) -> dict[str, int]:
        """Take one from the shelf."""
        if not world["left"]:
            raise NotDone("the shelf is empty")
        world["left"] -= 3
        return {"left": world["left"]}

    desk.publish(take)
    calls = [("take", {"order_id": "o-4", "pin": "4111"}), ("refund", REFUND)]
    kept = killed(talk, desk, [refund, take], talk.calls(*calls))
    end = talk.run([talk.says("Done.")], [refund, take], runtime=desk.runtime, messages=kept)
    assert [(one.text, one.done) for one in end.steps[0].answers] == [
        ('{"left":0}', True),
        ('{"refund_id":"r-o-4-1200"}', True),
    ]
    assert len(desk.done) == 1


def test_a_failure_that_a_worker_met_is_told(desk: Desk, talk: Talk) -> None:
    tools = tools_of(desk)
    calls = [("refund", {"order_id": "o-1", "amount_cents": 20_000}), ("notify", {"order_id": "o-4"})]
    end = talk.run([talk.calls(*calls)], tools, runtime=desk.runtime)
    assert end.pending is not None
    desk.service.approve(end.pending.txn)
    with desk.restarted() as worker:
        resume(runtime=worker.runtime)
    assert [one[0] for one in desk.done] == ["refund"]
    told = talk.run([talk.says("I see.")], tools, runtime=desk.runtime, messages=end.messages)
    refunded, notified = told.steps[0].answers
    assert refunded.done and refunded.text.startswith("this one was done and stands: notify did not happen")
    assert not notified.done and "no address" in notified.text
    assert len(desk.done) == 1


def test_permission_that_ran_out_is_told_again_as_not_done(desk: Desk, talk: Talk) -> None:
    charge = charge_tools(desk, recheck=True)
    renew = desk.service.renew

    def refuse(*given: Any) -> Any:
        desk.service.policy = lambda *_: (Verdict.DENY, Reason(code="no_permit", text="no longer"))
        return renew(*given)

    desk.service.renew = refuse  # type: ignore[method-assign]
    kept = killed(talk, desk, [charge], talk.calls(("charge", REFUND)))
    end = talk.run([talk.says("I see.")], [charge], runtime=desk.runtime, messages=kept)
    (answer,) = end.steps[0].answers
    assert not answer.done and desk.done == []
    assert "charge did not happen: the service did not extend the time to fire" in answer.text
    assert "Nothing of this transaction stands" in answer.text


def test_live_work_beside_a_failure_stays_undone_and_is_told_so(desk: Desk, talk: Talk) -> None:
    path = notes_database(desk.folder)
    tools = [*tools_of(desk), note_tool(desk, SQLiteAdapter(path))]
    calls = [("note", {"order_id": "o-4", "text": "late"}), ("notify", {"order_id": "o-4"})]
    kept = killed(talk, desk, tools, talk.calls(*calls))
    end = talk.run([talk.says("I see.")], tools, runtime=desk.runtime, messages=kept)
    noted, notified = end.steps[0].answers
    assert (notes_in(path), noted.done, notified.done) == ([], False, False)
    assert noted.text.startswith("this one was undone again: notify did not happen")


@pytest.mark.parametrize("by", ["policy", "people"])
def test_a_denial_is_told_again(by: str, desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    amount = 900_000 if by == "policy" else 20_000
    said = talk.calls(("refund", {"order_id": "o-4", "amount_cents": amount}))
    if by == "policy":
        kept = killed(talk, desk, [refund], said)
    else:
        asked = talk.run([said], [refund], runtime=desk.runtime)
        assert asked.pending is not None
        desk.service.deny(asked.pending.txn, "keep it")
        kept = asked.messages
        first = talk.run([talk.says("No.")], [refund], runtime=desk.runtime, messages=kept)
        assert "keep it" in first.steps[0].answers[0].text
    end = talk.run([talk.says("No.")], [refund], runtime=desk.runtime, messages=kept)
    (answer,) = end.steps[0].answers
    assert not answer.done and desk.done == []
    assert ("never-huge" if by == "policy" else "keep it") in answer.text


def test_what_was_spent_elsewhere_or_on_other_calls_is_never_told_as_this_one(desk: Desk, talk: Talk) -> None:
    tools = tools_of(desk)
    killed(talk, desk, tools, talk.calls(("notify", {"order_id": "o-4"}), turn="a"))
    again = talk.calls(("notify", {"order_id": "o-5"}), turn="b")
    with pytest.raises(AlreadyRedeemed, match="another list of calls"):
        talk.run([again], tools, runtime=desk.runtime)


def test_of_a_part_of_what_was_spent_nothing_is_told(desk: Desk, talk: Talk) -> None:
    """Told of the failure alone, the model would hear that nothing of its transaction stands."""
    tools = tools_of(desk)
    failing = ("notify", {"order_id": "o-4"})
    killed(talk, desk, tools, talk.calls(("charge", REFUND), failing, turn="a"))
    with pytest.raises(AlreadyRedeemed, match="another list of calls"):
        talk.run([talk.calls(failing, turn="b")], tools, runtime=desk.runtime)


# ------------------------------------------------------------------------------------------------------- the key


def test_asked_anew_at_the_same_point_the_same_calls_are_found_and_others_refused(
    desk: Desk, talk: Talk
) -> None:
    refund = refund_tool(desk)
    first = talk.run(
        [talk.calls(*refunds("o-1"), turn="a"), talk.calls(*refunds("o-2"), turn="b"), talk.says("Done.")],
        [refund],
        runtime=desk.runtime,
    )
    lost = first.messages[:3]  # as far as the first answer
    again = [talk.calls(*refunds("o-2"), turn="c"), talk.says("Done.")]
    end = talk.run(again, [refund], runtime=desk.runtime, messages=lost)
    assert [step.key for step in end.steps] == ["case-1/turn-2"] and len(desk.done) == 2
    with pytest.raises(AlreadyRedeemed):
        talk.run([talk.calls(*refunds("o-9"), turn="d")], [refund], runtime=desk.runtime, messages=lost)
    assert len(desk.done) == 2


def shortened(messages: list[dict[str, Any]], turns: int) -> list[dict[str, Any]]:
    """Without the first so many messages of the model, and what answers them."""
    at = [place for place, one in enumerate(messages) if one["role"] == "assistant"][turns]
    return [*ASK, *messages[at:]]


@pytest.mark.parametrize(
    ("turn", "taken_for"), [("ids of their own", 4), ("the same ids, and equal answers", 2)]
)
def test_a_shortened_conversation_takes_the_next_turn(
    desk: Desk, talk: Talk, turn: str, taken_for: int
) -> None:
    """Other words since may be those of somebody who went back: they tell no turn from an earlier one."""
    refund = refund_tool(desk)
    mark = (lambda one: one) if turn == "ids of their own" else (lambda _: "")
    said = [talk.calls(*refunds("o-1"), turn=mark(one)) for one in "abc"]
    first = talk.run([*said, talk.says("Done.")], [refund], runtime=desk.runtime)
    more = [*shortened(first.messages, 2), {"role": "user", "content": "And another."}]
    script = [talk.calls(*refunds("o-1"), turn=mark("d")), talk.says("Done.")]
    end = talk.run(script, [refund], runtime=desk.runtime, messages=more)
    assert [step.key for step in end.steps] == [f"case-1/turn-{taken_for}"]
    assert len(desk.done) == max(3, taken_for)


@pytest.mark.parametrize("turn", ["ids of their own", "the same ids"])
def test_a_message_that_waits_for_its_answers_keeps_its_key_in_a_shortened_conversation(
    desk: Desk, talk: Talk, turn: str
) -> None:
    """Counted in the list it would be turn 1, which was denied, and happen again under that key."""
    refund = refund_tool(desk)
    mark = (lambda one: one) if turn == "ids of their own" else (lambda _: "")
    denied = talk.run(
        [talk.calls(("refund", HUGE), turn=mark("a")), talk.says("No.")], [refund], runtime=desk.runtime
    )
    more = [*denied.messages, {"role": "user", "content": "Less, then."}]
    kept = killed(talk, desk, [refund], talk.calls(*refunds("o-4"), turn=mark("b")), messages=more)
    assert len(desk.done) == 1
    end = talk.run([talk.says("Done.")], [refund], runtime=desk.runtime, messages=shortened(kept, 2))
    assert [step.key for step in end.steps] == ["case-1/turn-2"]
    assert len(desk.done) == 1 and end.steps[0].answers[0].done


@pytest.mark.parametrize("turn", ["ids of their own", "the same ids"])
def test_run_again_from_the_same_messages_after_a_fault_it_takes_the_same_turn(
    desk: Desk, talk: Talk, turn: str
) -> None:
    refund = refund_tool(desk)
    mark = (lambda one: one) if turn == "ids of their own" else (lambda _: "")
    first = talk.run([talk.calls(*refunds("o-1"), turn=mark("a")), talk.says("Done.")], [refund],
        runtime=desk.runtime)  # fmt: skip
    saved = [*json.loads(json.dumps(first.messages)), {"role": "user", "content": "Once more, please."}]
    killed(talk, desk, [refund], talk.calls(*refunds("o-1"), turn=mark("b")), messages=saved)
    for again in "cde":
        script = [talk.calls(*refunds("o-1"), turn=mark(again)), talk.says("Done.")]
        end = talk.run(script, [refund], runtime=desk.runtime, messages=saved)
        assert [step.key for step in end.steps] == ["case-1/turn-2"]
    assert len(desk.done) == 2


def test_where_no_call_is_left_the_count_begins_anew_and_what_was_spent_stays_spent(
    desk: Desk, talk: Talk
) -> None:
    refund = refund_tool(desk)
    talk.run([talk.calls(*refunds("o-1"), turn="a"), talk.says("Done.")], [refund], runtime=desk.runtime)
    with pytest.raises(AlreadyRedeemed):
        talk.run([talk.calls(*refunds("o-2"), turn="b")], [refund], runtime=desk.runtime)
    assert len(desk.done) == 1


def test_what_another_journal_carried_out_is_counted_where_it_stands(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    said = [talk.calls(*refunds("o-1"), turn=one) for one in "ab"]
    theirs = talk.run([*said, talk.says("Done.")], [refund], runtime=desk.runtime, key="theirs")
    more = [*theirs.messages, {"role": "user", "content": "And another."}]
    script = [talk.calls(*refunds("o-1"), turn="c"), talk.says("Done.")]
    end = talk.run(script, [refund], runtime=desk.runtime, messages=more, key="ours")
    assert [step.key for step in end.steps] == ["ours/turn-3"]


# --------------------------------------------------------------------------------------------------- in its place


def partly(talk: Talk, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first message of the model, and the first of its answers."""
    if talk.is_openai:
        return messages[:3]
    return [*messages[:2], {**messages[2], "content": messages[2]["content"][:1]}]


def test_what_was_said_since_comes_after_the_answers(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    said = talk.calls(*refunds("o-1", "o-2"), turn="a")
    whole = talk.run([said, talk.says("Done.")], [refund], runtime=desk.runtime)
    log = [*partly(talk, whole.messages), {"role": "user", "content": "Hello?"}]
    end = talk.run(
        [talk.says("Hi.")], [refund], runtime=desk.runtime, messages=list(log), on_message=log.append
    )
    assert answers_in(end.messages) == [[one.text for one in end.steps[0].answers], []]
    assert "Hello?" in json.dumps(talk.vendor.told()[-1])
    # The log has the second answer behind the question: kept as it was heard, it goes on as well.
    again = talk.run([talk.says("Still here.")], [refund], runtime=desk.runtime, messages=log[:-1])
    assert again.steps == () and answers_in(again.messages)[:1] == answers_in(end.messages)[:1]
    assert len(desk.done) == 2


def test_of_answers_in_part_only_what_is_missing_is_heard(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    whole = talk.run([talk.calls(*refunds("o-1", "o-2")), talk.says("Done.")], [refund], runtime=desk.runtime)
    heard: list[Any] = []
    kept = partly(talk, whole.messages)
    talk.run([talk.says("Done.")], [refund], runtime=desk.runtime, messages=kept, on_message=heard.append)
    missing, _ = heard
    assert "r-o-2" in json.dumps(missing) and "r-o-1" not in json.dumps(missing)


def test_answers_in_part_that_no_journal_knows_are_refused_before_anything_is_done(
    desk: Desk, talk: Talk
) -> None:
    refund = refund_tool(desk)
    whole = talk.run([talk.calls(*refunds("o-1", "o-2")), talk.says("Done.")], [refund], runtime=desk.runtime)
    before = len(desk.done)
    with pytest.raises(MisuseError, match=r"'refund' has no answer.*this journal knows of neither"):
        talk.run([], [refund], runtime=desk.runtime, messages=partly(talk, whole.messages), key="another")
    assert len(desk.done) == before and talk.vendor.sent == []


def test_a_call_that_nobody_has_begun_is_carried_out(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    whole = talk.run([talk.calls(*refunds("o-1", "o-2")), talk.says("Done.")], [refund], runtime=desk.runtime)
    end: Conversation = talk.run(
        [talk.says("Done.")], [refund], runtime=desk.runtime, messages=whole.messages[:2], key="another"
    )
    assert [step.key for step in end.steps] == ["another/turn-1"] and len(desk.done) == 4
