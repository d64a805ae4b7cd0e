"""A list whose redemption is refused repeatedly: once it is reported as given up, it is not fired later."""

import httpx2
import pytest

from countersign import ReleaseLapsed, ReviewPending, resume
from countersign.contract import EffectState, ErrorCode, TxnState
from countersign.contract.wire import RedemptionView
from tests.fakes.desk import Desk, refund_tool
from tests.fakes.running import Left, fails, run
from tests.fakes.service import FakeService, Refused

DONE = [("refund", "o-1", 20_000)]


@pytest.fixture
def refund(desk: Desk) -> tuple:
    """A call that people are asked about."""
    return refund_tool(desk), "o-1", 20_000


@pytest.fixture
def lagging(desk: Desk, monkeypatch):
    """Redemptions meet a replica that does not know the key of the releases; called, it has caught up."""

    def bad(*_):
        raise Refused(400, ErrorCode.BAD_TOKEN, "signed with a key that is not known here")

    redeem = desk.service.redeem
    monkeypatch.setattr(desk.service, "redeem", bad)
    return lambda: monkeypatch.setattr(desk.service, "redeem", redeem)


@pytest.fixture
def _approved(desk: Desk) -> None:
    """People approve every pending review."""
    look = desk.service.wait

    def wait(txn: str, _: float):
        desk.service.approve(txn)
        return look(txn, 0)

    desk.service.wait = wait  # type: ignore[method-assign]


approved = pytest.mark.usefixtures("_approved")


def lapses(desk: Desk, refund, match: str | None = None) -> Left:
    return fails(desk, ReleaseLapsed, refund, wait=60, match=match)


def record_of(desk: Desk) -> tuple[str, bool]:
    (record,) = desk.runtime.journal.transactions.find("t-1")
    return record.state.value, record.parked


@approved
@pytest.mark.parametrize("key", ["t-1", "t-2"])
def test_what_is_withdrawn_fires_once_asked_for_anew(desk: Desk, refund, lagging, key: str) -> None:
    lapsed = lapses(desk, refund, "refused 8 times, most recently because")
    assert "bad_token" in lapsed.said and "use another key" in lapsed.said
    assert not lapsed.error.may_fire
    assert desk.service.latest(lapsed.error.txn).state is TxnState.ENDED
    lagging()
    assert resume(desk.another_process()) == [] and desk.done == []
    run(desk, refund, key=key, wait=60)
    assert resume(desk.another_process()) == [] and desk.done == DONE


@approved
@pytest.mark.parametrize("withdrawal", ["refused", "lost", "ends nothing"])
def test_what_cannot_be_withdrawn_fires_once(desk: Desk, refund, lagging, withdrawal: str) -> None:
    def withdraw(txn: str, *_):
        if withdrawal == "refused":
            raise Refused(403, ErrorCode.FROZEN, "frozen")
        if withdrawal == "lost":
            raise httpx2.ReadError("the wire was cut")
        return desk.service.view(desk.service.latest(txn))

    desk.service.withdraw = withdraw  # type: ignore[method-assign]
    lapsed = lapses(desk, refund, r"not( be)? withdrawn")
    assert lapsed.error.may_fire and record_of(desk) == ("ready", True)
    assert "under this key ('t-1')" in lapsed.said and "another key: it might happen twice" in lapsed.said
    lagging()
    (found,) = resume(desk.another_process())
    assert (found.note, desk.done) == ("fired", DONE)
    run(desk, refund, wait=60)
    assert len(desk.done) == 1


def test_a_worker_leaves_approved_what_it_cannot_redeem(desk: Desk, refund, lagging) -> None:
    """Nothing was reported as undone, so an approval is not lost to a lagging replica."""
    desk.service.approve(fails(desk, ReviewPending, refund).error.txn)
    with desk.restarted() as later:
        (found,) = resume(later.runtime)
        assert found.needs_attention and record_of(desk) == ("ready", True)
        assert "'t-1'" in found.note and "use another key" not in found.note
        lagging()
        (found,) = resume(later.runtime)
    assert (found.note, desk.done) == ("fired", DONE)


@approved
@pytest.mark.parametrize("after", [8, 9], ids=["by the last redemption", "as it was withdrawn"])
def test_what_was_redeemed_all_the_same_is_fired(desk: Desk, refund, after: int) -> None:
    """Each try of ours is answered no; one of them was carried out by another replica, first or in the end."""
    redeem, taken = FakeService.redeem, []

    def no(*given):
        taken.append(given)
        if len(taken) == after:
            redeem(desk.service, *given)
        raise Refused(400, ErrorCode.BAD_TOKEN)

    def withdraw(txn: str, *_):
        redeem(desk.service, *taken[-1])
        raise desk.service.latest(txn).already_redeemed()

    desk.service.redeem = no  # type: ignore[method-assign]
    desk.service.withdraw = withdraw  # type: ignore[method-assign]
    run(desk, refund, wait=60)
    assert desk.done == DONE and len(taken) == 8


@approved
def test_a_list_given_up_is_withdrawn_from_review(desk: Desk, refund) -> None:
    """Otherwise they would approve a list that its caller believes to be withdrawn."""

    def again(*_) -> RedemptionView:
        (revision,) = (one for held in desk.service.revisions.values() for one in held)
        for one in revision.held:
            one.state, one.votes = EffectState.REVIEW, ()
        return RedemptionView(attempt_id="a" * 8, redeemed=False, transaction=desk.service.view(revision))

    desk.service.redeem = again  # type: ignore[method-assign]
    lapsed = lapses(desk, refund, "because the policy changed its answer").error
    assert desk.service.latest(lapsed.txn).state is TxnState.ENDED
    assert resume(desk.another_process()) == [] and record_of(desk)[0] == "ended"


def test_live_work_of_what_is_given_up_is_undone(desk: Desk, live_notes, lagging) -> None:
    fails(desk, ReleaseLapsed, (live_notes.note, "o-1", "paid"), (refund_tool(desk), "o-1", 100))
    lagging()
    assert resume(desk.another_process()) == [] and (live_notes.written(), desk.done) == ([], [])
