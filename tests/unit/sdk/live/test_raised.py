"""A live call that raised is undone by its savepoint, whatever becomes of the others: it is no part of what its list
keeps, loses, foresees or compares.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from countersign import (
    AlreadyRedeemed,
    FilesAdapter,
    JournalError,
    LiveCall,
    OutcomeUnknown,
    ReviewPending,
    SavepointLost,
    SessionLost,
    SQLiteAdapter,
    Transaction,
    replay,
    resume,
    tool,
    transaction,
)
from countersign.journal.counting import count
from countersign.journal.exporting import exported
from countersign.journal.reading import LIVE_LANE
from countersign.journal.searching import Wanted
from countersign.journal.telling import describe
from countersign.journal.transactions import Transactions
from countersign.journal.verifying import verify
from tests.fakes.desk import (
    Desk,
    answering_tool,
    charge_tools,
    note_tool,
    notes_database,
    notes_in,
    refund_tool,
    states,
)
from tests.unit.sdk.full_disk import full_after
from tests.unit.sdk.journals import BOTH

Note = Callable[[str, str], int]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return notes_database(tmp_path)


@pytest.fixture
def database(notes: Path) -> SQLiteAdapter:
    return SQLiteAdapter(notes, busy_seconds=0.2)


@pytest.fixture
def note(desk: Desk, database: SQLiteAdapter) -> Note:
    """Raises after it has written, where the text is "bad"."""
    return note_tool(desk, database)


def caught(note: Note) -> None:
    with pytest.raises(ValueError, match="bad note"):
        note("o-9", "bad")


def live_rows(desk: Desk, key: str = "t-1") -> list[tuple[str, str, str | None]]:
    """Of the list in force."""
    (record,) = desk.runtime.journal.transactions.find(key)
    rows = desk.runtime.journal.transactions.shown(record, LIVE_LANE)
    return [(row.tool, row.state.value, row.error) for row in rows]


def live_count(desk: Desk, key: str = "t-1") -> int:
    return int(desk.runtime.journal.transactions.find(key)[0].live)


RAISED = ("note", "undone", "note raised ValueError: bad note")
KEPT = ("note", "kept", None)


# ------------------------------------------------------------------------------------------ what the journal says


@pytest.mark.parametrize("engine", BOTH)
def test_the_journal_says_that_it_is_undone_and_what_stands_beside_it(desk: Desk, note: Note) -> None:
    with desk.step() as txn:
        note("o-1", "first")
        caught(note)
        note("o-2", "second")
        assert live_rows_of_run(desk, txn) == [("live", None), ("undone", RAISED[2]), ("live", None)]
    assert live_rows(desk) == [KEPT, RAISED, KEPT]
    assert (live_count(desk), txn.state) == (2, "settled")
    counted = count(desk.runtime.journal.database, Wanted())
    assert counted["tools"][0]["fired"] == 2 and counted["tools"][0]["states"] == {"kept": 2, "undone": 1}
    told = describe(desk.runtime.journal, desk.runtime.journal.transactions.find("t-1")[0])
    shown = [(one["state"], one["error"]) for one in told["effects"]]
    assert shown == [KEPT[1:], RAISED[1:], KEPT[1:]], "people are shown why"


def live_rows_of_run(desk: Desk, txn: Transaction) -> list[tuple[str, str | None]]:
    rows = desk.runtime.journal.database.rows(
        "SELECT state, error FROM effects WHERE txn = ? ORDER BY staging, seq", (txn.txn,)
    )
    return [tuple(row) for row in rows]


def test_its_row_goes_with_the_list_where_a_block_after_it_is_taken_back(desk: Desk, note: Note) -> None:
    """What raised vanished from the journal as soon as the list was begun anew."""
    refund = refund_tool(desk)
    with desk.step():
        caught(note)
        note("o-1", "hello")
        with suppress(LookupError), transaction(runtime=desk.runtime):
            refund("o-2", 5)
            raise LookupError
        refund("o-1", 5)
    (raised, kept) = live_rows(desk)
    assert raised[:2] == ("note", "undone") and "ValueError" in str(raised[2])
    assert kept == ("note", "kept", None)
    assert verify(desk.runtime.settings.journal_path).sound


@pytest.mark.parametrize("then", ["a block is taken back", "calls are put in order"])
def test_one_that_is_done_again_after_it_raised_stands_also_where_the_list_is_begun_anew(
    desk: Desk, database: SQLiteAdapter, then: str
) -> None:
    """The same call, with the same key: its nested block was taken back with what it had counted."""
    refund, fails = refund_tool(desk), [1]

    @tool("flaky", lane="live", adapter=database, registry=desk.registry)
    def flaky(order_id: str) -> None:
        """Raise once."""
        if fails:
            fails.pop()
            raise ValueError("later")
        database.connection.execute("INSERT INTO notes VALUES (?, 'done')", (order_id,))

    with desk.step() as txn:
        with suppress(ValueError), transaction(runtime=desk.runtime):
            flaky("o-1")
        flaky("o-1")
        if then == "a block is taken back":
            with suppress(LookupError), transaction(runtime=desk.runtime):
                refund("o-2", 5)
                raise LookupError
        else:
            with txn.parallel():
                for order in ("o-3", "o-2"):
                    spawn(refund, order, 5).join()
    assert (notes_in(desk.folder / "notes.db"), txn.state) == ([("o-1", "done")], "settled")
    assert ("flaky", "kept", None) in live_rows(desk)
    assert verify(desk.runtime.settings.journal_path).sound


def test_a_step_in_which_every_call_raised_has_done_nothing_and_spends_no_key(
    desk: Desk, notes: Path, note: Note
) -> None:
    with desk.step() as txn:
        caught(note)
    assert (live_count(desk), txn.state, live_rows(desk)) == (0, "ended", [RAISED])
    with desk.step() as again:
        note("o-1", "now")
    assert (again.replayed, notes_in(notes)) == (False, [("o-1", "now")])


def test_a_body_that_fails_anyway_leaves_all_undone(desk: Desk, notes: Path, note: Note) -> None:
    with pytest.raises(ZeroDivisionError), desk.step() as txn:
        note("o-1", "first")
        caught(note)
        raise ZeroDivisionError
    assert live_rows_of_run(desk, txn) == [("undone", None), ("undone", RAISED[2])]
    assert (notes_in(notes), txn.state) == ([], "ended")


def test_the_text_of_what_it_raised_is_not_kept(desk: Desk, database: SQLiteAdapter) -> None:
    """It may repeat what a call was given, of this tool or of another that it had called."""

    @tool("sign_in", lane="live", adapter=database, registry=desk.registry, secret=["token"])
    def sign_in(token: str) -> None:
        """Sign in."""
        raise ValueError(f"no such token: {token}")

    with desk.step(), pytest.raises(Exception, match=r"raised|no such"):
        sign_in("s3cret-token")
    assert live_rows(desk) == [("sign_in", "undone", "sign_in raised ValueError")]
    assert all(b"s3cret-token" not in path.read_bytes() for path in desk.folder.iterdir() if path.is_file())


# --------------------------------------------------------------------------- other ways to raise, and inside others


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_one_that_was_interrupted_is_undone_as_well(
    desk: Desk, notes: Path, database: SQLiteAdapter, error: type[BaseException]
) -> None:
    @tool("cut", lane="live", adapter=database, registry=desk.registry)
    def cut() -> None:
        """Write, and be interrupted."""
        database.connection.execute("INSERT INTO notes VALUES ('half', 'done')")
        raise error

    with desk.step(), pytest.raises(error):
        cut()
    assert live_rows(desk) == [("cut", "undone", f"cut raised {error.__name__}")]
    assert (notes_in(notes), live_count(desk)) == ([], 0)


def test_one_that_was_cancelled_is_undone_as_well(desk: Desk, notes: Path, database: SQLiteAdapter) -> None:
    @tool("dawdle", lane="live", adapter=database, registry=desk.registry)
    async def dawdle(seconds: float) -> None:
        """Write, and take long."""
        database.connection.execute("INSERT INTO notes VALUES (?, 'done')", (str(seconds),))
        await asyncio.sleep(seconds)

    async def body() -> None:
        async with desk.step():
            await dawdle(0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await dawdle(60)

    asyncio.run(body())
    assert [row[2] for row in live_rows(desk)] == [None, "dawdle raised CancelledError"]
    assert (len(notes_in(notes)), live_count(desk)) == (1, 1)


def outer_tool(desk: Desk, adapter: SQLiteAdapter, inner: Note, *, catches: bool) -> Callable[[str], None]:
    @tool("outer", lane="live", adapter=adapter, registry=desk.registry)
    def outer(text: str) -> None:
        """Call another live tool, and raise unless it catches what that raises."""
        inner("o-1", "inside")
        with suppress(*([ValueError] if catches else [])):
            inner("o-2", text)
        if not catches:
            raise LookupError("nothing there")

    return outer


def test_inside_another_that_catches_it_it_is_undone_alone(
    desk: Desk, notes: Path, database: SQLiteAdapter, note: Note
) -> None:
    outer = outer_tool(desk, database, note, catches=True)
    with desk.step():
        outer("bad")
    assert live_rows(desk) == [("outer", "kept", None), KEPT, RAISED]
    assert (notes_in(notes), live_count(desk)) == ([("o-1", "inside")], 2)


def test_what_it_had_called_there_is_undone_with_it(
    desk: Desk, notes: Path, database: SQLiteAdapter, note: Note
) -> None:
    outer = outer_tool(desk, database, note, catches=False)
    with desk.step():
        note("o-0", "before")
        with pytest.raises(LookupError):
            outer("well")
        note("o-3", "after")
    why = ("undone", "outer raised LookupError: nothing there")
    assert live_rows(desk) == [KEPT, ("outer", *why), ("note", *why), ("note", *why), KEPT]
    assert (notes_in(notes), live_count(desk)) == ([("o-0", "before"), ("o-3", "after")], 2)


def test_what_it_had_called_on_another_adapter_stands(
    desk: Desk, notes: Path, note: Note, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = SQLiteAdapter(notes_database(tmp_path / "other"), name="other")
    outer = outer_tool(desk, other, note, catches=False)
    with desk.step(), pytest.raises(LookupError):
        outer("well")
    assert live_rows(desk) == [("outer", "undone", "outer raised LookupError: nothing there"), KEPT, KEPT]
    assert (notes_in(notes), live_count(desk)) == ([("o-1", "inside"), ("o-2", "well")], 2)


def test_in_a_nested_transaction_it_is_undone_alone_and_with_the_block(
    desk: Desk, notes: Path, note: Note
) -> None:
    with desk.step() as txn:
        note("o-1", "outer")
        with transaction(runtime=desk.runtime):
            note("o-2", "inner")
            caught(note)
        with pytest.raises(ZeroDivisionError), transaction(runtime=desk.runtime):
            caught(note)
            note("o-3", "inner")
            raise ZeroDivisionError
    assert live_rows(desk) == [KEPT, KEPT, RAISED, RAISED]  # the run went on with a list of its own
    undone = [row for row in live_rows_of_run(desk, txn) if row[0] == "undone"]
    dropped = ("undone", "the inner block raised ZeroDivisionError")
    assert undone == [("undone", RAISED[2])] * 2 + [dropped] + [("undone", RAISED[2])] * 2
    assert (notes_in(notes), live_count(desk)) == ([("o-1", "outer"), ("o-2", "inner")], 2)


def test_of_threads_each_has_its_own_row(desk: Desk, notes: Path, note: Note) -> None:
    def call(position: int) -> None:
        with suppress(ValueError):
            note(f"o-{position}", "bad" if position % 2 else "good")

    with desk.step() as txn, txn.parallel():
        threads = [spawn(call, position) for position in range(20)]
        for thread in threads:
            thread.join()
    assert sorted(row[1] for row in live_rows(desk)) == ["kept"] * 10 + ["undone"] * 10
    assert (len(notes_in(notes)), live_count(desk)) == (10, 10)


def spawn(call: Callable[..., object], *given: object) -> threading.Thread:
    thread = threading.Thread(target=contextvars.copy_context().run, args=(call, *given))
    thread.start()
    return thread


# ------------------------------------------------------------------------------ nothing is claimed that is not known


def test_where_the_whole_session_is_lost_nothing_is_noted_before_it_is_undone(
    desk: Desk, notes: Path, database: SQLiteAdapter, note: Note
) -> None:
    @tool("end_it", lane="live", adapter=database, registry=desk.registry)
    def end_it() -> None:
        """Have SQLite end the transaction."""
        database.connection.execute("INSERT OR ROLLBACK INTO notes VALUES ('o-1', 'again')")

    with pytest.raises(SessionLost), desk.step() as txn:
        note("o-1", "first")
        with pytest.raises(SessionLost):
            end_it()
        assert live_rows_of_run(desk, txn) == [("live", None), ("live", None)]
    assert live_rows_of_run(desk, txn) == [("undone", None), ("undone", None)]
    assert notes_in(notes) == []


def test_where_the_journal_cannot_be_told_nothing_is_committed(
    desk: Desk, notes: Path, note: Note, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program still hears what its tool raised."""
    refund = refund_tool(desk)

    def full(*_: Any, **__: Any) -> None:
        raise JournalError("the disk is full")

    lost = pytest.raises(SavepointLost, match="bad note, and the journal could not be told: the disk")
    with lost, desk.step() as txn:
        note("o-1", "first")
        refund("o-1", 100)
        with monkeypatch.context() as broken:
            broken.setattr(Transactions, "undone_alone", full)
            caught(note)
    assert (notes_in(notes), desk.done, txn.state) == ([], [], "ended")
    assert {state for state, _ in live_rows_of_run(desk, txn)} == {"undone", "withdrawn"}


def test_a_fork_that_leaves_it_by_an_exception_notes_nothing(
    desk: Desk, notes: Path, database: SQLiteAdapter
) -> None:
    @tool("fork_out", lane="live", adapter=database, registry=desk.registry)
    def fork_out() -> None:
        """Write, and let a child leave by an exception."""
        database.connection.execute("INSERT INTO notes VALUES ('o-1', 'kept')")
        child = os.fork()
        if child == 0:
            raise ZeroDivisionError
        os.waitpid(child, 0)

    parent = os.getpid()
    try:
        with desk.step() as txn:
            fork_out()
            assert live_rows_of_run(desk, txn) == [("live", None)]
    except BaseException:
        if os.getpid() == parent:
            raise
    finally:
        if os.getpid() != parent:
            os._exit(0)
    assert (live_rows(desk), notes_in(notes)) == ([("fork_out", "kept", None)], [("o-1", "kept")])


# ------------------------------------------------------------------------------------------------- recovery


def cut(desk: Desk, begun: int) -> AbstractContextManager[object]:
    stack = ExitStack()
    stack.enter_context(pytest.raises((JournalError, OutcomeUnknown)))
    stack.enter_context(full_after(desk.runtime.journal, begun))
    return stack


@pytest.mark.parametrize("engine", BOTH)
@pytest.mark.parametrize("stands", [False, True], ids=["alone", "beside work that is lost"])
def test_recovery_believes_only_that_work_lost_that_stood(desk: Desk, note: Note, stands: bool) -> None:
    charge, refund = charge_tools(desk), refund_tool(desk)
    label = answering_tool(desk, None, name="label", idempotent=True)
    with cut(desk, begun=2), desk.step():
        caught(note)
        if stands:
            note("o-1", "well")
        charge("o-1", 100)
        label("o-1")
        refund("o-1", 100)
    (found,) = resume(desk.runtime)
    if stands:
        assert (found.after, states(desk)["label#2"]) == ("unsettled", "unknown")
    else:
        assert (found.after, {*states(desk).values()}) == ("settled", {"fired"})
        assert [one[0] for one in desk.done] == ["charge", "label", "label", "refund"]


def save_tool(desk: Desk, files: FilesAdapter) -> Callable[[str, bool], None]:
    @tool("save", lane="live", adapter=files, registry=desk.registry)
    def save(name: str, well: bool) -> None:
        """Save a file, or raise once it is written."""
        if files.exists(name):
            files.read(name)
        files.write(name, "new")
        if not well:
            raise ValueError("bad file")

    return save


@pytest.mark.parametrize("well", [True, False], ids=["the file stood", "the file's call raised"])
def test_what_another_adapter_had_prepared_is_finished_or_put_away(
    desk: Desk, note: Note, well: bool
) -> None:
    """In a process that died. The database forgot its session; nothing of it was to stand."""
    root = desk.folder / "root"
    root.mkdir()
    save, refund = save_tool(desk, FilesAdapter(root)), refund_tool(desk)
    with cut(desk, begun=0), desk.step():
        caught(note)
        with suppress(ValueError):
            save("a", well)
        refund("o-1", 100)
    record = desk.runtime.journal.transactions.find("t-1")[0]
    child = os.fork()
    if child == 0:  # as the process that was killed there had left it
        files = FilesAdapter(root)
        session = files.begin(record.txn)
        with suppress(ValueError), session.effect(LiveCall("save", {}, "e-1")):
            files.write("a", "new")
            if not well:
                raise ValueError
        session.prepare(record.attempt_id or "")
        os._exit(0)
    os.waitpid(child, 0)
    sessions = root / ".countersign" / "sessions"
    assert len(list(sessions.iterdir())) == 1
    (found,) = resume(desk.runtime)
    assert (found.after, len(desk.done)) == ("settled", 1)
    assert ((root / "a").exists(), list(sessions.iterdir())) == (well, [])


# ------------------------------------------------------------------------------------------------- reruns


def test_a_rerun_whose_call_raises_for_it_was_done_is_the_same_step(
    desk: Desk, notes: Path, database: SQLiteAdapter
) -> None:
    """A row that is there already is not put in twice."""

    @tool("put", lane="live", adapter=database, registry=desk.registry)
    def put(order_id: str) -> None:
        """Put a row in."""
        database.connection.execute("INSERT INTO notes VALUES (?, 'put')", (order_id,))

    for _ in range(2):
        with desk.step() as txn:
            for order in ("o-1", "o-2"):
                with suppress(Exception):
                    put(order)
    assert (txn.replayed, notes_in(notes)) == (True, [("o-1", "put"), ("o-2", "put")])


def test_a_rerun_that_does_what_raised_then_is_refused_and_undone(
    desk: Desk, notes: Path, database: SQLiteAdapter
) -> None:
    fails = [True]

    @tool("try_it", lane="live", adapter=database, registry=desk.registry)
    def try_it(order_id: str) -> None:
        """Raise the first time."""
        database.connection.execute("INSERT OR REPLACE INTO notes VALUES (?, 'tried')", (order_id,))
        if order_id == "o-2" and fails[0]:
            raise ValueError

    def step() -> None:
        with desk.step():
            for order in ("o-1", "o-2"):
                with suppress(ValueError):
                    try_it(order)

    step()
    fails[0] = False
    with pytest.raises(AlreadyRedeemed, match="another list of calls was committed"):
        step()
    assert notes_in(notes) == [("o-1", "tried")]


@pytest.mark.parametrize("calls", [["o-1"], ["o-1", "o-2", "o-3"], ["o-2"], []])
def test_a_rerun_of_other_calls_is_refused(desk: Desk, notes: Path, note: Note, calls: list[str]) -> None:
    for orders in (["o-1", "o-2"], calls):
        told = pytest.raises(AlreadyRedeemed, match="another list of calls was committed")
        with told if orders is calls else nullcontext(), desk.step():
            caught(note)
            for order in orders:
                note(order, "text")
    assert notes_in(notes) == [("o-1", "text"), ("o-2", "text")]


@pytest.mark.parametrize("of_before", [False, True], ids=["", "a journal of before that kept it"])
def test_a_rerun_whose_call_raises_again_is_the_same_step(
    desk: Desk, notes: Path, note: Note, monkeypatch: pytest.MonkeyPatch, of_before: bool
) -> None:
    for replayed in (False, True):
        with monkeypatch.context() as before:
            if of_before and not replayed:
                before.setattr("countersign.transactions.step.Step._leave_out", lambda *_: None)
            with desk.step() as txn:
                note("o-1", "first")
                caught(note)
        assert txn.replayed is replayed
        assert live_rows(desk) == ([KEPT, KEPT] if of_before else [KEPT, RAISED])
    assert notes_in(notes) == [("o-1", "first")]


def test_people_who_are_asked_meanwhile_change_nothing_of_it(desk: Desk, notes: Path, note: Note) -> None:
    refund = refund_tool(desk)
    for approved in (False, True):
        with nullcontext() if approved else pytest.raises(ReviewPending), desk.step() as txn:
            note("o-1", "first")
            caught(note)
            refund("o-1", 90_000)
        assert live_rows(desk) == [KEPT if approved else ("note", "undone", None), RAISED]
        if not approved:
            desk.service.approve(txn.txn)
    assert (notes_in(notes), len(desk.done)) == ([("o-1", "first")], 1)


# ------------------------------------------------------------------------------------------------- rehearsals


def test_a_dry_run_lists_what_would_stand(desk: Desk, note: Note) -> None:
    with desk.step(dry_run=True) as txn:
        note("o-1", "first")
        caught(note)
    assert [one.args for one in txn.result.live] == [{"order_id": "o-1", "text": "first"}]


@pytest.mark.parametrize("mode", ["verify", "reconstruct"])
@pytest.mark.parametrize("source", ["journal", "export"])
def test_a_replay_compares_what_stood(desk: Desk, note: Note, mode: Any, source: str) -> None:
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
        records = desk.runtime.journal.transactions.find("t-1")
        told = [describe(desk.runtime.journal, record) for record in records]
        options["export"] = json.loads(exported("json", told, "2026-11-24T00:00:00Z"))
    assert replay("t-1", step, **options).status == "same"
    for other in ({"well": True}, {"more": True}):
        (one,) = replay("t-1", lambda txn, other=other: step(txn, **other), **options).divergences
        assert (one.kind, one.lane, one.position) == ("extra", "live", 2)


# ------------------------------------------------------------------------------- what is left of it decides nothing


def test_a_session_of_which_nothing_stands_takes_nothing_back(
    desk: Desk, note: Note, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter that holds nothing cannot fail to commit it."""
    charge = charge_tools(desk)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("countersign.adapters.sqlite.SQLiteSession.commit", full)
    with desk.step() as txn:
        caught(note)
        charge("o-1", 100)
    assert (txn.state, [what for what, *_ in desk.done]) == ("settled", ["charge"])


def test_nor_does_it_keep_a_step_from_waiting_for_people(desk: Desk, note: Note) -> None:
    refund = refund_tool(desk)
    with desk.step(wait=600) as txn:
        caught(note)
        refund("o-1", 90_000)
        soon = threading.Timer(0.3, desk.service.approve, [txn.txn])
        soon.start()
    soon.join()
    assert (txn.state, len(desk.done)) == ("settled", 1)
