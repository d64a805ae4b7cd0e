"""While people are asked the service may be away for a while, or the agent be killed: what they approve fires once."""

import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from countersign import ReviewPending, resume, run_transaction
from countersign.commit.review import poll_pause
from countersign.contract import txn_id
from tests.fakes.desk import AGENT, Desk, notes_in
from tests.fakes.running import fails
from tests.unit.sdk.recovery.test_worker import Yard, yard

__all__ = ["yard"]
TXN = txn_id(agent=AGENT, run_key="t-1")
LOOK = f"/v1/transactions/{TXN}"
AWAY = 12  # requests, each with its retries: more looks than one


def away(desk: Desk, then: Any = lambda: None, *, seconds: float = 1.0) -> None:
    """The next polls fail; then something happens, and the service answers again."""

    def refuse() -> None:
        desk.clock.advance(seconds)
        raise httpx2.ConnectError("nothing listens")

    wait = desk.service.wait
    desk.service.wait = lambda txn, _: wait(txn, 0)  # type: ignore[method-assign]
    desk.face.faults[LOOK] = [refuse] * AWAY + [lambda: then() and None]


def test_a_short_outage_does_not_end_a_wait(desk: Desk, refund: Any) -> None:
    away(desk, lambda: desk.service.approve(TXN))
    desk.run((refund, "o-1", 90000), wait=600)
    assert desk.done == [("refund", "o-1", 90_000)]
    assert desk.face.asked(LOOK) > AWAY


def test_a_service_that_is_still_away_when_the_time_is_up_is_named(desk: Desk, refund: Any) -> None:
    away(desk, lambda: desk.clock.advance(600))
    pending = fails(desk, ReviewPending, (refund, "o-1", 90000), wait=60)
    assert "policy service could not be reached" not in pending.said
    away(desk, seconds=10)
    pending = fails(desk, ReviewPending, (refund, "o-1", 90000), wait=60, match="nothing listens")
    assert pending.error.parked and "could not be reached when the time was up" in pending.said
    desk.face.faults.clear()
    desk.service.approve(TXN)
    assert ([one.after for one in resume(desk.runtime)], resume(desk.runtime)) == (["settled"], [])
    assert desk.done == [("refund", "o-1", 90_000)]


def test_a_rerun_outlasts_an_outage(desk: Desk, notes: Any, note: Any, refund: Any) -> None:

    def step(txn: object) -> None:
        note("o-1", "x")
        refund("o-1", 90_000)

    away(desk, seconds=10)
    with pytest.raises(ReviewPending, match="policy service could not be reached") as pending:
        run_transaction(step, key="t-1", wait=60, runtime=desk.runtime)
    assert not pending.value.parked
    assert pending.value.reviews[0].tool == "refund"
    assert "run the same transaction again under key 't-1'" in str(pending.value)
    away(desk, lambda: desk.service.approve(TXN))
    run_transaction(step, key="t-1", wait=600, runtime=desk.runtime)
    assert (notes_in(notes), desk.done) == ([("o-1", "x")], [("refund", "o-1", 90_000)])


def test_what_waits_is_parked_before_anybody_is_waited_for(desk: Desk, refund: Any) -> None:
    desk.service.wait = lambda txn, _: desk.service.view(desk.service.latest(txn))  # type: ignore[method-assign]
    desk.face.faults[LOOK] = [KeyboardInterrupt()]
    desk.run((refund, "o-1", 90_000), wait=60, raises=KeyboardInterrupt)
    assert [one.waiting for one in resume(desk.runtime)] == [True]
    desk.service.approve(TXN)
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    assert desk.done == [("refund", "o-1", 90_000)]


AGENT_PROGRAM = """
import sys
from yard_tools import append
from countersign import transaction
print("begun", flush=True)
with transaction("t-1", wait=600):
    append("o-1", 90_000)
"""


def test_what_a_killed_agent_waited_for_is_fired_once_by_a_worker(yard: Yard) -> None:
    yard.park("t-0", "o-0", approve=False)  # has the tool reviewed; itself it only waits
    killed = subprocess.Popen([sys.executable, "-c", AGENT_PROGRAM], env=yard.env, cwd=yard.folder)
    try:
        end = time.monotonic() + 60
        while not yard.desk.face.asked(LOOK):
            assert time.monotonic() < end, yard.desk.face.log
            time.sleep(0.01)
    finally:
        killed.kill()
        killed.wait()
    yard.desk.service.approve(TXN)
    yard.resume()
    yard.resume()
    assert ([line.split()[0] for line in yard.lines()], yard.state("t-1")) == (["o-1"], "settled")


def test_the_pauses_grow_and_stay_within_a_long_poll(desk: Desk) -> None:
    settings = replace(desk.runtime.settings, retry_base_seconds=0.1, poll_seconds=20)
    longest = [0.1 * 2**missed for missed in range(8)] + [20.0] * 2000
    for missed, most in enumerate(longest):
        assert most / 2 <= poll_pause(settings, missed) <= most
