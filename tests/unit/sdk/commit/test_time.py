"""Time that does not pass as it should, between the receipt and the fire: late is a question, never a fire."""

from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from countersign import errors, resume
from countersign.commit.attempt import FireWindow, Outcomes
from countersign.contract import Verdict
from countersign.contract.wire import Reason
from tests.fakes.desk import Desk, TickingClock, charge_tools, failing_tool, make_runtime, refund_tool, states
from tests.fakes.running import fails, run
from tests.unit.sdk.full_disk import full_after

HOUR = 3_600.0
LONG = 60.0  # past fire_by
LONGER = 600.0  # past the release too


def test_time_running_out_between_two_effects_is_renewed(desk: Desk, refund) -> None:
    desk.before_fire = lambda _: desk.clock.advance(29)
    run(desk, (refund, "o-1", 100), (refund, "o-2", 100))
    assert (len(desk.done), desk.face.asked("/v1/redemptions/")) == (2, 1)


def test_a_manifest_that_says_recheck_asks_before_every_fire(desk: Desk) -> None:
    charge = charge_tools(desk, recheck=True)
    run(desk, (charge, "o-1", 100), (charge, "o-2", 200))
    assert desk.face.asked("/v1/redemptions/") == 2


NO_LONGER = (Verdict.DENY, Reason(code="no_permit", text="no longer"))


def no_more(desk: Desk, of_void=NO_LONGER) -> None:
    """From the first fire on, the time to fire is over and the policy gives no more of it."""

    def late(_: str) -> None:
        desk.clock.advance(40)
        desk.service.policy = lambda name, _: of_void if name == "void" else NO_LONGER

    desk.before_fire = late


def test_a_refused_renewal_leaves_the_rest_unused_and_takes_back_what_fired(desk: Desk, charge) -> None:
    no_more(desk, of_void=Verdict.RELEASE)
    lapsed = fails(desk, errors.ReleaseLapsed, (charge, "o-1", 100), (charge, "o-2", 200))
    assert [name for name, *_ in desk.done] == ["charge", "void"]
    assert states(desk) == {"charge#1": "compensated", "charge#2": "unused"}
    assert "Nothing of this transaction remains in effect" in lapsed.said


PARTLY = [
    (refund_tool, NO_LONGER, "fired"),
    (charge_tools, NO_LONGER, "compensation_failed"),
    (charge_tools, Verdict.REVIEW, "compensating"),
]


@pytest.mark.parametrize(("make", "of_void", "first"), PARTLY)
def test_or_names_remaining_effects_and_reviewers(desk: Desk, make, of_void, first: str) -> None:
    act, waits = make(desk), first == "compensating"
    no_more(desk, of_void)
    partly = fails(desk, errors.PartlyFired, (act, "o-1", 100), (act, "o-2", 200))
    ((name, *_),) = desk.done
    assert partly.error.outcomes == {f"{name}#1": first, f"{name}#2": "unused"}
    assert [one.tool for one in partly.error.reviews] == ["void"] * waits
    for text in (f"Still in effect and not undone: {name}#1", "another key", f"not in effect: {name}#2."):
        assert (text in partly.said) is not waits
    assert (partly.error.code, partly.txn.state) == ("partly_fired", "unsettled")


def test_a_renewal_refused_before_anything_fired_leaves_nothing_and_says_so(desk: Desk) -> None:
    charge, renew = charge_tools(desk, recheck=True), desk.service.renew

    def refuse(attempt: str, effect_ids: list[str], kid: str) -> object:
        desk.service.policy = lambda *_: NO_LONGER
        return renew(attempt, effect_ids, kid)

    desk.service.renew = refuse  # type: ignore[assignment,method-assign]
    fails(desk, errors.ReleaseLapsed, (charge, "o-1", 100), match="Nothing of this")
    assert desk.done == []


# ----------------------------------------------------------------- a paused process, a wrong clock


@dataclass
class Machine(TickingClock):
    """A machine whose wall clock is `off` seconds from the service's."""

    service: TickingClock
    off: float = 0.0

    def wall(self) -> float:
        return self.service.wall() + self.off

    def monotonic(self) -> float:
        return self.service.monotonic()


@pytest.fixture
def machine(desk: Desk) -> Machine:
    return Machine(desk.clock)


@contextmanager
def running(desk: Desk, machine: Machine):
    """The desk as a process on that machine has it."""
    desk.service.fire_seconds = 30
    with make_runtime(desk.runtime.settings, desk.face, desk.registry, machine) as runtime:
        yield replace(desk, runtime=runtime)


@pytest.fixture
def here(desk: Desk, machine: Machine):
    with running(desk, machine) as process:
        yield process


def no_renewal(desk: Desk) -> None:
    """The service does not answer renewals."""
    desk.face.faults["/v1/redemptions/"] = ["lost_request"] * 20


@pytest.mark.parametrize("back", [0.0, 1.0, 10.0], ids=lambda times: f"its clock set back {times} times that")
@pytest.mark.parametrize("seconds", [LONG, LONGER])
def test_a_long_pause_fires_none(here: Desk, machine, refund, seconds: float, back: float) -> None:
    """The process is suspended while the receipt is in flight; its wall clock may have been set back meanwhile."""

    def pause() -> None:
        here.clock.advance(seconds)
        machine.off -= back * seconds

    here.face.faults["/v1/transactions"] = [pause]
    no_renewal(here)
    fails(here, errors.CountersignError, (refund, "o-1", 100))
    assert here.done == []


@pytest.mark.parametrize(("seconds", "asked"), [(LONG, 1), (5.0, 0)])
def test_a_pause_past_fire_by_is_asked_about(here: Desk, refund, seconds: float, asked: int) -> None:
    here.face.faults["/v1/transactions"] = [lambda: here.clock.advance(seconds)]
    run(here, (refund, "o-1", 100))
    assert (here.face.asked("/v1/redemptions/"), here.done) == (asked, [("refund", "o-1", 100)])


def test_after_a_pause_past_the_release_recovery_fires_by_the_attempt(here: Desk, refund) -> None:
    here.face.faults["/v1/transactions"] = [lambda: here.clock.advance(LONGER)]
    fails(here, errors.ReleaseRefused, (refund, "o-1", 100), match="expired")
    assert here.done == []
    assert [one.after for one in resume(here.runtime)] == ["settled"]
    assert here.done == [("refund", "o-1", 100)]


@contextmanager
def paused_process(desk: Desk, *pauses: float, then=lambda: None):
    """The process is suspended once FIRING is on disk, before it calls the tool."""
    begin, left = Outcomes.begin, [*pauses]

    def begun(self: Outcomes, calls, **more) -> None:
        begin(self, calls, **more)
        if left:
            desk.clock.advance(left.pop(0))
            then()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outcomes, "begin", begun)
        yield


@pytest.mark.parametrize("orders", [["o-1"], ["o-1", "o-2"]], ids=["one", "a group"])
def test_a_pause_before_the_calls_is_asked_about_once(here: Desk, refund, orders: list[str]) -> None:
    with paused_process(here, LONG):
        run(here, [(refund, order, 100) for order in orders])
    assert here.face.asked("/v1/redemptions/") == 1
    assert sorted(here.done) == [("refund", order, 100) for order in orders]


def test_a_pause_before_the_call_fires_nothing_without_more_time(here: Desk, refund) -> None:
    """It was certainly not called, so it failed and is not unknown; the service's reason is reported."""
    no_renewal(here)
    with paused_process(here, LONG):
        fails(here, errors.ReleaseLapsed, (refund, "o-1", 100), match="redemptions")
    (record,) = here.runtime.journal.transactions.find("t-1")
    assert (here.done, record.state, states(here)) == ([], "ended", {"refund#1": "failed"})


def test_what_an_earlier_try_left_in_doubt_stays_so_when_there_is_no_time_for_another(here: Desk) -> None:
    notify = failing_tool(here, ConnectionError("no answer"), changes={"idempotent": True})
    no_renewal(here)
    with paused_process(here, 0.0, LONG):
        fails(here, errors.OutcomeUnknown, (notify, "o-1"), match="ConnectionError: no answer")
    assert here.done == [("notify", "o-1")]


def test_what_an_earlier_run_left_firing_stays_in_doubt(desk: Desk, here: Desk, refund) -> None:
    desk.publish(refund, idempotent=True)
    with full_after(desk.runtime.journal, 1):
        fails(desk, errors.OutcomeUnknown, (refund, "o-1", 100))
    desk.runtime.journal.leases.close()
    desk.clock.advance(600)
    with paused_process(desk, LONG, then=lambda: no_renewal(desk)):
        (found,) = resume(here.runtime)
    assert (found.after, len(desk.done)) == ("unsettled", 1)
    assert "an earlier run left it firing, and there is no time for another call" in found.note


def test_a_process_that_never_has_time_gives_up(here: Desk, refund) -> None:
    with paused_process(here, *[LONG] * 20):
        fails(here, errors.ReleaseLapsed, (refund, "o-1", 100), match="before it was called, 4 times")
    assert (here.face.asked("/v1/redemptions/"), here.done) == (3, [])


def test_no_call_is_made_on_time_given_to_another(here: Desk, refund, monkeypatch) -> None:
    take, asked = FireWindow.take, list[int]()

    async def for_the_first(self: FireWindow, calls, after) -> None:
        asked.append(len(calls))
        await take(self, calls if len(asked) == 1 else calls[:1], after)

    monkeypatch.setattr(FireWindow, "take", for_the_first)
    with paused_process(here, LONG):
        run(here, [(refund, "o-1", 100), (refund, "o-2", 100)])
    assert asked == [2, 2, 1]  # the second waited until it was given time itself
    assert here.done == [("refund", "o-1", 100), ("refund", "o-2", 100)]


def test_an_owner_that_lost_its_lease_while_it_stood_still_calls_nothing(here: Desk, refund) -> None:
    """It is given more time, for the service knows of no owner; the journal does."""

    def taken_over() -> None:
        with here.runtime.journal.database.unit(durable=True) as unit:
            unit.execute("UPDATE transactions SET generation = generation + 1", ())

    with paused_process(here, LONG, then=taken_over):
        fails(here, errors.LeaseLost, (refund, "o-1", 100))
    assert here.done == []


@pytest.mark.parametrize("off", [HOUR, -HOUR], ids=["an hour ahead", "an hour behind"])
def test_a_wrong_clock_fires_nothing(here: Desk, machine, refund, off: float) -> None:
    machine.off = off
    refused = fails(here, errors.ServiceRefused, (refund, "o-1", 100), match="bad_proof").error
    assert here.done == [] and refused.__cause__ is not refused
    machine.off = 0.0
    run(here, (refund, "o-1", 100))
    assert here.done == [("refund", "o-1", 100)]


@pytest.mark.parametrize("jump", [HOUR, -HOUR], ids=["an hour ahead", "an hour back"])
def test_a_clock_that_jumps_fires_nothing(here: Desk, machine, refund, jump: float) -> None:
    """By its own clock the release has expired, or is not yet valid: refused with a reason; corrected, it continues."""
    here.face.faults["/v1/transactions"] = [lambda: setattr(machine, "off", jump)]
    refused = errors.ReleaseRefused, errors.ServiceRefused, errors.ServiceUnavailable
    fails(here, refused, (refund, "o-1", 100))
    assert here.done == []
    machine.off = 0.0
    resume(here.runtime)
    assert here.done == [("refund", "o-1", 100)]
