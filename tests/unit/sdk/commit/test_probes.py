"""Probes: what became of a call in doubt is asked before anybody gives up, and believed with care."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import pytest

from countersign import (
    CountersignError,
    DidNotHappen,
    EffectFailed,
    Happened,
    JournalError,
    NotDone,
    NotStageable,
    OutcomeUnknown,
    Placeholder,
    ProbeAnswer,
    RegistrationError,
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
from countersign.commit.probing import Doubt
from countersign.contract import EffectState
from countersign.journal import LocalState
from countersign.recovery.recovery import resume_one
from countersign.tools.tool import tool_of
from countersign.waiting import SyncWaits, run
from tests.fakes.desk import Desk, charge_tools, failing_tool, refund_tool
from tests.unit.sdk.commit.test_failure_path import service_states, states

SECONDS = 20.0  # that a test waits for what has to come, never for time to pass


@dataclass
class Payment:
    """A payment whose outcome its probe may know."""

    desk: Desk
    answer: Callable[[], Any]
    asked: list[tuple[Any, ...]]
    pay: Callable[[str, int], Placeholder[dict[str, int]]]


def payment(
    desk: Desk, answer: Any, error: BaseException | None = None, *, acts: bool = True, **options: Any
) -> Payment:
    """A tool that acts and raises, and its probe; `answer` is what that answers, or a function that does."""
    asked: list[tuple[Any, ...]] = []
    changes = options.pop("changes", {})

    @tool("pay", resource=("Order", "order_id"), probe="find_pay", registry=desk.registry, **options)
    def pay(order_id: str, cents: int) -> dict[str, int]:
        """Pay."""
        if acts:
            desk.act("pay", order_id, cents)
        raise error or ConnectionError("lost")

    found = Payment(desk, answer if callable(answer) else lambda: answer, asked, pay)

    @probe("find_pay", registry=desk.registry)
    def find_pay(cents: int, order_id: str) -> Any:
        asked.append((order_id, cents, current_effect()))
        return found.answer()

    desk.publish(pay, **changes)
    return found


def unsure() -> Unsure:
    return Unsure()


def sleeping(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None] = lambda: None
) -> list[float]:
    """Time passes at once, and something may happen meanwhile."""
    slept: list[float] = []

    async def sleep(_: SyncWaits, seconds: float) -> None:
        slept.append(seconds)
        desk.clock.advance(seconds)
        then()

    monkeypatch.setattr(SyncWaits, "sleep", sleep)
    return slept


# ------------------------------------------------------------------------------------ in the process that called


@pytest.mark.parametrize("error", [ConnectionError("lost"), ValueError("odd"), StopIteration()], ids=repr)
def test_what_has_happened_goes_on_as_fired_with_its_result(desk: Desk, error: Exception) -> None:
    payments, refund = payment(desk, Happened({"paid": 100}), error), refund_tool(desk)
    with transaction("t-1", runtime=desk.runtime) as txn:
        paid = payments.pay("o-1", 100)
        refund("o-2", 5)
    assert (paid.result, paid.outcome, txn.state) == ({"paid": 100}, "fired", "settled")
    assert desk.done == [("pay", "o-1", 100), ("refund", "o-2", 5)]
    assert service_states(desk, txn.txn) == [EffectState.FIRED, EffectState.FIRED]
    with transaction("t-1", runtime=desk.runtime) as again:
        same = payments.pay("o-1", 100)
        refund("o-2", 5)
    assert (same.result, again.replayed, len(desk.done), len(payments.asked)) == ({"paid": 100}, True, 2, 1)


def test_the_probe_is_told_the_call_key_and_the_arguments(desk: Desk) -> None:
    payments = payment(desk, Happened({"paid": 100}))
    with transaction("t-1", runtime=desk.runtime):
        paid = payments.pay("o-1", 100)
    ((order, cents, effect),) = payments.asked
    assert (order, cents) == ("o-1", 100)
    assert (effect.call_key, effect.effect_id, effect.tool, effect.is_probe) == (
        *(desk.keys[0], paid.effect_id, "pay"),
        True,
    )


def test_a_result_it_does_not_know_is_none_and_the_effect_has_fired(desk: Desk) -> None:
    payments = payment(desk, Happened())
    with transaction("t-1", runtime=desk.runtime) as txn:
        paid = payments.pay("o-1", 100)
    assert (paid.result, paid.outcome, txn.state) == (None, "fired", "settled")


def test_a_result_is_typed_as_the_tools_own(desk: Desk) -> None:
    @tool("count", resource=("Order", "order_id"), probe="counted", registry=desk.registry)
    def count(order_id: str) -> tuple[int, int]:
        """Count."""
        raise ConnectionError

    @probe("counted", registry=desk.registry)
    def counted() -> Happened:
        return Happened([1, 2])

    desk.publish(count)
    with transaction("t-1", runtime=desk.runtime):
        made = count("o-1")
    assert made.result == (1, 2)


def test_what_will_never_happen_takes_the_failure_path(desk: Desk) -> None:
    payments, charge = payment(desk, DidNotHappen(final=True), acts=False), charge_tools(desk)
    with (
        pytest.raises(EffectFailed, match="find_pay says that it did not happen"),
        transaction("t-1", runtime=desk.runtime) as txn,
    ):
        charge("o-1", 10)
        payments.pay("o-1", 100)
        charge("o-2", 20)
    assert states(desk, "t-1") == {"charge#1": "compensated", "pay#2": "failed", "charge#3": "unused"}
    assert [one[0] for one in desk.done] == ["charge", "void"]
    assert txn.state == "settled"


def test_what_may_fail_alone_fails_alone(desk: Desk) -> None:
    payments = payment(desk, DidNotHappen(final=True), acts=False, on_exhausted="tool")
    refund = refund_tool(desk)
    with transaction("t-1", runtime=desk.runtime) as txn:
        paid = payments.pay("o-1", 100)
        refund("o-2", 5)
    assert (txn.failed, desk.done, txn.state) == ((paid,), [("refund", "o-2", 5)], "settled")


def test_what_did_not_happen_yet_is_unknown_until_nothing_can_be_on_its_way(desk: Desk) -> None:
    payments, charge = payment(desk, DidNotHappen(), acts=False), charge_tools(desk)
    with (
        pytest.raises(OutcomeUnknown, match="has not found it, which counts from") as unknown,
        transaction("t-1", runtime=desk.runtime) as txn,
    ):
        charge("o-1", 10)
        payments.pay("o-1", 100)
    assert unknown.value.probe_at == desk.clock.wall() + 60
    assert "its probe is asked again" in str(unknown.value)
    desk.clock.advance(59)
    (found,) = resume(desk.runtime)
    assert (found.after, "has not found it" in found.note) == ("unsettled", True)
    assert [one[0] for one in desk.done] == ["charge"], "nothing is taken back while it may still arrive"
    desk.clock.advance(1)
    (found,) = resume(desk.runtime)
    assert found.after == "settled"
    assert states(desk, "t-1") == {"charge#1": "compensated", "pay#2": "failed"}
    assert service_states(desk, txn.txn) == [EffectState.COMPENSATED, EffectState.FAILED]
    asked = len(payments.asked)
    assert (resume(desk.runtime), len(payments.asked), len(desk.done)) == ([], asked, 2)


def test_the_request_that_arrives_late_is_found_and_nothing_is_repeated(desk: Desk) -> None:
    payments, charge = payment(desk, DidNotHappen()), charge_tools(desk)
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime):
        charge("o-1", 10)
        payments.pay("o-1", 100)
    payments.answer = lambda: Happened({"paid": 100})
    desk.clock.advance(30)
    (found,) = resume(desk.runtime)
    assert (found.after, states(desk, "t-1")) == ("settled", {"charge#1": "fired", "pay#2": "fired"})
    assert [one[0] for one in desk.done] == ["charge", "pay"]
    with transaction("t-1", runtime=desk.runtime) as again:
        charge("o-1", 10)
        paid = payments.pay("o-1", 100)
    assert (paid.result, again.replayed) == ({"paid": 100}, True)


def test_where_the_timeout_is_short_it_waits_for_what_is_on_its_way(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    payments = payment(desk, DidNotHappen(), timeout_seconds=10)

    def arrives() -> None:
        payments.answer = lambda: Happened({"paid": 100})

    slept = sleeping(desk, monkeypatch, arrives)
    with transaction("t-1", runtime=desk.runtime):
        paid = payments.pay("o-1", 100)
    assert (paid.result, slept, len(payments.asked)) == ({"paid": 100}, [10], 2)


@pytest.mark.parametrize(("timeout", "raised"), [(10, EffectFailed), (11, OutcomeUnknown)])
def test_what_is_not_there_after_a_short_timeout_failed_and_a_long_one_is_not_waited_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, timeout: int, raised: type[Exception]
) -> None:
    payments = payment(desk, DidNotHappen(), acts=False, timeout_seconds=timeout)
    slept = sleeping(desk, monkeypatch)
    with pytest.raises(raised), transaction("t-1", runtime=desk.runtime):
        payments.pay("o-1", 100)
    assert slept == ([10] if timeout == 10 else [])


@pytest.mark.parametrize("final", [True, False])
def test_a_call_that_was_left_running_is_not_believed_to_have_failed(desk: Desk, final: bool) -> None:
    go_on = threading.Event()

    @tool("hang", resource=("Order", "order_id"), probe="hung", timeout_seconds=1, registry=desk.registry)
    def hang(order_id: str) -> str:
        """Act long after everybody has gone."""
        go_on.wait(SECONDS)
        desk.done.append(("hang", order_id))
        return "late"

    answers: list[Any] = [DidNotHappen(final=final)]

    @probe("hung", registry=desk.registry)
    def hung() -> Any:
        return answers[-1]

    desk.publish(hang)
    with (
        pytest.raises(OutcomeUnknown, match=r"left running .*no answer within 1 s") as unknown,
        transaction("t-1", runtime=desk.runtime),
    ):
        hang("o-1")
    assert unknown.value.probe_at is None
    desk.clock.advance(100_000)
    (found,) = resume(desk.runtime)
    assert (found.after, "was left running" in found.note) == ("unsettled", True)
    go_on.set()
    while not desk.done:  # the thread that was left running
        threading.Event().wait(0.01)
    answers.append(Happened("late"))
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    assert states(desk, "t-1") == {"hang#1": "fired"}


def test_one_try_that_was_left_running_stands_for_all_of_them(desk: Desk) -> None:
    go_on, tries = threading.Event(), iter([True, False])

    @tool(
        "hang",
        resource=("Order", "order_id"),
        probe="hung",
        timeout_seconds=1,
        idempotent=True,
        tries=2,
        registry=desk.registry,
    )
    def hang(order_id: str) -> None:
        """Hang first, raise then."""
        if next(tries):
            go_on.wait(SECONDS)
        raise ConnectionError("lost")

    probe("hung", registry=desk.registry)(lambda: DidNotHappen(final=True))
    desk.publish(hang)
    with pytest.raises(OutcomeUnknown, match="left running"), transaction("t-1", runtime=desk.runtime):
        hang("o-1")
    go_on.set()


def test_an_idempotent_tool_is_tried_as_often_as_it_may_be_before_its_probe_is_asked(desk: Desk) -> None:
    payments = payment(desk, Happened({"paid": 100}), idempotent=True, tries=3)
    with transaction("t-1", runtime=desk.runtime):
        payments.pay("o-1", 100)
    assert (len(desk.keys), len(set(desk.keys)), len(payments.asked)) == (3, 1, 1)


def test_not_done_is_the_tools_own_word_and_nobody_is_asked(desk: Desk) -> None:
    payments = payment(desk, Happened({"paid": 100}), NotDone("refused"), acts=False)
    with pytest.raises(EffectFailed), transaction("t-1", runtime=desk.runtime):
        payments.pay("o-1", 100)
    assert payments.asked == []


# ------------------------------------------------------------------------------------------- what is no answer


def raising(error: BaseException) -> Callable[[], Any]:
    def answer() -> Any:
        raise error

    return answer


NO_ANSWERS = {
    "none": lambda: None,
    "true": lambda: True,
    "false": lambda: False,
    "the class": lambda: DidNotHappen,
    "a word": lambda: "happened",
    "unsure": lambda: Unsure("the bank is closed"),
    "another type": lambda: Happened("paid"),
    "no json": lambda: Happened({"paid": object()}),
    "final, nearly": lambda: DidNotHappen(final="no"),  # type: ignore[arg-type]
    "not done": raising(NotDone("404")),
    "raises": raising(LookupError("no such account")),
    "stops": raising(StopIteration()),
    "too late": raising(TimeoutError("slow")),
}


@pytest.mark.parametrize("answer", NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
def test_anything_else_is_unknown_as_before(desk: Desk, answer: Callable[[], Any]) -> None:
    payments, charge = payment(desk, answer), charge_tools(desk)
    with (
        pytest.raises(OutcomeUnknown, match="ConnectionError: lost; its probe find_pay"),
        transaction("t-1", runtime=desk.runtime) as txn,
    ):
        charge("o-1", 10)
        payments.pay("o-1", 100)
        charge("o-2", 20)
    assert states(desk, "t-1") == {"charge#1": "fired", "pay#2": "unknown", "charge#3": "unused"}
    assert service_states(desk, txn.txn)[1] is EffectState.UNKNOWN
    before = list(desk.done)
    for _ in range(2):
        assert [one.after for one in resume(desk.runtime)] == ["unsettled"]
    assert desk.done == before


def test_a_probe_that_does_not_answer_is_not_waited_for(desk: Desk) -> None:
    go_on = threading.Event()
    payments = payment(desk, lambda: go_on.wait(SECONDS) and Happened(), timeout_seconds=1)
    with pytest.raises(OutcomeUnknown, match="no answer within 1"), transaction("t-1", runtime=desk.runtime):
        payments.pay("o-1", 100)
    go_on.set()
    assert states(desk, "t-1") == {"pay#1": "unknown"}


def test_a_probe_that_exits_leaves_the_outcome_unknown(desk: Desk) -> None:
    payments = payment(desk, raising(SystemExit(3)))
    with pytest.raises(SystemExit), transaction("t-1", runtime=desk.runtime):
        payments.pay("o-1", 100)
    assert states(desk, "t-1") == {"pay#1": "unknown"}


@pytest.mark.parametrize(
    ("answer", "told"),
    [(raising(ValueError("o-1 is ada")), "it raised ValueError"), (lambda: Unsure("ask ada"), "cannot tell")],
)
def test_what_a_probe_says_beside_secrets_is_not_told(
    desk: Desk, answer: Callable[[], Any], told: str
) -> None:
    payments = payment(desk, answer, secret=["order_id"])
    with pytest.raises(OutcomeUnknown) as unknown, transaction("t-1", runtime=desk.runtime):
        payments.pay("o-1", 100)
    assert told in str(unknown.value)
    assert "ada" not in str(unknown.value)


@pytest.mark.parametrize(
    ("answer", "told"),
    [(raising(ValueError("no 4111")), "it raised ValueError"), (lambda: Unsure("ask 4111"), "cannot tell")],
)
def test_what_the_probe_of_a_compensation_says_beside_a_secret_it_took_over_is_not_told(
    desk: Desk, caplog: pytest.LogCaptureFixture, answer: Callable[[], Any], told: str
) -> None:
    """Its own manifest has no secret: it was handed one of the call that it takes back."""

    @tool("void", resource=("Card", "const:c"), probe="find_void", registry=desk.registry)
    def void(card: str) -> None:
        """Take it back."""
        raise ConnectionError("lost")

    @probe("find_void", registry=desk.registry)
    def find_void(card: str) -> Any:
        return answer()

    @tool(
        "charge",
        resource=("Order", "order_id"),
        secret=["card"],
        compensate="void",
        compensation_map={"card": "args:/card"},
        registry=desk.registry,
    )
    def charge(order_id: str, card: str) -> None:
        """Charge a card."""

    desk.publish(void, charge)
    fails = failing_tool(desk, NotDone("mailbox full"), acts=False)
    with (
        caplog.at_level("DEBUG"),
        pytest.raises(CountersignError),
        transaction("t-1", runtime=desk.runtime),
    ):
        charge("o-1", "4111")
        fails("o-1")
    assert told in caplog.text
    assert "4111" not in caplog.text
    record = desk.runtime.journal.transactions.find("t-1")[0]
    (row,) = desk.runtime.journal.transactions.effects(record, "compensate")
    assert "4111" not in str(row.error)


# ---------------------------------------------------------------------------------------- a probe changes nothing


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
    found = run(resume_one(engine, desk.runtime.journal.transactions.require(txn.txn)))
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


# ------------------------------------------------------------------------------------------- together with others


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


# ------------------------------------------------------------------------------------------- found as FIRING


def left_firing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, answers: list[Any], **options: Any
) -> Callable[[str], Placeholder[str]]:
    """A call that has acted and whose outcome never reached the disk; what its probe says is last in `answers`."""

    @tool("pay", resource=("Order", "order_id"), probe="find_pay", registry=desk.registry, **options)
    def pay(order_id: str) -> str:
        """Pay."""
        desk.act("pay", order_id)
        return "paid"

    probe("find_pay", registry=desk.registry)(lambda: answers[-1])
    desk.publish(pay)

    def full(*_: Any) -> None:
        raise JournalError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(desk.runtime.journal.firing, "write", full)
        with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime):
            pay("o-1")
    assert states(desk, "t-1") == {"pay#1": "firing"}
    return pay


@pytest.mark.parametrize("idempotent", [True, False])
def test_what_was_firing_and_has_happened_is_not_called_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, idempotent: bool
) -> None:
    pay = left_firing(desk, monkeypatch, [Happened("found")], idempotent=idempotent)
    asked = desk.face.asked("/v1/redemptions/")
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    assert (len(desk.done), desk.face.asked("/v1/redemptions/")) == (1, asked), (
        "nobody had to be asked for time"
    )
    with transaction("t-1", runtime=desk.runtime):
        again = pay("o-1")
    assert (again.result, len(desk.done)) == ("found", 1)


@pytest.mark.parametrize("answer", [DidNotHappen(), DidNotHappen(final=True), Unsure()], ids=repr)
def test_what_was_firing_and_may_be_called_again_is_called_with_its_key_unless_it_is_found(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    left_firing(desk, monkeypatch, [answer], idempotent=True)
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    assert (len(desk.keys), len(set(desk.keys)), states(desk, "t-1")) == (2, 1, {"pay#1": "fired"})


def test_a_persons_word_goes_before_the_probe_also_where_it_was_firing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_firing(desk, monkeypatch, [Happened("found")])
    ((txn, (revision,)),) = desk.service.revisions.items()
    desk.service.settle(txn, revision.held[0].effect.effect_id, EffectState.FAILED)
    assert [one.after for one in resume(desk.runtime)] == ["ended"]
    assert states(desk, "t-1") == {"pay#1": "failed"}


@pytest.mark.parametrize(("later", "settled"), [(119, False), (120, True)])
def test_what_was_firing_and_is_not_there_failed_once_nothing_can_be_on_its_way(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, later: int, settled: bool
) -> None:
    left_firing(desk, monkeypatch, [DidNotHappen()])
    desk.clock.advance(later)
    (found,) = resume(desk.runtime)
    assert (found.after, states(desk, "t-1")) == (
        ("ended", {"pay#1": "failed"}) if settled else ("unsettled", {"pay#1": "unknown"})
    )
    desk.clock.advance(60)
    resume(desk.runtime)
    assert (states(desk, "t-1"), resume(desk.runtime), len(desk.done)) == ({"pay#1": "failed"}, [], 1)


# ------------------------------------------------------------------------------------------------ compensations


def probed_void(desk: Desk, answer: Callable[[], Any], **options: Any) -> tuple[Any, Any]:
    """A charge whose `void` is lost, with a probe of its own; and what says that the charge is not wanted."""

    @tool("void", resource=("Charge", "charge_id"), probe="voided", registry=desk.registry, **options)
    def void(charge_id: str) -> None:
        """Take back."""
        desk.act("void", charge_id)
        raise TimeoutError("slow")

    probe("voided", registry=desk.registry)(answer)

    @tool(
        "charge",
        resource=("Order", "order_id"),
        compensate="void",
        compensation_map={"charge_id": "result:/charge_id"},
        registry=desk.registry,
    )
    def charge(order_id: str) -> dict[str, str]:
        """Charge."""
        desk.act("charge", order_id)
        return {"charge_id": f"c-{order_id}"}

    desk.publish(void, charge)
    return charge, failing_tool(desk, NotDone("no"), acts=False)


@pytest.mark.parametrize(
    ("answer", "state", "after"),
    [
        (Happened(), "compensated", "settled"),
        (DidNotHappen(final=True), "compensation_failed", "unsettled"),
        (Unsure(), "compensating", "unsettled"),
    ],
    ids=["happened", "did not", "unsure"],
)
def test_a_compensation_nobody_knows_of_is_asked_of_its_own_probe(
    desk: Desk, answer: Any, state: str, after: str
) -> None:
    answers = [answer]
    keys: list[str] = []

    def voided() -> Any:
        keys.append(current_effect().call_key)
        return answers[-1]

    charge, notify = probed_void(desk, voided)
    with pytest.raises(EffectFailed), transaction("t-1", runtime=desk.runtime) as txn:
        charge("o-1")
        notify("o-1")
    assert (states(desk, "t-1")["charge#1"], txn.state) == (state, after)
    assert keys == [desk.keys[1]]
    assert desk.keys[0] != desk.keys[1]
    assert [one[0] for one in desk.done] == ["charge", "void"]


@pytest.mark.parametrize(
    ("answer", "state", "after"),
    [
        (Happened(), "compensated", "settled"),
        (DidNotHappen(), "compensation_failed", "unsettled"),
    ],
    ids=["happened", "did not"],
)
def test_a_compensation_that_was_unknown_is_settled_by_whoever_resumes(
    desk: Desk, answer: Any, state: str, after: str
) -> None:
    answers: list[Any] = [Unsure()]
    charge, notify = probed_void(desk, lambda: answers[-1])
    with pytest.raises(EffectFailed), transaction("t-1", runtime=desk.runtime) as txn:
        charge("o-1")
        notify("o-1")
    answers.append(DidNotHappen())
    desk.clock.advance(59)
    resume(desk.runtime)
    assert states(desk, "t-1")["charge#1"] == "compensating", "it may still be on its way"
    answers.append(answer)
    desk.clock.advance(1)
    assert [one.after for one in resume(desk.runtime)] == [after]
    assert states(desk, "t-1")["charge#1"] == state
    held = desk.service.latest(txn.txn).held[0]
    assert held.compensation is not None
    assert held.state.value == state
    assert [one[0] for one in desk.done] == ["charge", "void"]
    resume(desk.runtime)
    assert (states(desk, "t-1")["charge#1"], len(desk.done)) == (state, 2)


# ----------------------------------------------------------------------------------- how probes are registered


def test_a_class_may_tell_whether_its_call_has_happened(desk: Desk) -> None:
    @tool("charge", resource=("Order", "order_id"), registry=desk.registry)
    class Charge:
        """Charge an order."""

        def execute(self, order_id: str, cents: int) -> dict[str, str]:
            raise ConnectionError

        def compensate(self, order_id: str) -> None:
            """Take it back."""

        def probe(self, order_id: str) -> Happened:
            return Happened({"charge_id": f"c-{order_id}"})

    manifest = tool_of(Charge).draft_manifest()
    assert manifest.probe == "charge.probe"
    assert [one.name for one in desk.registry] == ["charge", "charge.compensate"]
    desk.service.review([desk.registry.require("charge.compensate", "of its class").draft_manifest()])
    desk.publish(Charge)
    with transaction("t-1", runtime=desk.runtime):
        made = Charge("o-1", 5)
    assert made.result == {"charge_id": "c-o-1"}


def test_the_reviewed_manifest_decides_which_probe_is_asked(desk: Desk) -> None:
    payments = payment(desk, Happened({"paid": 1}), changes={"probe": None})
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime):
        payments.pay("o-1", 100)
    assert payments.asked == []


def test_a_probe_that_is_not_here_is_missed_before_anything_is_sent(desk: Desk) -> None:
    refund = refund_tool(desk)
    desk.publish(refund, probe="find_refund")
    with (
        pytest.raises(RegistrationError, match=r"import the module.*@probe\('find_refund'\)"),
        transaction("t-1", runtime=desk.runtime),
    ):
        refund("o-1", 100)
    assert (desk.done, desk.service.revisions) == ([], {})


def test_the_probe_of_a_compensation_is_missed_as_well(desk: Desk) -> None:
    charge, _ = probed_void(desk, unsure)
    desk.registry._tools.pop("voided")
    with (
        pytest.raises(RegistrationError, match="'voided' is registered"),
        transaction("t-1", runtime=desk.runtime),
    ):
        charge("o-1")
    assert desk.done == []


def test_a_probe_takes_what_its_tool_hands_over(desk: Desk) -> None:
    refund = refund_tool(desk, probe="find_refund")

    @probe(registry=desk.registry)
    def find_refund(order_id: str, reason: str) -> Unsure:
        return Unsure(reason)

    with pytest.raises(NotStageable, match="takes 'reason'"), transaction("t-1", runtime=desk.runtime):
        refund("o-1", 100)
    desk.registry._tools.pop("find_refund")

    @probe("find_refund", registry=desk.registry)
    def left_out(tags: list[str]) -> Unsure:
        return Unsure()

    with pytest.raises(NotStageable, match="takes 'tags'"), transaction("t-2", runtime=desk.runtime):
        refund("o-1", 100)
    assert desk.done == []


def test_what_the_call_left_out_the_probe_has_a_default_for(desk: Desk) -> None:
    seen: list[Any] = []

    @tool("refund", resource=("Order", "order_id"), probe="find_refund", registry=desk.registry)
    def refund(order_id: str, tags: list[str] | None = None) -> None:
        """Refund."""
        raise ConnectionError

    @probe("find_refund", registry=desk.registry)
    def find_refund(tags: list[str] | None = None) -> Happened:
        seen.append(tags)
        return Happened()

    desk.publish(refund)
    with transaction("t-1", runtime=desk.runtime):
        refund("o-1")
        refund("o-2", ["late"])
    assert seen == [None, ["late"]]


def test_names_are_given_once_to_a_tool_or_a_probe(desk: Desk) -> None:
    refund_tool(desk)
    with pytest.raises(RegistrationError, match="needs another name"):
        probe("refund", registry=desk.registry)(unsure)
    probe("find", registry=desk.registry)(unsure)
    with pytest.raises(RegistrationError, match="needs another name"):
        tool("find", resource=("A", "a"), registry=desk.registry)(lambda a: None)

    def both() -> Unsure:
        return Unsure()

    probe("both", registry=desk.registry)(both)
    with pytest.raises(RegistrationError, match="needs another name"):
        tool("both", resource=("A", "const:a"), registry=desk.registry)(both)

    def another() -> Unsure:
        return Unsure()

    with pytest.raises(RegistrationError, match="needs another name"):
        probe("find", registry=desk.registry)(another)


class Both:
    def execute(self, order_id: str, tags: list[str] | None = None) -> None: ...
    def probe(self, order_id: str) -> Unsure:
        return Unsure()


class Strange(Both):
    def probe(self, reason: str) -> Unsure:  # type: ignore[override]
        return Unsure()


class Missing(Both):
    def probe(self, tags: list[str]) -> Unsure:  # type: ignore[override]
        return Unsure()


@pytest.mark.parametrize(
    ("cls", "options", "told"),
    [
        (Both, {"probe": "find"}, "has a method `probe`, and says probe='find'"),
        (Strange, {}, "takes 'reason'"),
        (Missing, {}, "takes 'tags'"),
    ],
    ids=["two", "strange", "left out"],
)
def test_probes_of_classes_that_could_not_be_asked_are_refused(
    desk: Desk, cls: type, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(RegistrationError, match=told):
        tool("charge", resource=("Order", "order_id"), registry=desk.registry, **options)(cls)
    assert [*desk.registry] == []


@pytest.mark.parametrize("name", ["", "a b", "../x", "é"])
def test_a_probe_has_a_name_like_a_tool(desk: Desk, name: str) -> None:
    with pytest.raises((RegistrationError, CountersignError)):
        probe(name or " ", registry=desk.registry)(unsure)


def test_a_bare_probe_says_what_to_write() -> None:
    def find_it() -> Unsure:
        return Unsure()

    with pytest.raises(RegistrationError, match=r"write @probe\('find_it'\)"):
        probe(find_it)  # type: ignore[arg-type]


def test_the_moment_a_call_has_ended_is_never_taken_too_early(desk: Desk) -> None:
    payments = payment(desk, Unsure())
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime) as txn:
        payments.pay("o-1", 100)
    record = desk.runtime.journal.transactions.require(txn.txn)
    (row,) = desk.runtime.journal.transactions.effects(record)
    assert Doubt.of(row, _Call(60), 0.0) == Doubt(row.updated_at)  # type: ignore[arg-type]
    firing = _firing(row)
    at = row.updated_at
    assert Doubt.of(firing, _Call(60), at + 119) == Doubt(at + 119)  # type: ignore[arg-type]
    assert Doubt.of(firing, _Call(60), at + 120) == Doubt(at + 60)  # type: ignore[arg-type]


def _firing(row: Any) -> Any:
    return replace(row, state=LocalState.FIRING)


class _Call:
    """A call with this timeout."""

    def __init__(self, seconds: int) -> None:
        self.manifest = self
        self.timeout_seconds = seconds


def test_what_is_firing_beside_a_no_is_unknown_and_nothing_is_taken_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry is not for a list that did not go through: nobody knows, so nothing is compensated either."""
    charge = charge_tools(desk)

    @tool("pay", resource=("Order", "order_id"), probe="find_pay", registry=desk.registry)
    def pay(order_id: str) -> None:
        """Pay."""
        desk.act("pay", order_id)

    @probe("find_pay", registry=desk.registry)
    def find_pay() -> ProbeAnswer:
        """It is not there."""
        return DidNotHappen(final=True)

    @tool("ship", resource=("Order", "order_id"), idempotent=True, registry=desk.registry)
    def ship(order_id: str) -> None:
        """Ship."""
        desk.act("ship", order_id)

    desk.publish(pay, ship)

    def full(*_: object) -> None:
        raise JournalError("disk full")

    with monkeypatch.context() as broken:
        broken.setattr(desk.runtime.journal.firing, "write", full)
        with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime) as txn:
            charge("o-1", 10)
            with txn.parallel():
                pay("o-1")
                ship("o-1")
    for _ in range(2):
        (found,) = resume(desk.runtime)
        assert found.after == "unsettled"
        assert states(desk, "t-1") == {"charge#1": "fired", "pay#2": "failed", "ship#3": "unknown"}
    assert "void" not in [one[0] for one in desk.done]
