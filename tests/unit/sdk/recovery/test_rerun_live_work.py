"""A rerun of a redeemed list does live work, or other work than the first run: kept work joins the list in force,
lost work is undone, and other work is refused and never reported as done.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from countersign import AlreadyRedeemed, FilesAdapter, JournalError, OutcomeUnknown, resume
from countersign.adapters.files_session import FilesSession
from countersign.contract import EffectState
from countersign.errors import EffectFailed
from countersign.journal.chain import find_damage
from countersign.journal.stops_and_reruns import Transactions
from tests.fakes.desk import Desk, answering_tool, listed, notes_in, record_of, save_tool
from tests.fakes.running import fails
from tests.unit.sdk.full_disk import full, full_after
from tests.unit.sdk.journals import BOTH
from tests.unit.sdk.transactions.looks import TXN

pytestmark = pytest.mark.parametrize("engine", BOTH)


@pytest.fixture
def save(desk: Desk, files: FilesAdapter) -> Callable[..., None]:
    return save_tool(desk, files)


@pytest.fixture
def pay(desk: Desk) -> Callable[[str], Any]:
    """Its first answer is lost."""
    return answering_tool(desk, ConnectionError("the line was cut"), "paid", name="pay")


def settled(desk: Desk, state: EffectState) -> None:
    """A person says so of the payment."""
    desk.service.settle(TXN, desk.service.latest(TXN).held[0].effect.effect_id, state)


def live_rows(desk: Desk) -> list[tuple[Any, ...]]:
    return listed(desk, "staging, tool, state")


def in_force(desk: Desk) -> list[tuple[str, str]]:
    """What people see."""
    (record,) = desk.runtime.journal.transactions.find("t-1")
    assert find_damage(desk.runtime.journal.database, record.txn) is None
    return [(row.tool, row.state.value) for row in desk.runtime.journal.transactions.live(record)]


@pytest.fixture
def paid(desk: Desk, pay: Callable[[str], Any]) -> Callable[[str], Any]:
    """A list of that payment alone is not finished, and people know that it happened."""
    desk.run((pay, "o-1"), raises=OutcomeUnknown)
    settled(desk, EffectState.FIRED)
    return pay


def test_live_work_of_the_rerun_alone_is_kept(desk: Desk, note: Any, paid: Callable[[str], Any]) -> None:
    txn = desk.run((note, "o-1", "paid"), (paid, "o-1"))
    assert (txn.state, txn.replayed, desk.done) == ("settled", True, [("pay", "o-1")])
    assert (notes_in(desk.folder / "notes.db"), in_force(desk)) == ([("o-1", "paid")], [("note", "kept")])
    assert live_rows(desk) == [(1, "note", "kept"), (2, "note", "relisted")]
    assert resume(desk.runtime) == []


def test_it_is_not_taken_in_where_the_rerun_fails(desk: Desk, note: Any, paid: Callable[[str], Any]) -> None:
    """What the first run had asked for goes on without it."""
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(desk.runtime.journal.transactions, "adopt_rerun", full)
        with pytest.raises(JournalError, match="full"):
            desk.run((note, "o-1", "paid"), (paid, "o-1"))
    assert (notes_in(desk.folder / "notes.db"), live_rows(desk)) == ([], [(2, "note", "undone")])
    (found,) = resume(desk.runtime)
    assert (found.after, in_force(desk), desk.done) == ("settled", [], [("pay", "o-1")])


@pytest.mark.parametrize("then", ["resume", "rerun"])
def test_a_rerun_cut_in_two_is_finished(desk: Desk, note: Any, save: Any, paid: Any, then: str) -> None:
    """The database has committed, and the files are prepared."""
    calls = [(note, "o-1", "paid"), (save, "a"), (paid, "o-1")]

    def dies(*_: object) -> None:
        raise SystemExit

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(FilesSession, "commit", dies)
        broken.setattr(desk.runtime.journal.transactions, "end_live", full)
        desk.run(*calls, raises=SystemExit)
    assert notes_in(desk.folder / "notes.db") == [("o-1", "paid")]
    assert in_force(desk) == [("note", "live"), ("save", "live")]
    if then == "rerun":
        assert desk.run(*calls).replayed
    assert [found.after for found in resume(desk.runtime)] == ["settled"] * (then == "resume")
    assert in_force(desk) == [("note", "kept"), ("save", "kept")]
    assert (desk.folder / "root" / "a").read_text() == "new"
    ends = {"kept", "relisted", "undone"} if then == "rerun" else {"kept", "relisted"}
    assert {state for _, _, state in live_rows(desk)} == ends


def test_what_the_rerun_brought_back_is_kept(desk: Desk, note: Any, save: Callable[[str], None]) -> None:
    """The first run's live work was lost with its process, before the payment was begun."""
    pay = answering_tool(desk, None, name="pay")
    with pytest.raises((JournalError, OutcomeUnknown)), full_after(desk.runtime.journal, 0):
        desk.run((note, "o-1", "paying"), (note, "o-2", "paying"), (pay, "o-1"))
    assert live_rows(desk) == [(1, "note", "live")] * 2
    desk.run((note, "o-2", "paying"), (save, "a"), (pay, "o-1"))
    relisted = [(2, "note", "relisted"), (2, "save", "relisted")]
    assert live_rows(desk) == [(1, "note", "undone"), (1, "note", "kept"), (1, "save", "kept"), *relisted]
    assert in_force(desk) == [("note", "kept"), ("save", "kept")]
    assert (notes_in(desk.folder / "notes.db"), resume(desk.runtime)) == ([("o-2", "paying")], [])


def test_a_failed_rerun_is_undone_in_its_list(desk: Desk, note: Any, pay: Callable[[str], Any]) -> None:
    """People say that nothing happened, so the list did not go through, and nothing is committed."""
    desk.run((pay, "o-1"), raises=OutcomeUnknown)
    settled(desk, EffectState.FAILED)
    desk.run((note, "o-1", "paid"), (pay, "o-1"), raises=EffectFailed)
    assert (live_rows(desk), notes_in(desk.folder / "notes.db")) == ([(2, "note", "undone")], [])


def test_a_list_that_was_not_redeemed_takes_nothing_in(desk: Desk) -> None:
    journal = desk.runtime.journal
    journal.transactions.open(txn="t" * 43, agent="a", run_key="t-1", independent=False)
    lease: Any = journal.leases.acquire("t" * 43)
    with pytest.raises(JournalError, match="was not redeemed"):
        journal.transactions.adopt_rerun(lease, 1, journal.transactions.begin_staging(lease))


# ------------------------------------------------------------------------------------- other live work than was kept


OTHER = "other live work was committed with it, and that of this run was undone"


def kept(desk: Desk) -> list[tuple[str, str]]:
    return notes_in(desk.folder / "notes.db")


@pytest.mark.parametrize("first", [(), (("o-1", "old"),)], ids=["none", "one"])
def test_other_live_work_is_refused(desk: Desk, note: Any, first: Any, refund: Any) -> None:
    """It was reported as done: the block ended normally although nothing was kept."""
    desk.run(*((note, *one) for one in first), (refund, "o-1", 5))
    left = fails(desk, AlreadyRedeemed, (note, "o-2", "new"), (refund, "o-1", 5), match=OTHER)
    again = left.placed[1]
    assert left.error.finished and "use another key" in left.said
    assert (kept(desk), len(desk.done)) == ([*first], 1)
    assert (again.outcome, again.result) == ("fired", {"refund_id": "r-o-1-5"})


AGAIN: list[Any] = [((), True), ((("o-1", "old"),), True), ((("o-1", "old"), ("o-2", "new")), False)]


@pytest.mark.parametrize(("again", "replayed"), AGAIN, ids=["less", "the same", "more"])
def test_what_was_kept_is_done(desk: Desk, refund: Any, note: Any, again: Any, replayed: bool) -> None:
    desk.run((note, "o-1", "old"), (refund, "o-1", 5))
    calls = [*((note, *one) for one in again), (refund, "o-1", 5)]
    txn = desk.run(*calls, raises=None if replayed else AlreadyRedeemed)
    assert txn.replayed or not replayed
    assert (kept(desk), len(desk.done)) == ([("o-1", "old")], 1)


def test_what_landed_is_finished_first(desk: Desk, note: Any, monkeypatch: Any, refund: Any) -> None:
    """The crash is repaired for every request of the rerun; reading its own work as kept is another matter."""

    def died(*_: object, **__: object) -> None:
        raise SystemExit

    with monkeypatch.context() as death:
        death.setattr(Transactions, "end", died)
        desk.run((note, "o-1", "old"), (refund, "o-1", 5), raises=SystemExit)
    fails(desk, AlreadyRedeemed, (note, "o-2", "new"), (refund, "o-1", 5), match=OTHER)
    assert (record_of(desk).state.value, kept(desk), len(desk.done)) == ("settled", [("o-1", "old")], 1)
    assert list(resume(desk.runtime)) == []


def test_a_body_that_cannot_do_it_again_raises_with_a_note(desk: Desk, note: Any, refund: Any) -> None:
    desk.run((note, "o-1", "sold"), (refund, "o-1", 5))

    def sold() -> None:
        raise LookupError("the last one is sold")

    (said,) = fails(desk, LookupError, (sold,)).error.__notes__
    assert "an earlier run of this key was redeemed or kept, and is settled." in said
    assert not hasattr(fails(desk, LookupError, (sold,), key="t-2").error, "__notes__")


def test_a_list_changed_by_live_results_is_reported_as_such(desk: Desk, note: Any, refund: Any) -> None:
    otherwise = pytest.raises(AlreadyRedeemed, match="live tools ran again on that run's results")
    for reported in (nullcontext(), otherwise):
        with reported, desk.step():
            refund("o-1", note("o-1", "hello") + len(kept(desk)))
