"""Ctrl-C as a block is entered or left: it ends, its thread, its key and its database are free, and its author reads
under the traceback the state of the step and how it goes on.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from countersign import Transaction, errors, tracing
from countersign.journal.stops_and_reruns import Transactions
from countersign.transactions.call_list import CallList
from countersign.transactions.intake import Intake
from countersign.transactions.step import Step
from tests.fakes.desk import Desk, failing_tool, notes_in, refund_tool
from tests.fakes.running import fails, run
from tests.unit.sdk.journal.test_heartbeat import until
from tests.unit.sdk.journals import BOTH
from tests.unit.sdk.transactions.looks import on_view

on_both = pytest.mark.parametrize("engine", BOTH)


def once(place: Any, name: str, when: str) -> Any:
    """An interrupt as that is called first, or as it has answered."""

    def arm(patch: pytest.MonkeyPatch) -> None:
        real = getattr(place, name)

        def act(*args: Any, **options: Any) -> Any:
            patch.setattr(place, name, real)
            if when == "after":
                real(*args, **options)
            raise KeyboardInterrupt

        patch.setattr(place, name, act)

    return arm


def after_it_is_current(patch: pytest.MonkeyPatch) -> None:
    """The last thing that entering does."""
    from countersign.transactions import transaction as module

    variable = SimpleNamespace(get=module.current_transaction.get, set=module.current_transaction.set)
    patch.setattr(module, "current_transaction", variable)
    once(variable, "set", "after")(patch)


PLACES: Any = {
    "entered": after_it_is_current,
    "the calls are over": once(Intake, "end", "after"),
    "before its span": once(tracing, "span", "before"),
    "before it commits": once(Step, "commit", "before"),
    "as it ends": once(Step, "_end", "before"),
    "it has ended": once(Step, "_end", "after"),
}
DONE = {"as it ends", "it has ended"}


@on_both
@pytest.mark.parametrize("where", PLACES)
def test_it_leaves_nothing_open_and_the_key_free(desk: Desk, where: str, refund: Any, note: Any) -> None:

    def step(key: str) -> Transaction:
        return run(desk, (note, key, "hello"), (refund, key, 100), key=key).txn

    with pytest.MonkeyPatch.context() as patch:
        PLACES[where](patch)
        with pytest.raises(KeyboardInterrupt):
            step("t-1")
    assert len(desk.done) == len(notes_in(desk.folder / "notes.db")) == (where in DONE)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(step, "t-1").result().state == "settled"
    assert step("t-2").state == "settled"
    assert ([one[1] for one in desk.done], len(notes_in(desk.folder / "notes.db"))) == (["t-1", "t-2"], 2)


@on_both
def test_a_block_that_is_entered_twice_keeps_what_it_has(desk: Desk, refund: Any) -> None:
    """It was left as if it were a block inside itself: without a commit, and its thread could begin no other."""
    with desk.step() as txn:
        refund("o-1", 100)
        with pytest.raises(errors.MisuseError):
            txn.__enter__()
    assert (txn.state, len(desk.done)) == ("settled", 1)


# ------------------------------------------------------------------------------------- what its author reads


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


def interrupt() -> None:
    raise KeyboardInterrupt


def gone(*_: object) -> NoReturn:
    raise errors.JournalError("the disk is gone")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_a_tool_notes_fired_and_unknown_effects(desk: Desk, error: Any, refund: Any) -> None:
    wire = failing_tool(desk, error(), "wire")
    reported = notes(fails(desk, error, (refund, "o-1", 5), (wire, "o-1")).error)
    assert "transaction 't-1': redeemed (refund#1 fired, wire#2 unknown)" in reported
    assert "`countersign resume --tools MODULE`" in reported


def test_an_interrupt_before_firing_notes_the_state_of_the_step(desk: Desk, refund: Any) -> None:
    on_view(desk, interrupt)
    waiting = notes(fails(desk, KeyboardInterrupt, (refund, "o-1", 90_000), wait=60).error)
    assert waiting.startswith("transaction 't-1': parked (refund#1 review); ")
    desk.face.faults["/v1/transactions"] = [KeyboardInterrupt()]
    stopped = notes(fails(desk, KeyboardInterrupt, (refund, "o-1", 5), key="t-2").error)
    assert "stopped (refund#1 staged)" in stopped and "until the same block runs again" in stopped
    assert notes(fails(desk, KeyboardInterrupt, (refund, "o-1", 5), (interrupt,), key="t-3").error) == ""


def test_an_unreadable_journal_loses_no_interrupt(desk: Desk, refund: Any) -> None:
    with pytest.MonkeyPatch.context() as broken:
        on_view(desk, lambda: (broken.setattr(Transactions, "require", gone), interrupt()))
        assert notes(fails(desk, KeyboardInterrupt, (refund, "o-1", 90_000), wait=60).error) == ""


# ---------------------------------------------------------------------- a journal that is away for a moment


class Outage:
    """A journal that takes so many writes more, and then none."""

    left = math.inf


@pytest.fixture
def outage(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Outage:
    made, database = Outage(), desk.runtime.journal.database
    real = database.unit

    def unit(*, durable: bool) -> Any:
        made.left -= 1
        if made.left < 0:
            raise errors.JournalError("the disk is full")
        return real(durable=durable)

    monkeypatch.setattr(database, "unit", unit)
    return made


@pytest.mark.parametrize("writes", [0, 1], ids=["for the whole block's end", "until the body has failed"])
@on_both
def test_the_next_run_of_the_key_begins_at_once(desk: Desk, outage: Outage, writes: int, refund: Any) -> None:
    with pytest.raises(errors.JournalError, match="disk is full"), desk.step() as first:
        refund("o-1", 100)
        outage.left = 0
        try:
            refund("o-2", 100)
        finally:
            outage.left = writes
    outage.left = math.inf
    again = run(desk, (refund, "o-1", 100), (refund, "o-2", 100)).txn
    assert (first.state, again.state, len(desk.done)) == ("settled", "settled", 2)


@pytest.fixture
def unreadable(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Called, the journal cannot be read from the moment the placeholders are set."""
    settle = CallList.settle

    def settled(listing: CallList, results: dict[str, object], *, submitted: bool) -> None:
        with monkeypatch.context() as outage:
            outage.setattr(desk.runtime.journal.transactions, "require", gone)
            settle(listing, results, submitted=submitted)

    return lambda: monkeypatch.setattr(CallList, "settle", settled)


@on_both
def test_what_has_fired_is_known_without_the_journal(desk: Desk, unreadable: Any, caplog: Any) -> None:
    """A reader of "staged" would do it again."""
    left = run(desk, (refund_tool(desk), "o-1", 100), (unreadable,))
    back = left.placed[0]
    assert (back.outcome, back.result, len(desk.done)) == ("fired", {"refund_id": "r-o-1-100"}, 1)
    assert f"what became of transaction {left.txn.txn[:12]} cannot be read: the disk is gone" in caplog.text


@pytest.mark.parametrize(("submitted", "reported"), [(False, "never submitted"), (True, "not known whether")])
@on_both
def test_a_missing_result_says_why(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, unreadable: Any, submitted: bool, reported: str
) -> None:
    def broken(*_: object) -> NoReturn:
        raise ZeroDivisionError

    calls = (failing_tool(desk, errors.NotDone("no money")), "o-1"), (unreadable,)
    if not submitted:
        monkeypatch.setattr(Step, "_plan", broken)
    left = fails(desk, errors.EffectFailed if submitted else ZeroDivisionError, *calls)
    with pytest.raises(errors.PlaceholderUsed, match=reported):
        _ = left.placed[0].result


@on_both
def test_live_work_is_undone_and_other_processes_get_the_key(desk: Desk, outage: Outage, note: Any) -> None:
    """They see that this one lives, so the lease has to be given up on the disk, although no one here asks again."""
    journal, refund = desk.runtime.journal, refund_tool(desk)
    journal.leases._heartbeat._every = 0.01
    with pytest.raises(ZeroDivisionError), desk.step() as txn:
        note("o-1", "hello")
        refund("o-1", 100)
        outage.left = 0
        raise ZeroDivisionError
    outage.left = math.inf
    assert (notes_in(desk.folder / "notes.db"), desk.done) == ([], [])
    until(lambda: journal.transactions.require(txn.txn).holder is None)
    until(lambda: journal.leases._heartbeat._thread is None)


@on_both
def test_a_lease_that_is_gone_is_not_said_to_be_anybodys(desk: Desk, refund: Any) -> None:
    """A server that lost its last write has no owner either: only known facts are reported."""
    gone = pytest.raises(errors.LeaseLost, match=r"no longer belongs to this run.*Run it again under its key")
    with gone as lost, desk.step() as txn:
        with desk.runtime.journal.database.unit(durable=False) as unit:
            unit.execute("UPDATE transactions SET holder = NULL WHERE txn = ?", (txn.txn,))
        refund("o-1", 100)
    assert "another process took it over, or" in str(lost.value)
    run(desk, (refund, "o-1", 100))
    assert len(desk.done) == 1
