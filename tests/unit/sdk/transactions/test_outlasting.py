"""A waiting run outlasts an unavailable service, a quota and a busy worker, and not longer than `wait`."""

import itertools
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from countersign import OutcomeUnknown, OverQuota, ReviewPending, SQLiteAdapter, TransactionBusy
from countersign.contract.codes import ErrorCode
from countersign.contract.states import EffectState
from countersign.transactions.live_step import LiveStep as Step
from tests.fakes.desk import Desk, failing_tool, make_runtime, note_tool, notes_in, refund_tool
from tests.fakes.running import fails
from tests.fakes.service import Refused
from tests.unit.sdk.commit.probed import sleeping
from tests.unit.sdk.transactions.looks import TXN, on_view, waited

LARGE = [("refund", "o-1", 90_000)]
TOO_MANY = Refused(429, ErrorCode.TOO_MANY_OPEN, "so many", retry_after_seconds=60)


@pytest.fixture
def notify(desk: Desk) -> Any:
    """A step whose outcome is unknown."""
    tool = failing_tool(desk, TimeoutError("slow"))
    return lambda _: tool("o-1")


@pytest.fixture
def slept(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of a waiting run, in seconds: the clock advances by them, without real waiting."""
    return sleeping(desk, monkeypatch)


@pytest.fixture
def refunds(desk: Desk) -> Any:
    """A step that people are asked about."""
    refund = refund_tool(desk)
    return lambda _: refund("o-1", 90_000)


@pytest.fixture
def live_step(desk: Desk, notes: Any, refunds: Any) -> Any:
    """A step with live work, which therefore runs again once people have agreed."""
    note = note_tool(desk, SQLiteAdapter(notes))
    return lambda _: (note("o-1", "x"), refunds(_))


def settle(desk: Desk) -> None:
    (held,) = desk.service.latest(TXN).held
    if held.state is EffectState.UNKNOWN:
        desk.service.settle(TXN, held.effect.effect_id, EffectState.FIRED)


def test_who_waits_for_a_person_to_settle_outlasts_a_service_that_is_away(desk: Desk, notify: Any) -> None:
    faults: list[Any] = [*(["lost_request"] * 20), lambda: settle(desk)]  # more than the retries of one look
    desk.face.faults[f"/v1/transactions/{TXN}"] = faults
    waited(desk, notify)
    assert (desk.done, faults) == ([("notify", "o-1")], [])


def test_but_not_longer_than_requested(desk: Desk, notify: Any) -> None:
    def away() -> None:
        desk.clock.advance(7)
        raise httpx2.ConnectError("the wire was cut")

    desk.face.faults[f"/v1/transactions/{TXN}"] = [away] * 100
    with pytest.raises(OutcomeUnknown):
        waited(desk, notify)
    assert 60 <= desk.clock.time - 1_800_000_000 < 100


def refusing(desk: Desk, refused: Refused, times: int, act: Any = lambda: None) -> None:
    """The service refuses so many looks at a transaction; at the next, somebody acts."""
    wait, looks = desk.service.wait, itertools.count(1)

    def look(txn: str, seconds: float) -> Any:
        desk.clock.advance(5)
        if next(looks) <= times:
            raise refused
        act()
        return wait(txn, 0)

    desk.service.wait = look  # type: ignore[method-assign]


@pytest.mark.usefixtures("slept")
@pytest.mark.parametrize("refused", [TOO_MANY, Refused(403, ErrorCode.NOT_REDEEMER)], ids=str)
def test_an_unknown_outcome_is_raised_despite_a_refusal(desk: Desk, notify: Any, refused: Any) -> None:
    refusing(desk, refused, 10_000)
    with pytest.raises(OutcomeUnknown):
        waited(desk, notify)
    assert desk.done == [("notify", "o-1")]


def test_over_its_quota_the_reviewers_are_known(desk: Desk, live_step: Any, slept: Any) -> None:
    refusing(desk, TOO_MANY, 10_000)
    with pytest.raises(ReviewPending, match="so many") as pending:
        waited(desk, live_step, 30)
    assert [one.tool for one in pending.value.reviews] == ["refund"]
    assert all(pause <= 30 for pause in slept)  # and no longer than the given wait


def approve(desk: Desk) -> None:
    desk.service.approve(TXN)


WAITING = [("notify", 5, settle), ("refunds", 3, approve), ("live_step", 3, approve)]


@pytest.mark.parametrize(("step", "looks", "act"), WAITING)
def test_it_obeys_retry_after(desk: Desk, slept: Any, step: str, looks: int, act: Any, request: Any) -> None:
    refusing(desk, TOO_MANY, 4 * looks, lambda: act(desk))  # each look is tried four times
    waited(desk, request.getfixturevalue(step), 600)
    assert (slept.count(60), len(desk.done)) == (looks, 1)


@pytest.mark.parametrize(("times", "wait"), [(8, 600), (10_000, 200)])  # each submission is tried four times
def test_a_rerun_over_its_quota_is_retried(
    desk: Desk, notes: Any, live_step: Any, slept: Any, times: int, wait: int
) -> None:
    submit, refused = desk.service.submit, itertools.count(1)

    def submitted(*args: Any, **more: Any) -> Any:
        if next(refused) <= times:
            raise TOO_MANY
        return submit(*args, **more)

    def act() -> None:
        desk.service.approve(TXN)
        desk.service.submit = submitted  # type: ignore[method-assign]

    on_view(desk, act)
    with pytest.raises(OverQuota) if times > 8 else nullcontext():
        waited(desk, live_step, wait)
    if times > 8:
        assert (notes_in(notes), desk.done, 200 <= sum(slept) < 210) == ([], [], True)
    else:
        assert (notes_in(notes), desk.done, slept.count(60)) == ([("o-1", "x")], LARGE, 2)


def test_a_worker_that_looks_does_not_end_who_waits(desk: Desk, live_step: Any, monkeypatch: Any) -> None:
    tried, opening = list[str](), Step.open

    async def opened(*args: Any, **more: Any) -> Step:
        tried.append("")
        if len(tried) in {2, 3}:
            raise TransactionBusy("t-1", "a worker", 5.0)
        return await opening(*args, **more)

    monkeypatch.setattr(Step, "open", opened)
    on_view(desk, lambda: desk.service.approve(TXN))
    waited(desk, live_step, 600)
    assert (desk.done, len(tried)) == (LARGE, 4)


def test_a_busy_transaction_is_reported_at_the_first_run(desk: Desk, refunds: Any) -> None:
    fails(desk, ReviewPending, (refunds, ""))
    settings = replace(desk.runtime.settings, lease_wait_seconds=0.1)
    runtime = make_runtime(settings, desk.face, desk.registry, desk.clock)
    with desk.another_process() as elsewhere, runtime:
        held: Any = elsewhere.journal.leases.acquire(TXN)
        with pytest.raises(TransactionBusy):
            waited(replace(desk, runtime=runtime), refunds, 600)
        elsewhere.journal.leases.release(held)
