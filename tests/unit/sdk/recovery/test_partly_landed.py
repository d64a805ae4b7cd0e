"""Live work of which a part landed: what nobody can tell is not written as kept, and not as undone."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from countersign import (
    CountersignError,
    FilesAdapter,
    JournalError,
    LiveCommitFailed,
    OutcomeUnknown,
    SQLiteAdapter,
    Transaction,
    resume,
    run_transaction,
    tool,
    transaction,
)
from countersign.adapters.overlay import FilesSession
from countersign.journal.reading import LIVE_LANE
from tests.fakes.desk import Desk, charge_tools, note_tool, notes_database, notes_in, refund_tool
from tests.unit.sdk.commit.test_failure_path import states
from tests.unit.sdk.live.test_lane import Stubborn

Live = Callable[[str, str], Any]


@pytest.fixture
def both(desk: Desk) -> tuple[Live, Live]:
    """A tool whose database can commit, and one whose cannot."""
    (desk.folder / "other").mkdir()
    first = note_tool(desk, SQLiteAdapter(notes_database(desk.folder)))
    second = note_tool(desk, Stubborn(notes_database(desk.folder / "other"), name="other"), name="other_note")
    return first, second


def live_states(desk: Desk) -> list[str]:
    (record,) = desk.runtime.journal.transactions.find("t-1")
    return [row.state.value for row in desk.runtime.journal.transactions.shown(record, LIVE_LANE)]


def test_where_one_of_two_landed_neither_is_undone_as_what_fired_is_taken_back(
    desk: Desk, both: tuple[Live, Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process died as the charge was being taken back."""
    charge, journal = charge_tools(desk), desk.runtime.journal
    begin, begun = journal.firing.begin, list[int]()

    def begin_once(*args: Any, **options: Any) -> None:
        if begun:
            full()
        begun.append(1)
        begin(*args, **options)

    def full(*_: Any, **__: Any) -> None:
        raise JournalError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(journal.firing, "begin", begin_once)
        broken.setattr(journal.transactions, "end_live", full)
        with pytest.raises(CountersignError), transaction("t-1", runtime=desk.runtime):
            for live in both:
                live("o-1", "hello")
            charge("o-1", 100)
    assert (states(desk, "t-1"), live_states(desk)) == ({"charge#1": "compensating"}, ["live", "live"])
    (found,) = resume(desk.runtime)
    assert (found.after, live_states(desk)) == ("unsettled", ["live", "live"])
    assert notes_in(desk.folder / "notes.db") == [("o-1", "hello")]


def test_whoever_waits_for_what_nobody_will_settle_is_told_so(desk: Desk, both: tuple[Live, Live]) -> None:
    """The service is in no doubt of what fired; that the live work is, nobody there hears."""
    refund, ran = refund_tool(desk), list[int]()

    def step(_: Transaction) -> None:
        ran.append(1)
        assert len(ran) < 9, "it is run again and again"
        for live in both:
            live("o-1", "hello")
        refund("o-1", 100)

    with pytest.raises(LiveCommitFailed):
        run_transaction(step, key="t-1", runtime=desk.runtime)
    with pytest.raises(OutcomeUnknown, match="in notes stand, and those in other do not"):
        run_transaction(step, key="t-1", wait=60, runtime=desk.runtime)
    assert len(ran) == 3
    assert desk.done == [("refund", "o-1", 100)]


@pytest.mark.parametrize("staged", [False, True])
def test_a_part_that_stands_is_never_told_as_undone_nor_as_settled(
    desk: Desk, both: tuple[Live, Live], staged: bool
) -> None:
    """Also where what fired could be taken back."""
    charge = charge_tools(desk)
    with pytest.raises(LiveCommitFailed), transaction("t-1", runtime=desk.runtime) as txn:
        for live in both:
            live("o-1", "hello")
        if staged:
            charge("o-1", 100)
    assert (txn.state, live_states(desk)) == ("unsettled", ["live", "live"])
    for _ in range(2):
        (found,) = resume(desk.runtime)
        assert (found.after, live_states(desk)) == ("unsettled", ["live", "live"])
        told = found.note
        if staged:  # the charge was taken back, which makes nothing of the note
            assert "live adapter 'other' could not commit" in told and "standing: notes" in told
            assert "None of its staged effects stands. Tell the operator." in told
        else:
            assert "in notes stand, and those in other do not" in told
    assert [what for what, *_ in desk.done] == (["charge", "void"] if staged else [])


def test_live_work_of_which_nothing_landed_is_undone(desk: Desk, both: tuple[Live, Live]) -> None:
    charge, live = charge_tools(desk), both[1]
    with pytest.raises(LiveCommitFailed), transaction("t-1", runtime=desk.runtime) as txn:
        live("o-1", "hello")
        charge("o-1", 100)
    assert (txn.state, live_states(desk), resume(desk.runtime)) == ("settled", ["undone"], [])


def test_what_was_prepared_and_cannot_be_committed_is_not_kept(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process died between the two commits, and the disk is full since."""
    (desk.folder / "root").mkdir()
    files = FilesAdapter(desk.folder / "root")
    note = note_tool(desk, SQLiteAdapter(notes_database(desk.folder)))

    @tool("save", lane="live", adapter=files, registry=desk.registry)
    def save(path: str, text: str) -> None:
        """Write a file."""
        files.write(path, text)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    if (pid := os.fork()) == 0:
        monkeypatch.setattr(FilesSession, "commit", lambda *_: os._exit(7))
        with transaction("t-1", runtime=desk.runtime):
            note("o-1", "hello")
            save("a", "new")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert (notes_in(desk.folder / "notes.db"), live_states(desk)) == ([("o-1", "hello")], ["live", "live"])
    monkeypatch.setattr(FilesSession, "commit", full)
    (found,) = resume(desk.runtime)
    assert (found.before, found.after, live_states(desk)) == ("frozen", "unsettled", ["live", "live"])
    assert "could not commit" in found.note
