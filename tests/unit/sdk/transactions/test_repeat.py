"""One key: equal calls are one except inside `txn.repeat()`, and several runs share one result."""

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from countersign import SQLiteAdapter, errors, replay, resume, transaction
from tests.fakes.desk import Desk, asked_of_policy, make_runtime, note_tool, notes_in, refund_tool
from tests.fakes.running import fails, run, run_async
from tests.unit.sdk.transactions.test_parallel import in_block

SECONDS = 20.0  # that a test waits for what has to come, never for time to pass
TWICE = [("refund", "o-1", 100), ("refund", "o-1", 100)]
ONCE = TWICE[:1]


def test_scenario_44_equal_calls_are_one_and_inside_repeat_each_is_meant(desk: Desk, refund: Any) -> None:
    for _ in range(2):  # a rerun repeats neither
        with desk.step() as txn:
            first = refund("o-1", 100)
            assert refund(amount_cents=100, order_id="o-1") is first
            with txn.repeat():
                second = refund("o-1", 100)
            assert refund("o-1", 100) is first
            refund("o-0", 100)
        assert (first.effect_id == second.effect_id, first.result == second.result) == (False, True)
        assert desk.done == [*TWICE, ("refund", "o-0", 100)], "in the order they were staged"
        assert len(txn.effects) == len(set(desk.keys)) == 3


@pytest.mark.anyio
async def test_of_two_overlapping_tasks_neither_loses_or_leaves_a_repeat(desk: Desk, refund: Any) -> None:
    async def pay(txn: Any, order: str, go: asyncio.Event) -> None:
        with txn.repeat():
            refund(order, 100)
            await go.wait()
            refund(order, 100)

    async with desk.step() as txn:
        go = asyncio.Event(), asyncio.Event()
        with txn.parallel():
            tasks = [asyncio.create_task(pay(txn, f"o-{n}", go[n - 1])) for n in (1, 2)]
            await asyncio.sleep(0)  # both have begun
            for event, task in zip(go, tasks, strict=True):
                event.set()
                await task  # the block that was entered first is left first, inside the other
        refund("o-3", 100)
        refund("o-3", 100)
    assert sorted(desk.done) == [*TWICE, *(("refund", "o-2", 100),) * 2, ("refund", "o-3", 100)]


@pytest.mark.anyio
async def test_another_thread_or_task_that_never_said_repeat_repeats_nothing(desk: Desk, refund: Any) -> None:
    def twice() -> None:
        refund("o-1", 100)
        refund("o-1", 100)

    async def other() -> None:
        twice()

    async with desk.step() as txn:
        with txn.parallel():
            outside, task = contextvars.copy_context(), asyncio.create_task(other())
            with txn.repeat():
                await task
                await asyncio.get_running_loop().run_in_executor(None, outside.run, twice)
    assert desk.done == ONCE


def test_what_is_begun_inside_repeat_repeats_wherever_it_runs(desk: Desk, refund: Any) -> None:
    """As the order in which tasks run is not known, this is the same list in every run."""

    async def body(txn: Any) -> None:
        with txn.repeat():
            late = [asyncio.create_task(asyncio.to_thread(refund, "o-1", 100)) for _ in range(2)]
        await asyncio.gather(*late)

    in_block(desk, body)
    assert desk.done == TWICE


def test_a_block_that_is_left_by_an_exception_repeats_no_longer(desk: Desk, refund: Any) -> None:
    with desk.step() as txn:
        with pytest.raises(LookupError), transaction(runtime=desk.runtime), txn.repeat():
            refund("o-2", 100)
            raise LookupError
        refund("o-1", 100)
        refund("o-1", 100)
    assert desk.done == ONCE


def test_inside_a_nested_block_both_say_the_same_repeat(desk: Desk, refund: Any) -> None:
    with desk.step() as txn:
        refund("o-1", 100)
        with txn.repeat(), transaction(runtime=desk.runtime):
            refund("o-1", 100)
    assert desk.done == TWICE


def test_repeat_of_one_transaction_says_nothing_of_another(desk: Desk, refund: Any) -> None:
    before = desk.step("t-0")
    with before:
        refund("o-0", 100)
    with before.repeat(), desk.step():
        refund("o-1", 100)
        refund("o-1", 100)
    assert desk.done[1:] == ONCE


# -------------------------------------------------------------- several who use one key: scenarios 41 to 43

RESULT = {"refund_id": "r-o-1-100"}
DONE = [("refund", "o-1", 100)]


class Held:
    """The first tool call stays under way until the test lets it end."""

    def __init__(self, desk: Desk) -> None:
        self.is_under_way, self.may_end = threading.Event(), threading.Event()
        desk.before_fire = self._hold

    def _hold(self, _: str) -> None:
        self.is_under_way.set()
        assert self.may_end.wait(SECONDS)


def ends(desk: Desk, refund: Any, key: str = "t-1") -> tuple[Any, bool, str]:
    """What one run of the key ends with: the result, whether it was replayed, the state."""
    left = run(desk, (refund, "o-1", 100), key=key)
    return left.placed[0].result, left.txn.replayed, left.txn.state


@contextmanager
def first_under_way(desk: Desk, refund: Any) -> Any:
    held = Held(desk)
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(ends, desk, refund)
        assert held.is_under_way.wait(SECONDS)
        yield held, threads, first
        assert first.result(SECONDS) == (RESULT, False, "settled")


def test_scenarios_41_and_43_the_same_call_again_answers_what_was_stored(desk: Desk, refund: Any) -> None:
    """However it is written, and how often its program starts again."""
    for replayed in (False, True, True):
        with desk.restarted() as life:
            assert ends(life, refund) == (RESULT, replayed, "settled")
    with desk.restarted() as later, later.step() as again:
        stored = refund(order_id="o-1", tags=None, amount_cents=100)
    assert (stored.result, again.replayed, len(again.effects), desk.done) == (RESULT, True, 1, DONE)


@pytest.mark.parametrize("others", [1, 3])
def test_scenario_42_threads_with_one_key_get_one_result(desk: Desk, refund: Any, others: int) -> None:
    with first_under_way(desk, refund) as (held, threads, _):
        waiting = [threads.submit(ends, desk, refund) for _ in range(others)]
        assert not any(one.done() for one in waiting)
        held.may_end.set()
        assert [one.result(SECONDS) for one in waiting] == [(RESULT, True, "settled")] * others
    assert desk.done == DONE


def test_scenario_42_an_expired_wait_has_its_own_type(desk: Desk, refund: Any) -> None:
    settings = replace(desk.runtime.settings, lease_wait_seconds=0.1)
    with make_runtime(settings, desk.face, desk.registry, desk.clock) as runtime:
        impatient = replace(desk, runtime=runtime)
        with first_under_way(desk, refund) as (held, *_):
            reported = r"'t-1' is being run by process \d+ on \S+; .*Try again"
            busy = fails(impatient, errors.TransactionBusy, (refund, "o-1", 100), match=reported).error
            assert (busy.key, busy.code) == ("t-1", "transaction_busy")
            assert busy.waited == pytest.approx(settings.lease_wait_seconds)
            held.may_end.set()
        assert ends(impatient, refund) == (RESULT, True, "settled")
    assert desk.done == DONE


# -------------------------------------------------------------- a block that asks for nothing spends no key


@pytest.fixture
def note(desk: Desk, notes: Any) -> tuple[Any, ...]:
    return note_tool(desk, SQLiteAdapter(notes)), "o-1", "hello"


@pytest.fixture
def refund_call(desk: Desk) -> tuple[Any, ...]:
    return refund_tool(desk), "o-1", 100


@pytest.mark.parametrize("is_async", [False, True])
def test_the_key_is_as_free_as_it_was(desk: Desk, refund_call: Any, is_async: bool) -> None:
    def leave(*calls: Any) -> Any:
        return (asyncio.run(run_async(desk, *calls)) if is_async else run(desk, *calls)).txn

    for _ in range(2):
        empty = leave()
        assert (empty.state, empty.replayed, asked_of_policy(desk)) == ("ended", False, [])
    assert leave(refund_call).state == "settled"
    assert desk.done == [("refund", "o-1", 100)]


def test_live_work_may_come_under_it_and_is_done_once(desk: Desk, notes: Any, note: Any) -> None:
    run(desk)
    for replayed in (False, True):
        txn = run(desk, note).txn
        assert (txn.state, txn.replayed, notes_in(notes)) == ("settled", replayed, [("o-1", "hello")])


def test_one_taken_back_has_asked_for_nothing(desk: Desk, notes: Any, note: Any, refund_call: Any) -> None:
    inner = transaction(runtime=desk.runtime)
    with desk.step() as empty, pytest.raises(LookupError), inner:
        for fn, *args in (note, refund_call):
            fn(*args)
        raise LookupError
    assert (empty.state, notes_in(notes), desk.done) == ("ended", [], [])
    run(desk, refund_call)
    assert desk.done == [("refund", "o-1", 100)]


def test_the_journal_says_that_it_asked_for_nothing_and_recovery_has_nothing_to_do(desk: Desk) -> None:
    run(desk)
    (record,) = desk.runtime.journal.transactions.find("t-1")
    assert (record.state, record.landed, record.redeemed) == ("ended", False, False)
    assert "asked for nothing" in (record.note or "")
    assert resume(desk.runtime) == []
    (after,) = desk.runtime.journal.transactions.find("t-1")
    assert after.note == record.note
    with pytest.raises(errors.MisuseError, match="there is nothing to replay"):
        replay("t-1", lambda txn: None, runtime=desk.runtime)


def test_what_people_were_asked_is_withdrawn_and_asked_again(desk: Desk, refund: Any) -> None:
    for _ in range(2):
        txn = fails(desk, errors.ReviewPending, (refund, "o-1", 90_000)).txn.txn
        assert desk.service.latest(txn).state == "review"
        run(desk)
        assert desk.service.latest(txn).state == "ended"
        assert (resume(desk.runtime), desk.done) == ([], [])


@pytest.mark.parametrize("live", [False, True], ids=["nothing", "live work"])
@pytest.mark.parametrize(("lost", "asked"), [("lost_answer", True), ("lost_request", False)])
def test_so_what_got_no_answer(desk: Desk, notes: Any, note: Any, lost: str, asked: bool, live: bool) -> None:
    """The journal does not know whether it arrived."""
    desk.face.faults["/v1/transactions"] = [lost] * 20
    frozen = fails(desk, errors.ServiceUnavailable, (refund_tool(desk), "o-1", 90_000)).txn
    desk.face.faults.clear()
    assert (frozen.state, frozen.txn in desk.service.revisions) == ("frozen", asked)
    txn = run(desk, *[note] * live).txn
    assert (txn.state, len(notes_in(notes))) == (("settled", 1) if live else ("ended", 0))
    assert not asked or desk.service.latest(txn.txn).state == "ended"
    assert resume(desk.runtime) == [] and desk.done == []


@pytest.mark.parametrize("done", ["refund_call", "note"])
def test_a_key_spent_before_stays_so(desk: Desk, notes: Any, done: str, request: Any) -> None:
    call = request.getfixturevalue(done)
    run(desk, call)
    fails(desk, errors.AlreadyRedeemed, match="another list")
    run(desk, call)
    assert (len(desk.done), len(notes_in(notes))) == ((1, 0) if done == "refund_call" else (0, 1))
