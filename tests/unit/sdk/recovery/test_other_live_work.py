"""A key that was spent, run again with other live work than was kept: that is never told as done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from countersign import AlreadyRedeemed, resume
from countersign.journal.transactions import Transactions
from tests.fakes.desk import Desk, notes_in, refund_tool
from tests.unit.sdk.journals import BOTH

pytestmark = pytest.mark.parametrize("engine", BOTH)
Note = Callable[[str, str], int]
OTHER = "other live work was committed with it, and that of this run was undone"


def kept(desk: Desk) -> list[tuple[str, str]]:
    return notes_in(desk.folder / "notes.db")


@pytest.mark.parametrize("first", [(), (("o-1", "old"),)], ids=["none", "one"])
def test_other_live_work_is_refused(desk: Desk, note: Note, first: tuple[tuple[str, str], ...]) -> None:
    """It was told as done: the block was left well, and nothing of it stood."""
    refund = refund_tool(desk)
    with desk.step():
        for one in first:
            note(*one)
        refund("o-1", 5)
    with pytest.raises(AlreadyRedeemed, match=OTHER) as told, desk.step():
        note("o-2", "new")
        again = refund("o-1", 5)
    assert told.value.finished and "use another key" in str(told.value)
    assert (kept(desk), len(desk.done)) == ([*first], 1)
    assert (again.outcome, again.result) == ("fired", {"refund_id": "r-o-1-5"})


@pytest.mark.parametrize(
    ("again", "replayed"),
    [((), True), ((("o-1", "old"),), True), ((("o-1", "old"), ("o-2", "new")), False)],
    ids=["less", "the same", "more"],
)
def test_what_was_kept_is_found_done_and_so_is_a_part_of_it(
    desk: Desk, note: Note, again: tuple[tuple[str, str], ...], replayed: bool
) -> None:
    refund = refund_tool(desk)
    desk.run((note, "o-1", "old"), (refund, "o-1", 5))

    with nullcontext() if replayed else pytest.raises(AlreadyRedeemed, match=OTHER), desk.step() as txn:
        for one in again:
            note(*one)
        refund("o-1", 5)
    assert txn.replayed or not replayed
    assert (kept(desk), len(desk.done)) == ([("o-1", "old")], 1)


def test_what_landed_is_finished_first(desk: Desk, note: Note, monkeypatch: pytest.MonkeyPatch) -> None:
    """The crash is mended whatever the rerun asks for; that nobody reads its own work as kept is another matter."""
    refund = refund_tool(desk)

    def died(*_: object, **__: object) -> None:
        raise SystemExit

    with monkeypatch.context() as death, pytest.raises(SystemExit):
        death.setattr(Transactions, "end", died)
        desk.run((note, "o-1", "old"), (refund, "o-1", 5))
    with pytest.raises(AlreadyRedeemed, match=OTHER):
        desk.run((note, "o-2", "new"), (refund, "o-1", 5))
    (record,) = desk.runtime.journal.transactions.find("t-1")
    assert (record.state.value, kept(desk), len(desk.done)) == ("settled", [("o-1", "old")], 1)
    assert list(resume(desk.runtime)) == []


def test_a_body_that_can_not_do_it_again_raises_with_a_note_that_it_was_done(desk: Desk, note: Note) -> None:
    refund = refund_tool(desk)

    def step() -> None:
        with desk.step():
            if kept(desk):
                raise LookupError("the last one is sold")
            note("o-1", "sold")
            refund("o-1", 5)

    step()
    with pytest.raises(LookupError) as told:
        step()
    (said,) = told.value.__notes__
    assert said.startswith(
        "transaction 't-1': an earlier run of this key was redeemed or kept, and is settled."
    )
    with pytest.raises(LookupError) as new, desk.step("t-2"):
        raise LookupError
    assert not hasattr(new.value, "__notes__")


def test_another_list_because_live_work_answered_otherwise_is_told_as_that(desk: Desk, note: Note) -> None:
    refund = refund_tool(desk)
    otherwise = pytest.raises(AlreadyRedeemed, match="live tools ran anew, on what that run has left")
    for told in (nullcontext(), otherwise):
        with told, desk.step():
            refund("o-1", note("o-1", "hello") + len(kept(desk)))
