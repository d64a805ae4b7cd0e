"""One key, several who use it: one fires, the others wait for it and get what it got. Scenarios 41 to 44."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from countersign import Placeholder, Runtime, TransactionBusy, transaction
from tests.fakes.desk import Desk, make_runtime, refund_tool

SECONDS = 20.0  # that a test waits for what has to come, never for time to pass


class Held:
    """The first tool call stays under way until the test lets it end."""

    def __init__(self, desk: Desk) -> None:
        self.is_under_way, self.may_end = threading.Event(), threading.Event()
        desk.before_fire = self._hold

    def _hold(self, _: str) -> None:
        self.is_under_way.set()
        assert self.may_end.wait(SECONDS)


def run_in(desk: Desk, runtime: Runtime, refund: Any, key: str = "t-1") -> tuple[Any, bool, str]:
    """What one run of the key ends with: the result, whether it was replayed, the state."""
    with transaction(key, runtime=runtime) as txn:
        placed: Placeholder[dict[str, str]] = refund("o-1", 100)
    return placed.result, txn.replayed, txn.state


def test_scenario_41_the_same_call_again_answers_what_was_stored_however_it_is_written(desk: Desk) -> None:
    refund = refund_tool(desk)
    with desk.step() as txn:
        first = refund("o-1", 100)
        assert refund(amount_cents=100, order_id="o-1") is first
    with desk.restarted() as later, later.step() as again:
        stored = refund(order_id="o-1", tags=None, amount_cents=100)
    assert (stored.result, again.replayed, len(txn.effects)) == (first.result, True, 1)
    assert desk.done == [("refund", "o-1", 100)]


@pytest.mark.parametrize("others", [1, 3])
def test_scenario_42_threads_with_one_key_wait_and_get_the_first_result(desk: Desk, others: int) -> None:
    refund, held = refund_tool(desk), Held(desk)
    with ThreadPoolExecutor(others + 1) as threads:
        first = threads.submit(run_in, desk, desk.runtime, refund)
        assert held.is_under_way.wait(SECONDS)
        waiting = [threads.submit(run_in, desk, desk.runtime, refund) for _ in range(others)]
        assert not any(one.done() for one in waiting)
        held.may_end.set()
        assert first.result(SECONDS) == ({"refund_id": "r-o-1-100"}, False, "settled")
        for one in waiting:
            assert one.result(SECONDS) == ({"refund_id": "r-o-1-100"}, True, "settled")
    assert desk.done == [("refund", "o-1", 100)]


def test_scenario_42_whoever_waited_long_enough_is_told_so_by_type_and_fires_nothing(desk: Desk) -> None:
    refund, held = refund_tool(desk), Held(desk)
    settings = replace(desk.runtime.settings, lease_wait_seconds=0.1)
    with (
        ThreadPoolExecutor(1) as threads,
        make_runtime(settings, desk.face, desk.registry, desk.clock) as impatient,
    ):
        first = threads.submit(run_in, desk, desk.runtime, refund)
        assert held.is_under_way.wait(SECONDS)
        with pytest.raises(
            TransactionBusy, match=r"'t-1' is being run by process \d+ on \S+; .*Try again"
        ) as busy:
            run_in(desk, impatient, refund)
        assert (busy.value.key, busy.value.code) == ("t-1", "transaction_busy")
        assert busy.value.waited == pytest.approx(settings.lease_wait_seconds)
        held.may_end.set()
        assert first.result(SECONDS)[1] is False
        assert run_in(desk, impatient, refund) == ({"refund_id": "r-o-1-100"}, True, "settled")
    assert desk.done == [("refund", "o-1", 100)]


def test_scenario_42_another_key_waits_for_nobody(desk: Desk) -> None:
    refund, held = refund_tool(desk), Held(desk)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(run_in, desk, desk.runtime, refund)
        assert held.is_under_way.wait(SECONDS)
        held.is_under_way.clear()
        other = threads.submit(run_in, desk, desk.runtime, refund, "t-2")
        assert held.is_under_way.wait(SECONDS), "the other call is under way beside the first"
        held.may_end.set()
        assert [one.result(SECONDS)[1] for one in (first, other)] == [False, False]
    assert len(desk.done) == len(set(desk.keys)) == 2


def test_scenario_43_an_agent_that_starts_again_fires_once(desk: Desk) -> None:
    refund = refund_tool(desk)
    ends = []
    for _ in range(3):
        with desk.restarted() as life:
            ends.append(run_in(desk, life.runtime, refund))
    assert ends == [({"refund_id": "r-o-1-100"}, replayed, "settled") for replayed in (False, True, True)]
    assert desk.done == [("refund", "o-1", 100)]


def test_scenario_44_two_equal_calls_fire_twice_where_the_program_means_two(desk: Desk) -> None:
    refund = refund_tool(desk)
    for _ in range(2):
        with desk.step() as txn:
            first = refund("o-1", 100)
            with txn.repeat():
                second = refund("o-1", 100)
        assert first.effect_id != second.effect_id
        assert first.result == second.result
    assert len(desk.done) == len(set(desk.keys)) == 2, "a rerun repeats neither"
