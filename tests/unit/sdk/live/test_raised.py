"""A live call that raised is rolled back by its savepoint and is no part of the list, for any result of the others."""

import contextvars
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from countersign import SQLiteAdapter, errors, tool, transaction
from countersign.journal.queries import TransactionFilter, count
from countersign.journal.records import LIVE_LANE
from countersign.journal.stops_and_reruns import Transactions
from tests.fakes.desk import Desk, listed, notes_database, notes_in, record_of, refund_tool
from tests.unit.sdk.full_disk import full
from tests.unit.sdk.journals import BOTH, document

RAISED = ("note", "undone", "note raised ValueError: bad note")
KEPT = ("note", "kept", None)


def caught(note: Any) -> None:
    with pytest.raises(ValueError, match="bad note"):
        note("o-9", "bad")


def live_rows(desk: Desk) -> list[tuple[str, str, str | None]]:
    """Of the list in force."""
    rows = desk.runtime.journal.transactions.shown(record_of(desk), LIVE_LANE)
    return [(row.tool, row.state.value, row.error) for row in rows]


def rows_of_run(desk: Desk) -> list[tuple[Any, ...]]:
    return listed(desk, "state, error", "true")


def live_count(desk: Desk) -> int:
    return int(desk.runtime.journal.transactions.find("t-1")[0].live)


# ------------------------------------------------------------------------------------------ what the journal says


@pytest.mark.parametrize("engine", BOTH)
def test_the_journal_records_undone_and_kept_effects(desk: Desk, notes: Path, note: Any) -> None:
    with desk.step() as txn:
        note("o-1", "first")
        caught(note)
        note("o-2", "second")
        assert rows_of_run(desk) == [("live", None), ("undone", RAISED[2]), ("live", None)]
    assert (live_rows(desk), live_count(desk), txn.state) == ([KEPT, RAISED, KEPT], 2, "settled")
    assert notes_in(notes) == [("o-1", "first"), ("o-2", "second")]
    (counted,) = count(desk.runtime.journal.database, TransactionFilter())["tools"]
    assert (counted["fired"], counted["states"]) == (2, {"kept": 2, "undone": 1})
    (described,) = document(desk.runtime.journal, "t-1")["transactions"]
    assert [(one["state"], one["error"]) for one in described["effects"]] == [KEPT[1:], RAISED[1:], KEPT[1:]]


@pytest.mark.parametrize("then", ["a block is taken back", "calls are put in order"])
def test_a_repeated_effect_is_kept(desk: Desk, notes: Path, database: SQLiteAdapter, then: str) -> None:
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
        with suppress(ValueError), transaction():
            flaky("o-1")
        flaky("o-1")
        if then == "a block is taken back":
            with suppress(LookupError), transaction():
                refund("o-2", 5)
                raise LookupError
        else:
            with txn.parallel(), ThreadPoolExecutor(1) as pool:
                for order in ("o-3", "o-2"):
                    pool.submit(contextvars.copy_context().run, refund, order, 5).result()
    assert (notes_in(notes), txn.state) == ([("o-1", "done")], "settled")
    assert ("flaky", "kept", None) in live_rows(desk)


def test_a_step_in_which_every_call_raised_spends_no_key(desk: Desk, notes: Path, note: Any) -> None:
    txn = desk.run((caught, note))
    assert (live_count(desk), txn.state, live_rows(desk)) == (0, "ended", [RAISED])
    again = desk.run((note, "o-1", "now"))
    assert (again.replayed, notes_in(notes)) == (False, [("o-1", "now")])


def test_a_body_that_fails_anyway_leaves_all_undone(desk: Desk, notes: Path, note: Any) -> None:
    txn = desk.run((note, "o-1", "first"), (caught, note), (divmod, 1, 0), raises=ZeroDivisionError)
    assert rows_of_run(desk) == [("undone", None), RAISED[1:]]
    assert (notes_in(notes), txn.state) == ([], "ended")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_the_text_it_raised_is_not_kept(desk: Desk, notes: Path, database: SQLiteAdapter, error: Any) -> None:
    """It may repeat what a call was given, of this tool or of another that it had called."""

    @tool("sign_in", lane="live", adapter=database, registry=desk.registry, secret=["token"])
    def sign_in(token: str) -> None:
        """Write, and raise."""
        database.connection.execute("INSERT INTO notes VALUES ('half', 'done')")
        raise error(f"no such token: {token}")

    with desk.step(), pytest.raises(BaseException, match=r"raised|no such|Code"):
        sign_in("s3cret-token")
    assert live_rows(desk) == [("sign_in", "undone", f"sign_in raised {error.__name__}")]
    assert (notes_in(notes), live_count(desk)) == ([], 0)
    assert all(b"s3cret-token" not in path.read_bytes() for path in desk.folder.iterdir() if path.is_file())


# --------------------------------------------------------------------------- other ways to raise, and inside others


OUTER = ("undone", "outer raised LookupError: nothing there")
INSIDE = {
    "it catches what the inner one raised": (True, False, [("outer", "kept", None), KEPT, RAISED], ["o-1"]),
    "it raises": (False, False, [("outer", *OUTER), ("note", *OUTER), ("note", *OUTER)], []),
    "it raises, on another adapter": (False, True, [("outer", *OUTER), KEPT, KEPT], ["o-1", "o-2"]),
}


@pytest.mark.parametrize(("catches", "other", "rows", "kept"), INSIDE.values(), ids=INSIDE)
def test_inside_another_tool(
    desk: Desk, notes: Path, root: Path, database: SQLiteAdapter, note: Any,
    catches: bool, other: bool, rows: list[object], kept: list[str],
) -> None:  # fmt: skip
    """What raised is undone with all that it had called on its adapter, and with nothing else."""
    adapter = SQLiteAdapter(notes_database(root), name="other") if other else database

    @tool("outer", lane="live", adapter=adapter, registry=desk.registry)
    def outer() -> None:
        """Call another live tool, and raise unless it catches what that raises."""
        note("o-1", "inside")
        with suppress(*([ValueError] if catches else [])):
            note("o-2", "bad" if catches else "well")
        if not catches:
            raise LookupError("nothing there")

    with desk.step():
        note("o-0", "before")
        with nullcontext() if catches else pytest.raises(LookupError):
            outer()
        note("o-3", "after")
    assert live_rows(desk) == [KEPT, *rows, KEPT]
    assert [order for order, _ in notes_in(notes)] == ["o-0", *kept, "o-3"]
    assert live_count(desk) == 2 + [row[1] for row in live_rows(desk)[1:-1]].count("kept")


def test_in_a_nested_block_it_is_undone_alone_and_with_it(desk: Desk, notes: Path, note: Any) -> None:
    with desk.step():
        note("o-1", "outer")
        with transaction():
            note("o-2", "inner")
            caught(note)
        with pytest.raises(ZeroDivisionError), transaction():
            caught(note)
            note("o-3", "inner")
            raise ZeroDivisionError
    assert live_rows(desk) == [KEPT, KEPT, RAISED, RAISED]  # the run went on with a list of its own
    dropped = ("undone", "the inner block raised ZeroDivisionError")
    undone = [row for row in rows_of_run(desk) if row[0] == "undone"]
    assert undone == [RAISED[1:], RAISED[1:], dropped, RAISED[1:], RAISED[1:]]
    assert (notes_in(notes), live_count(desk)) == ([("o-1", "outer"), ("o-2", "inner")], 2)


# ------------------------------------------------------------------------------ nothing is claimed that is not known


def test_a_lost_session_notes_nothing_early(desk: Desk, notes: Path, database: Any, note: Any) -> None:
    @tool("end_it", lane="live", adapter=database, registry=desk.registry)
    def end_it() -> None:
        """Have SQLite end the transaction."""
        database.connection.execute("INSERT OR ROLLBACK INTO notes VALUES ('o-1', 'again')")

    with pytest.raises(errors.SessionLost), desk.step():
        note("o-1", "first")
        with pytest.raises(errors.SessionLost):
            end_it()
        assert rows_of_run(desk) == [("live", None), ("live", None)]
    assert (rows_of_run(desk), notes_in(notes)) == ([("undone", None), ("undone", None)], [])


def test_an_unjournaled_error_commits_nothing(desk: Desk, notes: Path, note: Any, monkeypatch: Any) -> None:
    """The program still hears what its tool raised."""
    refund = refund_tool(desk)
    lost = pytest.raises(errors.SavepointLost, match="bad note, and that could not be journaled: the disk")
    with lost, desk.step() as txn:
        note("o-1", "first")
        refund("o-1", 100)
        with monkeypatch.context() as broken:
            broken.setattr(Transactions, "mark_undone", full)
            caught(note)
    assert (notes_in(notes), desk.done, txn.state) == ([], [], "ended")
    assert {state for state, _ in rows_of_run(desk)} == {"undone", "withdrawn"}


def test_a_fork_that_raises_notes_nothing(desk: Desk, notes: Path, database: SQLiteAdapter) -> None:
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
        with desk.step():
            fork_out()
            assert rows_of_run(desk) == [("live", None)]
    except BaseException:
        if os.getpid() == parent:
            raise
    finally:
        if os.getpid() != parent:
            os._exit(0)
    assert (live_rows(desk), notes_in(notes)) == ([("fork_out", "kept", None)], [("o-1", "kept")])
