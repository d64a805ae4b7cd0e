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
)
from countersign.adapters.overlay import FilesSession
from tests.fakes.desk import (
    Desk,
    charge_tools,
    live_states,
    note_tool,
    notes_database,
    notes_in,
    refund_tool,
    save_tool,
    states,
)

Live = Callable[[str, str], Any]


def test_neither_is_undone(desk: Desk, both: tuple[Live, Live], monkeypatch: pytest.MonkeyPatch) -> None:
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
        with pytest.raises(CountersignError), desk.step():
            for live in both:
                live("o-1", "hello")
            charge("o-1", 100)
    assert (states(desk), live_states(desk)) == ({"charge#1": "compensating"}, ["live", "live"])
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
def test_a_part_that_stands_is_never_told_as_undone(
    desk: Desk, both: tuple[Live, Live], staged: bool
) -> None:
    """Also where what fired could be taken back."""
    charge = charge_tools(desk)
    with pytest.raises(LiveCommitFailed), desk.step() as txn:
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
    txn = desk.run((live, "o-1", "hello"), (charge, "o-1", 100), raises=LiveCommitFailed)
    assert (txn.state, live_states(desk), resume(desk.runtime)) == ("settled", ["undone"], [])


def dies_before_files_commit(desk: Desk, files: FilesAdapter) -> None:
    """A process that had committed to its database dies before it puts its files in place."""
    note, save = note_tool(desk, SQLiteAdapter(notes_database(desk.folder))), save_tool(desk, files)
    if (pid := os.fork()) == 0:
        pytest.MonkeyPatch().setattr(FilesSession, "commit", lambda *_: os._exit(7))
        desk.run((note, "o-1", "hello"), (save, "a"))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_what_was_prepared_is_not_kept(
    desk: Desk, files: FilesAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process died between the two commits, and the disk is full since."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    dies_before_files_commit(desk, files)
    assert (notes_in(desk.folder / "notes.db"), live_states(desk)) == ([("o-1", "hello")], ["live", "live"])
    monkeypatch.setattr(FilesSession, "commit", full)
    (found,) = resume(desk.runtime)
    assert (found.before, found.after, live_states(desk)) == ("frozen", "unsettled", ["live", "live"])
    assert "could not commit" in found.note
