"""Ctrl-C as a block is entered or left: it ends, its thread is free, and its key and its database are too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from countersign import MisuseError, SQLiteAdapter, Transaction, TransactionBusy, tracing
from countersign.transactions.intake import Intake
from countersign.transactions.step import Step
from tests.fakes.desk import Desk, note_tool, notes_database, notes_in, refund_tool
from tests.unit.sdk.journals import BOTH

pytestmark = pytest.mark.parametrize("engine", BOTH)
Body = Callable[[str], Transaction]


@pytest.fixture
def step(desk: Desk) -> Body:
    note = note_tool(desk, SQLiteAdapter(notes_database(desk.folder), busy_seconds=0.2))
    refund = refund_tool(desk)

    def run(key: str) -> Transaction:
        with desk.step(key) as txn:
            note(key, "hello")
            refund(key, 100)
        return txn

    return run


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


@pytest.mark.parametrize("where", PLACES)
def test_it_leaves_nothing_open_and_the_same_key_goes_on(desk: Desk, step: Body, where: str) -> None:
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


def test_a_block_that_is_entered_twice_keeps_what_it_has(desk: Desk) -> None:
    """It was left as if it were a block inside itself: without a commit, and its thread could begin no other."""
    refund = refund_tool(desk)
    with desk.step() as txn:
        refund("o-1", 100)
        with pytest.raises(MisuseError):
            txn.__enter__()
    assert (txn.state, len(desk.done)) == ("settled", 1)
