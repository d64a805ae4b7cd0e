"""The journal is away for a moment while a block runs: the block fails, and its key is as free as after any other
error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

from countersign import (
    EffectFailed,
    JournalError,
    LeaseLost,
    NotDone,
    PlaceholderUsed,
    SQLiteAdapter,
    Transaction,
)
from countersign.journal import Journal
from countersign.transactions.listing import Listing
from countersign.transactions.step import Step
from tests.fakes.desk import Desk, failing_tool, note_tool, notes_database, notes_in, refund_tool
from tests.fakes.running import fails, run
from tests.unit.sdk.journal.test_heartbeat import until
from tests.unit.sdk.journals import BOTH

pytestmark = pytest.mark.parametrize("engine", BOTH)


class Outage:
    """A journal that can be away."""

    def __init__(self, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        self._database, self._monkeypatch = journal.database, monkeypatch
        self._unit = self._database.unit

    def begin(self, writes: int = 0) -> None:
        """From now on, or after so many writes more, it takes nothing."""
        left = [writes]

        @contextmanager
        def unit(*, durable: bool) -> Iterator[Any]:
            left[0] -= 1
            if left[0] < 0:
                raise JournalError("the disk is full")
            with self._unit(durable=durable) as real:
                yield real

        self._monkeypatch.setattr(self._database, "unit", unit)

    def end(self) -> None:
        self._monkeypatch.setattr(self._database, "unit", self._unit)


@pytest.fixture
def outage(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Outage:
    return Outage(desk.runtime.journal, monkeypatch)


def holder(desk: Desk, txn: Transaction) -> object:
    row = desk.runtime.journal.database.row("SELECT holder FROM transactions WHERE txn = ?", (txn.txn,))
    assert row is not None
    return row["holder"]


@pytest.mark.parametrize("writes", [0, 1], ids=["for the whole block's end", "until the body has failed"])
def test_the_next_run_of_the_key_begins_at_once(desk: Desk, outage: Outage, writes: int) -> None:
    refund = refund_tool(desk)
    with pytest.raises(JournalError, match="disk is full"), desk.step() as first:
        refund("o-1", 100)
        outage.begin()
        try:
            refund("o-2", 100)
        finally:
            outage.begin(writes)
    outage.end()
    again = run(desk, (refund, "o-1", 100), (refund, "o-2", 100)).txn
    assert (first.state, again.state, len(desk.done)) == ("settled", "settled", 2)


@pytest.fixture
def unreadable(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called, the journal cannot be read from the moment that the placeholders are to be told."""
    settle = Listing.settle

    def gone(*_: object) -> NoReturn:
        raise JournalError("the disk is gone")

    def settled(listing: Listing, results: dict[str, object], *, submitted: bool) -> None:
        with monkeypatch.context() as outage:
            outage.setattr(desk.runtime.journal.transactions, "require", gone)
            settle(listing, results, submitted=submitted)

    return lambda: monkeypatch.setattr(Listing, "settle", settled)


def test_what_has_fired_is_known_also_where_the_journal_cannot_be_read_after(
    desk: Desk, unreadable: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever reads that it is only staged does it once more."""
    left = run(desk, (refund_tool(desk), "o-1", 100), (unreadable,))
    back = left.placed[0]
    assert (back.outcome, back.result, len(desk.done)) == ("fired", {"refund_id": "r-o-1-100"}, 1)
    told = f"what became of transaction {left.txn.txn[:12]} cannot be read: the disk is gone"
    assert told in caplog.text


@pytest.mark.parametrize(
    ("submitted", "told"), [(False, "never submitted"), (True, "not known whether it happened")]
)
def test_of_what_did_not_return_is_said_what_is_known(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, unreadable: Any, submitted: bool, told: str
) -> None:
    def broken(*_: object) -> NoReturn:
        raise ZeroDivisionError

    calls = (failing_tool(desk, NotDone("no money")), "o-1"), (unreadable,)
    if not submitted:
        monkeypatch.setattr(Step, "_plan", broken)
    left = fails(desk, EffectFailed if submitted else ZeroDivisionError, *calls)
    with pytest.raises(PlaceholderUsed, match=told):
        _ = left.placed[0].result


def test_what_the_body_raised_is_told_and_live_work_is_undone(desk: Desk, outage: Outage) -> None:
    note, refund = note_tool(desk, SQLiteAdapter(notes_database(desk.folder))), refund_tool(desk)
    with pytest.raises(ZeroDivisionError), desk.step():
        note("o-1", "hello")
        refund("o-1", 100)
        outage.begin()
        raise ZeroDivisionError
    outage.end()
    assert (notes_in(desk.folder / "notes.db"), desk.done) == ([], [])
    again = run(desk, (note, "o-1", "hello")).txn
    assert (notes_in(desk.folder / "notes.db"), again.replayed) == ([("o-1", "hello")], False)


def test_other_processes_get_it_too_once_the_journal_is_back(desk: Desk, outage: Outage) -> None:
    """They see that this one lives, so the lease has to be given up on the disk, although nobody here asks again."""
    journal, refund = desk.runtime.journal, refund_tool(desk)
    journal.leases._heart._every = 0.01
    with pytest.raises(ZeroDivisionError), desk.step() as txn:
        refund("o-1", 100)
        outage.begin()
        raise ZeroDivisionError
    outage.end()
    until(lambda: holder(desk, txn) is None)
    until(lambda: journal.leases._heart._thread is None)


def test_a_lease_that_is_gone_is_not_said_to_be_anybodys(desk: Desk) -> None:
    """A server that forgot what it was told last has no owner either: only what is known is said."""
    refund = refund_tool(desk)
    gone = pytest.raises(LeaseLost, match=r"is not this run's any more.*Run it again under its key")
    with gone as lost, desk.step() as txn:
        with desk.runtime.journal.database.unit(durable=False) as unit:
            unit.execute("UPDATE transactions SET holder = NULL WHERE txn = ?", (txn.txn,))
        refund("o-1", 100)
    assert "another process took it over, or" in str(lost.value)
    run(desk, (refund, "o-1", 100))
    assert len(desk.done) == 1
