"""Probes: what became of a call in doubt is asked before anybody gives up, and believed with care."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from countersign import (
    CountersignError,
    DidNotHappen,
    EffectFailed,
    Happened,
    NotDone,
    OutcomeUnknown,
    Unsure,
    probe,
    resume,
    tool,
)
from tests.fakes.desk import Desk, charge_tools, failing_tool, refund_tool, service_states, states
from tests.unit.sdk.commit.probed import SECONDS, payment, raising, sleeping


@pytest.mark.parametrize("error", [ConnectionError("lost"), ValueError("odd"), StopIteration()], ids=repr)
def test_what_has_happened_goes_on_as_fired_with_its_result(desk: Desk, error: Exception) -> None:
    payments, refund = payment(desk, Happened({"paid": 100}), error), refund_tool(desk)
    with desk.step() as txn:
        paid = payments.pay("o-1", 100)
        refund("o-2", 5)
    assert (paid.result, paid.outcome, txn.state) == ({"paid": 100}, "fired", "settled")
    assert desk.done == [("pay", "o-1", 100), ("refund", "o-2", 5)]
    assert service_states(desk, txn.txn) == ["fired", "fired"]
    with desk.step() as again:
        same = payments.pay("o-1", 100)
        refund("o-2", 5)
    assert (same.result, again.replayed, len(desk.done), len(payments.asked)) == ({"paid": 100}, True, 2, 1)


def test_the_probe_is_told_the_call_key_and_the_arguments_and_need_not_know_the_result(desk: Desk) -> None:
    payments = payment(desk, Happened())
    with desk.step() as txn:
        paid = payments.pay("o-1", 100)
    ((order, cents, effect),) = payments.asked
    assert (order, cents, effect.call_key, effect.tool) == ("o-1", 100, desk.keys[0], "pay")
    assert (effect.effect_id, effect.is_probe) == (paid.effect_id, True)
    assert (paid.result, paid.outcome, txn.state) == (None, "fired", "settled")


def test_a_result_is_typed_as_the_tools_own(desk: Desk) -> None:
    @tool("count", resource=("Order", "order_id"), probe="counted", registry=desk.registry)
    def count(order_id: str) -> tuple[int, int]:
        """Count."""
        raise ConnectionError

    probe("counted", registry=desk.registry)(lambda: Happened([1, 2]))
    desk.publish(count)
    with desk.step():
        made = count("o-1")
    assert made.result == (1, 2)


def test_what_will_never_happen_takes_the_failure_path(desk: Desk) -> None:
    payments, charge = payment(desk, DidNotHappen(final=True), acts=False), charge_tools(desk)
    with pytest.raises(EffectFailed, match="find_pay says that it did not happen"), desk.step() as txn:
        charge("o-1", 10)
        payments.pay("o-1", 100)
        charge("o-2", 20)
    assert states(desk) == {"charge#1": "compensated", "pay#2": "failed", "charge#3": "unused"}
    assert ([one[0] for one in desk.done], txn.state) == (["charge", "void"], "settled")


def test_what_may_fail_alone_fails_alone(desk: Desk) -> None:
    payments = payment(desk, DidNotHappen(final=True), acts=False, on_exhausted="tool")
    refund = refund_tool(desk)
    with desk.step() as txn:
        paid = payments.pay("o-1", 100)
        refund("o-2", 5)
    assert (txn.failed, desk.done, txn.state) == ((paid,), [("refund", "o-2", 5)], "settled")


def test_what_did_not_happen_yet_is_unknown_until_nothing_can_be_on_its_way(desk: Desk) -> None:
    payments, charge = payment(desk, DidNotHappen(), acts=False), charge_tools(desk)
    with (
        pytest.raises(OutcomeUnknown, match="has not found it, which counts from") as unknown,
        desk.step() as txn,
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
    assert states(desk) == {"charge#1": "compensated", "pay#2": "failed"}
    assert service_states(desk, txn.txn) == ["compensated", "failed"]
    asked = len(payments.asked)
    assert (resume(desk.runtime), len(payments.asked), len(desk.done)) == ([], asked, 2)


def test_the_request_that_arrives_late_is_found_and_nothing_is_repeated(desk: Desk) -> None:
    payments, charge = payment(desk, DidNotHappen()), charge_tools(desk)
    with pytest.raises(OutcomeUnknown), desk.step():
        charge("o-1", 10)
        payments.pay("o-1", 100)
    payments.answer = lambda: Happened({"paid": 100})
    desk.clock.advance(30)
    (found,) = resume(desk.runtime)
    assert (found.after, states(desk)) == ("settled", {"charge#1": "fired", "pay#2": "fired"})
    assert [one[0] for one in desk.done] == ["charge", "pay"]
    with desk.step() as again:
        charge("o-1", 10)
        paid = payments.pay("o-1", 100)
    assert (paid.result, again.replayed) == ({"paid": 100}, True)


def test_where_the_timeout_is_short_it_waits_for_what_is_on_its_way(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([DidNotHappen(), Happened({"paid": 100})])
    payments = payment(desk, lambda: next(answers), timeout_seconds=10)
    slept = sleeping(desk, monkeypatch)
    with desk.step():
        paid = payments.pay("o-1", 100)
    assert (paid.result, slept, len(payments.asked)) == ({"paid": 100}, [10], 2)


@pytest.mark.parametrize(("timeout", "raised"), [(10, EffectFailed), (11, OutcomeUnknown)])
def test_what_is_not_there_after_a_short_timeout_failed_and_a_long_one_is_not_waited_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, timeout: int, raised: type[Exception]
) -> None:
    payments = payment(desk, DidNotHappen(), acts=False, timeout_seconds=timeout)
    slept = sleeping(desk, monkeypatch)
    with pytest.raises(raised), desk.step():
        payments.pay("o-1", 100)
    assert slept == ([10] if timeout == 10 else [])


@pytest.mark.parametrize("final", [True, False])
def test_a_call_that_was_left_running_is_not_believed_to_have_failed(desk: Desk, final: bool) -> None:
    go_on, answers = threading.Event(), list[Any]([DidNotHappen(final=final)])

    @tool("hang", resource=("Order", "order_id"), probe="hung", timeout_seconds=1, registry=desk.registry)
    def hang(order_id: str) -> str:
        """Act long after everybody has gone."""
        go_on.wait(SECONDS)
        desk.done.append(("hang", order_id))
        return "late"

    probe("hung", registry=desk.registry)(lambda: answers[-1])
    desk.publish(hang)
    with pytest.raises(OutcomeUnknown, match=r"left running .*no answer within 1 s") as unknown, desk.step():
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
    assert states(desk) == {"hang#1": "fired"}


def test_one_try_that_was_left_running_stands_for_all_of_them(desk: Desk) -> None:
    go_on, tries = threading.Event(), iter([True, False])
    twice: dict[str, Any] = {"timeout_seconds": 1, "idempotent": True, "tries": 2}

    @tool("hang", resource=("Order", "order_id"), probe="hung", registry=desk.registry, **twice)
    def hang(order_id: str) -> None:
        """Hang first, raise then."""
        if next(tries):
            go_on.wait(SECONDS)
        raise ConnectionError("lost")

    probe("hung", registry=desk.registry)(lambda: DidNotHappen(final=True))
    desk.publish(hang)
    with pytest.raises(OutcomeUnknown, match="left running"), desk.step():
        hang("o-1")
    go_on.set()


def test_an_idempotent_tool_is_tried_as_often_as_it_may_be_before_its_probe_is_asked(desk: Desk) -> None:
    payments = payment(desk, Happened({"paid": 100}), idempotent=True, tries=3)
    with desk.step():
        payments.pay("o-1", 100)
    assert (len(desk.keys), len(set(desk.keys)), len(payments.asked)) == (3, 1, 1)


def test_not_done_is_the_tools_own_word_and_nobody_is_asked(desk: Desk) -> None:
    payments = payment(desk, Happened({"paid": 100}), NotDone("refused"), acts=False)
    with pytest.raises(EffectFailed), desk.step():
        payments.pay("o-1", 100)
    assert payments.asked == []


NO_ANSWERS = {
    "none": lambda: None,
    "true": lambda: True,
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
    with pytest.raises(OutcomeUnknown, match="ConnectionError: lost; its probe find_pay"), desk.step() as txn:
        charge("o-1", 10)
        payments.pay("o-1", 100)
        charge("o-2", 20)
    assert states(desk) == {"charge#1": "fired", "pay#2": "unknown", "charge#3": "unused"}
    assert service_states(desk, txn.txn)[1] == "unknown"
    before = list(desk.done)
    for _ in range(2):
        assert [one.after for one in resume(desk.runtime)] == ["unsettled"]
    assert desk.done == before


def test_a_probe_that_does_not_answer_is_not_waited_for(desk: Desk) -> None:
    go_on = threading.Event()
    payments = payment(desk, lambda: go_on.wait(SECONDS) and Happened(), timeout_seconds=1)
    with pytest.raises(OutcomeUnknown, match="no answer within 1"), desk.step():
        payments.pay("o-1", 100)
    go_on.set()
    assert states(desk) == {"pay#1": "unknown"}


def test_a_probe_that_exits_leaves_the_outcome_unknown(desk: Desk) -> None:
    payments = payment(desk, raising(SystemExit(3)))
    with pytest.raises(SystemExit), desk.step():
        payments.pay("o-1", 100)
    assert states(desk) == {"pay#1": "unknown"}


SAYS_A_SECRET = pytest.mark.parametrize(
    ("answer", "told"),
    [(raising(ValueError("no 4111")), "it raised ValueError"), (lambda: Unsure("ask 4111"), "cannot tell")],
)


@SAYS_A_SECRET
def test_what_a_probe_says_beside_secrets_is_not_told(
    desk: Desk, answer: Callable[[], Any], told: str
) -> None:
    payments = payment(desk, answer, secret=["order_id"])
    with pytest.raises(OutcomeUnknown) as unknown, desk.step():
        payments.pay("4111", 100)
    assert (told in str(unknown.value), "4111" in str(unknown.value)) == (True, False)


@SAYS_A_SECRET
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

    undo: dict[str, Any] = {"compensate": "void", "compensation_map": {"card": "args:/card"}}

    @tool("charge", resource=("Order", "order_id"), secret=["card"], registry=desk.registry, **undo)
    def charge(order_id: str, card: str) -> None:
        """Charge a card."""

    desk.publish(void, charge)
    fails = failing_tool(desk, NotDone("mailbox full"), acts=False)
    with caplog.at_level("DEBUG"), pytest.raises(CountersignError), desk.step():
        charge("o-1", "4111")
        fails("o-1")
    assert (told in caplog.text, "4111" in caplog.text) == (True, False)
    record = desk.runtime.journal.transactions.find("t-1")[0]
    (row,) = desk.runtime.journal.transactions.effects(record, "compensate")
    assert "4111" not in str(row.error)
