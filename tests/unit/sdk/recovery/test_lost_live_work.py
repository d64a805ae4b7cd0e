"""Live work whose process died or was suspended, or of which a part landed: a doubtful part is reported neither as
kept nor as undone, and fired effects are compensated only if they certainly fired.
"""

import os
from typing import Any

import pytest

from countersign import DidNotHappen, FilesAdapter, Happened, SQLiteAdapter, Unsure, errors, probe, resume
from countersign.adapters.files_session import FilesSession
from countersign.adapters.sqlite import SQLiteSession
from countersign.journal import leases
from tests.fakes.desk import (
    Desk,
    answering_tool,
    live_states,
    note_tool,
    notes_database,
    notes_in,
    save_tool,
    service_states,
    states,
)
from tests.fakes.running import fails
from tests.unit.sdk.full_disk import full, full_after
from tests.unit.sdk.transactions.looks import waited


def pay_tool(desk: Desk, *, taken_back: bool = True, **options: Any) -> Any:
    """An idempotent tool that `repay` takes back, or that nothing does."""
    answering_tool(desk, None, name="repay")
    if taken_back:
        options |= {"compensate": "repay", "compensation_map": {"order_id": "args:/order_id"}}
    return answering_tool(desk, "paid", name="pay", idempotent=True, **options)


@pytest.fixture
def died(desk: Desk, note: Any) -> Any:
    """A step with live work on SQLite, and a disk that takes nothing more once `begun` calls are under way."""

    def die(*calls: tuple[Any, ...], begun: int = 1) -> None:
        with full_after(desk.runtime.journal, begun):
            desk.run((note, "o-1", "paying"), *calls, raises=errors.OutcomeUnknown)
        assert notes_in(desk.folder / "notes.db") == []

    return die


def test_what_may_be_called_again_is_called_and_taken_back(desk: Desk, died: Any) -> None:
    pay = pay_tool(desk)
    died((pay, "o-1"))
    assert (states(desk), live_states(desk)) == ({"pay#1": "firing"}, ["live"])
    (found,) = resume(desk.runtime)
    assert (found.after, states(desk), live_states(desk)) == ("settled", {"pay#1": "compensated"}, ["undone"])
    assert [one[0] for one in desk.done] == ["pay", "pay", "repay"]
    assert desk.keys[0] == desk.keys[1] != desk.keys[2]
    assert service_states(desk, found.txn) == ["compensated"]
    assert "live adapter 'notes' could not commit: the live effects were lost with" in found.note
    assert found.note.endswith("remains in effect. To do it again, use another key.")
    assert resume(desk.runtime) == []


def test_what_nothing_takes_back_is_not_called_again_and_a_person_is_asked(desk: Desk, died: Any) -> None:
    """Called again it would stand for certain, where it may not stand now."""
    pay = pay_tool(desk, taken_back=False)
    died((pay, "o-1"))
    (found,) = resume(desk.runtime)
    assert (found.after, states(desk)) == ("unsettled", {"pay#1": "unknown"})
    assert ([one[0] for one in desk.done], live_states(desk)) == (["pay"], ["undone"])


def test_what_was_not_begun_stays_so(desk: Desk, died: Any, refund: Any) -> None:
    died((pay_tool(desk), "o-1"), (refund, "o-1", 100))
    (found,) = resume(desk.runtime)
    assert "refund did not happen: the live effects were lost with their process, or" in found.note
    assert states(desk) == {"pay#1": "compensated", "refund#2": "unused"}
    assert [one[0] for one in desk.done] == ["pay", "pay", "repay"]


PROBED: list[Any] = [
    (Happened("paid"), ["pay", "repay"], "compensated"),
    (DidNotHappen(final=True), ["pay"], "failed"),
    (DidNotHappen(), ["pay", "pay", "repay"], "compensated"),
    (Unsure("busy"), ["pay", "pay", "repay"], "compensated"),
]


@pytest.mark.parametrize(("answer", "calls", "state"), PROBED, ids=repr)
def test_its_probe_is_asked_first(desk: Desk, died: Any, answer: Any, calls: list[str], state: str) -> None:
    probe("find_pay", registry=desk.registry)(lambda: answer)
    pay = pay_tool(desk, probe="find_pay")
    died((pay, "o-1"))
    resume(desk.runtime)
    assert ([one[0] for one in desk.done], states(desk)) == (calls, {"pay#1": state})


@pytest.mark.parametrize("doubt", ["the service gives no time", "the call ends in doubt again"])
def test_what_is_not_called_or_in_doubt_again_is_unknown(desk: Desk, died: Any, doubt: str) -> None:
    pay = pay_tool(desk)
    died((pay, "o-1"))

    def slow(_: str) -> None:
        raise TimeoutError("slow")

    if doubt == "the service gives no time":
        desk.face.faults["/v1/redemptions/"] = ["lost_request"] * 20
    else:
        desk.before_fire = slow
    (found,) = resume(desk.runtime)
    assert (found.after, states(desk)) == ("unsettled", {"pay#1": "unknown"})
    assert ("slow" in found.note) is (doubt == "the call ends in doubt again")
    assert [one[0] for one in desk.done] == ["pay"]


def test_a_rerun_of_the_program_brings_the_live_work_back(desk: Desk, died: Any, note: Any) -> None:
    pay = pay_tool(desk)
    died((pay, "o-1"))
    desk.run((note, "o-1", "paying"), (pay, "o-1"))
    assert (states(desk), live_states(desk)) == ({"pay#1": "fired"}, ["kept"])
    assert notes_in(desk.folder / "notes.db") == [("o-1", "paying")]


# ----------------------------------------------------------------------------------------------- a part of it landed


def test_waiting_for_an_outcome_that_will_not_be_settled_raises(desk: Desk, both: Any, refund: Any) -> None:
    """The service knows what fired; it does not know about the live work."""
    ran: list[int] = []

    def step(_: object) -> None:
        ran.append(1)
        assert len(ran) < 9, "it is run again and again"
        for live in both:
            live("o-1", "hello")
        refund("o-1", 100)

    with pytest.raises(errors.LiveCommitFailed):
        waited(desk, step, 0)
    with pytest.raises(errors.OutcomeUnknown, match="in notes were kept, and those in other were lost"):
        waited(desk, step)
    assert (len(ran), desk.done) == (3, [("refund", "o-1", 100)])


@pytest.mark.parametrize("staged", [False, True])
def test_a_kept_part_is_not_reported_as_undone(desk: Desk, both: Any, charge: Any, staged: bool) -> None:
    """Also where what fired could be compensated."""
    calls = [(live, "o-1", "hello") for live in both] + [(charge, "o-1", 100)] * staged
    failed = fails(desk, errors.LiveCommitFailed, *calls)
    staged_part = "None of its staged" if staged else "It had no staged"
    assert failed.error.committed == ("notes",) and "Nothing" not in failed.said
    assert f"already committed: notes. {staged_part}" in failed.said
    places = (desk.folder, desk.folder / "other")
    assert [notes_in(one / "notes.db") for one in places] == [[("o-1", "hello")], []]
    assert (failed.txn.state, live_states(desk)) == ("unsettled", ["live", "live"])
    # the charge was compensated, which does not undo the note
    known = (
        "already committed: notes. None of its staged" if staged else "in notes were kept, and those in other"
    )
    for _ in range(2):
        (found,) = resume(desk.runtime)
        assert (found.after, live_states(desk), known in found.note) == ("unsettled", ["live", "live"], True)
    assert [what for what, *_ in desk.done] == (["charge", "void"] if staged else [])


def dies_before_files_commit(desk: Desk, files: Any) -> None:
    """A process that had committed to its database dies before it puts its files in place."""
    note, save = note_tool(desk, SQLiteAdapter(notes_database(desk.folder))), save_tool(desk, files)
    if (pid := os.fork()) == 0:
        pytest.MonkeyPatch().setattr(FilesSession, "commit", lambda *_: os._exit(7))
        desk.run((note, "o-1", "hello"), (save, "a"))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_what_was_prepared_is_not_kept(desk: Desk, files: Any, monkeypatch: Any) -> None:
    """Its process died between the two commits, and the disk is full since."""
    dies_before_files_commit(desk, files)
    assert (notes_in(desk.folder / "notes.db"), live_states(desk)) == ([("o-1", "hello")], ["live", "live"])
    monkeypatch.setattr(FilesSession, "commit", full)
    (found,) = resume(desk.runtime)
    assert (found.before, found.after, live_states(desk)) == ("frozen", "unsettled", ["live", "live"])
    assert "could not commit" in found.note


# -------------------------------------------------- an unseen owner was paused until its lease ran out


BUSY = "it is unknown whether its live effects were kept"


@pytest.fixture
def unseen(monkeypatch: Any) -> None:
    monkeypatch.setattr(leases, "is_alive", lambda holder: "unknown")
    monkeypatch.setattr(leases, "is_of_this_process", lambda holder: False)


def sqlite_put(desk: Desk) -> tuple[Any, Any]:
    path = notes_database(desk.folder)
    note = note_tool(desk, SQLiteAdapter(path, busy_seconds=0.1))
    return note, lambda: [key for key, _ in notes_in(path)]


def files_put(desk: Desk) -> tuple[Any, Any]:
    root = desk.folder / "root"
    root.mkdir()
    return save_tool(desk, FilesAdapter(root)), lambda: [one.name for one in root.iterdir() if one.is_file()]


KINDS: dict[str, tuple[Any, type[Any]]] = {
    "sqlite": (sqlite_put, SQLiteSession),
    "files": (files_put, FilesSession),
}


def suspended(desk: Desk, monkeypatch: Any, session: type[Any], step: str) -> list[tuple[str, str]]:
    """The process is suspended once before a step of its session; what a worker finds meanwhile."""
    found: list[tuple[str, str]] = []
    real = getattr(session, step)

    def paused(this: Any, attempt_id: str) -> None:
        if not found:
            desk.clock.advance(10_000)
            with desk.another_process() as runtime:
                found.extend((str(one.after), one.note) for one in resume(runtime))
        real(this, attempt_id)

    monkeypatch.setattr(session, step, paused)
    return found


def settle(desk: Desk) -> list[str]:
    desk.clock.advance(10_000)
    return [one.after.value for one in resume(desk.runtime) if one.after]


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("staged", [True, False])
def test_nothing_is_taken_back(desk: Desk, charge: Any, monkeypatch: Any, kind: str, staged: bool) -> None:
    """It had its lease at the last check, and is suspended at its commit."""
    put, current = KINDS[kind][0](desk)
    found = suspended(desk, monkeypatch, KINDS[kind][1], "commit")
    desk.run((put, "a", "x"), *[(charge, "o-1", 100)] * staged, raises=errors.LeaseLost)
    assert [what for what, *_ in desk.done] == (["charge"] if staged else [])
    ((_, note),) = found
    assert BUSY in note if kind == "sqlite" else "a living process" in note
    assert (current(), settle(desk)) == (["a"], ["settled"])
    assert (live_states(desk), [what for what, *_ in desk.done]) == (["kept"], ["charge"] if staged else [])


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_undone_is_not_committed(desk: Desk, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """It is suspended before it has prepared anything, so no other process can know of the commit."""
    put, current = KINDS[kind][0](desk)
    found = suspended(desk, monkeypatch, KINDS[kind][1], "prepare")
    desk.run((put, "a", "x"), raises=errors.LeaseLost)
    assert [after for after, _ in found] == ["ended"]
    assert (current(), live_states(desk), settle(desk)) == ([], ["undone"], [])


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("staged", [True, False])
def test_a_lost_lease_keeps_live_work_from_being_committed(desk: Desk, charge: Any, staged: bool) -> None:
    put, current = sqlite_put(desk)
    journal = desk.runtime.journal
    renew, lost = journal.leases.renew, list[int]()

    def too_late(lease: Any) -> None:
        lost.append(1)
        with journal.database.unit(durable=False) as unit:
            unit.execute("UPDATE transactions SET generation = generation + 1")
        renew(lease)

    journal.leases.renew = too_late  # type: ignore[method-assign,assignment]
    desk.run((put, "a", "x"), *[(charge, "o-1", 100)] * staged, raises=errors.LeaseLost)
    assert (current(), len(lost)) == ([], 1)


@pytest.mark.usefixtures("unseen")
def test_an_unavailable_journal_does_not_block_live_commits_after_firing(desk: Desk, charge: Any) -> None:
    """The fired effect and the live work are complete, and the database's mark shows that to the next process."""
    put, current = sqlite_put(desk)
    desk.runtime.journal.leases.renew = full  # type: ignore[method-assign]
    desk.run((put, "a", "x"), (charge, "o-1", 100))
    assert (current(), live_states(desk)) == (["a"], ["kept"])
