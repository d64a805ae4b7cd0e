"""What recovery says and does of a transaction that has not been redeemed: whom it waits for, and what ended it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from countersign import FilesAdapter, ReviewPending, ServiceUnavailable, resume, transaction
from countersign.contract import EffectState
from countersign.recovery.recovery import Resumed
from tests.fakes.desk import Desk, make_runtime, save_tool


@pytest.fixture
def step(desk: Desk, files: FilesAdapter, refund: Callable[..., object]) -> Callable[[], None]:
    """A step with a live effect, which waits for people and is therefore never parked."""
    save = save_tool(desk, files)

    def run() -> None:
        desk.run((save, "a", "new"), (refund, "o-1", 90000))

    return run


def waits(step: Callable[[], None]) -> ReviewPending:
    with pytest.raises(ReviewPending) as pending:
        step()
    return pending.value


def told(found: list[Resumed]) -> list[tuple[str, bool, bool]]:
    return [(one.after, one.waiting, one.is_kept_up) for one in found]


def test_a_step_with_live_work_says_what_it_waits_for(desk: Desk, step: Callable[[], None]) -> None:
    waits(step)
    for _ in range(2):
        found = resume(desk.runtime)
        assert told(found) == [("review", True, False)]
        assert found[0].note.startswith("not done yet: refund waits for")
        assert "run the same transaction again under key 't-1'" in found[0].note
    assert not (desk.folder / "root" / "a").exists()


def test_once_it_is_approved_its_own_program_is_what_is_missing(desk: Desk, step: Callable[[], None]) -> None:
    desk.service.approve(waits(step).txn)
    for _ in range(2):
        found = resume(desk.runtime)
        assert told(found) == [("ready", False, True)]
        assert "approved" in found[0].note and "run it again under key 't-1'" in found[0].note
    assert desk.runtime.journal.transactions.require(found[0].txn).note == found[0].note
    assert desk.done == []
    step()
    assert (len(desk.done), (desk.folder / "root" / "a").read_text()) == (1, "new")
    assert resume(desk.runtime) == []


def test_it_ends_with_what_people_said(desk: Desk, step: Callable[[], None]) -> None:
    desk.service.deny(waits(step).txn, "the customer was paid already")
    found = resume(desk.runtime)
    assert told(found) == [("ended", False, False)]
    assert "the customer was paid already" in found[0].note
    assert resume(desk.runtime) == []


@pytest.mark.parametrize("parked", [True, False], ids=["parked", "with live work"])
def test_what_the_service_ended_has_ended_here_though_its_tool_has_changed_since(
    desk: Desk, refund: Callable[..., object], step: Callable[[], None], *, parked: bool
) -> None:
    def parks() -> None:
        desk.run((refund, "o-1", 90000))

    txn = waits(parks if parked else step).txn
    desk.publish(refund, title="New")
    with desk.another_process() as runtime:
        if parked:
            found = resume(runtime)
            assert told(found) == [("review", False, True)]
            assert "has changed since it was staged" in found[0].note
            assert "run it again" in found[0].note.lower() and "operator" not in found[0].note
        desk.service.deny(txn, "refund is another one now")
        found = resume(runtime)
        assert told(found) == [("ended", False, False)]
        assert "refund is another one now" in found[0].note
        assert resume(runtime) == []
    assert desk.done == []


def test_redeemed_elsewhere(desk: Desk, refund: Callable[..., object], step: Callable[[], None]) -> None:
    desk.service.approve(waits(step).txn)
    settings = replace(desk.runtime.settings, journal_path=desk.folder / "other.db")
    elsewhere = make_runtime(settings, desk.face, desk.registry, desk.clock)
    with elsewhere, transaction("t-1", runtime=elsewhere):
        refund("o-1", 90_000)
    assert len(desk.done) == 1
    found = resume(desk.runtime)
    assert told(found) == [("ended", False, False)]
    assert "already redeemed" in found[0].note


def lines(desk: Desk) -> int:
    with closing(sqlite3.connect(desk.runtime.settings.journal_path)) as journal:
        (number,) = journal.execute("SELECT count(*) FROM chain").fetchone()
    return int(number)


def test_looking_again_changes_nothing(desk: Desk, step: Callable[[], None]) -> None:
    txn = waits(step).txn
    resume(desk.runtime)
    asked = lines(desk)
    resume(desk.runtime)
    assert lines(desk) == asked
    desk.service.approve(txn)
    resume(desk.runtime)
    approved = lines(desk)
    resume(desk.runtime)
    assert lines(desk) == approved
    (held,) = desk.service.latest(txn).held
    held.state, held.votes = EffectState.REVIEW, ()  # the rules ask once more
    assert told(resume(desk.runtime)) == [("review", True, False)]
    assert desk.runtime.journal.transactions.require(txn).note is None


def test_a_step_without_a_key_ends(desk: Desk, files: FilesAdapter, refund: Callable[..., object]) -> None:
    save = save_tool(desk, files)
    with pytest.raises(ReviewPending), transaction(runtime=desk.runtime):
        save("b")
        refund("o-1", 90_000)
    found = resume(desk.runtime)
    assert told(found) == [("ended", False, False)]
    assert "without a key" in found[0].note


def test_died_as_submitted_it_stands_as_the_service_says(desk: Desk, refund: Callable[..., object]) -> None:
    """Its program stages nothing the next time: what people are asked is taken back."""
    desk.face.faults["/v1/transactions"] = ["lost_answer"] * 10
    desk.run((refund, "o-1", 90000), raises=ServiceUnavailable)
    desk.face.faults.clear()
    assert told(resume(desk.runtime)) == [("review", True, False)]
    (record,) = desk.runtime.journal.transactions.find("t-1")
    assert (record.state, record.parked) == ("review", False)
    desk.run()
    assert desk.service.latest(record.txn).state == "ended"
    assert (resume(desk.runtime), desk.done) == ([], [])
