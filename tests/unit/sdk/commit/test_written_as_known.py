"""What is known of a call is on the disk before anything that may take its time: a pause, a sibling, a renewal."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from countersign import DidNotHappen, errors, probe, resume
from countersign.concurrency import SyncExecutor
from countersign.journal import LocalTxn
from tests.fakes import running
from tests.fakes.desk import Desk, answering_tool, effect_rows, failing_tool, states
from tests.fakes.running import fails, order_tool, refusing_tool, run, run_async
from tests.unit.sdk.commit.probed import SECONDS, raising, sleeping

CUT = ConnectionError("503")
Paused = list[Callable[[], object]]


@pytest.fixture
def paused(monkeypatch) -> Paused:
    """What happens in each pause between two tries, in place of waiting."""
    meanwhile: Paused = []

    async def sleep(_: SyncExecutor, seconds: float) -> None:
        if meanwhile:
            meanwhile.pop(0)()

    monkeypatch.setattr(SyncExecutor, "sleep", sleep)
    return meanwhile


def label_tool(desk: Desk, *answers, **options):
    return answering_tool(desk, *answers, name="label", idempotent=True, **options)


def mail_tool(desk: Desk):
    """It may fail alone, and does."""
    return refusing_tool(desk, name="mail", on_exhausted="tool")


def test_a_result_is_written_before_a_sibling_is_retried(desk: Desk, refund, paused: Paused) -> None:
    label, refused, seen = label_tool(desk, CUT, CUT, "ok"), mail_tool(desk), []
    paused += [lambda: seen.append(states(desk))] * 2
    run(desk, [(refund, "o-1", 1), (label, "o-1"), (refused, "o-1")])
    assert seen == [{"refund#1": "fired", "label#2": "firing", "mail#3": "failed"}] * 2
    assert states(desk) == {"refund#1": "fired", "label#2": "fired", "mail#3": "failed"}


class DiedError(BaseException):
    """The process ends here."""


def test_a_process_that_dies_in_the_pause_asks_nothing(desk: Desk, refund, paused: Paused) -> None:
    label = label_tool(desk, CUT, "ok")

    def dies() -> None:
        desk.runtime.journal.effect_log.write = raising(DiedError())  # type: ignore[method-assign]
        raise DiedError

    paused.append(dies)
    fails(desk, DiedError, [(refund, "o-1", 1), (label, "o-1")])
    desk.runtime.journal.leases.close()
    with desk.restarted() as later:
        assert [one.after for one in resume(later.runtime)] == [LocalTxn.SETTLED]
    assert [one[0] for one in desk.done].count("refund") == 1


def on_disk(desk: Desk) -> list[str]:
    """The states that a connection of our own reads, sorted."""
    with closing(sqlite3.connect(desk.runtime.settings.journal_path)) as journal:
        return sorted(state for (state,) in journal.execute("SELECT state FROM effects"))


@pytest.mark.parametrize("first", [True, False])
def test_a_result_is_written_while_a_sibling_runs(desk: Desk, refund, first: bool) -> None:
    seen: list[str] = []

    @order_tool(desk)
    def slow(order_id: str) -> None:
        for _ in range(int(SECONDS / 0.005)):
            if {"fired", "failed"} <= {*on_disk(desk)}:
                break
            threading.Event().wait(0.005)
        seen.extend(on_disk(desk))

    others = [(refund, "o-1", 1), (mail_tool(desk), "o-1")]
    run(desk, [(slow, "o-1"), *others] if first else [*others, (slow, "o-1")])
    assert (seen, on_disk(desk)) == (["failed", "fired", "firing"], ["failed", "fired", "fired"])


def test_in_asyncio_a_result_is_written_while_a_sibling_runs(desk: Desk) -> None:
    seen: list[str] = []

    @order_tool(desk)
    async def quick(order_id: str) -> str:
        return order_id

    @order_tool(desk)
    async def slow(order_id: str) -> None:
        for _ in range(int(SECONDS / 0.005)):
            if "fired" in on_disk(desk):
                break
            await asyncio.sleep(0.005)
        seen.extend(on_disk(desk))

    asyncio.run(run_async(desk, [(slow, "o-1"), (quick, "o-1")]))
    assert seen == ["fired", "firing"]


def test_what_has_happened_is_written_before_more_time_is_asked_for(desk: Desk, refund) -> None:
    """A renewal is a request, and the service may be slow to answer it."""
    seen: list[dict[str, str]] = []
    checked = refusing_tool(desk, name="check", changes={"recheck": True})
    desk.face.faults["/v1/redemptions/"] = [lambda: seen.append(states(desk))]
    fails(desk, Exception, (refund, "o-1", 1), (checked, "o-1"), match="check did not happen")
    assert seen == [{"refund#1": "fired", "check#2": "redeemed"}]


def test_a_try_that_had_ended_is_not_left_running_by_ctrl_c_in_its_pause(desk: Desk, paused: Paused) -> None:
    probe("find_label", registry=desk.registry)(lambda: DidNotHappen(final=True))
    label = label_tool(desk, CUT, probe="find_label")
    paused.append(raising(KeyboardInterrupt()))
    fails(desk, KeyboardInterrupt, (label, "o-1"))
    assert [(row.state, row.error) for row in effect_rows(desk)] == [("unknown", "ConnectionError: 503")]
    resume(desk.runtime)
    assert (states(desk), len(desk.done)) == ({"label#1": "failed"}, 1)


@pytest.mark.usefixtures("paused")
def test_a_try_that_was_cut_by_ctrl_c_was_left_running_though_one_before_it_had_ended(desk: Desk) -> None:
    fails(desk, KeyboardInterrupt, (label_tool(desk, CUT, KeyboardInterrupt()), "o-1"))
    assert running.errors(desk) == {"label": "left running (interrupted by KeyboardInterrupt)"}


@pytest.mark.parametrize("kept", [True, False], ids=["it was written", "it was not"])
def test_a_failing_journal_ends_no_sibling(desk: Desk, refund, kept: bool) -> None:
    """What could not be written then is written when all have ended, where it is not there."""
    ended = threading.Event()
    write, left = desk.runtime.journal.effect_log.write, [errors.JournalError("disk I/O error")]

    @order_tool(desk)
    def slow(order_id: str) -> str:
        assert ended.wait(SECONDS)
        return order_id

    def broken(*given) -> None:
        if left:
            if kept:
                write(*given)  # and the answer to COMMIT was lost
            ended.set()
            raise left.pop()
        write(*given)

    desk.runtime.journal.effect_log.write = broken  # type: ignore[method-assign]
    run(desk, [(refund, "o-1", 1), (slow, "o-1")])
    assert states(desk) == {"refund#1": "fired", "slow#2": "fired"}


def test_a_journal_that_stays_broken_leaves_the_group_firing(desk: Desk, refund) -> None:
    broken = raising(errors.JournalError("disk I/O error"))
    desk.runtime.journal.effect_log.write = broken  # type: ignore[method-assign]
    fails(desk, errors.OutcomeUnknown, [(refund, "o-1", 1), (refund, "o-2", 2)])
    assert states(desk) == {"refund#1": "firing", "refund#2": "firing"}


# ------------------------------------------------------------------------------------------- the pauses themselves

TRIES = 20


def test_pauses_double_up_to_a_bound_and_are_spread(desk: Desk, monkeypatch) -> None:
    slept = sleeping(desk, monkeypatch)
    notify = failing_tool(desk, CUT, idempotent=True, tries=TRIES)
    fails(desk, errors.OutcomeUnknown, (notify, "o-1"))
    first = 2 * desk.runtime.settings.retry_base_seconds
    without_chance = [min(first * 2**n, 30.0) for n in range(TRIES - 1)]
    spread = [pause / due for pause, due in zip(slept, without_chance, strict=True)]
    assert min(spread) >= 0.5 and max(spread) <= 1
    assert max(spread) - min(spread) > 0.25  # many agents do not come back at once
