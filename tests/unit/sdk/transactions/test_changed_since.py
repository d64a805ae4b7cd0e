"""A key is run again after a manifest has changed: the calls are the same, so it is the same step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from countersign import (
    AlreadyRedeemed,
    EffectFailed,
    JournalError,
    NotDone,
    OutcomeUnknown,
    Placeholder,
    ReleaseLapsed,
    SQLiteAdapter,
    resume,
)
from countersign.contract import EffectState
from tests.fakes.desk import (
    Desk,
    charge_tools,
    failing_tool,
    note_tool,
    notes_database,
    notes_in,
    refund_tool,
    states,
)
from tests.unit.sdk.full_disk import full_after

Order = Callable[..., Placeholder[dict[str, str]]]
STEP = ["o-1", "o-2", "o-3"]


@pytest.fixture
def refund(desk: Desk) -> Order:
    return refund_tool(desk)


def run(desk: Desk, refund: Order, orders: list[str]) -> list[Placeholder[dict[str, str]]]:
    with desk.step():
        return [refund(order, 100) for order in orders]


@pytest.fixture
def cut(desk: Desk, refund: Order) -> Callable[[int], None]:
    """Runs the step on a disk that takes nothing more once so many calls have begun."""

    def cut_after(begun: int) -> None:
        with pytest.raises((JournalError, OutcomeUnknown)), full_after(desk.runtime.journal, begun):
            run(desk, refund, STEP)

    return cut_after


CHANGES: dict[str, dict[str, Any]] = {
    "its title": {"title": "Pay back"},
    "its risk": {"risk": "high"},
    "that it is idempotent": {"idempotent": True},
    "how long it may take": {"timeout_seconds": 5},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_ended_well_is_found_with_its_results(desk: Desk, refund: Order, change: dict[str, Any]) -> None:
    run(desk, refund, STEP)
    desk.publish(refund, **change)
    with desk.restarted() as later:
        with later.step() as again:
            found = [refund(order, 100) for order in STEP]
        assert (again.replayed, again.state) == (True, "settled")
    assert [one.result["refund_id"] for one in found] == [f"r-{order}-100" for order in STEP]
    assert len(desk.done) == 3


def test_live_work_beside_it_is_not_done_twice(desk: Desk, refund: Order) -> None:
    note = note_tool(desk, SQLiteAdapter(notes_database(desk.folder)))
    for title in ("Give back", "Pay back"):
        desk.publish(refund, title=title)
        with desk.restarted() as later, later.step():
            note("o-1", "first")
            refund("o-1", 100)
    assert (notes_in(desk.folder / "notes.db"), len(desk.done)) == ([("o-1", "first")], 1)


OTHERS = {
    "one call less": STEP[:2],
    "one call more": [*STEP, "o-4"],
    "another order": ["o-2", "o-1", "o-3"],
    "other arguments": ["o-1", "o-2", "o-9"],
    "none": [],
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("changed", [False, True], ids=["the same manifest", "another manifest"])
def test_another_list_of_calls_is_refused(
    desk: Desk, refund: Order, others: list[str], changed: bool
) -> None:
    run(desk, refund, STEP)
    if changed:
        desk.publish(refund, title="Pay back")
    refusal = pytest.raises(AlreadyRedeemed, match="another list of calls was committed")
    with desk.restarted() as later, refusal as refused:
        run(later, refund, others)
    assert "If you mean to act once more, use another key" in str(refused.value)
    assert len(desk.done) == 3


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("outcome", ["redeemed", "unsettled"])
def test_another_list_is_told_to_use_no_other_key_for_one_that_is_not_finished(
    desk: Desk, refund: Order, cut: Callable[[int], None], others: list[str], outcome: str
) -> None:
    cut(2)
    if outcome == "unsettled":
        resume(desk.runtime)
    before = states(desk)
    with desk.restarted() as later, pytest.raises(AlreadyRedeemed) as refused:
        run(later, refund, others)
    told = str(refused.value)
    assert f"(outcome {outcome}): another list of calls was committed; nothing was fired now." in told
    assert "It is not finished" in told and "`countersign resume --tools MODULE`" in told
    assert "none of it under another key" in told and "might happen twice" in told
    assert "nothing left to do" not in told and "use another key" not in told
    assert (len(desk.done), states(desk)) == (2, before)


@pytest.mark.parametrize("changed", [True, False])
def test_what_was_cut_goes_on_by_the_list_of_then(
    desk: Desk, refund: Order, cut: Callable[[int], None], caplog: pytest.LogCaptureFixture, changed: bool
) -> None:
    """As recovery does: what was firing is unknown, and nothing is called twice or anew."""
    cut(2)
    assert states(desk) == {"refund#1": "fired", "refund#2": "firing", "refund#3": "redeemed"}
    if changed:
        desk.publish(refund, title="Pay back")
    with desk.restarted() as later, caplog.at_level(logging.WARNING):
        for _ in range(2):  # unsettled by the second: the same answer
            with pytest.raises(OutcomeUnknown, match="refund#2"):
                run(later, refund, STEP)
            assert states(desk) == {"refund#1": "fired", "refund#2": "unknown", "refund#3": "unused"}
    said = "the manifest of refund has changed since transaction 't-1' was committed"
    assert (said in caplog.text, "the manifest of" in caplog.text) == (changed, changed)
    assert len(desk.done) == 2


def test_a_tool_that_is_called_idempotent_since_is_not_called_again_for_that(
    desk: Desk, refund: Order, cut: Callable[[int], None]
) -> None:
    """People agreed to the manifest of then, and by that one a second call acts twice."""
    cut(2)
    desk.publish(refund, idempotent=True)
    with desk.restarted() as later, pytest.raises(OutcomeUnknown):
        run(later, refund, STEP)
    assert len(desk.done) == 2


@pytest.mark.parametrize("settled", [EffectState.FIRED, EffectState.FAILED])
def test_what_a_person_has_settled_meanwhile_is_heard(
    desk: Desk, refund: Order, cut: Callable[[int], None], settled: EffectState
) -> None:
    cut(3)
    with pytest.raises(OutcomeUnknown):
        run(desk, refund, STEP)
    desk.publish(refund, title="Pay back")
    ((txn, (revision,)),) = desk.service.revisions.items()
    desk.service.settle(txn, revision.held[2].effect.effect_id, settled)
    with desk.restarted() as later:
        if settled is EffectState.FAILED:
            with pytest.raises(EffectFailed):
                run(later, refund, STEP)
        else:
            first, _, third = run(later, refund, STEP)
            assert first.result["refund_id"] == "r-o-1-100" and third.outcome == "fired"
    assert len(desk.done) == 3


@pytest.mark.parametrize("by", ["its program", "recovery"])
def test_what_had_not_begun_begins_only_where_the_service_still_lets_it(
    desk: Desk, refund: Order, cut: Callable[[int], None], by: str
) -> None:
    """The time to fire is renewed, and there the service decides by what its bundle holds now."""
    cut(0)
    assert set(states(desk).values()) == {"redeemed"}
    desk.publish(refund, title="Pay back")
    with desk.restarted() as later:
        if by == "recovery":
            (told,) = (one.note for one in resume(later.runtime))
        else:
            with pytest.raises(ReleaseLapsed) as lapsed:
                run(later, refund, STEP)
            told = str(lapsed.value)
    assert "the service did not extend the time to fire. Nothing of this transaction stands" in told
    assert (desk.done, set(states(desk).values())) == ([], {"unused"})


def test_what_did_not_end_well_says_how_it_ended(desk: Desk) -> None:
    charge, fail = charge_tools(desk), failing_tool(desk, NotDone("no"), "fail", acts=False)
    with pytest.raises(EffectFailed), desk.step():
        charge("o-1", 100)
        fail("o-1")
    desk.publish(fail, title="Fail again")
    spent = pytest.raises(AlreadyRedeemed, match="charge#1 compensated, fail#2 failed")
    with desk.restarted() as later, spent, later.step():
        charge("o-1", 100)
        fail("o-1")
    assert [one[0] for one in desk.done] == ["charge", "void"]
