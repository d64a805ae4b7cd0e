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
    replay,
    resume,
    transaction,
)
from tests.fakes.desk import Desk, asked_of_policy, note_tool, notes_database, notes_in, refund_tool
from tests.fakes.running import fails, run, run_async


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return notes_database(tmp_path)


@pytest.fixture
def note(desk: Desk, notes: Path) -> tuple[Any, ...]:
    return note_tool(desk, SQLiteAdapter(notes)), "o-1", "hello"


@pytest.fixture
def refund(desk: Desk) -> tuple[Any, ...]:
    return refund_tool(desk), "o-1", 100


@pytest.mark.parametrize("is_async", [False, True])
def test_the_key_is_as_free_as_it_was(desk: Desk, refund: Any, is_async: bool) -> None:
    def leave(*calls: Any) -> Any:
        return (asyncio.run(run_async(desk, *calls)) if is_async else run(desk, *calls)).txn

    for _ in range(2):
        empty = leave()
        assert (empty.state, empty.replayed, asked_of_policy(desk)) == ("ended", False, [])
    assert leave(refund).state == "settled"
    assert desk.done == [("refund", "o-1", 100)]


def test_live_work_may_come_under_it_and_is_done_once(desk: Desk, notes: Path, note: Any) -> None:
    run(desk)
    for replayed in (False, True):
        txn = run(desk, note).txn
        assert (txn.state, txn.replayed, notes_in(notes)) == ("settled", replayed, [("o-1", "hello")])


def test_one_whose_nested_block_was_taken_back_has_asked_for_nothing(
    desk: Desk, notes: Path, note: Any, refund: Any
) -> None:
    inner = transaction(runtime=desk.runtime)
    with desk.step() as empty, pytest.raises(LookupError), inner:
        for fn, *args in (note, refund):
            fn(*args)
        raise LookupError
    assert (empty.state, notes_in(notes), desk.done) == ("ended", [], [])
    run(desk, refund)
    assert desk.done == [("refund", "o-1", 100)]


def test_the_journal_says_that_it_asked_for_nothing_and_recovery_has_nothing_to_do(desk: Desk) -> None:
    run(desk)
    (record,) = desk.runtime.journal.transactions.find("t-1")
    assert (record.state, record.landed, record.redeemed) == ("ended", False, False)
    assert "asked for nothing" in (record.note or "")
    assert resume(desk.runtime) == []
    (after,) = desk.runtime.journal.transactions.find("t-1")
    assert after.note == record.note
    with pytest.raises(MisuseError, match="there is nothing to replay"):
        replay("t-1", lambda txn: None, runtime=desk.runtime)


def test_what_people_were_asked_is_withdrawn_and_asked_again(desk: Desk) -> None:
    refund = refund_tool(desk)
    for _ in range(2):
        txn = fails(desk, ReviewPending, (refund, "o-1", 90_000)).txn.txn
        assert desk.service.latest(txn).state == "review"
        run(desk)
        assert desk.service.latest(txn).state == "ended"
        assert (resume(desk.runtime), desk.done) == ([], [])


@pytest.mark.parametrize("live", [False, True], ids=["nothing", "live work"])
@pytest.mark.parametrize(("lost", "asked"), [("lost_answer", True), ("lost_request", False)])
def test_so_is_what_got_no_answer(
    desk: Desk, notes: Path, note: Any, lost: str, asked: bool, live: bool
) -> None:
    """The journal does not know whether it arrived."""
    desk.face.faults["/v1/transactions"] = [lost] * 20
    frozen = fails(desk, ServiceUnavailable, (refund_tool(desk), "o-1", 90_000)).txn
    desk.face.faults.clear()
    assert (frozen.state, frozen.txn in desk.service.revisions) == ("frozen", asked)
    txn = run(desk, *[note] * live).txn
    assert (txn.state, len(notes_in(notes))) == (("settled", 1) if live else ("ended", 0))
    assert not asked or desk.service.latest(txn.txn).state == "ended"
    assert resume(desk.runtime) == [] and desk.done == []


@pytest.mark.parametrize("done", ["refund", "note"])
def test_a_key_that_was_spent_before_stays_so(
    desk: Desk, notes: Path, done: str, request: pytest.FixtureRequest
) -> None:
    call = request.getfixturevalue(done)
    run(desk, call)
    fails(desk, AlreadyRedeemed, match="another list")
    run(desk, call)
    assert (len(desk.done), len(notes_in(notes))) == ((1, 0) if done == "refund" else (0, 1))
