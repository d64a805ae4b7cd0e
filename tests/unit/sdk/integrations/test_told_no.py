"""What a model is told of a call that was not done: why, and that nothing beside it was done either."""

from __future__ import annotations

from typing import Any

import pytest

from countersign import NotDone, OutcomeUnknown
from countersign.contract import Verdict
from tests.fakes.desk import Desk, charge_tools, failing_tool, refund_tool
from tests.fakes.talking import Talk
from tests.unit.sdk.integrations.talks import REFUND


def test_a_denial_is_told_with_its_reasons_and_the_model_may_act_on_it(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    script = [
        talk.calls(("refund", {"order_id": "o-4", "amount_cents": 900_000})),
        talk.calls(("refund", REFUND)),
        talk.says("I could refund 12.00 only."),
    ]
    end = talk.run(script, [refund], runtime=desk.runtime)
    assert desk.done == [("refund", "o-4", 1200)]
    (denied,), (done,) = (step.answers for step in end.steps)
    assert not denied.done and done.done
    assert "never-huge" in denied.text and "split it with finance" in denied.text
    assert "nothing was done" in denied.text


def test_what_goes_with_a_denied_call_is_not_done_and_says_so(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    huge = {"order_id": "o-5", "amount_cents": 900_000}
    end = talk.run(
        [talk.calls(("refund", REFUND), ("refund", huge)), talk.says("No.")], [refund], runtime=desk.runtime
    )
    fine, denied = end.steps[0].answers
    assert desk.done == []
    assert not fine.done and not denied.done
    assert "go together" in fine.text and "never-huge" not in fine.text
    assert "never-huge" in denied.text


BAD_CALLS: dict[str, tuple[str, Any, str]] = {
    "an argument of another type": ("refund", {"order_id": "o-4", "amount_cents": "much"}, "amount_cents"),
    "money with a fraction": ("refund", {"order_id": "o-4", "amount_cents": 12.5}, "whole minor units"),
    "an argument that is missing": ("refund", {"order_id": "o-4"}, "amount_cents"),
    "an argument nobody knows": ("refund", {**REFUND, "note": "x"}, "note"),
    "a tool that is not there": ("transfer", {}, "there is no tool 'transfer'; there are refund"),
    "a key that the rules of bytes refuse": ("refund", {**REFUND, "tags": {"__entity": {}}}, "__entity"),
}


@pytest.mark.parametrize(("name", "args", "says"), BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_a_call_that_does_not_fit_is_answered_and_nothing_is_done(
    name: str, args: Any, says: str, desk: Desk, talk: Talk
) -> None:
    refund = refund_tool(desk)
    fine = {"order_id": "o-5", "amount_cents": 5}
    script = [talk.calls(("refund", fine), (name, args)), talk.says("I cannot.")]
    end = talk.run(script, [refund], runtime=desk.runtime)
    held, wrong = end.steps[0].answers
    assert desk.done == [] and desk.face.asked("/v1/transactions") == 0
    assert "go together" in held.text and not held.done
    assert wrong.text.startswith("not done: ") and says in wrong.text and not wrong.done


BAD_TEXTS = {
    "cut off": ('{"order_id": "o-4", "amo', "JSON"),
    "no object": ("[1]", "one JSON object"),
    "empty": ("", "JSON"),
    "a name twice": ('{"order_id": "a", "order_id": "b", "amount_cents": 1}', "order_id"),
    "no number": ('{"order_id": "a", "amount_cents": NaN}', "JSON"),
    "half a character": ('{"order_id": "\\ud800", "amount_cents": 1}', "JSON"),
}


@pytest.mark.parametrize(("text", "says"), BAD_TEXTS.values(), ids=BAD_TEXTS.keys())
def test_arguments_that_are_no_sound_json_are_answered(text: str, says: str, desk: Desk) -> None:
    talk, refund = Talk("openai"), refund_tool(desk)
    end = talk.run([talk.calls(("refund", text)), talk.says("Sorry.")], [refund], runtime=desk.runtime)
    (wrong,) = end.steps[0].answers
    assert desk.done == [] and not wrong.done
    assert says in wrong.text


def test_a_tool_that_knows_that_nothing_happened_is_told_in_its_words(desk: Desk, talk: Talk) -> None:
    notify = failing_tool(desk, NotDone("the address is wrong"), acts=False)
    end = talk.run(
        [talk.calls(("notify", {"order_id": "o-4"})), talk.says("It has a wrong address.")],
        [notify],
        runtime=desk.runtime,
    )
    (answer,) = end.steps[0].answers
    assert not answer.done and "the address is wrong" in answer.text and "was not done" in answer.text


def test_what_was_taken_back_is_told_as_taken_back(desk: Desk, talk: Talk) -> None:
    charge = charge_tools(desk)
    notify = failing_tool(desk, NotDone("no"), acts=False)
    end = talk.run(
        [talk.calls(("charge", REFUND), ("notify", {"order_id": "o-4"})), talk.says("Undone.")],
        [charge, notify],
        runtime=desk.runtime,
    )
    charged, told = end.steps[0].answers
    assert [one[0] for one in desk.done] == ["charge", "void"]
    assert charged.text.startswith("this one was done and has been taken back") and not charged.done
    assert told.text.startswith("this one was not done")


def test_what_could_not_be_taken_back_is_told_with_why(desk: Desk, talk: Talk) -> None:
    charge = charge_tools(desk)
    notify = failing_tool(desk, NotDone("no"), acts=False)
    desk.service.policy = lambda name, _: Verdict.DENY if name == "void" else Verdict.RELEASE
    end = talk.run(
        [talk.calls(("charge", REFUND), ("notify", {"order_id": "o-4"})), talk.says("It stands.")],
        [charge, notify],
        runtime=desk.runtime,
    )
    for answer in end.steps[0].answers:
        assert "notify did not happen: " in answer.text
        assert "charge#1 was not taken back: void is denied" in answer.text


def test_what_nobody_knows_is_raised_and_the_model_is_not_asked_on(desk: Desk, talk: Talk) -> None:
    notify = failing_tool(desk, TimeoutError("no answer"))
    with pytest.raises(OutcomeUnknown):
        talk.run([talk.calls(("notify", {"order_id": "o-4"}))], [notify], runtime=desk.runtime)
    assert len(talk.vendor.sent) == 1
