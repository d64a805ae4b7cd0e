"""A probe changes nothing, and stands beside other effects, people and a service that is away."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from countersign import (
    DidNotHappen,
    EffectFailed,
    Happened,
    OutcomeUnknown,
    Placeholder,
    RestApi,
    Unsure,
    current_effect,
    probe,
    replay,
    resume,
    resume_async,
    run_transaction,
    tool,
    transaction,
)
from countersign.contract import EffectState
from countersign.recovery.recovery import resume_one
from countersign.waiting import run
from tests.fakes.desk import Desk, charge_tools, failing_tool, refund_tool
from tests.unit.sdk.commit.probed import payment, sleeping, unsure
from tests.unit.sdk.commit.test_failure_path import service_states, states


def test_a_probe_that_would_act_is_refused_and_knows_nothing(desk: Desk) -> None:
    sent: list[httpx2.Request] = []

    def face(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(200, json={})

    bank = RestApi("https://bank.example", transport=httpx2.MockTransport(face))
    refund = refund_tool(desk)

    def begins() -> None:
        with transaction("inside", runtime=desk.runtime):
            refund("o-9", 1)

    acting: dict[str, Callable[[], Any]] = {
        "it raised OutsideTransaction": lambda: refund("o-9", 1),
        "begins a transaction": begins,
        "the probe of pay begins": lambda: run_transaction(
            lambda txn: refund("o-9", 1), key="x", runtime=desk.runtime
        ),
        "resumes transactions": lambda: resume(desk.runtime),
        "sends POST /payments": lambda: bank.post("/payments", json={}),
    }
    for number, (said, act) in enumerate(acting.items()):
        payments = payment(desk, act)
        with (
            pytest.raises(OutcomeUnknown, match=said),
            transaction(f"t-{number}", runtime=desk.runtime),
        ):
            payments.pay("o-1", 100)
    assert [one for one in desk.done if one[0] != "pay"] == []
    assert sent == []


def test_a_probe_that_is_asked_inside_a_transaction_stages_nothing_into_it(desk: Desk) -> None:
    answers: list[Callable[[], Any]] = [unsure]
    refund = refund_tool(desk)

    @tool("mail", resource=("Order", "order_id"), probe="mailed", registry=desk.registry)
    async def mail(order_id: str) -> str:
        """Mail."""
        raise ConnectionError

    @probe("mailed", registry=desk.registry)
    async def mailed() -> Any:
        return answers[-1]()

    desk.publish(mail)

    async def body() -> None:
        with pytest.raises(OutcomeUnknown):
            async with transaction("t-1", runtime=desk.runtime):
                await mail("o-1")
        answers.append(lambda: refund("o-9", 1))
        async with transaction("t-2", runtime=desk.runtime) as txn:
            found = await resume_async(desk.runtime)
            assert "OutsideTransaction" in "".join(one.note for one in found if one.run_key == "t-1")
        assert txn.effects == ()

    asyncio.run(body())
    assert desk.done == []


def test_a_worker_that_is_to_stop_asks_no_probe(desk: Desk) -> None:
    payments = payment(desk, Unsure())
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime) as txn:
        payments.pay("o-1", 100)
    before = len(payments.asked)
    engine = desk.runtime.engine(desk.runtime.sync_waits(), lambda: True)
    found = run(resume_one(engine, txn.txn))
    assert (found.waiting, len(payments.asked)) == (True, before)
    assert states(desk, "t-1") == {"pay#1": "unknown"}


def test_a_probe_asks_nothing_in_a_dry_run_and_in_a_replay(desk: Desk) -> None:
    payments = payment(desk, Happened({"paid": 100}))
    with transaction("t-1", dry_run=True, runtime=desk.runtime):
        payments.pay("o-1", 100)
    assert payments.asked == []
    payments.answer = unsure
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime):
        payments.pay("o-1", 100)
    payments.asked.clear()
    payments.answer = lambda: Happened({"paid": 100})
    again = replay("t-1", lambda txn: payments.pay("o-1", 100), runtime=desk.runtime)
    assert (again.outcomes[0].outcome, payments.asked) == ("unknown", [])


def test_all_unknowns_are_settled_before_anything_is_taken_back(desk: Desk) -> None:
    charge, payments = charge_tools(desk), payment(desk, DidNotHappen(final=True), acts=False)
    doubted = failing_tool(desk, TimeoutError("slow"))
    with pytest.raises(OutcomeUnknown, match="notify"), transaction("t-1", runtime=desk.runtime) as txn:
        charge("o-1", 10)
        with txn.parallel():
            payments.pay("o-1", 100)
            doubted("o-1")
    assert [one[0] for one in desk.done] == ["charge", "notify"]
    desk.service.settle(txn.txn, txn.effects[2].effect_id, EffectState.FAILED)
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    assert desk.done[2:] == [("void", "c-o-1", 10)]


def test_of_several_the_probe_settles_its_own(desk: Desk) -> None:
    payments = payment(desk, lambda: Happened({"paid": payments.asked[-1][1]}))
    with transaction("t-1", runtime=desk.runtime) as txn, txn.parallel():
        made = [payments.pay(f"o-{cents}", cents) for cents in (100, 200)]
    assert [one.result for one in made] == [{"paid": 100}, {"paid": 200}]


def test_what_a_person_has_settled_meanwhile_stands_and_the_probe_is_not_asked(desk: Desk) -> None:
    payments = payment(desk, Unsure())
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime) as txn:
        payments.pay("o-1", 100)
    desk.service.settle(txn.txn, txn.effects[0].effect_id, EffectState.FAILED)
    payments.answer, before = lambda: Happened({"paid": 100}), len(payments.asked)
    assert [one.after for one in resume(desk.runtime)] == ["ended"]
    assert (states(desk, "t-1"), len(payments.asked)) == ({"pay#1": "failed"}, before)


def test_the_probe_is_asked_also_while_the_service_is_away(desk: Desk) -> None:
    payments = payment(desk, Unsure())
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime) as txn:
        payments.pay("o-1", 100)
    payments.answer = lambda: Happened({"paid": 100})
    desk.face.faults["/v1/transactions"] = ["lost_request"] * 20
    desk.face.faults["/v1/outcomes"] = ["lost_request"] * 20
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    desk.face.faults.clear()
    resume(desk.runtime)
    assert service_states(desk, txn.txn) == [EffectState.FIRED]


def test_run_transaction_waits_until_the_answer_counts(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    payments = payment(desk, DidNotHappen(), acts=False)
    slept = sleeping(desk, monkeypatch)
    monkeypatch.setattr(desk.service, "wait", lambda txn, seconds: desk.clock.advance(seconds) or view(txn))

    def view(txn: str) -> Any:
        return desk.service.view(desk.service.latest(txn))

    began = desk.clock.wall()
    with pytest.raises(EffectFailed):
        run_transaction(lambda txn: payments.pay("o-1", 100), key="t-1", wait=600, runtime=desk.runtime)
    assert (states(desk, "t-1"), bool(slept)) == ({"pay#1": "failed"}, True)
    assert 60 <= desk.clock.wall() - began < 70


def test_run_transaction_gives_up_when_its_own_time_is_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    payments = payment(desk, DidNotHappen(), acts=False)
    sleeping(desk, monkeypatch)
    monkeypatch.setattr(desk.service, "wait", lambda txn, seconds: desk.clock.advance(seconds) or view(txn))

    def view(txn: str) -> Any:
        return desk.service.view(desk.service.latest(txn))

    with pytest.raises(OutcomeUnknown):
        run_transaction(lambda txn: payments.pay("o-1", 100), key="t-1", wait=30, runtime=desk.runtime)
    assert states(desk, "t-1") == {"pay#1": "unknown"}


@pytest.mark.parametrize("is_async", [True, False])
def test_in_asyncio_a_probe_may_be_async_or_plain(desk: Desk, is_async: bool) -> None:
    @tool("mail", resource=("Order", "order_id"), probe="mailed", registry=desk.registry)
    async def mail(order_id: str) -> str:
        """Mail."""
        raise ConnectionError

    async def later() -> Happened:
        await asyncio.sleep(0)
        return Happened(current_effect().call_key)

    def at_once() -> Happened:
        return Happened(current_effect().call_key)

    probe("mailed", registry=desk.registry)(later if is_async else at_once)
    desk.publish(mail)

    async def body() -> Placeholder[str]:
        async with transaction("t-1", runtime=desk.runtime):
            return await mail("o-1")

    sent = asyncio.run(body())
    assert sent.result == sent.call_key


def test_an_async_probe_cannot_answer_a_blocking_step(desk: Desk) -> None:
    async def later() -> Happened:
        return Happened()

    @tool("mail", resource=("Order", "order_id"), probe="mailed", registry=desk.registry)
    def mail(order_id: str) -> str:
        """Mail."""
        raise ConnectionError

    probe("mailed", registry=desk.registry)(later)
    desk.publish(mail)
    with pytest.raises(OutcomeUnknown, match="is async"), transaction("t-1", runtime=desk.runtime):
        mail("o-1")
