"""Live tools in a model's message: they answer at once, and stand or fall with its step."""

import contextvars

import pytest

from countersign import Serialize, SQLiteAdapter, errors, tool
from countersign.contract import Verdict
from tests.fakes.desk import Desk, notes_database
from tests.fakes.talking import Talk
from tests.unit.sdk.integrations.talks import HUGE, NOTE, REFUND

ORDER = ("Order", "order_id")


@pytest.mark.parametrize("denied", [False, True])
def test_a_live_tool_commits_with_its_step(desk: Desk, refund, live_notes, talk: Talk, denied: bool) -> None:
    tools = [refund, live_notes.note]
    noted, _ = talk.turn([("note", NOTE), ("refund", HUGE if denied else REFUND)], tools).steps[0].answers
    assert (noted.done, len(desk.done)) == (not denied, int(not denied))
    assert noted.text.startswith("not done") if denied else noted.text == "1"
    assert live_notes.written() == ([] if denied else [("o-4", "late")])


def test_a_live_tool_that_raises_undoes_it(desk: Desk, refund, live_notes, talk: Talk, caplog) -> None:
    end = talk.turn(
        [("refund", REFUND), ("note", {"order_id": "o-4", "text": "bad"})], [refund, live_notes.note]
    )
    held, raised = end.steps[0].answers
    assert live_notes.written() == [] and desk.done == []
    assert "go together" in held.text and "ValueError: bad note" in raised.text
    assert "live tool note raised" in caplog.text and "ValueError: bad note" in caplog.text


@pytest.mark.parametrize("secret", [False, True])
def test_a_rollback_is_answered_as_a_refusal(desk: Desk, live_notes, talk: Talk, secret: bool) -> None:
    """Its message would else stay unanswered, and its conversation could never go on."""
    database = live_notes.adapter
    names = ["text"] if secret else []

    @tool("jot", lane="live", adapter=database, resource=ORDER, secret=names, registry=desk.registry)
    def jot(order_id: str, text: str) -> None:
        """Write a note."""
        database.connection.execute("CREATE UNIQUE INDEX once ON notes (order_id)")
        for _ in range(2):
            database.connection.execute("INSERT OR ROLLBACK INTO notes VALUES (?, ?)", (order_id, text))

    desk.publish(jot)
    end = talk.turn([("jot", {"order_id": "o-4", "text": "hello"})], [jot])
    reply = end.steps[0].answers[0].text
    assert reply.startswith("not done") and ("Nothing of it is kept" in reply) is not secret
    assert (end.text, live_notes.written()) == ("Done.", [])


@pytest.mark.parametrize("raises", [ValueError, errors.NotDone])
@pytest.mark.parametrize("by", ["the code", "the service"])
def test_errors_with_secrets_stay_hidden(desk: Desk, live_notes, talk: Talk, caplog, by: str, raises) -> None:
    database = live_notes.adapter
    names = ["pin"] if by == "the code" else []

    @tool("jot", lane="live", adapter=database, resource=ORDER, secret=names, registry=desk.registry)
    def jot(order_id: str, pin: str) -> None:
        """Write a note."""
        raise raises(f"bad {pin}")

    desk.publish(jot, secret=("/pin",) if by == "the service" else ())
    with caplog.at_level("WARNING"):
        end = talk.turn([("jot", {"order_id": "o-4", "pin": "4111"})], [jot])
    assert ("live tool jot raised ValueError" in caplog.text) is (raises is ValueError)
    assert "bad 4111" not in caplog.text
    reply = end.steps[0].answers[0].text
    assert reply.startswith("not done") and reply.endswith(f": {raises.__name__}")


VERDICTS = [(Verdict.DENY, "denied"), (Verdict.REVIEW, "would need approval")]


@pytest.mark.parametrize(("verdict", "reply"), VERDICTS)
def test_a_live_tool_that_may_not_run_undoes_all(
    desk: Desk, refund, live_notes, talk: Talk, verdict, reply: str
) -> None:
    database = live_notes.adapter

    @tool("jot", lane="live", adapter=database, resource=ORDER, ask="live", registry=desk.registry)
    def jot(order_id: str) -> None:
        """Write a note."""
        database.connection.execute("INSERT INTO notes VALUES (?, 'x')", (order_id,))

    desk.publish(jot)
    desk.service.policy = lambda name, _: verdict if name == "jot" else Verdict.RELEASE
    end = talk.turn([("refund", REFUND), ("jot", {"order_id": "o-4"}), ("refund", REFUND)], [refund, jot])
    first, refused, last = end.steps[0].answers
    assert live_notes.written() == [] and desk.done == []
    assert reply in refused.text and "go together" in first.text and "go together" in last.text


ANSWERED = {
    "somebody changed what was read": errors.IsolationConflict(
        "notes", "o-4", read=True, expected="1", now="2"
    ),
    "permission ran out": errors.ReleaseLapsed("case-1", "0" * 64, "it took too long"),
}


def raising(desk: Desk, error: Exception):
    """A live tool that raises."""

    def look(order_id: str) -> None:
        """Look."""
        raise error

    database = SQLiteAdapter(notes_database(desk.folder))
    return tool("look", lane="live", adapter=database, registry=desk.registry)(look)


@pytest.mark.parametrize("error", ANSWERED.values(), ids=ANSWERED.keys())
def test_a_failed_step_without_effects_is_answered(error: Exception, desk: Desk, talk: Talk) -> None:
    end = talk.turn([("look", {"order_id": "o-4"})], [raising(desk, error)])
    (answer,) = end.steps[0].answers
    assert answer.text == f"not done: {error}" and not answer.done


RAISED = [
    errors.JournalError("the disk is full"),
    errors.ServiceUnavailable("POST /v1", "away"),
    errors.ReleaseLapsed("case-1", "0" * 64, "no replica takes it", may_fire=True),
]


@pytest.mark.parametrize("error", RAISED)
def test_what_the_model_cannot_fix_is_raised(error: Exception, desk: Desk, talk: Talk) -> None:
    with pytest.raises(type(error)):
        talk.run([talk.calls(("look", {"order_id": "o-4"}))], [raising(desk, error)])


def test_serialize_waits_until_the_resource_is_free(desk: Desk, live_notes, talk: Talk) -> None:
    script = [talk.calls(("note", NOTE)), talk.says("Done.")]
    theirs = desk.step("theirs", isolation=Serialize())
    with theirs, pytest.raises(errors.ResourceBusy, match="'theirs'"):
        # In a context of its own, as another agent of this process has it.
        contextvars.Context().run(
            talk.run, script[:1], [live_notes.note], isolation=Serialize(timeout_seconds=0)
        )
    assert live_notes.written() == []
    talk.run(script, [live_notes.note], isolation=Serialize(timeout_seconds=0))
    assert live_notes.written() == [("o-4", "late")]
