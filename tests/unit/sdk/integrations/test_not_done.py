"""A turn that was done, is unknown or may still happen is never answered as not done: it would call
again, and the next turn has a key of its own.
"""

import contextvars
import sqlite3
from contextlib import closing, contextmanager

import pytest

from countersign import SQLiteAdapter, errors, resume, tool
from countersign.contract import ErrorCode, Verdict, txn_id
from countersign.contract.states import EffectState
from tests.fakes.desk import AGENT, Desk, charge_tools, failing_tool, notes_database
from tests.fakes.service import Refused
from tests.fakes.talking import ASK, Talk
from tests.unit.sdk.integrations.talks import GARBAGE, LARGE, NOTE, REFUND, answers_after, killed

FORBIDDEN = Refused(403, ErrorCode.FORBIDDEN, "not yours", retry_after_seconds=0)
FIRST = txn_id(agent=AGENT, run_key="case-1/turn-1")


def book_tool(desk: Desk):
    """A live tool that cannot do the same twice."""
    database = SQLiteAdapter(notes_database(desk.folder), busy_seconds=0.1)

    @tool("book", lane="live", adapter=database, registry=desk.registry)
    def book(order_id: str) -> str:
        """Write down that it was paid back."""
        database.connection.execute("INSERT INTO notes VALUES (?, 'refunded')", (order_id,))
        return "booked"

    return book


def noted(desk: Desk) -> int:
    with sqlite3.connect(desk.folder / "notes.db") as database:
        return int(database.execute("SELECT count(*) FROM notes").fetchone()[0])


# ---------------------------------------------------------------------------------------------------------- it was


def test_a_compensated_call_is_answered_as_compensated_again(desk: Desk, talk: Talk) -> None:
    broken: list[str] = []

    @tool("look", lane="live", adapter=SQLiteAdapter(notes_database(desk.folder)), registry=desk.registry)
    def look(order_id: str) -> str:
        """Look."""
        if broken:
            raise errors.NotDone(broken[0])
        return "there"

    tools = [look, charge_tools(desk), failing_tool(desk, errors.NotDone("no address"), acts=False)]
    calls = (("look", {"order_id": "o-4"}), ("charge", REFUND), ("notify", {"order_id": "o-4"}))
    kept = killed(talk, tools, talk.calls(*calls))
    broken.append("it is away")
    looked, charged, notified = (one.text for one in answers_after(talk, tools, kept))
    assert looked.startswith("this one was undone again: notify did not happen")
    assert charged.startswith("this one was done and has been compensated: notify did not happen")
    assert "no address" in charged and notified.startswith("this one was not done")
    assert [one[0] for one in desk.done] == ["charge", "void"]


def test_other_calls_than_were_done_are_refused(desk: Desk, refund, talk: Talk) -> None:
    """A run that kept nothing asks the model anew, and calls what cannot be read, or what raises."""
    tools, book = [book_tool(desk), refund], ("book", {"order_id": "o-4"})
    killed(talk, tools, talk.calls(book, ("refund", REFUND), turn="a"))
    less, absent = ("refund", {**REFUND, "amount_cents": 1}), ("transfer", {})
    for calls in ([GARBAGE], [absent], [book], [book, less], [("refund", REFUND), absent]):
        with pytest.raises(errors.AlreadyRedeemed, match="refund#1 fired"):
            talk.run([talk.calls(*calls, turn="b")], tools)
    assert len(desk.done) == 1


@pytest.mark.parametrize("other", [("note", NOTE), ("refund", REFUND)], ids=["live", "staged"])
def test_an_allowed_failure_keeps_the_other_calls(other, desk: Desk, refund, live_notes, talk: Talk) -> None:
    """The error claims neither that a person must settle it, nor that nothing remains in effect."""
    mail = failing_tool(desk, errors.NotDone("full"), "mail", on_exhausted="tool", acts=False)
    tools = [live_notes.note, refund, mail]
    talk.run([talk.calls(other, ("mail", {"order_id": "o-4"}), turn="a"), talk.says("Done.")], tools)
    with pytest.raises(errors.AlreadyRedeemed, match=r"mail#. failed.*If you mean to act once more") as spent:
        talk.run([talk.calls(GARBAGE, turn="b")], tools)
    assert "Still in effect" not in str(spent.value) and "Nothing of this" not in str(spent.value)


# ------------------------------------------------------------------------------------------------------ it is unknown


def give_back_tool(desk: Desk):
    """The refund under another name, as after a deployment."""

    @tool("give_back", resource=("Order", "order_id"), registry=desk.registry)
    def give_back(order_id: str, amount_cents: int) -> None:
        """Give money back for an order."""
        desk.act("give_back", order_id, amount_cents)

    desk.publish(give_back)
    return give_back


@contextmanager
def locked_notes(desk: Desk):
    with closing(sqlite3.connect(desk.folder / "notes.db", isolation_level=None)) as backup:
        backup.execute("BEGIN IMMEDIATE")
        yield


def test_an_unknown_outcome_is_raised_again_if_live_work_cannot_begin(
    desk: Desk, live_notes, talk: Talk
) -> None:
    notify = failing_tool(desk, ConnectionError("no answer"))
    kept = killed(
        talk, [live_notes.note, notify], talk.calls(("note", NOTE), ("notify", {"order_id": "o-4"}))
    )
    unknown = pytest.raises(errors.OutcomeUnknown, match=r"notify#1 happened .*no answer")
    with locked_notes(desk), unknown:
        talk.run([], [live_notes.note, notify], messages=kept)
    assert len(desk.done) == 1


# -------------------------------------------------------------------------------------------------- it may be yet


@pytest.mark.parametrize("approved", ["before", "after"])
def test_a_waiting_step_is_withdrawn_first(approved: str, desk: Desk, refund, talk: Talk) -> None:
    """A deploy renamed the tool while people were asked."""
    end = talk.run([talk.calls(("refund", LARGE), turn="a")], [refund])
    if approved == "before":
        desk.service.approve(FIRST)
    give_back = give_back_tool(desk)
    with desk.restarted() as later:
        script = [talk.calls(("give_back", REFUND), turn="b"), talk.says("Done.")]
        next_run = talk.run(script, [give_back], runtime=later.runtime, messages=end.messages)
        assert "there is no tool 'refund'" in next_run.steps[0].answers[0].text
        if approved == "after":
            desk.service.approve(FIRST)
        assert resume(runtime=later.runtime) == []
    assert [one.state for one in desk.service.latest(FIRST).held] == [EffectState.WITHDRAWN]
    assert desk.done == [("give_back", "o-4", 1200)]


def test_what_a_worker_fired_is_never_answered_as_not_done(desk: Desk, refund, talk: Talk) -> None:
    end = talk.run([talk.calls(("refund", LARGE))], [refund])
    desk.service.approve(FIRST)
    with desk.restarted() as worker:
        resume(runtime=worker.runtime)
    with pytest.raises(errors.AlreadyRedeemed, match="refund#1 fired"):
        talk.run([], [failing_tool(desk, errors.NotDone("no"))], messages=end.messages)
    assert len(desk.done) == 1


def test_live_work_that_cannot_begin_withdraws_open_reviews(desk: Desk, refund, talk: Talk) -> None:
    tools = [refund, book_tool(desk)]
    end = talk.run([talk.calls(("book", {"order_id": "o-4"}), ("refund", LARGE), turn="a")], tools)
    with locked_notes(desk):
        assert not any(one.done for one in answers_after(talk, tools, end.messages))
    assert [one.state for one in desk.service.latest(FIRST).held] == [EffectState.WITHDRAWN]
    desk.service.approve(FIRST)
    assert resume(runtime=desk.runtime) == [] and (desk.done, noted(desk)) == ([], 0)


def test_work_in_progress_elsewhere_is_not_answered_as_not_done(desk: Desk, refund) -> None:
    talk = Talk("openai", runtime=desk.runtime)
    with desk.restarted() as other, other.step("case-1/turn-1"), pytest.raises(errors.TransactionBusy):
        contextvars.Context().run(talk.run, [talk.calls(("transfer", {}))], [refund])


def test_what_was_never_begun_is_answered_as_not_done(desk: Desk, refund, talk: Talk) -> None:
    desk.service.policy = lambda *_: Verdict.RELEASE
    script = [talk.calls(GARBAGE, turn="a"), talk.calls(("refund", REFUND), turn="b"), talk.says("Done.")]
    end = talk.run(script, [refund])
    assert [one.answers[0].done for one in end.steps] == [False, True]
    assert not [path for _, path in desk.face.log if path.endswith("/withdraw")] and len(desk.done) == 1


def test_what_never_arrived_is_ended_and_answered_as_not_done(desk: Desk, refund, talk: Talk) -> None:
    heard = []
    desk.face.faults["/v1/transactions"] = ["lost_request"] * 50
    with pytest.raises(errors.ServiceUnavailable):
        talk.run([talk.calls(("refund", REFUND))], [refund], on_message=heard.append)
    desk.face.faults.clear()
    (answer,) = answers_after(talk, [give_back_tool(desk)], [*ASK, *heard])
    assert "there is no tool 'refund'" in answer.text
    assert resume(runtime=desk.runtime) == [] and desk.done == []


NOT_WITHDRAWN = [(["lost_request"] * 50, errors.ServiceUnavailable), ([FORBIDDEN], errors.ServiceRefused)]


@pytest.mark.parametrize(("faults", "raised"), NOT_WITHDRAWN, ids=["away", "refused"])
def test_without_a_withdrawal_nothing_is_answered(desk: Desk, refund, talk: Talk, faults, raised) -> None:
    end = talk.run([talk.calls(("refund", LARGE))], [refund])
    desk.face.faults[f"/v1/transactions/{FIRST}/withdraw"] = list(faults)
    with pytest.raises(raised):
        talk.run([], [give_back_tool(desk)], messages=end.messages)
    assert talk.vendor.sent == []
