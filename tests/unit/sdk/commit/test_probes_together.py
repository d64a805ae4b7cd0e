"""A probe changes nothing; it works with other effects, reviews and an unavailable service."""

import asyncio

import httpx2
import pytest

import countersign
from countersign import DidNotHappen, Happened, Unsure, current_effect, errors, probe, resume
from countersign.concurrency import run_sync
from countersign.contract import EffectState
from countersign.recovery.recovery import resume_one
from tests.fakes.desk import Desk, failing_tool, service_states, states
from tests.fakes.running import fails, order_tool, run, run_async
from tests.unit.sdk.commit.probed import payment, sleeping, unsure
from tests.unit.sdk.transactions.looks import TXN


def test_a_probe_that_would_act_is_refused_and_knows_nothing(desk: Desk, refund) -> None:
    unreachable = httpx2.MockTransport(lambda _: pytest.fail("it was sent"))
    bank = countersign.RestApi("https://bank.example", transport=unreachable)

    def begins() -> None:
        desk.run((refund, "o-9", 1), key="inside")

    acting = {
        "it raised OutsideTransaction": lambda: refund("o-9", 1),
        "begins a transaction": begins,
        "the probe of pay begins": lambda: countersign.run_transaction(begins, key="x", runtime=desk.runtime),
        "resumes transactions": lambda: resume(desk.runtime),
        "sends POST /payments": lambda: bank.post("/payments", json={}),
    }
    for key, (text, act) in enumerate(acting.items()):
        fails(desk, errors.OutcomeUnknown, (payment(desk, act).pay, "o-1", 1), match=text, key=f"t-{key}")
    assert {one[0] for one in desk.done} == {"pay"}


@pytest.mark.anyio
async def test_a_probe_inside_a_transaction_stages_nothing_into_it(desk: Desk, refund) -> None:
    answers = [unsure]

    async def mailed():
        return answers[-1]()

    with pytest.raises(errors.OutcomeUnknown):
        await run_async(desk, (lost_mail(desk, mailed), "o-1"))
    answers.append(lambda: refund("o-9", 1))
    async with desk.step("t-2") as txn:
        found = await countersign.resume_async(desk.runtime)
        assert "OutsideTransaction" in "".join(one.note for one in found if one.run_key == "t-1")
    assert (txn.effects, desk.done) == ((), [])


def test_a_dry_run_asks_no_probe(desk: Desk) -> None:
    payments = payment(desk, Happened({"paid": 100}))
    run(desk, (payments.pay, "o-1", 100), dry_run=True)
    assert payments.asked == []


def test_of_several_the_probe_settles_its_own(desk: Desk) -> None:
    payments = payment(desk, lambda: Happened({"paid": payments.asked[-1][1]}))
    left = run(desk, [(payments.pay, "o-1", 100), (payments.pay, "o-2", 200)])
    assert [one.result for one in left.placed] == [{"paid": 100}, {"paid": 200}]


@pytest.fixture
def unsure_payment(desk: Desk):
    """A payment in doubt, whose probe did not know."""
    payments = payment(desk, Unsure())
    fails(desk, errors.OutcomeUnknown, (payments.pay, "o-1", 100))
    payments.asked.clear()
    payments.answer = lambda: Happened({"paid": 100})
    return payments


def test_a_worker_that_is_to_stop_asks_no_probe(desk: Desk, unsure_payment) -> None:
    engine = desk.runtime.engine(desk.runtime.sync_executor(), lambda: True)
    found = run_sync(resume_one(engine, TXN))
    assert (found.waiting, unsure_payment.asked) == (True, [])
    assert states(desk) == {"pay#1": "unknown"}


def test_a_replay_asks_no_probe(desk: Desk, unsure_payment) -> None:
    again = countersign.replay("t-1", lambda txn: unsure_payment.pay("o-1", 100), runtime=desk.runtime)
    assert (again.outcomes[0].outcome, unsure_payment.asked) == ("unknown", [])


def test_a_settled_outcome_is_kept_without_a_probe(desk: Desk, unsure_payment) -> None:
    desk.service.settle(TXN, desk.service.latest(TXN).held[0].effect.effect_id, EffectState.FAILED)
    assert [one.after for one in resume(desk.runtime)] == ["ended"]
    assert (states(desk), unsure_payment.asked) == ({"pay#1": "failed"}, [])


@pytest.mark.usefixtures("unsure_payment")
def test_the_probe_is_asked_also_while_the_service_is_away(desk: Desk) -> None:
    desk.face.faults["/v1/transactions"] = ["lost_request"] * 20
    desk.face.faults["/v1/outcomes"] = ["lost_request"] * 20
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    desk.face.faults.clear()
    resume(desk.runtime)
    assert service_states(desk, TXN) == ["fired"]


@pytest.mark.parametrize(("wait", "ends", "after"), [(600, "failed", 60), (30, "unknown", 30)])
def test_run_transaction_waits_for_it(desk: Desk, monkeypatch, wait: int, ends: str, after: int) -> None:
    payments, slept = payment(desk, DidNotHappen(), acts=False), sleeping(desk, monkeypatch)
    real, began = desk.service.wait, desk.clock.wall()

    def look(txn: str, seconds: float):
        desk.clock.advance(seconds)
        return real(txn, 0)

    monkeypatch.setattr(desk.service, "wait", look)
    with pytest.raises(errors.EffectFailed if ends == "failed" else errors.OutcomeUnknown):
        countersign.run_transaction(
            lambda txn: payments.pay("o-1", 100), key="t-1", wait=wait, runtime=desk.runtime
        )
    assert (states(desk), bool(slept)) == ({"pay#1": ends}, True)
    assert after <= desk.clock.wall() - began < after + 10


async def knows_later() -> Happened:
    await asyncio.sleep(0)
    return Happened(current_effect().call_key)


def knows_at_once() -> Happened:
    return Happened(current_effect().call_key)


def lost_mail(desk: Desk, answer):
    """An async tool of whose outcome its probe answers this."""
    probe("mailed", registry=desk.registry)(answer)

    @order_tool(desk, probe="mailed")
    async def mail(order_id: str) -> str:
        raise ConnectionError

    return mail


@pytest.mark.parametrize("answer", [knows_later, knows_at_once])
def test_in_asyncio_a_probe_may_be_async_or_plain(desk: Desk, answer) -> None:
    (sent,) = asyncio.run(run_async(desk, (lost_mail(desk, answer), "o-1"))).placed
    assert sent.result == sent.call_key


def test_an_async_probe_cannot_answer_a_blocking_step(desk: Desk) -> None:
    mail = failing_tool(desk, ConnectionError(), "mail", probe="mailed")
    probe("mailed", registry=desk.registry)(knows_later)
    fails(desk, errors.OutcomeUnknown, (mail, "o-1"), match="is async")
