"""A turn that was done, is unknown or may still happen is never answered as not done: it would call
again, and the next turn has a key of its own.
"""

from __future__ import annotations

import contextvars
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from countersign import SQLiteAdapter, errors, resume, tool
from countersign.contract import ErrorCode, Verdict, txn_id
from countersign.contract.states import EffectState
from countersign.journal import LocalTxn
from tests.fakes.desk import AGENT, Desk, charge_tools, failing_tool, note_tool, notes_database, refund_tool
from tests.fakes.service import Refused
from tests.fakes.talking import ASK, Talk
from tests.unit.sdk.integrations.talks import GARBAGE, LARGE, NOTE, REFUND, killed

FORBIDDEN = Refused(403, ErrorCode.FORBIDDEN, "not yours", retry_after_seconds=0)
FIRST = txn_id(agent=AGENT, run_key="case-1/turn-1")


def book_tool(desk: Desk) -> Callable[..., str]:
    """A live tool that cannot do the same twice."""
    database = SQLiteAdapter(notes_database(desk.folder), busy_seconds=0.1)

    @tool("book", lane="live", adapter=database, registry=desk.registry)
    def book(order_id: str) -> str:
        """Write down that it was paid back."""
        database.connection.execute("INSERT INTO notes VALUES (?, 'refunded')", (order_id,))
        return "booked"

    return book


def notes(desk: Desk) -> int:
    with sqlite3.connect(desk.folder / "notes.db") as database:
        return int(database.execute("SELECT count(*) FROM notes").fetchone()[0])


# ---------------------------------------------------------------------------------------------------------- it was


def test_done_work_is_answered_as_done_if_live_work_cannot_be_redone(desk: Desk, talk: Talk) -> None:
    tools = [book_tool(desk), refund_tool(desk)]
    calls = (("book", {"order_id": "o-4"}), ("refund", REFUND), ("refund", REFUND))
    kept = killed(talk, tools, talk.calls(*calls))
    end = talk.run([talk.says("Done.")], tools, messages=kept)
    booked, refunded, equal = end.steps[0].answers
    assert (booked.done, refunded.done, equal.done) == (True, True, True)
    assert booked.text == "booked" and refunded.text == '{"refund_id":"r-o-4-1200"}'
    assert equal.text.startswith("done once, as the equal call before it")
    assert (len(desk.done), notes(desk)) == (1, 1)


def test_live_work_is_done_where_only_its_database_knows(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the database had committed, and before the journal heard of it."""

    def dies(*_: Any, **__: Any) -> Any:
        raise SystemExit

    talk, book = Talk("openai", runtime=desk.runtime), book_tool(desk)
    heard: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(desk.runtime.journal.transactions, "end_live", dies)
        with pytest.raises(SystemExit):
            talk.run([talk.calls(("book", {"order_id": "o-4"}))], [book], on_message=heard.append)
    desk.clock.advance(3600)
    with desk.restarted() as later:
        end = talk.run([talk.says("Done.")], [book], runtime=later.runtime, messages=[*ASK, *heard])
    assert end.steps[0].answers[0].done and notes(desk) == 1


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
    end = talk.run([talk.says("I see.")], tools, messages=kept)
    looked, charged, notified = (one.text for one in end.steps[0].answers)
    assert looked.startswith("this one was undone again: notify did not happen")
    assert charged.startswith("this one was done and has been compensated: notify did not happen")
    assert "no address" in charged
    assert notified.startswith("this one was not done")
    assert [one[0] for one in desk.done] == ["charge", "void"]


def test_other_calls_than_were_done_are_refused(desk: Desk, talk: Talk) -> None:
    """A run that kept nothing asks the model anew, and calls what cannot be read, or what raises."""
    tools = [book_tool(desk), refund_tool(desk)]
    killed(talk, tools, talk.calls(("book", {"order_id": "o-4"}), ("refund", REFUND), turn="a"))
    for calls in (
        [GARBAGE],
        [("transfer", {})],
        [("book", {"order_id": "o-4"})],
        [("book", {"order_id": "o-4"}), ("refund", {**REFUND, "amount_cents": 1})],
        [("refund", REFUND), ("transfer", {})],
    ):
        with pytest.raises(errors.AlreadyRedeemed, match="refund#1 fired"):
            talk.run([talk.calls(*calls, turn="b")], tools)
    assert len(desk.done) == 1


@pytest.mark.parametrize("other_lane", ["live", "staged"])
def test_an_allowed_failure_keeps_the_other_calls(other_lane: str, desk: Desk, talk: Talk) -> None:
    """The error claims neither that a person must settle it, nor that nothing remains in effect."""
    note = note_tool(desk, SQLiteAdapter(notes_database(desk.folder)))
    mail = failing_tool(desk, errors.NotDone("full"), "mail", on_exhausted="tool", acts=False)
    tools = [note, refund_tool(desk), mail]
    calls = [("note", NOTE) if other_lane == "live" else ("refund", REFUND), ("mail", {"order_id": "o-4"})]
    talk.run([talk.calls(*calls, turn="a"), talk.says("Done.")], tools)
    with pytest.raises(errors.AlreadyRedeemed, match=r"mail#. failed.*If you mean to act once more") as spent:
        talk.run([talk.calls(GARBAGE, turn="b")], tools)
    assert "Still in effect" not in str(spent.value) and "Nothing of this" not in str(spent.value)


# ------------------------------------------------------------------------------------------------------ nobody knows


def test_an_unknown_outcome_is_raised_again_if_live_work_cannot_begin(desk: Desk, talk: Talk) -> None:
    note = note_tool(desk, SQLiteAdapter(notes_database(desk.folder), busy_seconds=0.1))
    notify = failing_tool(desk, ConnectionError("no answer"))
    kept = killed(talk, [note, notify], talk.calls(("note", NOTE), ("notify", {"order_id": "o-4"})))
    backup = sqlite3.connect(desk.folder / "notes.db", isolation_level=None)
    backup.execute("BEGIN IMMEDIATE")
    with pytest.raises(errors.OutcomeUnknown, match=r"notify#1 happened .*no answer"):
        talk.run([], [note, notify], messages=kept)
    backup.close()
    assert len(desk.done) == 1


def test_what_was_redeemed_and_lost_the_answer_is_raised_as_not_finished(desk: Desk, talk: Talk) -> None:
    refund = refund_tool(desk)
    desk.face.faults["/v1/transactions"] = ["lost_answer"] * 50
    heard: list[Any] = []
    said = talk.calls(("refund", REFUND), ("refund", {**REFUND, "order_id": "o-5"}))
    with pytest.raises(errors.ServiceUnavailable):
        talk.run([said], [refund], on_message=heard.append)
    desk.face.faults.clear()
    renamed = failing_tool(desk, errors.NotDone("unused"), "give_back")
    with pytest.raises(errors.AlreadyRedeemed, match="It is not finished") as raised:
        talk.run([], [renamed], messages=[*ASK, *heard])
    assert not raised.value.finished and desk.done == []
    assert [one.after for one in resume(runtime=desk.runtime)] == [LocalTxn.SETTLED]
    assert len(desk.done) == 2


# -------------------------------------------------------------------------------------------------- it may be yet


@pytest.mark.parametrize("approved", ["before", "after"])
def test_a_waiting_step_is_withdrawn_before_it_is_answered_as_undone(
    approved: str, desk: Desk, talk: Talk
) -> None:
    """A deploy renamed the tool while people were asked."""
    refund = refund_tool(desk)
    end = talk.run([talk.calls(("refund", LARGE), turn="a")], [refund])
    assert end.pending is not None
    if approved == "before":
        desk.service.approve(FIRST)

    @tool("give_back", resource=("Order", "order_id"), registry=desk.registry)
    def give_back(order_id: str, amount_cents: int) -> None:
        """Give money back for an order."""
        desk.act("give_back", order_id, amount_cents)

    desk.publish(give_back)
    with desk.restarted() as later:
        script = [talk.calls(("give_back", REFUND), turn="b"), talk.says("Done.")]
        next_run = talk.run(script, [give_back], runtime=later.runtime, messages=end.messages)
        assert "there is no tool 'refund'" in next_run.steps[0].answers[0].text
        if approved == "after":
            desk.service.approve(FIRST)
        assert resume(runtime=later.runtime) == []
    assert [one.state for one in desk.service.latest(FIRST).held] == [EffectState.WITHDRAWN]
    assert desk.done == [("give_back", "o-4", 1200)]


def test_what_a_worker_fired_is_never_answered_as_not_done(desk: Desk, refund: Any, talk: Talk) -> None:
    end = talk.run([talk.calls(("refund", LARGE))], [refund])
    desk.service.approve(FIRST)
    with desk.restarted() as worker:
        resume(runtime=worker.runtime)
    with pytest.raises(errors.AlreadyRedeemed, match="refund#1 fired"):
        talk.run([], [failing_tool(desk, errors.NotDone("no"))], messages=end.messages)
    assert len(desk.done) == 1


def test_live_work_that_cannot_begin_withdraws_open_reviews(desk: Desk, talk: Talk) -> None:
    tools = [refund_tool(desk), book_tool(desk)]
    calls = (("book", {"order_id": "o-4"}), ("refund", LARGE))
    end = talk.run([talk.calls(*calls, turn="a")], tools)
    backup = sqlite3.connect(desk.folder / "notes.db", isolation_level=None)
    backup.execute("BEGIN IMMEDIATE")
    next_run = talk.run([talk.says("No.")], tools, messages=end.messages)
    backup.close()
    assert not any(one.done for one in next_run.steps[0].answers)
    assert [one.state for one in desk.service.latest(FIRST).held] == [EffectState.WITHDRAWN]
    desk.service.approve(FIRST)
    assert resume(runtime=desk.runtime) == [] and (desk.done, notes(desk)) == ([], 0)


def test_work_in_progress_elsewhere_is_not_answered_as_not_done(desk: Desk) -> None:
    talk, refund = Talk("openai", runtime=desk.runtime), refund_tool(desk)
    with desk.restarted() as other, other.step("case-1/turn-1"), pytest.raises(errors.TransactionBusy):
        contextvars.Context().run(talk.run, [talk.calls(("transfer", {}))], [refund])


def test_what_was_never_begun_is_answered_as_not_done(desk: Desk, refund: Any, talk: Talk) -> None:
    desk.service.policy = lambda *_: Verdict.RELEASE
    script = [talk.calls(GARBAGE, turn="a"), talk.calls(("refund", REFUND), turn="b"), talk.says("Done.")]
    end = talk.run(script, [refund])
    assert [one.answers[0].done for one in end.steps] == [False, True]
    assert not [path for _, path in desk.face.log if path.endswith("/withdraw")] and len(desk.done) == 1


def test_what_never_arrived_is_ended_and_answered_as_not_done(desk: Desk, talk: Talk) -> None:
    refund, heard = refund_tool(desk), list[Any]()
    desk.face.faults["/v1/transactions"] = ["lost_request"] * 50
    with pytest.raises(errors.ServiceUnavailable):
        talk.run([talk.calls(("refund", REFUND))], [refund], on_message=heard.append)
    desk.face.faults.clear()
    renamed = failing_tool(desk, errors.NotDone("no"), "give_back")
    end = talk.run([talk.says("No.")], [renamed], messages=[*ASK, *heard])
    assert "there is no tool 'refund'" in end.steps[0].answers[0].text
    assert resume(runtime=desk.runtime) == [] and desk.done == []


@pytest.mark.parametrize(
    ("faults", "raised"),
    [(["lost_request"] * 50, errors.ServiceUnavailable), ([FORBIDDEN], errors.ServiceRefused)],
    ids=["away", "refused"],
)
def test_where_it_is_not_withdrawn_the_model_gets_no_answer(
    desk: Desk, talk: Talk, faults: list[Any], raised: type[Exception]
) -> None:
    end = talk.run([talk.calls(("refund", LARGE))], [refund_tool(desk)])
    desk.face.faults[f"/v1/transactions/{FIRST}/withdraw"] = list(faults)
    with pytest.raises(raised):
        talk.run([], [failing_tool(desk, errors.NotDone("no"), "give_back")], messages=end.messages)
    assert talk.vendor.sent == []
