"""One key, several who use it: one fires, the others wait for it and get what it got. Scenarios 41 to 43."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from countersign import TransactionBusy
from tests.fakes.desk import Desk, make_runtime, refund_tool
from tests.fakes.running import fails, run

SECONDS = 20.0  # that a test waits for what has to come, never for time to pass
RESULT = {"refund_id": "r-o-1-100"}
DONE = [("refund", "o-1", 100)]


@pytest.fixture
def refund(desk: Desk) -> Any:
    return refund_tool(desk)


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
def first_under_way(desk: Desk, refund: Any) -> Iterator[tuple[Held, ThreadPoolExecutor, Any]]:
    held = Held(desk)
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(ends, desk, refund)
        assert held.is_under_way.wait(SECONDS)
        yield held, threads, first
        assert first.result(SECONDS) == (RESULT, False, "settled")


def test_scenario_41_the_same_call_again_answers_what_was_stored_however_it_is_written(
    desk: Desk, refund: Any
) -> None:
    assert ends(desk, refund) == (RESULT, False, "settled")
    with desk.restarted() as later, later.step() as again:
        stored = refund(order_id="o-1", tags=None, amount_cents=100)
    assert (stored.result, again.replayed, len(again.effects)) == (RESULT, True, 1)
    assert desk.done == DONE


@pytest.mark.parametrize("others", [1, 3])
def test_scenario_42_threads_with_one_key_wait_and_get_the_first_result(
    desk: Desk, refund: Any, others: int
) -> None:
    with first_under_way(desk, refund) as (held, threads, _):
        waiting = [threads.submit(ends, desk, refund) for _ in range(others)]
        assert not any(one.done() for one in waiting)
        held.may_end.set()
        assert [one.result(SECONDS) for one in waiting] == [(RESULT, True, "settled")] * others
    assert desk.done == DONE


def test_scenario_42_whoever_waited_long_enough_is_told_so_by_type_and_fires_nothing(
    desk: Desk, refund: Any
) -> None:
    settings = replace(desk.runtime.settings, lease_wait_seconds=0.1)
    with make_runtime(settings, desk.face, desk.registry, desk.clock) as runtime:
        impatient = replace(desk, runtime=runtime)
        with first_under_way(desk, refund) as (held, *_):
            told = r"'t-1' is being run by process \d+ on \S+; .*Try again"
            busy = fails(impatient, TransactionBusy, (refund, "o-1", 100), match=told).error
            assert (busy.key, busy.code) == ("t-1", "transaction_busy")
            assert busy.waited == pytest.approx(settings.lease_wait_seconds)
            held.may_end.set()
        assert ends(impatient, refund) == (RESULT, True, "settled")
    assert desk.done == DONE


def test_scenario_42_another_key_waits_for_nobody(desk: Desk, refund: Any) -> None:
    with first_under_way(desk, refund) as (held, threads, _):
        held.is_under_way.clear()
        other = threads.submit(ends, desk, refund, "t-2")
        assert held.is_under_way.wait(SECONDS), "the other call is under way beside the first"
        held.may_end.set()
        assert other.result(SECONDS)[1] is False
    assert len(desk.done) == len(set(desk.keys)) == 2


def test_scenario_43_an_agent_that_starts_again_fires_once(desk: Desk, refund: Any) -> None:
    for replayed in (False, True, True):
        with desk.restarted() as life:
            assert ends(life, refund) == (RESULT, replayed, "settled")
    assert desk.done == DONE
