"""A list whose redemption is sent back again and again: what its caller is told does not stand is not fired later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from countersign import ReleaseLapsed, ReviewPending, SQLiteAdapter, resume
from countersign.contract import EffectState, ErrorCode, TxnState
from countersign.contract.wire import RedemptionView
from tests.fakes.desk import Desk, note_tool, notes_database, notes_in, refund_tool
from tests.fakes.service import FakeService, Refused

LARGE = 20_000


@pytest.fixture
def refund(desk: Desk) -> Callable[..., Any]:
    return refund_tool(desk)


@pytest.fixture
def lagging(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Redemptions meet a replica that does not know the key of the releases; called, it has caught up."""
    redeem = desk.service.redeem

    def bad(*_: Any) -> Any:
        raise Refused(400, ErrorCode.BAD_TOKEN, "signed with a key that is not known here")

    monkeypatch.setattr(desk.service, "redeem", bad)
    return lambda: monkeypatch.setattr(desk.service, "redeem", redeem)


def approved_while_it_waits(desk: Desk) -> None:
    look = desk.service.wait

    def wait(txn: str, _: float) -> Any:
        desk.service.approve(txn)
        return look(txn, 0)

    desk.service.wait = wait  # type: ignore[method-assign]


def parks(desk: Desk, refund: Callable[..., Any], wait: float = 60) -> None:
    with desk.step(wait=wait):
        refund("o-1", LARGE)


def record_of(desk: Desk) -> tuple[str, bool]:
    (record,) = desk.runtime.journal.transactions.find("t-1")
    return record.state.value, record.parked


def test_what_is_told_not_to_stand_is_withdrawn_and_fires_once_under_another_key(
    desk: Desk, refund: Callable[..., Any], lagging: Callable[[], None]
) -> None:
    approved_while_it_waits(desk)
    with pytest.raises(ReleaseLapsed) as lapsed:
        parks(desk, refund)
    assert "sent back 8 times, the last time because" in str(lapsed.value)
    assert "bad_token" in str(lapsed.value) and "use another key" in str(lapsed.value)
    assert not lapsed.value.may_fire
    assert desk.service.latest(lapsed.value.txn).state is TxnState.ENDED
    lagging()
    assert resume(desk.another_process()) == [] and desk.done == []
    with desk.step("t-2", wait=60):
        refund("o-1", LARGE)
    assert resume(desk.another_process()) == [] and desk.done == [("refund", "o-1", LARGE)]


@pytest.fixture(params=["refused", "lost", "ends nothing"])
def no_withdrawal(request: pytest.FixtureRequest, desk: Desk) -> None:
    """The service says no to it, or does not answer at all, or leaves the transaction as it is."""

    def withdraw(txn: str, *_: Any) -> Any:
        if request.param == "refused":
            raise Refused(403, ErrorCode.FROZEN, "frozen")
        if request.param == "lost":
            raise httpx2.ReadError("the wire was cut")
        return desk.service.view(desk.service.latest(txn))

    desk.service.withdraw = withdraw  # type: ignore[method-assign]


@pytest.mark.usefixtures("no_withdrawal")
def test_what_cannot_be_withdrawn_is_told_as_approved_and_fires_once_under_its_own_key(
    desk: Desk, refund: Callable[..., Any], lagging: Callable[[], None]
) -> None:
    approved_while_it_waits(desk)
    with pytest.raises(ReleaseLapsed, match=r"not( be)? withdrawn") as lapsed:
        parks(desk, refund)
    assert lapsed.value.may_fire and record_of(desk) == ("ready", True)
    assert "under this key ('t-1')" in str(lapsed.value)
    assert "another key: it might happen twice" in str(lapsed.value)
    assert "Nothing of this transaction stands" not in str(lapsed.value)
    lagging()
    (found,) = resume(desk.another_process())
    assert (found.note, desk.done) == ("fired", [("refund", "o-1", LARGE)])
    parks(desk, refund)
    assert len(desk.done) == 1


def test_a_worker_leaves_approved_what_it_cannot_redeem_now(
    desk: Desk, refund: Callable[..., Any], lagging: Callable[[], None]
) -> None:
    """Nobody was told that nothing stands, so what people said yes to is not lost to a replica that lags."""
    with pytest.raises(ReviewPending) as pending:
        parks(desk, refund, wait=0)
    desk.service.approve(pending.value.txn)
    with desk.restarted() as later:
        (found,) = resume(later.runtime)
        assert found.is_kept_up and record_of(desk) == ("ready", True)
        assert "'t-1'" in found.note and "use another key" not in found.note
        lagging()
        (found,) = resume(later.runtime)
    assert (found.note, desk.done) == ("fired", [("refund", "o-1", LARGE)])


@pytest.mark.parametrize("after", [8, 9], ids=["by the last redemption", "as it was withdrawn"])
def test_what_was_redeemed_all_the_same_is_fired(
    desk: Desk, refund: Callable[..., Any], lagging: Callable[[], None], after: int
) -> None:
    """Each try of ours is answered no; one of them was carried out by another replica, first or in the end."""
    redeem, taken, tries = FakeService.redeem, list[tuple[Any, ...]](), list[int]()

    def no(*given: Any) -> Any:
        tries.append(1)
        taken.append(given)
        if len(tries) == after:
            redeem(desk.service, *given)
        raise Refused(400, ErrorCode.BAD_TOKEN)

    def withdraw(txn: str, *_: Any) -> Any:
        redeem(desk.service, *taken[-1])
        raise desk.service.latest(txn).already_redeemed()

    desk.service.redeem = no  # type: ignore[method-assign]
    desk.service.withdraw = withdraw  # type: ignore[method-assign]
    approved_while_it_waits(desk)
    parks(desk, refund)
    assert desk.done == [("refund", "o-1", LARGE)] and len(tries) == 8


def test_a_policy_that_keeps_asking_people_asks_nobody_once_it_is_given_up(
    desk: Desk, refund: Callable[..., Any]
) -> None:
    """Else they would agree to what its caller was told does not stand."""
    approved_while_it_waits(desk)

    def again(*_: Any) -> RedemptionView:
        (revision,) = (one for held in desk.service.revisions.values() for one in held)
        for one in revision.held:
            one.state, one.votes = EffectState.REVIEW, ()
        return RedemptionView(attempt_id="a" * 8, redeemed=False, transaction=desk.service.view(revision))

    desk.service.redeem = again  # type: ignore[method-assign]
    with pytest.raises(ReleaseLapsed, match="because the policy changed its answer") as lapsed:
        parks(desk, refund)
    assert desk.service.latest(lapsed.value.txn).state is TxnState.ENDED
    assert resume(desk.another_process()) == [] and record_of(desk)[0] == "ended"


def test_live_work_of_what_is_given_up_is_undone(
    desk: Desk, refund: Callable[..., Any], lagging: Callable[[], None]
) -> None:
    path = notes_database(desk.folder)
    note = note_tool(desk, SQLiteAdapter(path, name="notes"))
    with pytest.raises(ReleaseLapsed), desk.step():
        note("o-1", "paid")
        refund("o-1", 100)
    lagging()
    assert resume(desk.another_process()) == [] and (notes_in(path), desk.done) == ([], [])


def test_what_was_withdrawn_may_be_asked_for_anew_under_its_key(
    desk: Desk, refund: Callable[..., Any], lagging: Callable[[], None]
) -> None:
    approved_while_it_waits(desk)
    with pytest.raises(ReleaseLapsed):
        parks(desk, refund)
    lagging()
    parks(desk, refund)
    assert desk.done == [("refund", "o-1", LARGE)]
