"""A conversation goes on from its messages, after people or after its process ended: each effect happened once, each
call is answered once, directly after it.
"""

import copy
import json

import pytest

from countersign import MisuseError, NotDone, OutcomeUnknown, resume, tool
from countersign.contract import txn_id
from tests.fakes.desk import AGENT, Desk, charge_tools, claims_of, failing_tool, refund_tool
from tests.fakes.talking import ASK, Talk
from tests.unit.sdk.integrations.talks import HUGE, LARGE, REFUND, answers_after, asked, killed

FAILING = ("notify", {"order_id": "o-4"})
OWN_OR_EQUAL_IDS = pytest.mark.parametrize("own_ids", [True, False], ids=["ids of their own", "the same ids"])


def refunds(*orders: str) -> list:
    return [("refund", {"order_id": order, "amount_cents": 100}) for order in orders]


def tools_of(desk: Desk) -> list:
    return [refund_tool(desk), charge_tools(desk), failing_tool(desk, NotDone("no address"), acts=False)]


def said(text: str) -> dict:
    return {"role": "user", "content": text}


def keys(end) -> list[str]:
    return [step.key for step in end.steps]


# --------------------------------------------------------------------------------------------------------- people


def test_a_call_for_people_parks_the_conversation(desk: Desk, refund, talk: Talk) -> None:
    end = talk.run([talk.calls(("refund", LARGE), said="It was broken.")], [refund])
    txn = asked(end)
    assert (txn, desk.done, end.steps) == (txn_id(agent=AGENT, run_key="case-1/turn-1"), [], ())
    again = talk.run([], [refund], messages=end.messages)
    assert asked(again) == txn and talk.vendor.sent == []  # no vote yet: the model is not called either
    desk.service.approve(txn)
    done = talk.run([talk.says("Refunded.")], [refund], messages=end.messages)
    assert (done.text, done.pending, desk.done) == ("Refunded.", None, [("refund", "o-4", 20_000)])
    assert talk.vendor.answers() == ['{"refund_id":"r-o-4-20000"}']
    assert answers_after(talk, [refund], end.messages) == done.steps[0].answers and len(desk.done) == 1


def test_the_models_text_is_the_agents_claim(desk: Desk, refund, talk: Talk) -> None:
    claims = claims_of(desk)
    script = [talk.calls(("refund", REFUND), said="It was " + "very " * 1000), talk.says("Done.")]
    talk.run(script, [refund], purpose="a ticket", on_behalf_of="mia")
    (claimed,) = claims
    assert claimed is not None and (claimed.purpose, claimed.on_behalf_of) == ("a ticket", "mia")
    assert str(claimed.reasoning).startswith("It was very") and len(str(claimed.reasoning)) == 4000


def test_wait_is_how_long_a_step_waits_in_place(desk: Desk, refund, talk: Talk) -> None:
    txn, look = txn_id(agent=AGENT, run_key="case-1/turn-1"), desk.service.wait
    desk.service.wait = lambda *_: desk.service.approve(txn) or look(txn, 0)  # type: ignore[method-assign]
    assert talk.turn([("refund", LARGE)], [refund], wait=60).pending is None and len(desk.done) == 1


def test_on_message_gets_each_new_message(desk: Desk, talk: Talk) -> None:
    heard, notify = [], failing_tool(desk, TimeoutError("no answer"))
    with pytest.raises(OutcomeUnknown):
        talk.run([talk.calls(FAILING)], [notify], on_message=heard.append)
    # with that message the run goes on once a person has settled it
    assert ([one["role"] for one in heard], len(talk.vendor.sent)) == (["assistant"], 1)
    with pytest.raises(OutcomeUnknown):
        talk.run([], [notify], messages=[*ASK, *heard])
    assert len(desk.done) == 1


# -------------------------------------------------------------------------------------------------------- anywhere


def script(talk: Talk, run: str) -> list:
    """Done, taken back after a failure, denied, done again; the ids are this run's, as vendors make them."""
    return [
        talk.calls(*refunds("o-1", "o-2", "o-3"), said="Three.", turn=f"{run}a"),
        talk.calls(("charge", REFUND), FAILING, turn=f"{run}b"),
        talk.calls(*refunds("o-5"), ("refund", HUGE), turn=f"{run}c"),
        talk.calls(*refunds("o-6"), turn=f"{run}d"),
        talk.says("All done."),
    ]


def answers_in(messages) -> list[list[str]]:
    """The answers to the model, for each of its messages."""
    replies: list[list[str]] = []
    for message in messages:
        content = message["content"]
        if message["role"] == "assistant":
            replies.append([])
        elif message["role"] == "tool":
            replies[-1].append(content)
        elif isinstance(content, list):
            replies[-1] += [block["content"] for block in content if block["type"] == "tool_result"]
    return replies


def cuts(messages):
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
    kept, done = killed(talk, tools, talk.calls(*calls)), list(desk.done)
    replies = answers_after(talk, tools, kept)
    assert (desk.done, replies) == (done, other.steps[0].answers)
    assert [one.done for one in replies] == [True, False, False] and "no address" in replies[2].text


@pytest.mark.parametrize(("secret", "staged"), [(False, True), (True, True), (False, False)])
def test_live_results_are_repeated(
    desk: Desk, live_notes, refund, talk: Talk, secret: bool, staged: bool
) -> None:
    """As the journal has it: the note about the missing result appears once."""
    shelf, live = [3], {"lane": "live", "adapter": live_notes.adapter}

    @tool("take", resource=("Order", "order_id"), secret=["pin"] * secret, registry=desk.registry, **live)
    def take(order_id: str, pin: str) -> dict[str, int]:
        """Take one from the shelf."""
        if not shelf:
            raise NotDone("the shelf is empty")
        return {"left": shelf.pop() - 3}

    desk.publish(take)
    calls = [("take", {"order_id": "o-4", "pin": "4111"}), ("refund", REFUND)][: 1 + staged]
    kept = killed(talk, [refund, take], talk.calls(*calls))
    replies = [('{"left":0}', True), ('{"refund_id":"r-o-4-1200"}', True)][: 1 + staged]
    assert [(one.text, one.done) for one in answers_after(talk, [refund, take], kept)] == replies
    assert len(desk.done) == staged


def test_a_failure_met_by_a_worker_is_answered(desk: Desk, talk: Talk) -> None:
    tools = tools_of(desk)
    end = talk.run([talk.calls(("refund", LARGE), FAILING)], tools)
    desk.service.approve(asked(end))
    with desk.restarted() as worker:
        resume(runtime=worker.runtime)
    refunded, notified = answers_after(talk, tools, end.messages)
    assert [one[0] for one in desk.done] == ["refund"] and (refunded.done, notified.done) == (True, False)
    assert refunded.text.startswith("this one was done and is in effect: notify did not happen")
    assert "no address" in notified.text


@pytest.mark.parametrize(("by", "reason"), [("policy", "never-huge"), ("people", "keep it")])
def test_a_denial_is_answered_again(by: str, reason: str, desk: Desk, refund, talk: Talk) -> None:
    if by == "policy":
        kept = killed(talk, [refund], talk.calls(("refund", HUGE)))
    else:
        waits = talk.run([talk.calls(("refund", LARGE))], [refund])
        desk.service.deny(asked(waits), "keep it")
        kept = waits.messages
    for _ in range(2):
        (answer,) = answers_after(talk, [refund], kept)
        assert (answer.done, reason in answer.text, desk.done) == (False, True, [])


# ------------------------------------------------------------------------------------------------------- the key


def shortened(messages, turns: int) -> list:
    """Without the first so many messages of the model, and what answers them."""
    at = [place for place, one in enumerate(messages) if one["role"] == "assistant"][turns]
    return [*ASK, *messages[at:]]


@OWN_OR_EQUAL_IDS
def test_an_open_message_keeps_its_key(desk: Desk, refund, talk: Talk, own_ids: bool) -> None:
    """Counted in the list it would be turn 1, which was denied, and happen again under that key."""
    denied = talk.run([talk.calls(("refund", HUGE), turn="a" * own_ids), talk.says("No.")], [refund])
    more = [*denied.messages, said("Less, then.")]
    kept = killed(talk, [refund], talk.calls(*refunds("o-4"), turn="b" * own_ids), messages=more)
    assert len(desk.done) == 1
    end = talk.run([talk.says("Done.")], [refund], messages=shortened(kept, 2))
    assert keys(end) == ["case-1/turn-2"] and len(desk.done) == 1 and end.steps[0].answers[0].done


def test_turns_of_another_journal_are_counted(refund, talk: Talk) -> None:
    calls = [talk.calls(*refunds("o-1"), turn=one) for one in "abc"]
    theirs = talk.run([*calls[:2], talk.says("Done.")], [refund], key="theirs")
    more = [*theirs.messages, said("And another.")]
    end = talk.run([calls[2], talk.says("Done.")], [refund], messages=more, key="ours")
    assert keys(end) == ["ours/turn-3"]


# --------------------------------------------------------------------------------------------------- in its place


def partly(talk: Talk, messages) -> list:
    """The first message of the model, and the first of its answers."""
    if talk.is_openai:
        return [*messages[:3]]
    return [*messages[:2], {**messages[2], "content": messages[2]["content"][:1]}]


def test_later_messages_come_after_the_answers(desk: Desk, refund, talk: Talk) -> None:
    whole = talk.turn(refunds("o-1", "o-2"), [refund])
    log = [*partly(talk, whole.messages), said("Hello?")]
    end = talk.run([talk.says("Hi.")], [refund], messages=list(log), on_message=log.append)
    assert answers_in(end.messages) == [[one.text for one in end.steps[0].answers], []]
    assert "Hello?" in json.dumps(talk.vendor.sent[-1]["messages"][-1])
    # The log has the second answer behind the question: kept as it was heard, it goes on as well.
    again = talk.run([talk.says("Still here.")], [refund], messages=log[:-1])
    assert again.steps == () and answers_in(again.messages)[:1] == answers_in(end.messages)[:1]
    assert len(desk.done) == 2


def test_partial_answers_are_completed_or_refused(desk: Desk, refund, talk: Talk) -> None:
    kept, heard = partly(talk, talk.turn(refunds("o-1", "o-2"), [refund]).messages), []
    talk.run([talk.says("Done.")], [refund], messages=kept, on_message=heard.append)
    missing, _ = map(json.dumps, heard)
    assert "r-o-2" in missing and "r-o-1" not in missing
    with pytest.raises(MisuseError, match=r"'refund' has no answer.*this journal has a record of neither"):
        talk.run([], [refund], messages=kept, key="another")
    assert len(desk.done) == 2 and talk.vendor.sent == []


def test_a_call_that_was_never_begun_is_carried_out(desk: Desk, refund, talk: Talk) -> None:
    whole = talk.turn(refunds("o-1", "o-2"), [refund])
    end = talk.run([talk.says("Done.")], [refund], messages=whole.messages[:2], key="another")
    assert keys(end) == ["another/turn-1"] and len(desk.done) == 4
