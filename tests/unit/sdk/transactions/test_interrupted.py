"""Ctrl-C as a block is entered or left: it ends, its thread, its key and its database are free, and its author reads
under the traceback where the step stands and how it goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from countersign import JournalError, MisuseError, SQLiteAdapter, Transaction, TransactionBusy, tracing
from countersign.contract import Verdict
from countersign.journal.transactions import Transactions
from countersign.transactions.intake import Intake
from countersign.transactions.step import Step
from tests.fakes.desk import Desk, failing_tool, note_tool, notes_database, notes_in, refund_tool
from tests.fakes.running import fails, run
from tests.unit.sdk.journals import BOTH
from tests.unit.sdk.transactions.looks import on_view

on_both = pytest.mark.parametrize("engine", BOTH)


def once(place: Any, name: str, when: str) -> Callable[[pytest.MonkeyPatch], None]:
    """An interrupt as that is called first, or as it has answered."""

    def arm(patch: pytest.MonkeyPatch) -> None:
        real, left = getattr(place, name), [1]

        def act(*args: Any, **options: Any) -> Any:
            strikes = bool(left)
            left.clear()
            if strikes and when == "before":
                raise KeyboardInterrupt
            answer = real(*args, **options)
            if strikes:
                raise KeyboardInterrupt
            return answer

        patch.setattr(place, name, act)

    return arm


def after_it_is_current(patch: pytest.MonkeyPatch) -> None:
    """The last thing that entering does."""
    from countersign.transactions import transaction as module

    real, left = module.current_transaction, [1]

    class Variable:
        get = staticmethod(real.get)

        @staticmethod
        def set(value: Transaction | None) -> None:
            real.set(value)
            if value is not None and left:
                left.clear()
                raise KeyboardInterrupt

    patch.setattr(module, "current_transaction", Variable)


PLACES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "entered": after_it_is_current,
    "the calls are over": once(Intake, "end", "after"),
    "before its span": once(tracing, "span", "before"),
    "before it commits": once(Step, "commit", "before"),
    "as it ends": once(Step, "_end", "before"),
    "it has ended": once(Step, "_end", "after"),
}
DONE = {"as it ends", "it has ended"}


@on_both
@pytest.mark.parametrize("where", PLACES)
def test_it_leaves_nothing_open_and_the_same_key_goes_on(desk: Desk, where: str) -> None:
    note = note_tool(desk, SQLiteAdapter(notes_database(desk.folder), busy_seconds=0.2))
    refund = refund_tool(desk)

    def step(key: str) -> Transaction:
        return run(desk, (note, key, "hello"), (refund, key, 100), key=key).txn

    with pytest.MonkeyPatch.context() as patch:
        PLACES[where](patch)
        with pytest.raises(KeyboardInterrupt):
            step("t-1")
    assert len(desk.done) == len(notes_in(desk.folder / "notes.db")) == (where in DONE)
    heard: list[Any] = []

    def elsewhere() -> None:
        try:
            heard.append(step("t-1").state)
        except TransactionBusy as busy:
            heard.append(busy)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert heard == ["settled"]
    assert step("t-2").state == "settled"
    assert ([one[1] for one in desk.done], len(notes_in(desk.folder / "notes.db"))) == (["t-1", "t-2"], 2)


@on_both
def test_a_block_that_is_entered_twice_keeps_what_it_has(desk: Desk) -> None:
    """It was left as if it were a block inside itself: without a commit, and its thread could begin no other."""
    refund = refund_tool(desk)
    with desk.step() as txn:
        refund("o-1", 100)
        with pytest.raises(MisuseError):
            txn.__enter__()
    assert (txn.state, len(desk.done)) == ("settled", 1)


# ------------------------------------------------------------------------------------- what its author reads


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_one_that_stops_a_tool_tells_what_fired_and_what_nobody_knows(desk: Desk, error: Any) -> None:
    wire = failing_tool(desk, error(), "wire")
    told = notes(fails(desk, error, (refund_tool(desk), "o-1", 5), (wire, "o-1")).error)
    assert "transaction 't-1': redeemed (refund#1 fired, wire#2 unknown)" in told
    assert "`countersign resume --tools MODULE`" in told


def interrupt() -> None:
    raise KeyboardInterrupt


def test_one_in_the_wait_tells_that_people_are_asked(desk: Desk) -> None:
    refund = refund_tool(desk)
    on_view(desk, interrupt)
    told = notes(fails(desk, KeyboardInterrupt, (refund, "o-1", 90_000), wait=60).error)
    assert told.startswith("transaction 't-1': parked (refund#1 review); ") and "goes on with it" in told


def test_one_before_anything_was_begun_tells_that_the_block_goes_on_and_no_worker(desk: Desk) -> None:
    desk.face.faults["/v1/transactions"] = [KeyboardInterrupt()]
    told = notes(fails(desk, KeyboardInterrupt, (refund_tool(desk), "o-1", 5)).error)
    assert "stopped (refund#1 staged); nothing more of it is begun until the same block runs again" in told


def test_one_of_the_body_needs_no_word_for_nothing_of_it_stands(desk: Desk) -> None:
    stopped = fails(desk, KeyboardInterrupt, (refund_tool(desk), "o-1", 5), (interrupt,)).error
    assert notes(stopped) == ""


def test_a_journal_that_cannot_be_read_loses_no_interrupt(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.service.policy = lambda *_: Verdict.REVIEW

    def away(*_: Any) -> None:
        raise JournalError("the disk is gone")

    def stop() -> None:
        monkeypatch.setattr(Transactions, "require", away)
        raise KeyboardInterrupt

    on_view(desk, stop)
    stopped = fails(desk, KeyboardInterrupt, (refund_tool(desk), "o-1", 90_000), wait=60).error
    assert notes(stopped) == ""
    monkeypatch.undo()
