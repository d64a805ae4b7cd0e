"""How a conversation ends: limits, messages that are no whole ones, budgets that have no room for another call."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from countersign import BudgetExceeded, MisuseError
from countersign.integrations import ModelStopped, TurnLimit
from countersign.llm.budgets import Budget
from tests.fakes.desk import Desk, make_desk, refund_tool
from tests.fakes.talking import ASK, Talk
from tests.unit.sdk.integrations.talks import REFUND


def test_a_model_that_never_ends_is_stopped_with_everything_answered(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    script = [talk.calls(("refund", {"order_id": f"o-{n}", "amount_cents": 1})) for n in range(5)]
    with pytest.raises(TurnLimit, match="asked 3 times") as caught:
        talk.run(script, [refund], runtime=desk.runtime, max_turns=3)
    assert len(desk.done) == 3
    end = talk.run([talk.says("Enough.")], [refund], runtime=desk.runtime, messages=caught.value.messages)
    assert end.text == "Enough." and len(desk.done) == 3


def cut(talk: Talk, reason: str) -> dict[str, Any]:
    """A message with a whole call in it that ends by another reason than its calls."""
    message = talk.calls(("refund", REFUND))
    if talk.is_openai:
        message["choices"][0]["finish_reason"] = reason
    else:
        message["stop_reason"] = reason
    return message


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        *itertools.product(["openai"], ("length", "content_filter", "function_call", "new_word")),
        *itertools.product(
            ["anthropic-async"], ("max_tokens", "refusal", "model_context_window_exceeded", "new_word")
        ),
    ],
)
def test_a_message_that_is_no_whole_one_is_not_carried_out(kind: str, reason: str, desk: Desk) -> None:
    talk, refund = Talk(kind), refund_tool(desk)
    with pytest.raises(ModelStopped, match=reason) as caught:
        talk.run([cut(talk, reason)], [refund], runtime=desk.runtime)
    assert desk.done == []
    assert (caught.value.reason, caught.value.messages) == (reason, ASK)


def test_a_refusal_of_the_model_is_its_end(desk: Desk) -> None:
    talk = Talk("openai")
    said = talk.says("")
    said["choices"][0]["message"]["refusal"] = "I will not."
    with pytest.raises(ModelStopped, match="refusal") as caught:
        talk.run([said], [], runtime=desk.runtime)
    assert caught.value.said == "I will not."


def test_an_answer_without_a_choice_is_no_message(desk: Desk) -> None:
    talk = Talk("openai")
    with pytest.raises(ModelStopped, match="no_choice"):
        talk.run([{**talk.says(""), "choices": []}], [], runtime=desk.runtime)


def test_a_call_that_is_no_function_is_answered(desk: Desk) -> None:
    talk, refund = Talk("openai"), refund_tool(desk)
    said = talk.calls()
    said["choices"][0]["message"]["tool_calls"] = [
        {"id": "call_1", "type": "custom", "custom": {"name": "shell", "input": "rm"}}
    ]
    end = talk.run([said, talk.says("No.")], [refund], runtime=desk.runtime)
    assert "'custom' is no call of a function" in end.steps[0].answers[0].text


def test_a_paused_model_is_asked_again_with_its_thoughts_as_they_came(desk: Desk) -> None:
    talk, refund = Talk("anthropic"), refund_tool(desk)
    thought = {"type": "thinking", "thinking": "hm", "signature": "EqQB"}
    paused = {**talk.says("Wait."), "stop_reason": "pause_turn"}
    paused["content"] = [thought, *paused["content"]]
    end = talk.run([paused, talk.says("Here.")], [refund], runtime=desk.runtime)
    assert end.text == "Here."
    assert talk.vendor.told()[-1]["content"][0] == thought


def test_messages_may_be_objects_of_the_client(desk: Desk) -> None:
    import anthropic.types
    import openai.types.chat

    said = openai.types.chat.ChatCompletionMessage(role="assistant", content="Hello.")
    end = Talk("openai").run(
        [Talk("openai").says("Hi.")], [], runtime=desk.runtime, messages=[*ASK, said, *ASK]
    )
    assert end.messages[1] == {"role": "assistant", "content": "Hello."}
    block = anthropic.types.TextBlock(type="text", text="Hello.")
    given = [*ASK, {"role": "assistant", "content": [block]}, *ASK]
    end = Talk("anthropic").run([Talk("anthropic").says("Hi.")], [], runtime=desk.runtime, messages=given)
    assert end.messages[1]["content"] == [{"type": "text", "text": "Hello."}]


def test_each_call_of_the_model_is_counted_for_the_conversation(tmp_path: Any, talk: Talk) -> None:
    budget = Budget("tries", "calls", 2, "run")
    desk = make_desk(tmp_path, budgets=(budget,))
    refund = refund_tool(desk)
    script = [talk.calls(("refund", {"order_id": f"o-{n}", "amount_cents": 1})) for n in range(4)]
    with desk.runtime, pytest.raises(BudgetExceeded, match="tries"):
        talk.run(script, [refund], runtime=desk.runtime)
    assert len(talk.vendor.sent) == 2 and len(desk.done) == 2


def test_a_call_that_the_vendor_refused_gives_its_room_back(tmp_path: Any, talk: Talk) -> None:
    desk = make_desk(tmp_path, budgets=(Budget("tries", "calls", 1, "run"),))
    busy = (429, {"type": "error", "error": {"type": "rate_limit_error", "message": "slower"}})
    with desk.runtime:
        with pytest.raises(Exception, match="slower"):
            talk.run([busy], [], runtime=desk.runtime)
        assert talk.run([talk.says("Hello.")], [], runtime=desk.runtime).text == "Hello."


def test_where_the_client_tries_again_by_itself_nobody_knows_which_try_was_made(
    tmp_path: Any, talk: Talk
) -> None:
    desk = make_desk(tmp_path, budgets=(Budget("tries", "calls", 1, "run"),))
    busy = (429, {"type": "error", "error": {"type": "rate_limit_error", "message": "slower"}})
    with desk.runtime:
        with pytest.raises(Exception, match="slower"):
            talk.run([busy, busy], [], runtime=desk.runtime, client={"max_retries": 1})
        with pytest.raises(BudgetExceeded):
            talk.run([talk.says("Hello.")], [], runtime=desk.runtime)


def test_a_model_that_says_no_usage_does_where_nothing_is_counted(desk: Desk, talk: Talk) -> None:
    said = talk.says("Hello.")
    said["usage"] = {"input_tokens": 1} if not talk.is_openai else None
    assert talk.run([said], [], runtime=desk.runtime).text == "Hello."


PICTURE = {
    True: {"type": "image_url", "image_url": {"url": "https://cups.example/broken.png"}},
    False: {"type": "image", "source": {"type": "url", "url": "https://cups.example/broken.png"}},
}


def test_a_picture_is_sent_only_where_the_program_says_how_many_tokens_it_has(
    tmp_path: Any, talk: Talk
) -> None:
    """It has more than the bytes that name it."""
    desk = make_desk(tmp_path, budgets=(Budget("tokens", "tokens", 9_000, "run"),))
    messages = [{"role": "user", "content": [{"type": "text", "text": "See."}, PICTURE[talk.is_openai]]}]
    asked: dict[str, Any] = {"runtime": desk.runtime, "messages": messages, "max_tokens": 100}
    with desk.runtime:
        with pytest.raises(MisuseError, match="input_tokens"):
            talk.run([talk.says("Broken.")], [], **asked)
        with pytest.raises(BudgetExceeded, match="tokens"):
            talk.run([talk.says("Broken.")], [], input_tokens=lambda _: 9_000, **asked)
        assert talk.vendor.sent == []
        assert talk.run([talk.says("Broken.")], [], input_tokens=lambda _: 5_000, **asked).text == "Broken."


def test_what_the_options_send_counts_too(tmp_path: Any, talk: Talk) -> None:
    desk = make_desk(tmp_path, budgets=(Budget("tokens", "tokens", 3_000, "run"),))
    wide = {"metadata": {"user_id": "u" * 3_000}}
    with desk.runtime, pytest.raises(BudgetExceeded, match="tokens"):
        talk.run([talk.says("Hello.")], [], runtime=desk.runtime, max_tokens=100, **wide)
    assert talk.vendor.sent == []
