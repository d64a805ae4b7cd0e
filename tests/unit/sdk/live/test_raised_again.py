"""A live call that raised, in what comes later: recovery, reruns and rehearsals go by what stood."""

import threading
from contextlib import suppress
from typing import Any

import pytest

from countersign import Transaction, errors, replay, resume, tool
from tests.fakes.desk import Desk, answering_tool, notes_in, states
from tests.unit.sdk.full_disk import full_after
from tests.unit.sdk.journals import BOTH, document
from tests.unit.sdk.live.test_raised import KEPT, RAISED, caught, live_rows

CUT = (errors.JournalError, errors.OutcomeUnknown)

# ------------------------------------------------------------------------------------------------- recovery


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("kept", [False, True], ids=["alone", "with work that is lost"])
def test_recovery_counts_only_kept_work(desk: Desk, note: Any, kept: bool, charge: Any, refund: Any) -> None:
    label = answering_tool(desk, None, name="label", idempotent=True)
    staged = (charge, "o-1", 100), (label, "o-1"), (refund, "o-1", 100)
    with full_after(desk.runtime.journal, 2):
        desk.run((caught, note), *[(note, "o-1", "well")] * kept, *staged, raises=CUT)
    (found,) = resume(desk.runtime)
    if kept:
        assert (found.after, states(desk)["label#2"]) == ("unsettled", "unknown")
    else:
        assert (found.after, {*states(desk).values()}) == ("settled", {"fired"})
        assert [one[0] for one in desk.done] == ["charge", "label", "label", "refund"]


# ------------------------------------------------------------------------------------------------- reruns


@pytest.mark.parametrize("fails_first", [False, True])
def test_a_rerun_compares_what_was_kept(desk: Desk, notes: Any, database: Any, fails_first: bool) -> None:
    """A row that is there already is not put in twice. What raised before, and does not now, is another list."""
    raises = [fails_first, False]

    @tool("put", lane="live", adapter=database, registry=desk.registry)
    def put(order_id: str) -> None:
        """Put a row in."""
        how = "INSERT OR REPLACE" if fails_first else "INSERT"
        database.connection.execute(f"{how} INTO notes VALUES (?, 'put')", (order_id,))
        if order_id == "o-2" and raises.pop(0):
            raise ValueError

    def put_if_possible(order: str) -> None:
        with suppress(Exception):
            put(order)

    calls = (put_if_possible, "o-1"), (put_if_possible, "o-2")
    desk.run(*calls)
    again = desk.run(*calls, raises=errors.AlreadyRedeemed if fails_first else None)
    assert again.replayed or fails_first
    assert [order for order, _ in notes_in(notes)] == (["o-1"] if fails_first else ["o-1", "o-2"])


def test_a_rerun_whose_call_raises_again_is_the_same_step(desk: Desk, notes: Any, note: Any) -> None:
    for replayed in (False, True):
        txn = desk.run((note, "o-1", "first"), (caught, note))
        assert (txn.replayed, live_rows(desk)) == (replayed, [KEPT, RAISED])
    assert notes_in(notes) == [("o-1", "first")]


def test_a_review_changes_nothing_of_it(desk: Desk, notes: Any, note: Any, refund: Any) -> None:
    calls = (note, "o-1", "first"), (caught, note), (refund, "o-1", 90_000)
    for approved in (False, True):
        txn = desk.run(*calls, raises=None if approved else errors.ReviewPending)
        assert live_rows(desk) == [KEPT if approved else ("note", "undone", None), RAISED]
        if not approved:
            desk.service.approve(txn.txn)
    assert (notes_in(notes), len(desk.done)) == ([("o-1", "first")], 1)


# ------------------------------------------------------------------------------------------------- rehearsals


def test_a_dry_run_lists_what_would_stand(desk: Desk, note: Any) -> None:
    txn = desk.run((note, "o-1", "first"), (caught, note), dry_run=True)
    assert [one.args for one in txn.result.live] == [{"order_id": "o-1", "text": "first"}]


@pytest.mark.parametrize("mode", ["verify", "reconstruct"])
@pytest.mark.parametrize("source", ["journal", "export"])
def test_a_replay_compares_what_stood(desk: Desk, note: Any, mode: Any, source: str) -> None:
    def step(txn: Transaction, *, well: bool = False, more: bool = False) -> None:
        note("o-1", "first")
        with suppress(ValueError):
            note("o-9", "good" if well else "bad")
        if more:
            note("o-2", "more")

    def stand_in(order_id: str, text: str) -> int:
        if text == "bad":
            raise ValueError("bad note")
        return 1

    with desk.step() as txn:
        step(txn)
    options: dict[str, Any] = {"mode": mode, "runtime": desk.runtime, "live": {"note": stand_in}}
    if source == "export":
        options["export"] = document(desk.runtime.journal, "t-1")
    assert replay("t-1", step, **options).status == "same"
    for other in ({"well": True}, {"more": True}):
        (one,) = replay("t-1", lambda txn, other=other: step(txn, **other), **options).divergences
        assert (one.kind, one.lane, one.position) == ("extra", "live", 2)


# ------------------------------------------------------------------------------- what is left of it decides nothing


def test_an_empty_session_cannot_fail(desk: Desk, note: Any, monkeypatch: Any, charge: Any) -> None:
    """An adapter that holds nothing cannot fail to commit it."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("countersign.adapters.sqlite.SQLiteSession.commit", full)
    txn = desk.run((caught, note), (charge, "o-1", 100))
    assert (txn.state, [what for what, *_ in desk.done]) == ("settled", ["charge"])


def test_nor_does_it_keep_a_step_from_waiting_for_people(desk: Desk, note: Any, refund: Any) -> None:
    with desk.step(wait=600) as txn:
        caught(note)
        refund("o-1", 90_000)
        soon = threading.Timer(0.3, desk.service.approve, [txn.txn])
        soon.start()
    soon.join()
    assert (txn.state, len(desk.done)) == ("settled", 1)
