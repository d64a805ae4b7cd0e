"""Who waits outlasts a service that is away, a quota and a worker that looks, and not longer than it was told to."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from countersign import (
    OutcomeUnknown,
    OverQuota,
    ReviewPending,
    SQLiteAdapter,
    Transaction,
    TransactionBusy,
    run_transaction,
)
from countersign.contract.codes import ErrorCode
from countersign.contract.states import EffectState
from countersign.contract.wire import TransactionView
from countersign.transactions.step import Step
from tests.fakes.desk import Desk, failing_tool, note_tool, notes_database, notes_in, refund_tool
from tests.fakes.service import Refused
from tests.unit.sdk.commit.probed import sleeping
from tests.unit.sdk.transactions.looks import TXN, on_view


def test_whoever_waits_for_a_person_to_settle_outlasts_a_service_that_is_away(desk: Desk) -> None:
    notify = failing_tool(desk, TimeoutError("slow"))

    def settle() -> None:
        (held,) = desk.service.latest(TXN).held
        desk.service.settle(TXN, held.effect.effect_id, EffectState.FIRED)

    faults: list[Any] = [*(["lost_request"] * 20), settle]  # far more than the retries of one look
    desk.face.faults[f"/v1/transactions/{TXN}"] = faults
    run_transaction(lambda _: notify("o-1"), key="t-1", wait=60, runtime=desk.runtime)
    assert (desk.done, faults) == ([("notify", "o-1")], [])


def test_but_not_longer_than_it_was_told_to(desk: Desk) -> None:
    notify = failing_tool(desk, TimeoutError("slow"))

    def away() -> None:
        desk.clock.advance(7)
        raise httpx2.ConnectError("the wire was cut")

    desk.face.faults[f"/v1/transactions/{TXN}"] = [away] * 100
    with pytest.raises(OutcomeUnknown):
        run_transaction(lambda _: notify("o-1"), key="t-1", wait=60, runtime=desk.runtime)
    assert 60 <= desk.clock.time - 1_800_000_000 < 100


def refusing(desk: Desk, refused: Refused, times: int) -> None:
    """The service refuses so many looks at a transaction."""
    wait, looks = desk.service.wait, itertools.count(1)

    def look(txn: str, seconds: float) -> TransactionView:
        desk.clock.advance(5)
        if next(looks) <= times:
            raise refused
        return wait(txn, 0)

    desk.service.wait = look  # type: ignore[method-assign]


TOO_MANY = Refused(429, ErrorCode.TOO_MANY_OPEN, "so many", retry_after_seconds=60)


@pytest.fixture
def slept(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of whoever waits, in seconds: the clock is moved on by them, and nobody waits."""
    return sleeping(desk, monkeypatch)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return notes_database(tmp_path)


@pytest.fixture
def live_step(desk: Desk, notes: Path) -> Callable[[Transaction], None]:
    """A step with live work, which therefore runs again once people have agreed."""
    note, refund = note_tool(desk, SQLiteAdapter(notes)), refund_tool(desk)

    def step(_: Transaction) -> None:
        note("o-1", "x")
        refund("o-1", 90_000)

    return step


def waited(desk: Desk, step: Callable[[Transaction], Any], wait: float = 600) -> Any:
    return run_transaction(step, key="t-1", wait=wait, runtime=desk.runtime)


def test_over_its_quota_who_waits_for_a_person_goes_on_waiting(desk: Desk, slept: list[float]) -> None:
    notify = failing_tool(desk, TimeoutError("slow"))
    wait = desk.service.wait

    def settle(txn: str, seconds: float) -> TransactionView:
        (held,) = desk.service.latest(TXN).held
        if held.state is EffectState.UNKNOWN:
            desk.service.settle(TXN, held.effect.effect_id, EffectState.FIRED)
        return wait(txn, 0)

    desk.service.wait = settle  # type: ignore[method-assign]
    refusing(desk, TOO_MANY, 20)  # which is five looks, each tried four times
    run_transaction(lambda _: notify("o-1"), key="t-1", wait=600, runtime=desk.runtime)
    assert desk.done == [("notify", "o-1")]
    assert slept.count(60) == 5  # as long as the service says that it lasts


@pytest.mark.parametrize(
    "refused", [TOO_MANY, Refused(403, ErrorCode.NOT_REDEEMER)], ids=["over quota", "refused"]
)
def test_an_outcome_that_is_unknown_is_told_as_that_whatever_the_service_refuses(
    desk: Desk, refused: Refused, slept: list[float]
) -> None:
    notify = failing_tool(desk, TimeoutError("slow"))
    refusing(desk, refused, 10_000)
    with pytest.raises(OutcomeUnknown):
        run_transaction(lambda _: notify("o-1"), key="t-1", wait=60, runtime=desk.runtime)
    assert desk.done == [("notify", "o-1")]


def test_over_its_quota_who_waits_for_people_hears_whom(
    desk: Desk, live_step: Any, slept: list[float]
) -> None:
    refusing(desk, TOO_MANY, 10_000)
    with pytest.raises(ReviewPending, match="so many") as pending:
        waited(desk, live_step, 30)
    assert [one.tool for one in pending.value.reviews] == ["refund"]
    assert all(pause <= 30 for pause in slept)  # and no longer than it was told to wait


@pytest.mark.parametrize("live", [False, True], ids=["in its block", "to run again"])
def test_over_its_quota_who_waits_for_people_looks_as_seldom_as_it_is_told(
    desk: Desk, live_step: Any, slept: list[float], live: bool
) -> None:
    refund = refund_tool(desk)
    refusing(desk, TOO_MANY, 12)  # which is three looks, each tried four times
    waiting = desk.service.wait
    asked = itertools.count(1)

    def look(txn: str, seconds: float) -> TransactionView:
        if next(asked) == 12:
            desk.service.approve(TXN)
        return waiting(txn, seconds)

    desk.service.wait = look  # type: ignore[method-assign]
    waited(desk, live_step if live else lambda _: refund("o-1", 90_000))
    assert (slept.count(60), desk.done) == (3, [("refund", "o-1", 90_000)])


def approved_and_over_quota(desk: Desk, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """People approve, and then the service refuses so many times to hear of it."""
    submit, refused = desk.service.submit, itertools.count(1)

    def submitted(*args: Any, **more: Any) -> TransactionView:
        if next(refused) <= times:
            raise TOO_MANY
        return submit(*args, **more)

    def approve() -> None:
        desk.service.approve(TXN)
        monkeypatch.setattr(desk.service, "submit", submitted)

    on_view(desk, approve)


def test_over_its_quota_at_the_run_after_the_answer_it_runs_again(
    desk: Desk, notes: Path, live_step: Any, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    approved_and_over_quota(desk, monkeypatch, 8)  # which is two submissions, each tried four times
    waited(desk, live_step)
    assert (notes_in(notes), desk.done) == ([("o-1", "x")], [("refund", "o-1", 90_000)])
    assert slept.count(60) == 2


def test_a_quota_is_waited_out_no_longer_than_it_was_told_to_wait(
    desk: Desk, notes: Path, live_step: Any, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    approved_and_over_quota(desk, monkeypatch, 10_000)
    with pytest.raises(OverQuota):
        waited(desk, live_step, 200)
    assert (notes_in(notes), desk.done) == ([], [])
    assert 200 <= sum(slept) < 210


def test_a_worker_that_looks_while_people_approve_does_not_end_who_waits(
    desk: Desk, live_step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, opening = list[str](), Step.open

    async def opened(*args: Any, **more: Any) -> Step:
        tried.append("")
        if len(tried) in {2, 3}:
            raise TransactionBusy("t-1", "a worker", 5.0)
        return await opening(*args, **more)

    monkeypatch.setattr(Step, "open", opened)
    on_view(desk, lambda: desk.service.approve(TXN))
    waited(desk, live_step)
    assert (desk.done, len(tried)) == ([("refund", "o-1", 90_000)], 4)


def test_who_is_in_the_way_at_the_first_run_is_told_at_once(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(ReviewPending), desk.step():
        refund("o-1", 90_000)
    with desk.another_process() as elsewhere:
        held = elsewhere.journal.leases.acquire(TXN)
        assert not isinstance(held, str)
        with pytest.raises(TransactionBusy):
            run_transaction(lambda _: refund("o-1", 90_000), key="t-1", wait=600, runtime=desk.runtime)
        elsewhere.journal.leases.release(held)
