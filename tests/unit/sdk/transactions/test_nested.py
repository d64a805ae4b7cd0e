"""A transaction inside another is a savepoint of it: what it did is taken back alone, and the outer goes on."""

import asyncio
import os
import sqlite3
from contextlib import suppress
from typing import Any

import pytest

from countersign import FilesAdapter, Serialize, SQLiteAdapter, Transaction, errors, tool, transaction
from countersign.adapters.protocol import Savepoint
from countersign.adapters.sqlite import SQLiteSession
from countersign.journal.stops_and_reruns import Transactions
from tests.fakes.desk import Desk, listed, notes_in, save_tool
from tests.unit.sdk.full_disk import full

ENDINGS = [ValueError, KeyboardInterrupt, SystemExit, asyncio.CancelledError]


def inner(desk: Desk) -> Transaction:
    """A block for inside another."""
    return transaction(runtime=desk.runtime)


def rows(desk: Desk) -> list[tuple[Any, ...]]:
    return listed(desk, "staging, tool, state", "true")


def test_an_inner_block_is_part_of_the_outer(desk: Desk, notes: Any, note: Any, refund: Any) -> None:
    with desk.step() as txn:
        refund("o-1", 100)
        with inner(desk) as within:
            note("o-2", "inner")
            refund("o-2", 200)
        assert (within.key, within.txn, desk.done, notes_in(notes)) == (txn.key, txn.txn, [], [])
        refund("o-3", 300)
    assert [one[1] for one in desk.done] == ["o-1", "o-2", "o-3"]
    assert (notes_in(notes), txn.state, within.state) == ([("o-2", "inner")], "settled", "settled")
    assert {staging for staging, _, _ in rows(desk)} == {1}


@pytest.mark.parametrize("error", ENDINGS)
def test_a_raising_inner_block_is_undone(desk: Desk, notes: Any, note: Any, refund: Any, error: Any) -> None:
    for replayed in (False, True):
        with desk.step() as txn:
            note("o-1", "outer")
            first = refund("o-1", 100)
            with pytest.raises(error), inner(desk):
                note("o-1", "inner")
                dropped = refund("o-2", 200)
                raise error
            kept = refund("o-3", 300)
            note("o-3", "outer")
        assert [one[1] for one in desk.done] == ["o-1", "o-3"]
        assert notes_in(notes) == [("o-1", "outer"), ("o-3", "outer")]
        assert (first.outcome, kept.outcome, dropped.outcome) == ("fired", "fired", "withdrawn")
        assert (txn.replayed, len(txn.effects)) == (replayed, 2)
        with pytest.raises(errors.PlaceholderUsed, match="withdrawn"):
            _ = dropped.result
        notes_of_both = [(1, "note", "relisted"), (1, "note", "undone"), *[(2, "note", "kept")] * 2]
        refunds_of_both = [
            (1, "refund", "relisted"),
            (1, "refund", "withdrawn"),
            *[(2, "refund", "fired")] * 2,
        ]
        assert sorted(rows(desk)[:8]) == sorted(notes_of_both + refunds_of_both)


def test_each_block_takes_back_its_own(desk: Desk, notes: Any, note: Any, refund: Any, tmp_path: Any) -> None:
    (folder := tmp_path / "files").mkdir()
    put = save_tool(desk, FilesAdapter(folder))
    with desk.step():
        put("outer.txt")
        with inner(desk):
            refund("o-1", 100)
            with pytest.raises(ValueError), inner(desk):
                put("inner.txt")
                note("o-2", "inner")  # its session begins inside both blocks
                with inner(desk):
                    refund("o-2", 200)
                raise ValueError
            note("o-3", "outer")
    assert ([one[1] for one in desk.done], notes_in(notes)) == (["o-1"], [("o-3", "outer")])
    assert [one.name for one in folder.iterdir() if one.is_file()] == ["outer.txt"]


def test_a_call_that_was_taken_back_may_be_made_again(desk: Desk, refund: Any) -> None:
    with desk.step() as txn:
        with pytest.raises(ValueError), inner(desk):
            first = refund("o-1", 100)
            raise ValueError
        again = refund("o-1", 100)
    assert (again is first, again.call_key == first.call_key, again.outcome) == (False, True, "fired")
    assert (len(desk.done), txn.state) == (1, "settled")


@pytest.mark.anyio
async def test_in_asyncio_the_same(desk: Desk, notes: Any, note: Any, refund: Any) -> None:
    async def alone() -> None:
        async with inner(desk):
            pytest.fail("it was entered")

    async with desk.step():
        refund("o-1", 100)
        with pytest.raises(TimeoutError):
            async with inner(desk), asyncio.timeout(0):
                note("o-2", "inner")
                refund("o-2", 200)
                await asyncio.sleep(1)
        with pytest.raises(errors.OutsideTransaction, match="nested transaction"):
            await asyncio.create_task(alone())  # a task opens no block in the transaction of another
    assert (desk.done, notes_in(notes)) == ([("refund", "o-1", 100)], [])


def test_independent_effects_of_an_inner_block_that_raises_are_dropped(desk: Desk, refund: Any) -> None:
    with desk.step(independent=True) as txn:
        refund("o-1", 100)
        with pytest.raises(ValueError), inner(desk):
            refund("o-2", 200)
            raise ValueError
    assert (desk.done, len(txn.effects)) == ([("refund", "o-1", 100)], 1)
    known = desk.runtime.journal.transactions
    assert sorted(known.require(one).state.value for one in known.newest_ids(9)) == ["ended", "settled"]


OWN: Any = [{"key": "t-2"}, {"wait": 1}, {"independent": True}, {"purpose": "p"}, {"accept_edits": True}]
OWN += [{"isolation": Serialize()}]


@pytest.mark.parametrize("own", OWN, ids=lambda own: next(iter(own)))
def test_an_inner_block_has_nothing_of_its_own(desk: Desk, refund: Any, own: dict[str, Any]) -> None:
    with desk.step():
        refund("o-1", 100)
        within = transaction(**own, runtime=desk.runtime)
        with pytest.raises(errors.MisuseError, match="one step is one transaction"), within:
            pytest.fail("it was entered")
    assert desk.done == [("refund", "o-1", 100)]


def test_an_inner_block_of_another_runtime_or_of_a_live_tool_is_refused(desk: Desk, notes: Any) -> None:
    @tool("nest", lane="live", adapter=SQLiteAdapter(notes), registry=desk.registry)
    def nest() -> None:
        """Open a block where none can be."""
        with inner(desk):
            pytest.fail("it was entered")

    with desk.step(), pytest.raises(errors.NotStageable, match="part of a block"):
        nest()
    reported = pytest.raises(errors.MisuseError, match="opened inside")
    with desk.another_process() as other, desk.step("t-2"), reported, transaction(runtime=other):
        pytest.fail("it was entered")


def test_a_lost_savepoint_undoes_all(desk: Desk, notes: Any, database: Any, note: Any, refund: Any) -> None:
    @tool("break", lane="live", adapter=database, registry=desk.registry)
    def lose_the_savepoint() -> None:
        """End the block behind the adapter's back."""
        sqlite3.Connection.set_authorizer(database.connection, None)
        database.connection.execute("RELEASE countersign_block")

    with pytest.raises(errors.SessionLost), desk.step() as txn:
        refund("o-1", 100)
        note("o-1", "outer")
        with suppress(Exception), inner(desk):  # a program that goes on regardless
            note("o-2", "inner")
            lose_the_savepoint()
    assert (desk.done, notes_in(notes), txn.state) == ([], [], "ended")


def test_a_fork_touches_nothing(desk: Desk, notes: Any, note: Any, refund: Any, monkeypatch: Any) -> None:
    savepoint, took_back, child = SQLiteSession.savepoint, list[int](), False

    def watched(self: SQLiteSession) -> Savepoint:
        real = savepoint(self)
        return Savepoint(real.release, lambda: (took_back.append(1), real.rollback()))

    monkeypatch.setattr(SQLiteSession, "savepoint", watched)
    try:
        with desk.step():
            refund("o-1", 100)
            with inner(desk):
                note("o-1", "inner")
                refund("o-2", 200)
                pid = os.fork()
                child = pid == 0
                if child:
                    raise ValueError
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    except ValueError:
        if not child:
            raise
    finally:
        if child:
            os._exit(len(took_back))
    assert (len(desk.done), notes_in(notes)) == (2, [("o-1", "inner")])


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_block_of_unknown_end_is_undone(desk: Desk, refund: Any, monkeypatch: Any, dry_run: bool) -> None:
    with pytest.raises(errors.SavepointLost, match="disk is full"), desk.step(dry_run=dry_run):
        refund("o-1", 100)
        monkeypatch.setattr(Transactions, "relist", full)
        with suppress(LookupError, errors.JournalError), inner(desk):  # a program that goes on regardless
            refund("o-2", 200)
            raise LookupError
    assert desk.done == []
