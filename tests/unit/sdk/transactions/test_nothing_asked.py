"""A block that asks for nothing spends no key: there is nothing that it has done."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from countersign import (
    AlreadyRedeemed,
    MisuseError,
    ReviewPending,
    ServiceUnavailable,
    SQLiteAdapter,
    Transaction,
    replay,
    resume,
    run_transaction,
    transaction,
)
from tests.fakes.desk import Desk, asked_of_policy, note_tool, notes_database, notes_in, refund_tool


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return notes_database(tmp_path)


@pytest.mark.parametrize("empties", [1, 2])
@pytest.mark.parametrize("is_async", [False, True])
def test_the_key_is_as_free_as_it_was(desk: Desk, empties: int, is_async: bool) -> None:
    refund = refund_tool(desk)

    async def body(go: bool) -> Transaction:
        async with desk.step() as txn:
            if go:
                refund("o-1", 100)
        return txn

    def run(go: bool) -> Transaction:
        if is_async:
            return asyncio.run(body(go))
        with desk.step() as txn:
            if go:
                refund("o-1", 100)
        return txn

    for _ in range(empties):
        empty = run(False)
        assert (empty.state, empty.replayed, asked_of_policy(desk)) == ("ended", False, [])
    assert run(True).state == "settled"
    assert desk.done == [("refund", "o-1", 100)]


def test_live_work_may_come_under_it_and_is_done_once(desk: Desk, notes: Path) -> None:
    note = note_tool(desk, SQLiteAdapter(notes))
    with desk.step():
        pass
    for _ in range(2):
        with desk.step() as txn:
            note("o-1", "hello")
    assert (txn.state, txn.replayed, notes_in(notes)) == ("settled", True, [("o-1", "hello")])


def test_one_whose_nested_block_was_taken_back_has_asked_for_nothing(desk: Desk, notes: Path) -> None:
    note, refund = note_tool(desk, SQLiteAdapter(notes)), refund_tool(desk)
    inner = transaction(runtime=desk.runtime)
    with desk.step() as empty, pytest.raises(LookupError), inner:
        note("o-1", "hello")
        refund("o-1", 100)
        raise LookupError
    assert (empty.state, notes_in(notes), desk.done) == ("ended", [], [])
    with desk.step():
        refund("o-1", 100)
    assert desk.done == [("refund", "o-1", 100)]


def test_the_journal_says_that_it_asked_for_nothing_and_recovery_has_nothing_to_do(desk: Desk) -> None:
    with desk.step():
        pass
    (record,) = desk.runtime.journal.transactions.find("t-1")
    assert (record.state, record.landed, record.redeemed) == ("ended", False, False)
    assert "asked for nothing" in (record.note or "")
    assert resume(desk.runtime) == []
    (after,) = desk.runtime.journal.transactions.find("t-1")
    assert after.note == record.note
    with pytest.raises(MisuseError, match="there is nothing to replay"):
        replay("t-1", lambda txn: None, runtime=desk.runtime)


def test_what_people_were_asked_is_withdrawn_and_asked_again(
    desk: Desk,
) -> None:
    refund = refund_tool(desk)
    for _ in range(2):
        with pytest.raises(ReviewPending), desk.step() as txn:
            refund("o-1", 90_000)
        assert desk.service.latest(txn.txn).state == "review"
        with desk.step():
            pass
        assert desk.service.latest(txn.txn).state == "ended"
        assert (resume(desk.runtime), desk.done) == ([], [])


@pytest.mark.parametrize("live", [False, True], ids=["nothing", "live work"])
@pytest.mark.parametrize(("lost", "asked"), [("lost_answer", True), ("lost_request", False)])
def test_so_is_what_got_no_answer(desk: Desk, notes: Path, lost: str, asked: bool, live: bool) -> None:
    """The journal does not know whether it arrived."""
    refund, note = refund_tool(desk), note_tool(desk, SQLiteAdapter(notes))
    desk.face.faults["/v1/transactions"] = [lost] * 20
    with pytest.raises(ServiceUnavailable), desk.step() as frozen:
        refund("o-1", 90_000)
    desk.face.faults.clear()
    assert (frozen.state, frozen.txn in desk.service.revisions) == ("frozen", asked)
    with desk.step() as txn:
        if live:
            note("o-1", "hello")
    assert (txn.state, len(notes_in(notes))) == (("settled", 1) if live else ("ended", 0))
    assert not asked or desk.service.latest(txn.txn).state == "ended"
    assert resume(desk.runtime) == [] and desk.done == []


@pytest.mark.parametrize("done", ["staged", "live"])
def test_a_key_that_was_spent_before_stays_so(desk: Desk, notes: Path, done: str) -> None:
    note, refund = note_tool(desk, SQLiteAdapter(notes)), refund_tool(desk)

    def step(txn: Transaction) -> Any:
        return refund("o-1", 100) if done == "staged" else note("o-1", "hello")

    run_transaction(step, key="t-1", runtime=desk.runtime)
    with pytest.raises(AlreadyRedeemed, match="another list"), desk.step():
        pass
    run_transaction(step, key="t-1", runtime=desk.runtime)
    assert (len(desk.done), len(notes_in(notes))) == ((1, 0) if done == "staged" else (0, 1))
