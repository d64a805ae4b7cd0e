"""The answers to calls that were not done, and how a conversation ends: limits, messages that are not whole,
budgets that are used up.
"""

import itertools
from contextlib import nullcontext

import pytest

from countersign import BudgetExceeded, errors
from countersign.contract import Verdict
from countersign.integrations import ModelStopped, TurnLimit
from countersign.llm.budgets import Budget
from tests.fakes.desk import Desk, charge_tools, failing_tool, make_desk
from tests.fakes.talking import ASK, Talk
from tests.unit.sdk.integrations.talks import BOTH, GARBAGE, HUGE, LARGE, REFUND, answers_after

NOTIFY = ("notify", {"order_id": "o-4"})


# ------------------------------------------------------------------ why a call was not done, and the calls with it


def test_a_denial_is_answered_with_its_reasons(desk: Desk, refund, talk: Talk) -> None:
    """What goes with a denied call is not done either, and says so."""
    script = [talk.calls(("refund", REFUND), ("refund", HUGE)), talk.calls(("refund", REFUND))]
    end = talk.run([*script, talk.says("I could refund 12.00 only.")], [refund])
    assert desk.done == [("refund", "o-4", 1200)]
    (fine, denied), (done,) = (step.answers for step in end.steps)
    assert (fine.done, denied.done, done.done) == (False, False, True)
    assert "go together" in fine.text and "never-huge" not in fine.text
    for word in ("never-huge", "split it with finance", "nothing was done"):
        assert word in denied.text


BAD_CALLS = {
    "an argument of another type": ("refund", {"order_id": "o-4", "amount_cents": "much"}, "amount_cents"),
    "money with a fraction": ("refund", {"order_id": "o-4", "amount_cents": 12.5}, "whole minor units"),
    "an argument that is missing": ("refund", {"order_id": "o-4"}, "amount_cents"),
    "an unknown argument": ("refund", {**REFUND, "note": "x"}, "note"),
    "a tool that is not there": ("transfer", {}, "there is no tool 'transfer'; there are refund"),
    "a key that the rules of bytes refuse": ("refund", {**REFUND, "tags": {"__entity": {}}}, "__entity"),
}


@pytest.mark.parametrize(("name", "args", "says"), BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_unfit_calls_are_answered(name: str, args, says: str, desk: Desk, refund, talk: Talk) -> None:
    fine = "refund", {"order_id": "o-5", "amount_cents": 5}
    held, wrong = talk.turn([fine, (name, args)], [refund]).steps[0].answers
    assert (desk.done, desk.face.asked("/v1/transactions"), held.done, wrong.done) == ([], 0, False, False)
    assert "go together" in held.text and wrong.text.startswith("not done: ") and says in wrong.text


BAD_TEXTS = {
    "cut off": ('{"order_id": "o-4", "amo', "JSON"),
    "no object": ("[1]", "one JSON object"),
    "empty": ("", "JSON"),
    "a name twice": ('{"order_id": "a", "order_id": "b", "amount_cents": 1}', "order_id"),
    "no number": ('{"order_id": "a", "amount_cents": NaN}', "JSON"),
    "half a character": ('{"order_id": "\\ud800", "amount_cents": 1}', "JSON"),
}


@pytest.mark.parametrize(("text", "says"), BAD_TEXTS.values(), ids=BAD_TEXTS.keys())
def test_arguments_that_are_no_sound_json_are_answered(text: str, says: str, desk: Desk, refund) -> None:
    (wrong,) = Talk("openai", runtime=desk.runtime).turn([("refund", text)], [refund]).steps[0].answers
    assert desk.done == [] and not wrong.done and says in wrong.text


@pytest.mark.parametrize("void", [Verdict.RELEASE, Verdict.DENY])
def test_compensated_calls_are_answered_as_such(void: Verdict, desk: Desk, talk: Talk) -> None:
    tools = [charge_tools(desk), failing_tool(desk, errors.NotDone("no"), acts=False)]
    desk.service.policy = lambda name, _: void if name == "void" else Verdict.RELEASE
    charged, notified = talk.turn([("charge", REFUND), NOTIFY], tools).steps[0].answers
    if void is Verdict.RELEASE:
        assert [one[0] for one in desk.done] == ["charge", "void"]
        assert charged.text.startswith("this one was done and has been compensated") and not charged.done
        assert notified.text.startswith("this one was not done")
        return
    for text in ("notify did not happen: ", "charge#1 was not compensated: void is denied"):
        assert text in charged.text and text in notified.text


# ------------------------------------------------------------------------------------------------------------ ends


def test_an_endless_model_is_stopped_with_all_answered(desk: Desk, refund, talk: Talk) -> None:
    script = [talk.calls(("refund", {"order_id": f"o-{n}", "amount_cents": 1})) for n in range(5)]
    with pytest.raises(TurnLimit, match="called 3 times") as caught:
        talk.run(script, [refund], max_turns=3)
    end = talk.run([talk.says("Enough.")], [refund], messages=caught.value.messages)
    assert end.text == "Enough." and len(desk.done) == 3


REASONS = [("openai", one) for one in ("length", "content_filter", "function_call", "new_word")]
TOO_MUCH = "model_context_window_exceeded"
REASONS += [("anthropic-async", one) for one in ("max_tokens", "refusal", TOO_MUCH, "new_word")]


@pytest.mark.parametrize(("kind", "reason"), REASONS)
def test_an_incomplete_message_is_not_carried_out(kind: str, reason: str, desk: Desk, refund) -> None:
    """There is a whole call in it, and it ends by another reason than its calls."""
    talk = Talk(kind, runtime=desk.runtime)
    message = talk.calls(("refund", REFUND))
    if talk.is_openai:
        message["choices"][0]["finish_reason"] = reason
    else:
        message["stop_reason"] = reason
    with pytest.raises(ModelStopped, match=reason) as caught:
        talk.run([message], [refund])
    assert (desk.done, caught.value.reason, caught.value.messages) == ([], reason, ASK)


def test_a_refusal_of_the_model_ends_it_and_no_choice_is_no_message(desk: Desk) -> None:
    talk = Talk("openai", runtime=desk.runtime)
    said = talk.says("")
    said["choices"][0]["message"]["refusal"] = "I will not."
    with pytest.raises(ModelStopped, match="refusal") as caught:
        talk.run([said], [])
    assert caught.value.said == "I will not."
    with pytest.raises(ModelStopped, match="no_choice"):
        talk.run([{**talk.says(""), "choices": []}], [])


def test_a_call_that_is_no_function_is_answered(desk: Desk, refund) -> None:
    talk = Talk("openai", runtime=desk.runtime)
    said, custom = talk.calls(), {"name": "shell", "input": "rm"}
    said["choices"][0]["message"]["tool_calls"] = [{"id": "call_1", "type": "custom", "custom": custom}]
    end = talk.run([said, talk.says("No.")], [refund])
    assert "'custom' is no call of a function" in end.steps[0].answers[0].text


def test_a_paused_model_is_called_again_with_unchanged_thinking(desk: Desk, refund) -> None:
    talk = Talk("anthropic", runtime=desk.runtime)
    thought = {"type": "thinking", "thinking": "hm", "signature": "EqQB"}
    paused = talk.says("Wait.")
    paused |= {"stop_reason": "pause_turn", "content": [thought, *paused["content"]]}
    end = talk.run([paused, talk.says("Here.")], [refund])
    assert (end.text, talk.vendor.sent[-1]["messages"][-1]["content"][0]) == ("Here.", thought)


def test_messages_may_be_objects_of_the_client(desk: Desk) -> None:
    from anthropic.types import TextBlock
    from openai.types.chat import ChatCompletionMessage

    block = TextBlock(type="text", text="Hello.")
    for kind, given, content in (
        ("openai", ChatCompletionMessage(role="assistant", content="Hello."), "Hello."),
        ("anthropic", {"role": "assistant", "content": [block]}, [{"type": "text", "text": "Hello."}]),
    ):
        talk = Talk(kind, runtime=desk.runtime)
        end = talk.run([talk.says("Hi.")], [], messages=[*ASK, given, *ASK])
        assert end.messages[1] == {"role": "assistant", "content": content}


def test_usage_is_optional_without_budgets(desk: Desk, talk: Talk) -> None:
    said = talk.says("Hello.")
    said["usage"] = {"input_tokens": 1} if not talk.is_openai else None
    assert talk.run([said], []).text == "Hello."


# -------------------------------------------------------------------------------------------------------- budgets

BUSY = (429, {"type": "error", "error": {"type": "rate_limit_error", "message": "slower"}})
PICTURE = {
    True: {"type": "image_url", "image_url": {"url": "https://cups.example/broken.png"}},
    False: {"type": "image", "source": {"type": "url", "url": "https://cups.example/broken.png"}},
}


@pytest.fixture(params=BOTH)
def limited(request, tmp_path):
    """A conversation that may ask a model twice, and send it 9,000 tokens."""
    budgets = (Budget("tries", "calls", 2, "run"), Budget("tokens", "tokens", 9_000, "run"))
    desk = make_desk(tmp_path, budgets=budgets)
    with desk.runtime:
        yield Talk(request.param, runtime=desk.runtime)


SHORT = {"max_tokens": 100}


def test_each_call_of_the_model_is_counted_for_the_conversation(limited: Talk) -> None:
    script = [limited.calls(("transfer", {})) for _ in range(4)]
    with pytest.raises(BudgetExceeded, match="tries"):
        limited.run(script, [], **SHORT)
    assert len(limited.vendor.sent) == 2


@pytest.mark.parametrize("retries", [0, 1])
def test_a_call_that_the_vendor_refused_frees_its_reservation(limited: Talk, retries: int) -> None:
    """Unless the client retries by itself: it is not known then which attempt was made."""
    limited.run([limited.says("Hello.")], [], **SHORT)
    with pytest.raises(Exception, match="slower"):
        limited.run([BUSY] * (1 + retries), [], client={"max_retries": retries}, **SHORT)
    with pytest.raises(BudgetExceeded) if retries else nullcontext():
        assert limited.run([limited.says("Hello.")], [], **SHORT).text == "Hello."


def test_a_picture_is_sent_only_with_a_token_bound(limited: Talk) -> None:
    """It has more than the bytes that name it."""
    script, picture = [limited.says("Broken.")], PICTURE[limited.is_openai]
    messages = [{"role": "user", "content": [{"type": "text", "text": "See."}, picture]}]
    asked = {"messages": messages, **SHORT}
    with pytest.raises(errors.MisuseError, match="input_tokens"):
        limited.run(script, [], **asked)
    with pytest.raises(BudgetExceeded, match="tokens"):
        limited.run(script, [], input_tokens=lambda _: 9_000, **asked)
    assert limited.vendor.sent == []
    assert limited.run(script, [], input_tokens=lambda _: 5_000, **asked).text == "Broken."


def test_what_the_options_send_counts_too(limited: Talk) -> None:
    with pytest.raises(BudgetExceeded, match="tokens"):
        limited.run([limited.says("Hello.")], [], metadata={"user_id": "u" * 9_000}, **SHORT)
    assert limited.vendor.sent == []


# ------------------------------------- a turn that a run passed: what a later one has done is not done in it as well


ONE = ("refund", REFUND)
DENIED, OTHER = ("refund", LARGE), ("refund", {**REFUND, "order_id": "o-5"})
BOTH_ORDERS = [ONE, OTHER]
NUMBERS = itertools.count()


def answers(talk: Talk, tools, *turns) -> list:
    """The answers to a run without earlier messages, turn by turn. Each message has its own ids."""
    script = [talk.calls(*calls, turn=f"{next(NUMBERS)}-") for calls in turns]
    return [step.answers for step in talk.run([*script, talk.says("Done.")], tools).steps]


def first_is_denied(desk: Desk) -> None:
    """The rule is lifted after the first denial."""
    verdicts = iter([Verdict.DENY])
    desk.service.policy = lambda *_: next(verdicts, Verdict.RELEASE)


TWICE, LESS, SECOND = [[ONE], [ONE]], [[DENIED], [ONE]], [[False], [True]]
PASSED = {
    "what was garbage, and is called at once": ([[GARBAGE], [ONE]], TWICE, SECOND, "call again"),
    "what was denied, and is called less at once": (LESS, TWICE, SECOND, "call again"),
    "what was denied and then done": (TWICE, TWICE, SECOND, "denied, nothing was done"),
    "what was denied and done for less": (LESS, LESS, SECOND, "denied, nothing"),
    "what was denied and done in part": ([BOTH_ORDERS, [ONE]], [BOTH_ORDERS], [[False] * 2], "nothing was done"),
    "nothing was done later": ([[GARBAGE], [GARBAGE]], [[ONE]], [[True]], "r-o-4-1200"),
}  # fmt: skip


@pytest.mark.parametrize(("before", "again", "done", "says"), PASSED.values(), ids=PASSED)
def test_a_turn_does_not_repeat_a_later_one(
    before, again, done, says: str, desk: Desk, refund, talk: Talk
) -> None:
    desk.service.policy = lambda *_: Verdict.RELEASE
    if GARBAGE not in before[0]:
        first_is_denied(desk)
    answers(talk, [refund], *before)
    replies = answers(talk, [refund], *again)
    assert [[one.done for one in turn] for turn in replies] == done and says in replies[0][0].text
    assert desk.done == [("refund", "o-4", 1200)]
    assert not done[-1][0] or replies[-1][0].text == '{"refund_id":"r-o-4-1200"}'


@pytest.mark.parametrize("first", [GARBAGE, DENIED], ids=["garbage", "denied"])
def test_calls_other_than_those_of_a_later_turn_are_refused(first, desk: Desk, refund, talk: Talk) -> None:
    if first is DENIED:
        first_is_denied(desk)
    answers(talk, [refund], [first], [ONE])
    other = ("refund", {**REFUND, "amount_cents": 1300})
    with pytest.raises(errors.AlreadyRedeemed, match="another list of calls was committed"):
        answers(talk, [refund], [other], [other])
    assert len(desk.done) == 1


def test_an_unanswered_message_is_not_carried_out_again(desk: Desk, refund, talk: Talk) -> None:
    first_is_denied(desk)
    script = [talk.calls(ONE, turn=turn) for turn in ("a", "b")]
    kept = talk.run([*script, talk.says("Done.")], [refund]).messages[:2]
    assert not answers_after(talk, [refund], kept)[0].done and len(desk.done) == 1
