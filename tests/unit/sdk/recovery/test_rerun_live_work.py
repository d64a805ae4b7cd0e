"""A rerun of a list that was redeemed does live work, or other than the first run did: what stands is told as kept, in
the list in force, and what was lost as undone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from countersign import (
    FilesAdapter,
    JournalError,
    OutcomeUnknown,
    Runtime,
    SQLiteAdapter,
    resume,
    tool,
    transaction,
)
from countersign.adapters.overlay import FilesSession
from countersign.contract import EffectState
from countersign.errors import EffectFailed
from countersign.journal import Lease
from countersign.journal.verifying import damage_of
from tests.fakes.desk import Desk, note_tool, notes_database, notes_in, refund_tool
from tests.unit.sdk.full_disk import full_after
from tests.unit.sdk.journals import BOTH

pytestmark = pytest.mark.parametrize("engine", BOTH)
Note = Callable[[str, str], int]


@pytest.fixture
def note(desk: Desk) -> Note:
    return note_tool(desk, SQLiteAdapter(notes_database(desk.folder)))


@pytest.fixture
def save(desk: Desk) -> Callable[[str], None]:
    (desk.folder / "root").mkdir()
    files = FilesAdapter(desk.folder / "root")

    @tool("save", lane="live", adapter=files, registry=desk.registry)
    def write(path: str) -> None:
        """Write a file."""
        files.write(path, "new")

    return write


@pytest.fixture
def pay(desk: Desk) -> Callable[[str], Any]:
    """Its first answer is lost."""
    hangs = [1]

    @tool("pay", resource=("Order", "order_id"), registry=desk.registry)
    def send(order_id: str) -> str:
        """Pay."""
        desk.act("pay", order_id)
        if hangs:
            hangs.pop()
            raise ConnectionError("the line was cut")
        return "paid"

    desk.publish(send)
    return send


def live_rows(desk: Desk) -> list[tuple[Any, ...]]:
    """Of every list."""
    found = desk.runtime.journal.database.rows(
        "SELECT staging, tool, state FROM effects WHERE lane = 'live' ORDER BY staging, seq"
    )
    return [tuple(row) for row in found]


def in_force(desk: Desk) -> list[tuple[str, str]]:
    """What people are told."""
    (record,) = desk.runtime.journal.transactions.find("t-1")
    assert damage_of(desk.runtime.journal.database, record.txn) is None
    return [(row.tool, row.state.value) for row in desk.runtime.journal.transactions.live(record)]


def happened(desk: Desk) -> None:
    """A person says so of the payment."""
    ((txn, revisions),) = desk.service.revisions.items()
    desk.service.settle(txn, revisions[-1].held[0].effect.effect_id, EffectState.FIRED)


@pytest.fixture
def paid(desk: Desk, pay: Callable[[str], Any]) -> Callable[[str], Any]:
    """A list of that payment alone is not finished, and people know that it happened."""
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime):
        pay("o-1")
    happened(desk)
    return pay


def test_live_work_that_only_the_rerun_does_is_kept(
    desk: Desk, note: Note, paid: Callable[[str], Any]
) -> None:
    with transaction("t-1", runtime=desk.runtime) as txn:
        note("o-1", "paid")
        paid("o-1")
    assert (txn.state, txn.replayed, desk.done) == ("settled", True, [("pay", "o-1")])
    assert notes_in(desk.folder / "notes.db") == [("o-1", "paid")]
    assert in_force(desk) == [("note", "kept")]
    assert live_rows(desk) == [(1, "note", "kept"), (2, "note", "relisted")]
    assert resume(desk.runtime) == []


def test_it_is_not_taken_in_where_the_rerun_fails_before_it_commits(
    desk: Desk, note: Note, paid: Callable[[str], Any]
) -> None:
    """What the first run had asked for goes on without it."""

    def step() -> None:
        with transaction("t-1", runtime=desk.runtime):
            note("o-1", "paid")
            paid("o-1")

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(desk.runtime.journal.reruns, "take_in", _full)
        with pytest.raises(JournalError, match="full"):
            step()
    assert (notes_in(desk.folder / "notes.db"), live_rows(desk)) == ([], [(2, "note", "undone")])
    (found,) = resume(desk.runtime)
    assert (found.after, in_force(desk), desk.done) == ("settled", [], [("pay", "o-1")])


def _full(*_: Any, **__: Any) -> None:
    raise JournalError("the disk is full")


@pytest.mark.parametrize("then", ["resume", "rerun"])
def test_a_rerun_that_dies_between_its_commits_is_finished(
    desk: Desk,
    note: Note,
    save: Callable[[str], None],
    paid: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    then: str,
) -> None:
    """The database has committed, and the files are prepared."""

    def step() -> Any:
        with transaction("t-1", runtime=desk.runtime) as txn:
            note("o-1", "paid")
            save("a")
            paid("o-1")
        return txn

    journal = desk.runtime.journal
    with monkeypatch.context() as broken:
        broken.setattr(FilesSession, "commit", lambda *_: (_ for _ in ()).throw(SystemExit()))
        broken.setattr(journal.transactions, "end_live", _full)
        with pytest.raises(SystemExit):
            step()
    assert (notes_in(desk.folder / "notes.db"), in_force(desk)) == (
        [("o-1", "paid")],
        [("note", "live"), ("save", "live")],
    )
    if then == "rerun":
        assert step().replayed
    assert [found.after for found in resume(desk.runtime)] == ["settled"] * (then == "resume")
    assert in_force(desk) == [("note", "kept"), ("save", "kept")]
    assert (desk.folder / "root" / "a").read_text() == "new"
    assert {state for _, _, state in live_rows(desk)} == (
        {"kept", "relisted", "undone"} if then == "rerun" else {"kept", "relisted"}
    )


def test_what_the_rerun_brought_back_is_kept_and_what_it_did_not_is_undone(
    desk: Desk, note: Note, save: Callable[[str], None]
) -> None:
    """The first run's live work was lost with its process, before the payment was begun."""

    @tool("pay", resource=("Order", "order_id"), registry=desk.registry)
    def pay(order_id: str) -> None:
        """Pay."""
        desk.act("pay", order_id)

    desk.publish(pay)
    with (
        pytest.raises((JournalError, OutcomeUnknown)),
        full_after(desk.runtime.journal, 0),
        transaction("t-1", runtime=desk.runtime),
    ):
        note("o-1", "paying")
        note("o-2", "paying")
        pay("o-1")
    assert live_rows(desk) == [(1, "note", "live")] * 2
    with transaction("t-1", runtime=desk.runtime):
        note("o-2", "paying")
        save("a")
        pay("o-1")
    assert live_rows(desk) == [
        (1, "note", "undone"),
        (1, "note", "kept"),
        (1, "save", "kept"),
        (2, "note", "relisted"),
        (2, "save", "relisted"),
    ]
    assert in_force(desk) == [("note", "kept"), ("save", "kept")]
    assert notes_in(desk.folder / "notes.db") == [("o-2", "paying")]
    assert resume(desk.runtime) == []


def test_it_stands_also_where_nothing_else_of_the_list_does(
    desk: Desk, note: Note, pay: Callable[[str], Any]
) -> None:
    """The payment may fail, and did."""
    desk.publish(pay, on_exhausted="tool")
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime):
        pay("o-1")
    ((txn, revisions),) = desk.service.revisions.items()
    desk.service.settle(txn, revisions[-1].held[0].effect.effect_id, EffectState.FAILED)
    with transaction("t-1", runtime=desk.runtime) as again:
        note("o-1", "tried")
        pay("o-1")
    assert (again.state, in_force(desk)) == ("settled", [("note", "kept")])


@pytest.mark.parametrize("staged", [False, True])
def test_where_the_first_runs_work_stands_the_reruns_own_is_told_as_undone(
    desk: Desk, note: Note, save: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, *, staged: bool
) -> None:
    """Prepared files of a killed process are committed in place of those that the rerun wrote."""
    refund = refund_tool(desk)

    def step(runtime: Runtime) -> bool:
        with transaction("t-1", runtime=runtime) as txn:
            note("o-1", "hello")
            save("a")
            if staged:
                refund("o-1", 100)
        return txn.replayed

    if (pid := os.fork()) == 0:
        monkeypatch.setattr(FilesSession, "commit", lambda *_: os._exit(7))
        with desk.another_process() as runtime:
            step(runtime)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert step(desk.runtime)
    assert in_force(desk) == [("note", "kept"), ("save", "kept")]
    assert live_rows(desk)[2:] == [(2, "note", "undone"), (2, "save", "undone")]
    assert (notes_in(desk.folder / "notes.db"), resume(desk.runtime)) == ([("o-1", "hello")], [])


def test_a_rerun_that_fails_is_undone_in_its_own_list(
    desk: Desk, note: Note, pay: Callable[[str], Any]
) -> None:
    """People say that nothing happened, so the list did not go through, and nothing is committed."""
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime):
        pay("o-1")
    ((txn, revisions),) = desk.service.revisions.items()
    desk.service.settle(txn, revisions[-1].held[0].effect.effect_id, EffectState.FAILED)
    with pytest.raises(EffectFailed), transaction("t-1", runtime=desk.runtime):
        note("o-1", "paid")
        pay("o-1")
    assert (live_rows(desk), notes_in(desk.folder / "notes.db")) == ([(2, "note", "undone")], [])


def test_a_list_that_was_not_redeemed_takes_nothing_in(desk: Desk) -> None:
    journal = desk.runtime.journal
    journal.transactions.open(txn="t" * 43, agent="a", run_key="t-1", independent=False)
    lease = journal.leases.acquire("t" * 43)
    assert isinstance(lease, Lease)
    with pytest.raises(JournalError, match="was not redeemed"):
        journal.reruns.take_in(lease, 1, journal.transactions.begin_staging(lease))
