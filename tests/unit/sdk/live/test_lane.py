"""Live effects run at once, and are kept or undone with their transaction."""

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from countersign import FilesAdapter, SQLiteAdapter, errors, tool
from tests.fakes.desk import Desk, charge_tools, failing_tool, note_tool, notes_in, refund_tool, save_tool
from tests.fakes.running import fails, run


def lock_is_free(notes: Path) -> bool:
    """Whether somebody else could write now."""
    connection = sqlite3.connect(notes, timeout=0)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True


class Stubborn(SQLiteAdapter):
    """Its commit fails as a full disk does; `watches` is called before."""

    watches: Any = None

    def begin(self, txn: str) -> Any:
        session = super().begin(txn)

        def refuse(attempt_id: str) -> None:
            if self.watches is not None:
                self.watches()
            session.undo()
            raise sqlite3.OperationalError("database or disk is full")

        session.commit = refuse  # type: ignore[method-assign]
        return session


def done(desk: Desk) -> list[str]:
    return [what for what, *_ in desk.done]


FAILURES = [ZeroDivisionError, KeyboardInterrupt, SystemExit, errors.Denied, errors.ServiceUnavailable]


@pytest.mark.parametrize("error", FAILURES)
def test_a_failure_undoes_live_work(desk: Desk, notes: Path, note: Any, error: Any, refund: Any) -> None:
    if error is errors.ServiceUnavailable:
        desk.face.faults["/v1/"] = ["lost_request"] * 20
    with pytest.raises(error), desk.step():
        note("o-1", "hello")
        refund("o-1", 900_000 if error is errors.Denied else 100)
        if not issubclass(error, errors.CountersignError):
            raise error
    assert (notes_in(notes), desk.done, lock_is_free(notes)) == ([], [], True)


def test_nothing_is_held_open_while_people_decide(desk: Desk, notes: Path, note: Any) -> None:
    calls = (note, "o-1", "hello"), (refund_tool(desk), "o-1", 90_000)
    again = "run the same transaction again"
    pending = fails(desk, errors.ReviewPending, *calls, wait=60, match=again).error
    assert not pending.parked
    assert (notes_in(notes), lock_is_free(notes)) == ([], True)
    desk.service.approve(pending.txn)
    desk.run(*calls, wait=60)
    assert (notes_in(notes), desk.done) == ([("o-1", "hello")], [("refund", "o-1", 90_000)])


@pytest.mark.parametrize("error", [errors.NotDone("no"), TimeoutError()])
def test_a_failure_undoes_it_before_it_is_raised(desk: Desk, notes: Path, note: Any, error: Any) -> None:
    notify, free = failing_tool(desk, error), list[bool]()
    desk.face.faults["/v1/outcomes"] = [lambda: free.append(lock_is_free(notes))]
    desk.run((note, "o-1", "hello"), (notify, "o-1"), raises=(errors.EffectFailed, errors.OutcomeUnknown))
    assert (free, notes_in(notes)) == ([True], [])


# --------------------------------------------------------------------------------------- commits that fail


def test_files_commit_after_databases(desk: Desk, notes: Path, root: Path, files: FilesAdapter) -> None:
    full, seen = Stubborn(notes), list[bool]()
    full.watches = lambda: seen.append((root / "a").exists())
    save, note = save_tool(desk, files), note_tool(desk, full)
    failed = fails(desk, errors.LiveCommitFailed, (save, "a"), (note, "o-1", "hello"))
    assert (seen, failed.error.committed, (root / "a").exists()) == ([False], (), False)
    assert (notes_in(notes), failed.txn.state) == ([], "ended")


def test_committed_files_are_undone(desk: Desk, root: Path, files: FilesAdapter, monkeypatch: Any) -> None:
    (desk.folder / "two").mkdir()
    two = FilesAdapter(desk.folder / "two")
    save, charge, real, seen = save_tool(desk, files), charge_tools(desk), os.rename, list[str]()

    @tool("save_two", lane="live", adapter=two, registry=desk.registry)
    def save_two() -> None:
        two.write("b", "new")

    def full(source: Path, target: Any, **where: int) -> None:
        if target == "b":
            seen.append((root / "a").read_text())
            raise OSError(28, "No space left on device")
        real(source, target, **where)

    monkeypatch.setattr(os, "rename", full)
    calls = (save, "a"), (save_two,), (charge, "o-1", 100)
    failed = fails(desk, errors.LiveCommitFailed, *calls, match="No space").error
    assert (seen, failed.committed, done(desk)) == (["new"], (), ["charge", "void"])
    assert not (root / "a").exists() and not (desk.folder / "two" / "b").exists()


def test_independent_effects_are_not_live(desk: Desk, note: Any) -> None:
    fails(desk, errors.NotStageable, (note, "o-1", "hello"), independent=True, match="stand alone")


# ------------------------------------------------------------------------------------------ what moved


def test_what_moved_is_named_and_nothing_fires(desk: Desk, root: Path, files: FilesAdapter) -> None:
    save, refund = save_tool(desk, files), refund_tool(desk)
    with pytest.raises(errors.IsolationConflict, match="run the transaction again") as moved, desk.step():
        save("a", "mine")
        refund("o-1", 100)
        (root / "a").write_text("theirs")
    reported = moved.value
    assert (reported.adapter, reported.key, reported.read, reported.expected) == ("root", "a", False, None)
    assert ((root / "a").read_text(), desk.done) == ("theirs", [])
    note = str(desk.runtime.journal.transactions.find("t-1")[0].note)
    assert note.startswith("IsolationConflict: ") and "'a'" in note
    assert [asked for asked in desk.face.log if asked[0] == "POST"] == []


@pytest.mark.parametrize("fired", [True, False])
def test_a_conflict_names_an_earlier_run(desk: Desk, notes: Any, note: Any, fired: bool, refund: Any) -> None:
    if fired:
        desk.run((note, "o-1", "late"), (refund, "o-1", 100))
    theirs = sqlite3.connect(notes, isolation_level=None)
    theirs.execute("BEGIN IMMEDIATE")
    moved = fails(desk, errors.IsolationConflict, (note, "o-1", "late"), match="Nothing was fired now").error
    theirs.close()
    assert ("An earlier run of its key was redeemed and is settled" in str(moved)) is fired


# ------------------------------------------------------------------------------------------ after another run


@pytest.mark.parametrize("staged", [False, True])
def test_scenario_43_it_is_done_once(desk: Desk, notes: Any, database: Any, staged: Any, refund: Any) -> None:
    add = "INSERT INTO notes VALUES (?, '1') ON CONFLICT DO UPDATE SET note = note + 1"

    @tool("count", lane="live", adapter=database, registry=desk.registry)
    def count(order_id: str) -> int:
        """Count up."""
        return database.connection.execute(add, (order_id,)).rowcount

    calls = (count, "o-1"), *[(refund, "o-1", 100)] * staged
    first = desk.run(*calls)
    with desk.restarted() as later:
        again = run(later, *calls)
    assert again.placed[0] == 1
    assert (first.replayed, again.txn.replayed, again.txn.state) == (False, True, "settled")
    assert (notes_in(notes), len(desk.done)) == ([("o-1", "1")], int(staged))
    assert staged or desk.face.asked("/v1/transactions") == 0, "live effects alone ask no one"
    other = desk.run((count, "o-1"), key="t-2")
    assert (other.replayed, notes_in(notes)) == (False, [("o-1", "2")])


@pytest.mark.parametrize("staged", [False, True])
def test_a_spent_key_takes_no_other_list(desk: Desk, notes: Any, note: Any, staged: Any, refund: Any) -> None:
    desk.run((note, "o-1", "hello"))
    calls = [(note, "o-1", "hello"), (refund, "o-1", 100)] if staged else [(note, "o-2", "hello")]
    again = fails(desk, errors.AlreadyRedeemed, *calls, match="another list")
    assert (desk.done, notes_in(notes), again.txn.state) == ([], [("o-1", "hello")], "settled")
