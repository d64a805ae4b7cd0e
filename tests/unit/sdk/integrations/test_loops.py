"""The loops: what a model calls is one transaction for each of its messages, and what it is told is true."""

from __future__ import annotations

import contextvars
import itertools
from typing import Any

import pytest

from countersign import (
    AlreadyRedeemed,
    BudgetExceeded,
    JournalError,
    MisuseError,
    Moved,
    NotDone,
    OutcomeUnknown,
    RegistrationError,
    ReleaseLapsed,
    ResourceBusy,
    Retry,
    Serialize,
    ServiceUnavailable,
    SQLiteAdapter,
    tool,
    transaction,
)
from countersign.contract import Verdict, txn_id
from countersign.integrations import ModelStopped, TurnLimit
from countersign.llm.budgets import Budget
from tests.fakes.desk import (
    AGENT,
    Desk,
    charge_tools,
    failing_tool,
    make_desk,
    note_tool,
    notes_database,
    notes_in,
    refund_tool,
)
from tests.fakes.talking import ASK, Talk

REFUND = {"order_id": "o-4", "amount_cents": 1200}


def test_a_call_fires_and_the_model_reads_its_result(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    end = talk.run([talk.calls(("refund", REFUND)), talk.says("Done.")], [refund], runtime=desk.runtime)
    assert (end.text, end.pending) == ("Done.", None)
    assert desk.done == [("refund", "o-4", 1200)]
    assert talk.vendor.answers() == ['{"refund_id":"r-o-4-1200"}']
    (step,) = end.steps
    assert (step.key, [one.done for one in step.answers]) == ("case-1/turn-1", [True])
    assert end.messages[:1] == ASK and end.messages[-1]["role"] == "assistant"


def test_the_model_is_told_the_tools_as_their_manifests_have_them(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    talk.run([talk.says("Hello.")], [refund], runtime=desk.runtime)
    (told,) = talk.vendor.sent[0]["tools"]
    schema = told["function"]["parameters"] if talk.is_openai else told["input_schema"]
    name = (told["function"] if talk.is_openai else told)["name"]
    description = (told["function"] if talk.is_openai else told)["description"]
    assert (name, description) == ("refund", "Give money back for an order.")
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["order_id", "amount_cents"]


def test_without_tools_it_is_a_conversation(desk: Desk, talk: Talk) -> None:
    end = talk.run([talk.says("Hello.")], [], runtime=desk.runtime)
    assert (end.text, end.steps) == ("Hello.", ())
    assert "tools" not in talk.vendor.sent[0]


def test_two_messages_are_two_transactions(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    script = [talk.calls(("refund", REFUND)), talk.calls(("refund", REFUND)), talk.says("Twice.")]
    end = talk.run(script, [refund], runtime=desk.runtime)
    assert [step.key for step in end.steps] == ["case-1/turn-1", "case-1/turn-2"]
    assert len(desk.done) == 2 and len(set(desk.keys)) == 2


def test_calls_of_one_message_go_together_in_their_order(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    calls = [("refund", {"order_id": f"o-{n}", "amount_cents": n}) for n in (3, 1, 2)]
    talk.run([talk.calls(*calls), talk.says("Done.")], [refund], runtime=desk.runtime)
    assert [one[1] for one in desk.done] == ["o-3", "o-1", "o-2"]
    assert [answer[14:19] for answer in talk.vendor.answers()] == ["r-o-3", "r-o-1", "r-o-2"]
    assert desk.face.asked("/v1/transactions") == 1


def test_equal_calls_of_one_message_are_one_and_the_model_is_told(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    talk.run(
        [talk.calls(("refund", REFUND), ("refund", REFUND)), talk.says("Done.")],
        [refund],
        runtime=desk.runtime,
    )
    first, second = talk.vendor.answers()
    assert len(desk.done) == 1
    assert first == '{"refund_id":"r-o-4-1200"}'
    assert second.startswith("done once, as the equal call before it")


# ------------------------------------------------------------------------------------------------------- refusals


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
@pytest.mark.parametrize("kind", ["openai", "openai-async"])
def test_arguments_that_are_no_sound_json_are_answered(kind: str, text: str, says: str, desk: Desk) -> None:
    talk, refund = Talk(kind), refund_tool(desk)
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


def test_what_nobody_knows_is_raised_and_the_model_is_not_asked_on(desk: Desk, talk: Talk) -> None:
    notify = failing_tool(desk, TimeoutError("no answer"))
    with pytest.raises(OutcomeUnknown):
        talk.run([talk.calls(("notify", {"order_id": "o-4"}))], [notify], runtime=desk.runtime)
    assert len(talk.vendor.sent) == 1


def test_a_service_that_is_away_is_the_worlds_fault_and_raised(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    desk.face.faults["/v1/"] = ["lost_request"] * 50
    with pytest.raises(ServiceUnavailable):
        talk.run([talk.calls(("refund", REFUND))], [refund], runtime=desk.runtime)
    assert desk.done == []


# ---------------------------------------------------------------------------------------------------------- people


def asked(end: Any) -> str:
    assert end.pending is not None
    assert "refund waits for finance" in end.text
    return str(end.pending.txn)


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


def test_a_persons_no_reaches_the_model(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    large = talk.calls(("refund", {"order_id": "o-4", "amount_cents": 20_000}))
    end = talk.run([large], [refund], runtime=desk.runtime)
    desk.service.deny(asked(end), "the customer keeps the machine")
    done = talk.run([talk.says("It was denied.")], [refund], runtime=desk.runtime, messages=end.messages)
    assert desk.done == []
    assert "the customer keeps the machine" in talk.vendor.answers()[0]
    assert done.text == "It was denied."


def test_people_read_what_the_model_wrote_beside_its_calls_as_its_own_words(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    submitted: list[Any] = []
    submit = desk.service.submit
    desk.service.submit = lambda *given: submitted.append(given[2]) or submit(*given)  # type: ignore[method-assign]
    script = [talk.calls(("refund", REFUND), said="It was " + "very " * 1000), talk.says("Done.")]
    talk.run(script, [refund], runtime=desk.runtime, purpose="a ticket")
    (one,) = submitted
    assert one.claimed.purpose == "a ticket"
    assert one.claimed.reasoning.startswith("It was very") and len(one.claimed.reasoning) == 4000


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


def test_another_question_in_the_same_conversation_takes_the_next_turn(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    first = talk.run([talk.calls(("refund", REFUND)), talk.says("Done.")], [refund], runtime=desk.runtime)
    more = [*first.messages, {"role": "user", "content": "And once more."}]
    second = talk.run(
        [talk.calls(("refund", REFUND)), talk.says("Done.")], [refund], runtime=desk.runtime, messages=more
    )
    assert [step.key for step in second.steps] == ["case-1/turn-2"]
    assert len(desk.done) == 2


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
    assert [one["role"] for one in heard] == [
        "assistant"
    ]  # with it the run goes on once a person has settled it
    with pytest.raises(OutcomeUnknown):
        talk.run([], [notify], runtime=desk.runtime, messages=[*ASK, *heard])
    assert len(desk.done) == 1


# ------------------------------------------------------------------------------------------------------------ live


def test_a_live_tool_answers_what_it_returned_and_stands_with_its_step(desk: Desk, talk: Talk) -> None:
    path = notes_database(desk.folder)
    refund, note = refund_tool(desk), note_tool(desk, SQLiteAdapter(path))
    script = [
        talk.calls(("note", {"order_id": "o-4", "text": "late"}), ("refund", REFUND)),
        talk.says("Done."),
    ]
    talk.run(script, [refund, note], runtime=desk.runtime)
    assert talk.vendor.answers()[0] == "1"
    assert notes_in(path) == [("o-4", "late")] and len(desk.done) == 1


def test_live_work_beside_a_denied_call_is_undone_and_told_as_not_done(desk: Desk, talk: Talk) -> None:
    path = notes_database(desk.folder)
    refund, note = refund_tool(desk), note_tool(desk, SQLiteAdapter(path))
    huge = ("refund", {"order_id": "o-4", "amount_cents": 900_000})
    script = [talk.calls(("note", {"order_id": "o-4", "text": "late"}), huge), talk.says("No.")]
    end = talk.run(script, [refund, note], runtime=desk.runtime)
    assert notes_in(path) == [] and desk.done == []
    assert not end.steps[0].answers[0].done and end.steps[0].answers[0].text.startswith("not done")


def test_a_live_tool_that_raises_undoes_the_step_and_the_model_reads_why(
    desk: Desk, talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    path = notes_database(desk.folder)
    refund, note = refund_tool(desk), note_tool(desk, SQLiteAdapter(path))
    script = [talk.calls(("refund", REFUND), ("note", {"order_id": "o-4", "text": "bad"})), talk.says("No.")]
    end = talk.run(script, [refund, note], runtime=desk.runtime)
    held, raised = end.steps[0].answers
    assert notes_in(path) == [] and desk.done == []
    assert "go together" in held.text and "ValueError: bad note" in raised.text
    assert "live tool note raised" in caplog.text and "ValueError: bad note" in caplog.text


@pytest.mark.parametrize("secret", [False, True])
def test_a_database_that_takes_all_of_the_live_work_back_is_told_the_model_as_any_refusal(
    desk: Desk, talk: Talk, secret: bool
) -> None:
    """Its message would else stay unanswered, and its conversation could never go on."""
    path = notes_database(desk.folder)
    database = SQLiteAdapter(path)
    given = {"secret": ["text"]} if secret else {}

    @tool(
        "jot", lane="live", adapter=database, resource=("Order", "order_id"), registry=desk.registry, **given
    )
    def jot(order_id: str, text: str) -> None:
        """Write a note."""
        database.connection.execute("CREATE UNIQUE INDEX once ON notes (order_id)")
        for _ in range(2):
            database.connection.execute("INSERT OR ROLLBACK INTO notes VALUES (?, ?)", (order_id, text))

    desk.publish(jot)
    script = [talk.calls(("jot", {"order_id": "o-4", "text": "hello"})), talk.says("No.")]
    end = talk.run(script, [jot], runtime=desk.runtime)
    told = end.steps[0].answers[0].text
    assert told.startswith("not done") and ("Nothing of it stands" in told) is not secret
    assert (end.text, notes_in(path)) == ("No.", [])


@pytest.mark.parametrize("raises", [ValueError, NotDone])
@pytest.mark.parametrize("by", ["the code", "the service"])
def test_what_a_live_tool_with_secrets_raises_is_neither_logged_nor_told_the_model(
    desk: Desk, talk: Talk, caplog: pytest.LogCaptureFixture, by: str, raises: type[Exception]
) -> None:
    database = SQLiteAdapter(notes_database(desk.folder))

    @tool(
        "jot",
        lane="live",
        adapter=database,
        resource=("Order", "order_id"),
        secret=["pin"] if by == "the code" else [],
        registry=desk.registry,
    )
    def jot(order_id: str, pin: str) -> None:
        """Write a note."""
        raise raises(f"bad {pin}")

    desk.publish(jot, secret=("/pin",) if by == "the service" else ())
    script = [talk.calls(("jot", {"order_id": "o-4", "pin": "4111"})), talk.says("No.")]
    with caplog.at_level("WARNING"):
        end = talk.run(script, [jot], runtime=desk.runtime)
    assert ("live tool jot raised ValueError" in caplog.text) is (raises is ValueError)
    assert "bad 4111" not in caplog.text
    told = end.steps[0].answers[0].text
    assert told.startswith("not done") and told.endswith(f": {raises.__name__}")


@pytest.mark.parametrize(
    ("verdict", "told"), [(Verdict.DENY, "denied"), (Verdict.REVIEW, "would have to agree")]
)
def test_a_live_tool_that_may_not_run_undoes_the_step_and_the_model_reads_why(
    desk: Desk, talk: Talk, verdict: Verdict, told: str
) -> None:
    path = notes_database(desk.folder)
    database, refund = SQLiteAdapter(path), refund_tool(desk)

    @tool(
        "jot",
        lane="live",
        adapter=database,
        resource=("Order", "order_id"),
        registry=desk.registry,
        ask="live",
    )
    def jot(order_id: str) -> None:
        """Write a note."""
        database.connection.execute("INSERT INTO notes VALUES (?, 'x')", (order_id,))

    desk.publish(jot)
    desk.service.policy = lambda name, _: verdict if name == "jot" else Verdict.RELEASE
    script = [
        talk.calls(("refund", REFUND), ("jot", {"order_id": "o-4"}), ("refund", REFUND)),
        talk.says("No."),
    ]
    end = talk.run(script, [refund, jot], runtime=desk.runtime)
    first, refused, last = end.steps[0].answers
    assert notes_in(path) == [] and desk.done == []
    assert told in refused.text and "go together" in first.text and "go together" in last.text


TOLD = {
    "somebody changed what was read": Moved("notes", "o-4", read=True, expected="1", now="2"),
    "permission ran out": ReleaseLapsed("case-1", "0" * 64, "it took too long"),
}


def raising(desk: Desk, error: Exception) -> Any:
    @tool("look", lane="live", adapter=SQLiteAdapter(notes_database(desk.folder)), registry=desk.registry)
    def look(order_id: str) -> None:
        """Look."""
        raise error

    return look


@pytest.mark.parametrize("error", TOLD.values(), ids=TOLD.keys())
def test_what_left_nothing_standing_is_told(error: Exception, desk: Desk, talk: Talk) -> None:
    end = talk.run(
        [talk.calls(("look", {"order_id": "o-4"})), talk.says("No.")],
        [raising(desk, error)],
        runtime=desk.runtime,
    )
    (answer,) = end.steps[0].answers
    assert answer.text == f"not done: {error}" and not answer.done


@pytest.mark.parametrize("error", [JournalError("the disk is full"), ServiceUnavailable("POST /v1", "away")])
def test_what_is_not_the_models_to_mend_is_raised(error: Exception, desk: Desk, talk: Talk) -> None:
    with pytest.raises(type(error)):
        talk.run([talk.calls(("look", {"order_id": "o-4"}))], [raising(desk, error)], runtime=desk.runtime)


def test_live_work_of_a_parked_step_is_undone_and_done_again_with_the_approval(
    desk: Desk, talk: Talk
) -> None:
    path = notes_database(desk.folder)
    refund, note = refund_tool(desk), note_tool(desk, SQLiteAdapter(path))
    large = ("refund", {"order_id": "o-4", "amount_cents": 20_000})
    end = talk.run(
        [talk.calls(("note", {"order_id": "o-4", "text": "late"}), large)],
        [refund, note],
        runtime=desk.runtime,
    )
    assert notes_in(path) == []
    desk.service.approve(asked(end))
    talk.run([talk.says("Done.")], [refund, note], runtime=desk.runtime, messages=end.messages)
    assert notes_in(path) == [("o-4", "late")] and len(desk.done) == 1


def test_serialize_waits_until_nobody_else_has_the_resource(desk: Desk, talk: Talk) -> None:
    path = notes_database(desk.folder)
    note = note_tool(desk, SQLiteAdapter(path))
    script = [talk.calls(("note", {"order_id": "o-4", "text": "late"})), talk.says("Done.")]
    theirs = transaction("theirs", isolation=Serialize(), runtime=desk.runtime)
    with theirs, pytest.raises(ResourceBusy, match="'theirs'"):
        # In a context of its own, as another agent of this process has it.
        contextvars.Context().run(
            talk.run, script[:1], [note], runtime=desk.runtime, isolation=Serialize(timeout_seconds=0)
        )
    assert notes_in(path) == []
    talk.run(script, [note], runtime=desk.runtime, isolation=Serialize(timeout_seconds=0))
    assert notes_in(path) == [("o-4", "late")]


@pytest.mark.parametrize(("given", "says"), [(Retry(3), "the model is told"), ("later", "is no policy")])
def test_a_policy_that_a_message_cannot_have_is_refused(
    given: Any, says: str, desk: Desk, talk: Talk
) -> None:
    with pytest.raises(MisuseError, match=says):
        talk.run([], [], runtime=desk.runtime, isolation=given)
    assert talk.vendor.sent == []


# --------------------------------------------------------------------------------------------------- ends and limits


@pytest.mark.parametrize("kind", ["openai", "openai-async", "anthropic", "anthropic-async"])
def test_a_model_that_never_ends_is_stopped_with_everything_answered(kind: str, desk: Desk) -> None:
    talk, refund = Talk(kind), refund_tool(desk)
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
        *itertools.product(
            ("openai", "openai-async"), ("length", "content_filter", "function_call", "new_word")
        ),
        *itertools.product(
            ("anthropic", "anthropic-async"),
            ("max_tokens", "refusal", "model_context_window_exceeded", "new_word"),
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


# -------------------------------------------------------------------------------------------------- budgets, misuse


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


MISUSE: dict[str, tuple[dict[str, Any], str]] = {
    "a stream": ({"stream": True}, "stream=... is the loop's own"),
    "several choices": ({"n": 2}, "n=... is the loop's own"),
    "a key that is too long": ({"key": "k" * 181}, "1 to 180 characters"),
    "a key that is no text": ({"key": 7}, "write key='7'"),
    "an empty key": ({"key": ""}, "1 to 180 characters"),
}


@pytest.mark.parametrize(("given", "says"), MISUSE.values(), ids=MISUSE.keys())
def test_misuse_is_told_before_the_model_is_asked(
    given: dict[str, Any], says: str, desk: Desk, talk: Talk
) -> None:
    with pytest.raises(MisuseError, match=says):
        talk.run([], [], runtime=desk.runtime, **given)
    assert talk.vendor.sent == []


def test_tools_that_do_not_fit_are_told_before_the_model_is_asked(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(MisuseError, match="names 'refund' twice"):
        talk.run([], [refund, refund], runtime=desk.runtime)
    with pytest.raises(RegistrationError, match="is not a tool"):
        talk.run([], [len], runtime=desk.runtime)
    assert talk.vendor.sent == []


def test_an_async_tool_needs_the_async_client(desk: Desk, talk: Talk) -> None:
    @tool("send", resource=("Order", "order_id"), registry=desk.registry)
    async def send(order_id: str) -> str:
        """Send."""
        desk.act("send", order_id)
        return "sent"

    desk.publish(send)
    script = [talk.calls(("send", {"order_id": "o-4"})), talk.says("Sent.")]
    if not talk.is_async:
        with pytest.raises(MisuseError, match="send is async"):
            talk.run(script, [send], runtime=desk.runtime)
        return
    assert talk.run(script, [send], runtime=desk.runtime).text == "Sent."
    assert talk.vendor.answers() == ["sent"] and desk.done == [("send", "o-4")]


def test_another_client_is_named(desk: Desk) -> None:
    from countersign.integrations import run_anthropic, run_openai

    given: dict[str, Any] = {"model": "m", "messages": [], "tools": [], "key": "k", "runtime": desk.runtime}
    with pytest.raises(MisuseError, match=r"openai\.OpenAI\(\.\.\.\).*this is object"):
        run_openai(object(), **given)  # type: ignore[call-overload]
    with pytest.raises(MisuseError, match=r"anthropic\.Anthropic\(\.\.\.\).*this is object"):
        run_anthropic(object(), max_tokens=1, **given)  # type: ignore[call-overload]
