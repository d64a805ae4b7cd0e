"""Time that does not pass as it should, between the receipt and the fire: late is a question, never a fire."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from countersign import (
    CountersignError,
    LeaseLost,
    OutcomeUnknown,
    ReleaseLapsed,
    ReleaseRefused,
    Runtime,
    ServiceRefused,
    ServiceUnavailable,
    resume,
    transaction,
)
from countersign.commit.outcomes import Outcomes
from countersign.commit.renewing import TimeToFire
from tests.fakes.desk import Desk, TickingClock, failing_tool, make_runtime, refund_tool, states
from tests.unit.sdk.full_disk import full_after

HOUR = 3_600.0
PAUSES = {"past fire_by": 60.0, "past the release too": 600.0}


@dataclass
class Machine(TickingClock):
    """A machine whose wall clock is `off` seconds from the service's."""

    service: TickingClock
    off: float = 0.0

    def wall(self) -> float:
        return self.service.wall() + self.off

    def steady(self) -> float:
        return self.service.steady()


@pytest.fixture
def machine(desk: Desk) -> Machine:
    return Machine(desk.clock)


def running(desk: Desk, machine: Machine) -> Runtime:
    desk.service.fire_seconds = 30
    return make_runtime(desk.runtime.settings, desk.face, desk.registry, machine)


BACK = {"its clock kept time": 0.0, "its clock was set back by as much": 1.0, "by ten times as much": 10.0}


@pytest.mark.parametrize("back", BACK.values(), ids=BACK)
@pytest.mark.parametrize("seconds", PAUSES.values(), ids=PAUSES)
def test_a_pause_past_fire_by_fires_nothing_without_asking_again(
    desk: Desk, machine: Machine, seconds: float, back: float
) -> None:
    """The process stands still with the receipt on its way; its wall clock may have been set back meanwhile."""
    refund = refund_tool(desk)

    def pause() -> None:
        desk.clock.advance(seconds)
        machine.off -= back * seconds

    with running(desk, machine) as runtime:
        desk.face.faults["/v1/transactions"] = [pause]
        desk.face.faults["/v1/redemptions/"] = ["lost_request"] * 20
        with pytest.raises(CountersignError), transaction("t-1", runtime=runtime):
            refund("o-1", 100)
    assert desk.done == []


@pytest.mark.parametrize(("seconds", "asked"), [(PAUSES["past fire_by"], 1), (5.0, 0)])
def test_a_pause_past_fire_by_is_asked_about_and_then_fires(
    desk: Desk, machine: Machine, seconds: float, asked: int
) -> None:
    refund = refund_tool(desk)
    with running(desk, machine) as runtime:
        desk.face.faults["/v1/transactions"] = [lambda: desk.clock.advance(seconds)]
        with transaction("t-1", runtime=runtime):
            refund("o-1", 100)
    assert (desk.face.asked("/v1/redemptions/"), desk.done) == (asked, [("refund", "o-1", 100)])


def test_a_pause_past_the_release_is_gone_on_from_by_its_attempt(desk: Desk, machine: Machine) -> None:
    refund = refund_tool(desk)
    with running(desk, machine) as runtime:
        desk.face.faults["/v1/transactions"] = [lambda: desk.clock.advance(PAUSES["past the release too"])]
        with pytest.raises(ReleaseRefused, match="expired"), transaction("t-1", runtime=runtime):
            refund("o-1", 100)
        assert desk.done == []
        assert [one.after for one in resume(runtime)] == ["settled"]
    assert desk.done == [("refund", "o-1", 100)]


LONG = PAUSES["past fire_by"]


@contextmanager
def standing_still(desk: Desk, *pauses: float, then: Callable[[], object] = lambda: None) -> Iterator[None]:
    """The process stands still once FIRING is on the disk, before it calls the tool."""
    begin, left = Outcomes.begin, [*pauses]

    def begun(self: Outcomes, calls: Any, **more: Any) -> None:
        begin(self, calls, **more)
        if left:
            desk.clock.advance(left.pop(0))
            then()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outcomes, "begin", begun)
        yield


@pytest.mark.parametrize("orders", [["o-1"], ["o-1", "o-2"]], ids=["one", "a group"])
def test_a_pause_between_firing_and_the_calls_is_asked_about_once_and_then_fires(
    desk: Desk, machine: Machine, orders: list[str]
) -> None:
    refund = refund_tool(desk)
    with (
        running(desk, machine) as runtime,
        standing_still(desk, LONG),
        transaction("t-1", runtime=runtime) as txn,
        txn.parallel(),
    ):
        for order in orders:
            refund(order, 100)
    assert desk.face.asked("/v1/redemptions/") == 1
    assert sorted(desk.done) == [("refund", order, 100) for order in orders]


def test_a_pause_between_firing_and_the_call_fires_nothing_where_no_more_time_is_given(
    desk: Desk, machine: Machine
) -> None:
    """It is known not to have been called: so it failed, is not unknown, and the service's reason is told."""
    refund = refund_tool(desk)
    with running(desk, machine) as runtime, standing_still(desk, LONG):
        desk.face.faults["/v1/redemptions/"] = ["lost_request"] * 20
        with pytest.raises(ReleaseLapsed, match="redemptions"), transaction("t-1", runtime=runtime):
            refund("o-1", 100)
        assert desk.done == []
        (record,) = runtime.journal.transactions.find("t-1")
        assert (record.state, states(desk)) == ("ended", {"refund#1": "failed"})


def test_what_an_earlier_try_left_in_doubt_stays_as_it_was_told_when_there_is_no_time_for_another(
    desk: Desk, machine: Machine
) -> None:
    notify = failing_tool(desk, ConnectionError("no answer"), changes={"idempotent": True})
    with running(desk, machine) as runtime, standing_still(desk, 0.0, LONG):
        desk.face.faults["/v1/redemptions/"] = ["lost_request"] * 20
        with (
            pytest.raises(OutcomeUnknown, match="ConnectionError: no answer") as unknown,
            transaction("t-1", runtime=runtime),
        ):
            notify("o-1")
    assert desk.done == [("notify", "o-1")]
    assert "time to fire" not in str(unknown.value)


def test_what_an_earlier_run_left_firing_stays_in_doubt_when_there_is_no_time_for_another_call(
    desk: Desk, machine: Machine
) -> None:
    refund = refund_tool(desk)
    desk.publish(refund, idempotent=True)
    with full_after(desk.runtime.journal, 1), pytest.raises(OutcomeUnknown), desk.step():
        refund("o-1", 100)
    desk.runtime.journal.leases.close()
    desk.clock.advance(600)

    def away() -> None:
        desk.face.faults["/v1/redemptions/"] = ["lost_request"] * 20

    with running(desk, machine) as runtime, standing_still(desk, LONG, then=away):
        (found,) = resume(runtime)
    assert (found.after, len(desk.done)) == ("unsettled", 1)
    assert "an earlier run left it firing, and there is no time for another call" in found.note


def test_a_process_that_never_has_time_gives_up(desk: Desk, machine: Machine) -> None:
    refund = refund_tool(desk)
    with (
        running(desk, machine) as runtime,
        standing_still(desk, *[LONG] * 20),
        pytest.raises(ReleaseLapsed, match="before it was called, 4 times"),
        transaction("t-1", runtime=runtime),
    ):
        refund("o-1", 100)
    assert desk.face.asked("/v1/redemptions/") == 3
    assert desk.done == []


def test_no_call_is_made_on_more_time_that_was_given_to_another(
    desk: Desk, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    refund, take, asked = refund_tool(desk), TimeToFire.take, list[int]()

    async def for_the_first(self: TimeToFire, calls: Any, after: Any) -> None:
        asked.append(len(calls))
        await take(self, calls if len(asked) == 1 else calls[:1], after)

    monkeypatch.setattr(TimeToFire, "take", for_the_first)
    with (
        running(desk, machine) as runtime,
        standing_still(desk, LONG),
        transaction("t-1", runtime=runtime) as txn,
        txn.parallel(),
    ):
        refund("o-1", 100)
        refund("o-2", 100)
    assert asked == [2, 2, 1]  # the second waited until it was given time itself
    assert desk.done == [("refund", "o-1", 100), ("refund", "o-2", 100)]


def test_an_owner_that_lost_its_lease_while_it_stood_still_calls_nothing(
    desk: Desk, machine: Machine
) -> None:
    """It is given more time, for the service knows of no owner; the journal does."""
    refund = refund_tool(desk)
    with running(desk, machine) as runtime:

        def taken_over() -> None:
            with runtime.journal.database.unit(durable=True) as unit:
                unit.execute("UPDATE transactions SET generation = generation + 1", ())

        with (
            standing_still(desk, LONG, then=taken_over),
            pytest.raises(LeaseLost),
            transaction("t-1", runtime=runtime),
        ):
            refund("o-1", 100)
    assert desk.done == []


@pytest.mark.parametrize("off", [HOUR, -HOUR], ids=["an hour ahead", "an hour behind"])
def test_a_machine_whose_clock_is_wrong_fires_nothing_until_it_is_set(
    desk: Desk, machine: Machine, off: float
) -> None:
    refund = refund_tool(desk)
    machine.off = off
    with running(desk, machine) as runtime:
        with pytest.raises(ServiceRefused, match="bad_proof") as refused, transaction("t-1", runtime=runtime):
            refund("o-1", 100)
        assert desk.done == []
        assert refused.value.__cause__ is not refused.value
        machine.off = 0.0
        with transaction("t-1", runtime=runtime):
            refund("o-1", 100)
    assert desk.done == [("refund", "o-1", 100)]


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["an hour ahead", "an hour back"])
def test_a_clock_that_jumps_while_the_receipt_is_on_its_way_fires_nothing_on_it(
    desk: Desk, machine: Machine, jump: float
) -> None:
    """By its own clock the release has expired, or is not yet valid: refused, and told; set right, it goes on."""
    refund = refund_tool(desk)

    def jumps() -> None:
        machine.off += jump

    refusals = pytest.raises((ReleaseRefused, ServiceRefused, ServiceUnavailable))
    with running(desk, machine) as runtime:
        desk.face.faults["/v1/transactions"] = [jumps]
        with refusals, transaction("t-1", runtime=runtime):
            refund("o-1", 100)
        assert desk.done == []
        machine.off = 0.0
        resume(runtime)
        assert desk.done == [("refund", "o-1", 100)]
