"""A key is run again after a manifest has changed: the calls are the same, so it is the same step."""

import logging
from typing import Any

import pytest

from countersign import SQLiteAdapter, errors, resume
from tests.fakes.desk import Desk, note_tool, notes_database, notes_in, states
from tests.fakes.running import Left, fails, run
from tests.unit.sdk.full_disk import full_after

STEP = ["o-1", "o-2", "o-3"]
CHANGES = [{"title": "Pay back"}, {"risk": "high"}, {"idempotent": True}, {"timeout_seconds": 5}]


@pytest.fixture
def calls(refund: Any) -> Any:
    """The refunds of these orders."""
    return lambda orders=STEP: [(refund, order, 100) for order in orders]


@pytest.fixture
def cut(desk: Desk, calls: Any) -> Any:
    """Runs the step on a disk that takes nothing more once so many calls have begun."""

    def cut_after(begun: int) -> None:
        with full_after(desk.runtime.journal, begun):
            fails(desk, (errors.JournalError, errors.OutcomeUnknown), *calls())

    return cut_after


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_what_ended_well_is_found_with_its_results(desk: Desk, refund: Any, calls: Any, change: Any) -> None:
    """And its live work is not done twice."""
    note = note_tool(desk, SQLiteAdapter(notes_database(desk.folder))), "o-1", "first"
    run(desk, note, *calls())
    desk.publish(refund, **change)
    with desk.restarted() as later:
        again = run(later, note, *calls())
    assert (again.txn.replayed, again.txn.state, len(desk.done)) == (True, "settled", 3)
    assert [one.result["refund_id"] for one in again.placed[1:]] == [f"r-{order}-100" for order in STEP]
    assert notes_in(desk.folder / "notes.db") == [("o-1", "first")]


OTHERS = {
    "one call less": STEP[:2],
    "one call more": [*STEP, "o-4"],
    "another order": ["o-2", "o-1", "o-3"],
    "other arguments": ["o-1", "o-2", "o-9"],
    "none": [],
}


def spent(desk: Desk, *calls: Any, match: str = "another list of calls was committed") -> Left:
    """Another process runs the key again, and is refused."""
    with desk.restarted() as later:
        return fails(later, errors.AlreadyRedeemed, *calls, match=match)


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("changed", [False, True], ids=["the same manifest", "another manifest"])
def test_another_list_is_refused(desk: Desk, refund: Any, calls: Any, others: Any, changed: bool) -> None:
    run(desk, *calls())
    if changed:
        desk.publish(refund, title="Pay back")
    assert "If you mean to act once more, use another key" in spent(desk, *calls(others)).said
    assert len(desk.done) == 3


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("outcome", ["redeemed", "unsettled"])
def test_unfinished_keeps_the_key(desk: Desk, calls: Any, cut: Any, others: list[str], outcome: str) -> None:
    cut(2)
    if outcome == "unsettled":
        resume(desk.runtime)
    before = states(desk)
    reported = spent(desk, *calls(others)).said
    assert f"(outcome {outcome}): another list of calls was committed; nothing was fired now." in reported
    assert "Do not repeat it under another key" in reported and "use another key" not in reported
    assert (len(desk.done), states(desk)) == (2, before)


@pytest.mark.parametrize("change", [{"title": "Pay back"}, {"idempotent": True}, {}], ids=str)
def test_a_cut_step_goes_on(desk: Desk, refund: Any, calls: Any, cut: Any, caplog: Any, change: Any) -> None:
    """As recovery does: what was firing is unknown, and nothing is called twice or anew. People agreed to the manifest
    of then, and by that one a second call acts twice.
    """
    cut(2)
    assert states(desk) == {"refund#1": "fired", "refund#2": "firing", "refund#3": "redeemed"}
    desk.publish(refund, **change)
    with desk.restarted() as later, caplog.at_level(logging.WARNING):
        for _ in range(2):  # unsettled by the second: the same answer
            fails(later, errors.OutcomeUnknown, *calls(), match="refund#2")
            assert [*states(desk).values()] == ["fired", "unknown", "unused"]
    said = "the manifest of refund has changed since transaction 't-1' was committed"
    assert (said in caplog.text, "the manifest of" in caplog.text) == (bool(change), bool(change))
    assert len(desk.done) == 2


@pytest.mark.parametrize("by", ["its program", "recovery"])
def test_what_had_not_begun_begins_if_it_may(desk: Desk, refund: Any, calls: Any, cut: Any, by: str) -> None:
    """The time to fire is renewed, and there the service decides by what its bundle holds now."""
    cut(0)
    assert set(states(desk).values()) == {"redeemed"}
    desk.publish(refund, title="Pay back")
    with desk.restarted() as later:
        if by == "recovery":
            reported = resume(later.runtime)[0].note
        else:
            reported = fails(later, errors.ReleaseLapsed, *calls()).said
    assert "the service did not extend the time to fire" in reported
    assert (desk.done, set(states(desk).values())) == ([], {"unused"})
