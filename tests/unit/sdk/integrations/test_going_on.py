"""A conversation goes on from its messages, after people or after its process ended: each effect happened once, each
call is answered once, directly after it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from countersign import AlreadyRedeemed, MisuseError, NotDone, OutcomeUnknown, SQLiteAdapter, resume, tool
from countersign.contract import txn_id
from countersign.contract.states import Verdict
from tests.fakes.desk import (
    AGENT,
    Desk,
    charge_tools,
    claims_of,
    failing_tool,
    note_tool,
    notes_database,
    notes_in,
    refund_tool,
)
from tests.fakes.service import Reason
from tests.fakes.talking import ASK, Talk
from tests.unit.sdk.integrations.talks import HUGE, LARGE, NOTE, REFUND, asked, killed

FAILING = ("notify", {"order_id": "o-4"})
OWN_OR_EQUAL_IDS = pytest.mark.parametrize("own_ids", [True, False], ids=["ids of their own", "the same ids"])


def refunds(*orders: str) -> list[tuple[str, Any]]:
    return [("refund", {"order_id": order, "amount_cents": 100}) for order in orders]


def tools_of(desk: Desk) -> list[Any]:
    return [refund_tool(desk), charge_tools(desk), failing_tool(desk, NotDone("no address"), acts=False)]


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def keys(end: Any) -> list[str]:
    return [step.key for step in end.steps]


# --------------------------------------------------------------------------------------------------------- people


def test_a_call_for_people_parks_the_conversation(desk: Desk, refund: Any, talk: Talk) -> None:
    end = talk.run([talk.calls(("refund", LARGE), said="It was broken.")], [refund])
    txn = asked(end)
    assert txn == txn_id(agent=AGENT, run_key="case-1/turn-1")
    assert desk.done == [] and end.steps == ()
    again = talk.run([], [refund], messages=end.messages)
    assert asked(again) == txn and talk.vendor.sent == []  # no vote yet: the model is not called either
    desk.service.approve(txn)
    done = talk.run([talk.says("Refunded.")], [refund], messages=end.messages)
    assert (done.text, done.pending, desk.done) == ("Refunded.", None, [("refund", "o-4", 20_000)])
    assert talk.vendor.answers() == ['{"refund_id":"r-o-4-20000"}']
    replayed = talk.run([talk.says("Yes.")], [refund], messages=end.messages)
    assert len(desk.done) == 1 and replayed.steps[0].answers == done.steps[0].answers


def test_the_models_text_is_the_agents_claim(desk: Desk, talk: Talk) -> None:
    refund, claims = refund_tool(desk), claims_of(desk)
    script = [talk.calls(("refund", REFUND), said="It was " + "very " * 1000), talk.says("Done.")]
    talk.run(script, [refund], purpose="a ticket", on_behalf_of="mia")
    (claimed,) = claims
    assert claimed is not None and (claimed.purpose, claimed.on_behalf_of) == ("a ticket", "mia")
    assert claimed.reasoning is not None
    assert claimed.reasoning.startswith("It was very") and len(claimed.reasoning) == 4000


def test_wait_is_how_long_a_step_waits_in_place(desk: Desk, talk: Talk) -> None:
    txn, look = txn_id(agent=AGENT, run_key="case-1/turn-1"), desk.service.wait
    desk.service.wait = lambda *_: desk.service.approve(txn) or look(txn, 0)  # type: ignore[method-assign]
    end = talk.turn([("refund", LARGE)], [refund_tool(desk)], wait=60)
    assert end.pending is None and len(desk.done) == 1


def test_on_message_gets_each_new_message(desk: Desk, talk: Talk) -> None:
    heard: list[Any] = []
    notify = failing_tool(desk, TimeoutError("no answer"))
    with pytest.raises(OutcomeUnknown):
        talk.run([talk.calls(FAILING)], [notify], on_message=heard.append)
    # with that message the run goes on once a person has settled it
    assert ([one["role"] for one in heard], len(talk.vendor.sent)) == (["assistant"], 1)
    with pytest.raises(OutcomeUnknown):
        talk.run([], [notify], messages=[*ASK, *heard])
    assert len(desk.done) == 1


# -------------------------------------------------------------------------------------------------------- anywhere


def script(talk: Talk, run: str) -> list[dict[str, Any]]:
    """Done, taken back after a failure, denied, done again; the ids are this run's, as vendors make them."""
    return [
        talk.calls(*refunds("o-1", "o-2", "o-3"), said="Three.", turn=f"{run}a"),
        talk.calls(("charge", REFUND), FAILING, turn=f"{run}b"),
        talk.calls(*refunds("o-5"), ("refund", HUGE), turn=f"{run}c"),
        talk.calls(*refunds("o-6"), turn=f"{run}d"),
        talk.says("All done."),
    ]


def answers_in(messages: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The answers to the model, for each of its messages."""
    replies: list[list[str]] = []
    for message in messages:
        if message["role"] == "assistant":
            replies.append([])
        elif message["role"] == "tool":
            replies[-1].append(message["content"])
        elif isinstance(message["content"], list):
            replies[-1] += [
                block["content"] for block in message["content"] if block["type"] == "tool_result"
            ]
    return replies


def cuts(messages: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The conversation as it may have been kept: after each message but the last word, and in the middle of one with
    several answers.
    """
    for end in range(1, len(messages)):
        kept = [*messages[:end]]
        last = kept[-1]["content"] if kept[-1]["role"] == "user" else None
        for blocks in range(1, len(last)) if isinstance(last, list) else ():
            yield [*kept[:-1], {**kept[-1], "content": last[:blocks]}]
        yield kept


def test_cut_anywhere_it_goes_on_and_nothing_happens_twice(desk: Desk, talk: Talk) -> None:
    tools = tools_of(desk)
    whole = talk.run(script(talk, "0"), tools)
    done, replies = list(desk.done), answers_in(whole.messages)
    assert [one[0] for one in done] == ["refund", "refund", "refund", "charge", "void", "refund"]
    assert [len(one) for one in replies] == [3, 2, 2, 1, 0]
    kept = [*cuts(whole.messages)]
    assert len(kept) == 13
    for number, messages in enumerate(kept, 1):
        turns = sum(message["role"] == "assistant" for message in messages)
        left = script(talk, str(number))[turns:]
        end = talk.run(left, tools, messages=copy.deepcopy(messages))
        assert (desk.done, answers_in(end.messages)) == (done, replies), f"cut {number}"


# ------------------------------------------------------------------------------------------- what was answered before


def test_an_unanswered_failure_is_answered_with_the_same_text(desk: Desk, talk: Talk) -> None:
    tools, calls = tools_of(desk), [*refunds("o-1"), ("charge", REFUND), FAILING]
    other = talk.turn(calls, tools, key="another")
    kept = killed(talk, tools, talk.calls(*calls))
    done = list(desk.done)
    end = talk.run([talk.says("I see.")], tools, messages=kept)
    assert (desk.done, end.steps[0].answers) == (done, other.steps[0].answers)
    assert [one.done for one in end.steps[0].answers] == [True, False, False]
    assert "no address" in end.steps[0].answers[2].text


@pytest.mark.parametrize(("secret", "staged"), [(False, True), (True, True), (False, False)])
def test_a_recorded_live_result_is_answered_again(desk: Desk, talk: Talk, secret: bool, staged: bool) -> None:
    """As the journal has it: the note about the missing result appears once."""
    database, refund = SQLiteAdapter(notes_database(desk.folder)), refund_tool(desk)
    world = {"left": 3}
    live: Any = {"lane": "live", "adapter": database, "secret": ["pin"] if secret else []}

    @tool("take", resource=("Order", "order_id"), registry=desk.registry, **live)
    def take(order_id: str, pin: str) -> dict[str, int]:
        """Take one from the shelf."""
        if not world["left"]:
            raise NotDone("the shelf is empty")
        world["left"] -= 3
        return {"left": world["left"]}

    desk.publish(take)
    calls = [("take", {"order_id": "o-4", "pin": "4111"}), ("refund", REFUND)][: 1 + staged]
    kept = killed(talk, [refund, take], talk.calls(*calls))
    end = talk.run([talk.says("Done.")], [refund, take], messages=kept)
    replies = [('{"left":0}', True), ('{"refund_id":"r-o-4-1200"}', True)][: 1 + staged]
    assert [(one.text, one.done) for one in end.steps[0].answers] == replies and len(desk.done) == staged


def test_a_failure_met_by_a_worker_is_answered(desk: Desk, talk: Talk) -> None:
    tools = tools_of(desk)
    end = talk.run([talk.calls(("refund", LARGE), FAILING)], tools)
    desk.service.approve(asked(end))
    with desk.restarted() as worker:
        resume(runtime=worker.runtime)
    assert [one[0] for one in desk.done] == ["refund"]
    replies = talk.run([talk.says("I see.")], tools, messages=end.messages)
    refunded, notified = replies.steps[0].answers
    assert refunded.done and refunded.text.startswith(
        "this one was done and is in effect: notify did not happen"
    )
    assert not notified.done and "no address" in notified.text and len(desk.done) == 1


def test_an_expired_release_is_answered_again_as_not_done(desk: Desk, talk: Talk) -> None:
    charge, renew = charge_tools(desk, recheck=True), desk.service.renew

    def refuse(*given: Any) -> Any:
        desk.service.policy = lambda *_: (Verdict.DENY, Reason(code="no_permit", text="no longer"))
        return renew(*given)

    desk.service.renew = refuse  # type: ignore[method-assign]
    kept = killed(talk, [charge], talk.calls(("charge", REFUND)))
    (answer,) = talk.run([talk.says("I see.")], [charge], messages=kept).steps[0].answers
    assert not answer.done and desk.done == []
    assert "charge did not happen: the service did not extend the time to fire" in answer.text
    assert "Nothing of this transaction remains in effect" in answer.text


def test_live_work_of_a_failed_step_stays_undone(desk: Desk, talk: Talk) -> None:
    path = notes_database(desk.folder)
    tools = [*tools_of(desk), note_tool(desk, SQLiteAdapter(path))]
    kept = killed(talk, tools, talk.calls(("note", NOTE), FAILING))
    noted, notified = talk.run([talk.says("I see.")], tools, messages=kept).steps[0].answers
    assert (notes_in(path), noted.done, notified.done) == ([], False, False)
    assert noted.text.startswith("this one was undone again: notify did not happen")


@pytest.mark.parametrize("by", ["policy", "people"])
def test_a_denial_is_answered_again(by: str, desk: Desk, refund: Any, talk: Talk) -> None:
    if by == "policy":
        kept = killed(talk, [refund], talk.calls(("refund", HUGE)))
    else:
        waits = talk.run([talk.calls(("refund", LARGE))], [refund])
        desk.service.deny(asked(waits), "keep it")
        kept = waits.messages
        first = talk.run([talk.says("No.")], [refund], messages=kept)
        assert "keep it" in first.steps[0].answers[0].text
    (answer,) = talk.run([talk.says("No.")], [refund], messages=kept).steps[0].answers
    assert not answer.done and desk.done == []
    assert ("never-huge" if by == "policy" else "keep it") in answer.text


@pytest.mark.parametrize(
    ("spent", "asks"),
    [([FAILING], ("notify", {"order_id": "o-5"})), ([("charge", REFUND), FAILING], FAILING)],
    ids=["another call", "a part: nothing of it would seem to stand"],
)
def test_what_was_spent_on_other_calls_is_refused(spent: Any, asks: Any, desk: Desk, talk: Talk) -> None:
    tools = tools_of(desk)
    killed(talk, tools, talk.calls(*spent, turn="a"))
    with pytest.raises(AlreadyRedeemed, match="another list of calls"):
        talk.run([talk.calls(asks, turn="b")], tools)


# ------------------------------------------------------------------------------------------------------- the key


def test_a_rerun_from_the_beginning_never_fires_twice(desk: Desk, refund: Any, talk: Talk) -> None:
    first = talk.turn([("refund", REFUND)], [refund])
    second = talk.turn([("refund", REFUND)], [refund])
    assert len(desk.done) == 1 and second.steps[0].answers == first.steps[0].answers
    for turn in ("", "b"):  # also by other ids
        with pytest.raises(AlreadyRedeemed):
            talk.run([talk.calls(*refunds("o-9"), turn=turn)], [refund])
    assert len(desk.done) == 1


def shortened(messages: Sequence[dict[str, Any]], turns: int) -> list[dict[str, Any]]:
    """Without the first so many messages of the model, and what answers them."""
    at = [place for place, one in enumerate(messages) if one["role"] == "assistant"][turns]
    return [*ASK, *messages[at:]]


@OWN_OR_EQUAL_IDS
def test_an_open_message_keeps_its_key_when_shortened(desk: Desk, talk: Talk, own_ids: bool) -> None:
    """Counted in the list it would be turn 1, which was denied, and happen again under that key."""
    refund = refund_tool(desk)
    denied = talk.run([talk.calls(("refund", HUGE), turn="a" * own_ids), talk.says("No.")], [refund])
    more = [*denied.messages, said("Less, then.")]
    kept = killed(talk, [refund], talk.calls(*refunds("o-4"), turn="b" * own_ids), messages=more)
    assert len(desk.done) == 1
    end = talk.run([talk.says("Done.")], [refund], messages=shortened(kept, 2))
    assert keys(end) == ["case-1/turn-2"] and len(desk.done) == 1 and end.steps[0].answers[0].done


def test_turns_of_another_journal_are_counted(refund: Any, talk: Talk) -> None:
    calls = [talk.calls(*refunds("o-1"), turn=one) for one in "abc"]
    theirs = talk.run([*calls[:2], talk.says("Done.")], [refund], key="theirs")
    more = [*theirs.messages, said("And another.")]
    end = talk.run([calls[2], talk.says("Done.")], [refund], messages=more, key="ours")
    assert keys(end) == ["ours/turn-3"]


# --------------------------------------------------------------------------------------------------- in its place


def partly(talk: Talk, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first message of the model, and the first of its answers."""
    if talk.is_openai:
        return [*messages[:3]]
    return [*messages[:2], {**messages[2], "content": messages[2]["content"][:1]}]


def test_later_messages_come_after_the_answers(desk: Desk, refund: Any, talk: Talk) -> None:
    whole = talk.turn(refunds("o-1", "o-2"), [refund])
    log = [*partly(talk, whole.messages), said("Hello?")]
    end = talk.run([talk.says("Hi.")], [refund], messages=list(log), on_message=log.append)
    assert answers_in(end.messages) == [[one.text for one in end.steps[0].answers], []]
    assert "Hello?" in json.dumps(talk.vendor.told()[-1])
    # The log has the second answer behind the question: kept as it was heard, it goes on as well.
    again = talk.run([talk.says("Still here.")], [refund], messages=log[:-1])
    assert again.steps == () and answers_in(again.messages)[:1] == answers_in(end.messages)[:1]
    assert len(desk.done) == 2


def test_answers_in_part_are_completed_from_the_journal_or_refused(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    kept = partly(talk, talk.turn(refunds("o-1", "o-2"), [refund]).messages)
    heard: list[Any] = []
    talk.run([talk.says("Done.")], [refund], messages=kept, on_message=heard.append)
    missing, _ = heard
    assert "r-o-2" in json.dumps(missing) and "r-o-1" not in json.dumps(missing)
    with pytest.raises(MisuseError, match=r"'refund' has no answer.*this journal has a record of neither"):
        talk.run([], [refund], messages=kept, key="another")
    assert len(desk.done) == 2 and talk.vendor.sent == []


def test_a_call_that_was_never_begun_is_carried_out(desk: Desk, refund: Any, talk: Talk) -> None:
    whole = talk.turn(refunds("o-1", "o-2"), [refund])
    end = talk.run([talk.says("Done.")], [refund], messages=whole.messages[:2], key="another")
    assert keys(end) == ["another/turn-1"] and len(desk.done) == 4
