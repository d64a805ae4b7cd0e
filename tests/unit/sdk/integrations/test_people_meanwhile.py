"""A call that waits for people parks its conversation, and the same messages go on from there."""

from __future__ import annotations

from typing import Any

import pytest

from countersign import AlreadyRedeemed, OutcomeUnknown
from countersign.contract import txn_id
from tests.fakes.desk import AGENT, Desk, claims_of, failing_tool, refund_tool
from tests.fakes.talking import ASK, Talk
from tests.unit.sdk.integrations.talks import REFUND, asked


def test_a_call_for_people_parks_the_conversation_and_it_goes_on_from_its_messages(
    desk: Desk, talk: Talk
) -> None:
    refund = refund_tool(desk)
    large = talk.calls(("refund", {"order_id": "o-4", "amount_cents": 20_000}), said="It was broken.")
    end = talk.run([large], [refund], runtime=desk.runtime)
    txn = asked(end)
    assert txn == txn_id(agent=AGENT, run_key="case-1/turn-1")
    assert desk.done == [] and end.steps == ()
    again = talk.run([], [refund], runtime=desk.runtime, messages=end.messages)
    assert asked(again) == txn and talk.vendor.sent == []  # nobody answered yet: nobody asks the model either
    desk.service.approve(txn)
    done = talk.run([talk.says("Refunded.")], [refund], runtime=desk.runtime, messages=end.messages)
    assert (done.text, done.pending) == ("Refunded.", None)
    assert desk.done == [("refund", "o-4", 20_000)]
    assert talk.vendor.answers() == ['{"refund_id":"r-o-4-20000"}']
    replayed = talk.run([talk.says("Yes.")], [refund], runtime=desk.runtime, messages=end.messages)
    assert len(desk.done) == 1 and replayed.steps[0].answers == done.steps[0].answers


def test_people_read_what_the_model_wrote_beside_its_calls_as_its_own_words(desk: Desk, talk: Talk) -> None:
    refund, claims = refund_tool(desk), claims_of(desk)
    script = [talk.calls(("refund", REFUND), said="It was " + "very " * 1000), talk.says("Done.")]
    talk.run(script, [refund], runtime=desk.runtime, purpose="a ticket", on_behalf_of="mia")
    (claimed,) = claims
    assert claimed is not None and (claimed.purpose, claimed.on_behalf_of) == ("a ticket", "mia")
    assert claimed.reasoning is not None
    assert claimed.reasoning.startswith("It was very") and len(claimed.reasoning) == 4000


def test_wait_is_how_long_a_step_waits_in_place(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    txn = txn_id(agent=AGENT, run_key="case-1/turn-1")
    look = desk.service.wait
    desk.service.wait = lambda *_: desk.service.approve(txn) or look(txn, 0)  # type: ignore[method-assign]
    script = [talk.calls(("refund", {"order_id": "o-4", "amount_cents": 20_000})), talk.says("Done.")]
    end = talk.run(script, [refund], runtime=desk.runtime, wait=60)
    assert end.pending is None and len(desk.done) == 1


def test_a_rerun_from_the_beginning_never_fires_twice(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    script = [talk.calls(("refund", REFUND)), talk.says("Done.")]
    first = talk.run(list(script), [refund], runtime=desk.runtime)
    second = talk.run(list(script), [refund], runtime=desk.runtime)
    assert len(desk.done) == 1 and second.steps[0].answers == first.steps[0].answers
    other = [talk.calls(("refund", {"order_id": "o-9", "amount_cents": 1})), talk.says("Done.")]
    with pytest.raises(AlreadyRedeemed):
        talk.run(other, [refund], runtime=desk.runtime)
    assert len(desk.done) == 1


def test_each_message_is_heard_as_it_is_added(desk: Desk, talk: Talk) -> None:
    heard: list[Any] = []
    notify = failing_tool(desk, TimeoutError("no answer"))
    with pytest.raises(OutcomeUnknown):
        talk.run(
            [talk.calls(("notify", {"order_id": "o-4"}))],
            [notify],
            runtime=desk.runtime,
            on_message=heard.append,
        )
    # with that message the run goes on once a person has settled it
    assert [one["role"] for one in heard] == ["assistant"]
    with pytest.raises(OutcomeUnknown):
        talk.run([], [notify], runtime=desk.runtime, messages=[*ASK, *heard])
    assert len(desk.done) == 1
