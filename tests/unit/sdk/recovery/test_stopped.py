"""A commit whose program is stopped (Ctrl-C, `sys.exit`, a cancelled task) before any effect fired: only the same
program continues it.
"""

import asyncio
import sys
from typing import Any

import pytest

from countersign import AlreadyRedeemed, FilesAdapter, ReviewPending, resume
from countersign.contract import EffectState
from countersign.journal import LocalTxn
from tests.fakes.desk import Desk, notes_in, save_tool, service_states
from tests.unit.sdk.journals import BOTH

INTERRUPTS = [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit]
SUBMISSION, REDEMPTION, KEYS = "/v1/transactions", "/v1/redemptions", "/.well-known/jwks.json"
RELEASE = "/v1/transactions/"
PLACES = {
    "before the submission arrived": (SUBMISSION, False),
    "as the submission was answered": (SUBMISSION, True),
    "as what it answered was verified": (KEYS, True),
}
LIVE_PLACES = {
    "as the releases were answered": (RELEASE, True),
    "before the redemption arrived": (REDEMPTION, False),
    "as the redemption was answered": (REDEMPTION, True),
}


@pytest.fixture(autouse=True)
def _looks_at_once(desk: Desk) -> None:
    """The service answers a look at once, and does not wait for people."""
    wait = desk.service.wait
    desk.service.wait = lambda txn, _: wait(txn, 0)  # type: ignore[method-assign]


def stop_at(desk: Desk, place: tuple[str, bool], error: type[BaseException] = KeyboardInterrupt) -> None:
    """Interrupt the program there: before the service has heard of it, or with its answer on the way."""
    path, answered = place

    def interrupt() -> None:
        raise error

    desk.face.faults[path] = [interrupt if answered else error()]


def pays(desk: Desk, key: str, refund: Any, live: Any | None = None, cents: int = 100, **step: Any) -> None:
    desk.run(*([(live, "o-1", "paid")] if live else []), (refund, "o-1", cents), key=key, **step)


@pytest.fixture(params=[*PLACES, *LIVE_PLACES])
def stopped(request: pytest.FixtureRequest, desk: Desk, refund: Any, note: Any) -> Any:
    """Runs the step under a key; with an error, which stops it at the place."""
    live = note if request.param in LIVE_PLACES else None
    place = (PLACES | LIVE_PLACES)[request.param]

    def step(key: str, error: type[BaseException] | None = None) -> None:
        if error is None:
            pays(desk, key, refund, live)
            return
        stop_at(desk, place, error)
        pays(desk, key, refund, live, raises=error)
        assert desk.face.faults[place[0]] == [], "it was stopped there"
        assert notes_in(desk.folder / "notes.db") == []

    return step


def record_of(desk: Desk, key: str = "t-1") -> Any:
    return desk.runtime.journal.transactions.find(key)[0]


def spent(desk: Desk, key: str) -> bool:
    """Whether the service had redeemed it."""
    revisions = desk.service.revisions.get(record_of(desk, key).txn, [])
    return any(one.state is EffectState.REDEEMED for revision in revisions for one in revision.held)


@pytest.mark.parametrize("error", INTERRUPTS)
def test_nothing_of_it_fires_later(desk: Desk, stopped: Any, error: type[BaseException]) -> None:
    stopped("t-1", error)
    assert record_of(desk).state is LocalTxn.STOPPED
    was_spent = spent(desk, "t-1")
    (found,) = resume(desk.runtime)
    assert (found.before, found.after, found.waiting, desk.done) == ("stopped", "ended", False, [])
    if was_spent:
        assert "its program was stopped before it was begun" in found.note
        assert service_states(desk, found.txn) == ["unused"]
    assert (resume(desk.runtime), desk.done, notes_in(desk.folder / "notes.db")) == ([], [], [])


def test_tried_again_under_its_key_it_goes_on_and_happens_once(desk: Desk, stopped: Any) -> None:
    """Stopped twice is stopped, in any state of the first run."""
    stopped("t-1", KeyboardInterrupt)
    for path in (SUBMISSION, RELEASE):  # the rerun asks what became of it
        stop_at(desk, (path, True), KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        stopped("t-1")
    desk.face.faults.clear()
    assert (record_of(desk).state, desk.done) == (LocalTxn.STOPPED, [])
    stopped("t-1")
    stopped("t-1")
    assert (resume(desk.runtime), len(desk.done)) == ([], 1)


@pytest.mark.parametrize("engine", BOTH)
def test_a_worker_that_dies_before_it_has_ended_it_leaves_it_stopped(desk: Desk, refund: Any) -> None:
    stop_at(desk, PLACES["as the submission was answered"])
    pays(desk, "t-1", refund, raises=KeyboardInterrupt)

    with pytest.MonkeyPatch.context() as death, pytest.raises(SystemExit):
        death.setattr(desk.runtime.journal.effect_log, "write", lambda *_: sys.exit())
        resume(desk.runtime)
    (found,) = resume(desk.runtime)
    assert (found.after, desk.done) == ("ended", [])


def test_a_worker_that_is_stopped_stops_nothing_for_others(desk: Desk) -> None:
    """It is not its program: what it looked at is as after a crash."""
    desk.approved("t-1")
    for place in ((RELEASE, True), (REDEMPTION, True)):
        stop_at(desk, place)
        with pytest.raises(KeyboardInterrupt):
            resume(desk.runtime)
    assert desk.done == []
    resume(desk.runtime)
    assert len(desk.done) == 1


@pytest.mark.parametrize("where", LIVE_PLACES.values(), ids=LIVE_PLACES)
def test_once_agreed_it_is_left_to_its_program(desk: Desk, refund: Any, where: tuple[str, bool]) -> None:
    pays(desk, "t-1", refund, cents=90_000, raises=ReviewPending)
    desk.service.approve(record_of(desk).txn)
    stop_at(desk, where)
    pays(desk, "t-1", refund, cents=90_000, raises=KeyboardInterrupt)
    for _ in range(2):
        resume(desk.runtime)
    assert desk.done == []
    if where != (REDEMPTION, True):  # the approval is valid, and was not spent
        pays(desk, "t-1", refund, cents=90_000)
        assert len(desk.done) == 1


@pytest.mark.parametrize("answered", [False, True])
def test_at_the_end_of_its_wait_it_is_parked_no_more(desk: Desk, refund: Any, answered: bool) -> None:
    desk.face.faults[RELEASE] = [lambda: desk.service.approve(record_of(desk).txn)]  # at the first look
    stop_at(desk, (REDEMPTION, answered))
    pays(desk, "t-1", refund, cents=90_000, wait=600, raises=KeyboardInterrupt)
    assert (record_of(desk).state, record_of(desk).parked) == (LocalTxn.STOPPED, False)
    for _ in range(2):
        resume(desk.runtime)
    assert desk.done == []


def test_another_list_under_the_key_of_one_that_was_spent_is_refused(desk: Desk, refund: Any) -> None:
    stop_at(desk, PLACES["as the submission was answered"])
    pays(desk, "t-1", refund, raises=KeyboardInterrupt)
    pays(desk, "t-1", refund, cents=200, raises=AlreadyRedeemed)
    (found,) = resume(desk.runtime)
    assert (found.before, found.after, desk.done) == ("stopped", "ended", [])
    assert service_states(desk, found.txn) == ["unused"]


@pytest.mark.parametrize("engine", BOTH)
def test_people_decide_nothing_without_its_program(desk: Desk, refund: Any) -> None:
    stop_at(desk, (SUBMISSION, True))
    pays(desk, "t-1", refund, cents=90_000, raises=KeyboardInterrupt)
    (found,) = resume(desk.runtime)
    assert (found.after, found.waiting) == ("stopped", True)
    desk.service.approve(found.txn)
    (found,) = resume(desk.runtime)
    assert (found.after, found.waiting, desk.done) == ("stopped", False, [])
    assert "run it again under key 't-1'" in found.note
    pays(desk, "t-1", refund, cents=90_000)
    assert len(desk.done) == 1


def test_prepared_files_of_a_stopped_step_are_undone(desk: Desk, refund: Any, files: FilesAdapter) -> None:
    stop_at(desk, (REDEMPTION, True))
    pays(desk, "t-1", refund, save_tool(desk, files), raises=KeyboardInterrupt)
    resume(desk.runtime)
    assert (desk.done, (desk.folder / "root" / "o-1").exists()) == ([], False)


def test_what_had_all_fired_as_its_program_was_stopped_is_no_less_done(desk: Desk, refund: Any) -> None:
    stop_at(desk, ("/v1/outcomes", True))
    pays(desk, "t-1", refund, raises=KeyboardInterrupt)
    resume(desk.runtime)
    assert service_states(desk, record_of(desk).txn) == ["fired"]
    assert (record_of(desk).state, len(desk.done)) == (LocalTxn.SETTLED, 1)


@pytest.mark.parametrize("where", ["before the submission arrived", "as the submission was answered"])
def test_a_rerun_without_calls_takes_back_what_was_asked(desk: Desk, refund: Any, where: str) -> None:
    """What people agree to meanwhile must not fire for a step that no longer wants it."""
    stop_at(desk, PLACES[where])
    pays(desk, "t-1", refund, cents=90_000, raises=KeyboardInterrupt)
    desk.run()
    held = desk.service.revisions.get(record_of(desk).txn, [])
    assert {one.state for revision in held for one in revision.held} <= {EffectState.WITHDRAWN}
    assert (len(held) > 0, resume(desk.runtime), desk.done) == ("arrived" not in where, [], [])
