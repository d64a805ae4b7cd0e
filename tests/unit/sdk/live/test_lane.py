"""The live lane: it runs at once, and it stands or falls with its transaction."""

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from countersign import (
    AlreadyRedeemed,
    Denied,
    EffectFailed,
    JournalError,
    LiveCall,
    LiveCommitFailed,
    Moved,
    NotDone,
    NotStageable,
    OutcomeUnknown,
    OutsideTransaction,
    RegistrationError,
    ReviewPending,
    ServiceUnavailable,
    SQLiteAdapter,
    resume,
    tool,
)
from countersign.adapters.files import FilesAdapter
from countersign.adapters.overlay import FilesSession
from countersign.journal.chain import changing
from tests.fakes.desk import (
    Desk,
    asked_of_policy,
    charge_tools,
    failing_tool,
    note_tool,
    notes_database,
    notes_in,
    refund_tool,
)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return notes_database(tmp_path)


@pytest.fixture
def database(notes: Path) -> SQLiteAdapter:
    return SQLiteAdapter(notes, busy_seconds=0.2)


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


def test_a_live_tool_runs_at_once_and_is_kept_by_the_commit(
    desk: Desk, notes: Path, database: SQLiteAdapter
) -> None:
    note, refund, seen = note_tool(desk, database), refund_tool(desk), list[Any]()
    desk.before_fire = lambda _: seen.append(notes_in(notes))
    with desk.step() as txn:
        assert note("o-1", "hello") == 1
        refund("o-1", 100)
        assert (notes_in(notes), desk.done) == ([], [])
    assert (notes_in(notes), len(desk.done), txn.state) == ([("o-1", "hello")], 1, "settled")
    assert seen == [[]], "the live lane commits after the staged effects fired"


def test_a_transaction_of_live_effects_alone_asks_nobody(
    desk: Desk, notes: Path, database: SQLiteAdapter
) -> None:
    note = note_tool(desk, database)
    with desk.step() as txn:
        note("o-1", "hello")
    assert (notes_in(notes), txn.state, asked_of_policy(desk)) == ([("o-1", "hello")], "settled", [])


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_body_undoes_it_and_frees_the_lock(
    desk: Desk, notes: Path, database: SQLiteAdapter, error: type[BaseException]
) -> None:
    note = note_tool(desk, database)
    with pytest.raises(error), desk.step():
        note("o-1", "hello")
        raise error
    assert (notes_in(notes), lock_is_free(notes)) == ([], True)


def test_a_denial_undoes_it(desk: Desk, notes: Path, database: SQLiteAdapter) -> None:
    note, refund = note_tool(desk, database), refund_tool(desk)
    with pytest.raises(Denied), desk.step():
        note("o-1", "hello")
        refund("o-1", 900_000)
    assert (notes_in(notes), lock_is_free(notes)) == ([], True)


def test_nothing_is_held_open_while_people_decide(desk: Desk, notes: Path, database: SQLiteAdapter) -> None:
    note, refund = note_tool(desk, database), refund_tool(desk)
    with pytest.raises(ReviewPending, match="run the same transaction again") as pending, desk.step(wait=60):
        note("o-1", "hello")
        refund("o-1", 90_000)
    assert not pending.value.parked
    assert (notes_in(notes), lock_is_free(notes)) == ([], True)
    desk.service.approve(pending.value.txn)
    with desk.step(wait=60):
        note("o-1", "hello")
        refund("o-1", 90_000)
    assert (notes_in(notes), desk.done) == ([("o-1", "hello")], [("refund", "o-1", 90_000)])


def test_a_service_that_is_down_undoes_it_and_fires_nothing(
    desk: Desk, notes: Path, database: SQLiteAdapter
) -> None:
    note, refund = note_tool(desk, database), refund_tool(desk)
    desk.face.faults["/v1/"] = ["lost_request"] * 20
    with pytest.raises(ServiceUnavailable), desk.step():
        note("o-1", "hello")
        refund("o-1", 100)
    assert (notes_in(notes), desk.done, lock_is_free(notes)) == ([], [], True)


def test_one_live_effect_that_raises_leaves_the_others_of_its_transaction(
    desk: Desk, notes: Path, database: SQLiteAdapter
) -> None:
    note = note_tool(desk, database)
    with desk.step():
        note("o-1", "kept")
        with pytest.raises(ValueError, match="bad note"):
            note("o-2", "bad")
    assert notes_in(notes) == [("o-1", "kept")]


def test_a_failing_staged_effect_undoes_it_and_takes_back_what_fired(
    desk: Desk, notes: Path, database: SQLiteAdapter
) -> None:
    note, charge = note_tool(desk, database), charge_tools(desk)
    notify = failing_tool(desk, NotDone("no"), acts=False)
    with pytest.raises(EffectFailed), desk.step():
        note("o-1", "hello")
        charge("o-1", 100)
        notify("o-1")
    assert (notes_in(notes), [what for what, *_ in desk.done]) == ([], ["charge", "void"])


@pytest.mark.parametrize("error", [NotDone("no"), TimeoutError()])
def test_it_is_undone_before_the_service_is_told_what_failed(
    desk: Desk, notes: Path, database: SQLiteAdapter, error: Exception
) -> None:
    note, notify = note_tool(desk, database), failing_tool(desk, error)
    free: list[bool] = []
    desk.face.faults["/v1/outcomes"] = [lambda: free.append(lock_is_free(notes))]
    with pytest.raises((EffectFailed, OutcomeUnknown)), desk.step():
        note("o-1", "hello")
        notify("o-1")
    assert (free, notes_in(notes)) == ([True], [])


class Stubborn(SQLiteAdapter):
    """Its commit fails as a full disk does."""

    def begin(self, txn: str) -> Any:
        session = super().begin(txn)

        def refuse(attempt_id: str) -> None:
            session.undo()
            raise sqlite3.OperationalError("database or disk is full")

        session.commit = refuse  # type: ignore[method-assign]
        return session


def test_a_live_commit_that_fails_takes_back_what_fired_and_shows_the_error(desk: Desk, notes: Path) -> None:
    note, charge = note_tool(desk, Stubborn(notes)), charge_tools(desk)
    with pytest.raises(LiveCommitFailed, match="disk is full") as failed, desk.step():
        note("o-1", "hello")
        charge("o-1", 100)
    assert isinstance(failed.value.__cause__, sqlite3.OperationalError)
    assert (notes_in(notes), [what for what, *_ in desk.done]) == ([], ["charge", "void"])


@pytest.fixture
def root(desk: Desk) -> Path:
    (desk.folder / "root").mkdir()
    return desk.folder / "root"


@pytest.mark.parametrize(("staged", "told"), [(False, "It had no staged"), (True, "None of its staged")])
def test_two_databases_of_which_the_second_cannot_commit_are_told_as_partly_done(
    desk: Desk, notes: Path, database: SQLiteAdapter, tmp_path: Path, staged: bool, told: str
) -> None:
    (tmp_path / "other").mkdir()
    other = notes_database(tmp_path / "other")
    first = note_tool(desk, database)
    second = note_tool(desk, Stubborn(other, name="other"), name="other_note")
    charge = charge_tools(desk)
    with pytest.raises(LiveCommitFailed) as failed, desk.step() as txn:
        first("o-1", "hello")
        second("o-1", "hello")
        if staged:
            charge("o-1", 100)
    assert failed.value.committed == ("notes",)
    assert f"standing: notes. {told}" in str(failed.value) and "Nothing" not in str(failed.value)
    assert (notes_in(notes), notes_in(other)) == ([("o-1", "hello")], [])
    assert txn.state == "unsettled"


def test_a_live_tool_may_not_end_the_transaction_it_runs_in(
    desk: Desk, notes: Path, database: SQLiteAdapter
) -> None:
    @tool("sly", lane="live", adapter=database, registry=desk.registry)
    def sly(order_id: str) -> None:
        """Commit behind everybody's back."""
        database.connection.execute("INSERT INTO notes VALUES (?, 'sly')", (order_id,))
        database.connection.commit()

    with pytest.raises(sqlite3.DatabaseError), desk.step():
        sly("o-1")
    assert notes_in(notes) == []


def test_outside_a_transaction_a_live_tool_and_its_connection_refuse(
    desk: Desk, database: SQLiteAdapter
) -> None:
    note = note_tool(desk, database)
    with pytest.raises(OutsideTransaction):
        _ = database.connection
    with pytest.raises(OutsideTransaction):
        note("o-1", "hello")


def test_a_live_tool_needs_an_adapter_and_a_staged_one_has_none(desk: Desk, database: SQLiteAdapter) -> None:
    with pytest.raises(RegistrationError):
        tool("a", lane="live", adapter=None, registry=desk.registry)(print)  # type: ignore[call-overload]
    with pytest.raises(RegistrationError):
        tool("b", adapter=database, registry=desk.registry)(print)  # type: ignore[call-overload]


def test_live_effects_have_no_place_among_independent_ones(desk: Desk, database: SQLiteAdapter) -> None:
    note = note_tool(desk, database)
    with pytest.raises(NotStageable, match="stand alone"), desk.step(independent=True):
        note("o-1", "hello")


def test_a_rerun_of_a_settled_key_does_not_write_its_live_effects_twice(
    desk: Desk, notes: Path, database: SQLiteAdapter
) -> None:
    refund = refund_tool(desk)

    @tool("count", lane="live", adapter=database, registry=desk.registry)
    def count(order_id: str) -> None:
        """Count up."""
        database.connection.execute(
            "INSERT INTO notes VALUES (?, '1') ON CONFLICT DO UPDATE SET note = note + 1", (order_id,)
        )

    for _ in range(2):
        with desk.step():
            count("o-1")
            refund("o-1", 100)
    assert (notes_in(notes), len(desk.done)) == ([("o-1", "1")], 1)


def test_landed_says_what_the_database_says(notes: Path, database: SQLiteAdapter, tmp_path: Path) -> None:
    assert database.landed("a-1") is False
    session = database.begin("t")
    session.prepare("a-1")
    assert database.landed("a-1") is None
    session.commit("a-1")
    assert database.landed("a-1") is True
    assert SQLiteAdapter(tmp_path / "gone.db").landed("a-1") is None
    assert not (tmp_path / "gone.db").exists()


def save_tool(desk: Desk, files: FilesAdapter) -> Any:
    @tool(f"save_{files.name}", lane="live", adapter=files, registry=desk.registry)
    def save(path: str, text: str) -> None:
        """Write a file."""
        files.write(path, text)

    return save


def test_files_commit_after_databases_so_that_one_that_cannot_leaves_nothing(
    desk: Desk, notes: Path, root: Path
) -> None:
    written, seen = root / "a", list[bool]()

    class Full(Stubborn):
        def begin(self, txn: str) -> Any:
            session = super().begin(txn)
            refuse = session.commit

            def look_and_refuse(attempt_id: str) -> None:
                seen.append(written.exists())
                refuse(attempt_id)

            session.commit = look_and_refuse
            return session

    save, note = save_tool(desk, FilesAdapter(root)), note_tool(desk, Full(notes))
    with pytest.raises(LiveCommitFailed) as failed, desk.step() as txn:
        save("a", "new")
        note("o-1", "hello")
    assert (seen, failed.value.committed, written.exists(), notes_in(notes)) == ([False], (), False, [])
    assert txn.state == "ended"


def test_files_that_were_committed_are_taken_back_when_other_files_cannot_be(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [desk.folder / "one", desk.folder / "two"]
    for root in roots:
        root.mkdir()
    one, two = (save_tool(desk, FilesAdapter(root)) for root in roots)
    charge, real, seen = charge_tools(desk), os.rename, []

    def full(source: Path, target: Any, **where: int) -> None:
        if target == "b":
            seen.append((roots[0] / "a").read_text())
            raise OSError(28, "No space left on device")
        real(source, target, **where)

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(LiveCommitFailed, match="No space") as failed, desk.step():
        one("a", "new")
        two("b", "new")
        charge("o-1", 100)
    assert (seen, failed.value.committed) == (["new"], ())
    assert not (roots[0] / "a").exists() and not (roots[1] / "b").exists()
    assert [what for what, *_ in desk.done] == ["charge", "void"]


def test_a_refusal_because_something_moved_names_it_and_fires_nothing(desk: Desk, root: Path) -> None:
    save, refund = save_tool(desk, FilesAdapter(root)), refund_tool(desk)
    with pytest.raises(Moved, match="run the transaction again") as moved, desk.step():
        save("a", "mine")
        refund("o-1", 100)
        (root / "a").write_text("theirs")
    told = moved.value
    assert (told.adapter, told.key, told.read, told.expected) == ("root", "a", False, None)
    assert told.now is not None
    assert ((root / "a").read_text(), desk.done) == ("theirs", [])
    assert [asked for asked in desk.face.log if asked[0] == "POST"] == []


@pytest.mark.parametrize("fired", [True, False])
def test_a_refusal_because_something_moved_says_what_an_earlier_run_has_done(desk: Desk, fired: bool) -> None:
    note = note_tool(desk, SQLiteAdapter(notes_database(desk.folder), busy_seconds=0.05))
    refund = refund_tool(desk)
    if fired:
        with desk.step():
            note("o-1", "late")
            refund("o-1", 100)
    theirs = sqlite3.connect(desk.folder / "notes.db", isolation_level=None)
    theirs.execute("BEGIN IMMEDIATE")
    with pytest.raises(Moved, match="Nothing was fired now") as moved, desk.step():
        note("o-1", "late")
    theirs.close()
    assert ("An earlier run of its key was redeemed and is settled" in str(moved.value)) is fired


def test_what_a_dead_run_had_prepared_is_undone_although_the_rerun_does_not_touch_it(
    desk: Desk, root: Path
) -> None:
    save, refund = save_tool(desk, FilesAdapter(root)), refund_tool(desk)
    with pytest.raises(ReviewPending) as pending, desk.step():
        save("a", "new")
        refund("o-1", 90_000)
    child = os.fork()
    if child == 0:  # another process of this agent ran it again, was about to redeem, and died
        theirs = FilesAdapter(root)
        session = theirs.begin(pending.value.txn)
        with session.effect(LiveCall("save", {}, "e-1")):
            theirs.write("a", "new")
        session.prepare("a-1")
        os._exit(0)
    os.waitpid(child, 0)
    txn = pending.value.txn
    with (
        desk.runtime.journal.database.unit(durable=False) as unit,
        changing(unit, txn, "live", 0.0) as change,  # as its journal would say
    ):
        change.run("effects", "UPDATE effects SET state = 'live' WHERE lane = 'live'", (), "state")
    left = root / ".countersign" / "sessions"
    assert len(list(left.iterdir())) == 1
    with desk.step():
        refund("o-2", 100)
    assert (list(left.iterdir()), (root / "a").exists(), len(desk.done)) == ([], False, 1)


def test_what_could_not_be_undone_stays_live_in_the_journal_and_is_undone_by_the_next_to_recover(
    desk: Desk, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def input_output_error(session: object) -> None:
        raise OSError(5, "Input/output error")

    save = save_tool(desk, FilesAdapter(root))
    monkeypatch.setattr(FilesSession, "undo", input_output_error)
    with pytest.raises(OSError, match="Input/output"), desk.step() as txn:
        save("a", "new")
        raise ZeroDivisionError
    monkeypatch.undo()
    assert desk.runtime.journal.transactions.live_tools(txn.txn) == ("save_root",)
    assert [one.after for one in resume(desk.runtime)] == ["ended"]
    assert desk.runtime.journal.transactions.live_tools(txn.txn) == ()
    assert not (root / "a").exists()


# ------------------------------------------------------------------ a key of live work alone is one intent as well


def test_scenario_43_live_work_alone_is_done_once_under_its_key_in_every_process(
    desk: Desk, notes: Path, database: SQLiteAdapter
) -> None:
    note = note_tool(desk, database)
    with desk.step() as first:
        note("o-1", "hello")
    with desk.restarted() as later, later.step() as again:
        assert note("o-1", "hello") == 1
    assert (first.replayed, again.replayed, again.state) == (False, True, "settled")
    with desk.step("t-2") as other:
        note("o-1", "hello")
    assert (other.replayed, notes_in(notes)) == (False, [("o-1", "hello")])


@pytest.mark.parametrize("staged", [False, True])
def test_a_key_of_live_work_that_was_committed_takes_no_other_list(
    desk: Desk, notes: Path, database: SQLiteAdapter, staged: bool
) -> None:
    note, refund = note_tool(desk, database), refund_tool(desk)
    with desk.step():
        note("o-1", "hello")
    with pytest.raises(AlreadyRedeemed, match="another list"), desk.step() as again:
        note("o-1" if staged else "o-2", "hello")
        if staged:
            refund("o-1", 100)
    assert (desk.done, notes_in(notes), again.state) == ([], [("o-1", "hello")], "settled")


def test_live_work_that_landed_unseen_is_found_by_the_rerun(
    desk: Desk, notes: Path, database: SQLiteAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = note_tool(desk, database)

    def lost(*_: Any, **__: Any) -> None:
        raise JournalError("the disk is full")

    with monkeypatch.context() as broken, pytest.raises(JournalError), desk.step():
        note("o-1", "hello")
        broken.setattr(desk.runtime.journal.transactions, "end_live", lost)
    assert notes_in(notes) == [("o-1", "hello")]
    with desk.step() as again:
        note("o-1", "hello")
    assert (again.replayed, again.state) == (True, "settled")
