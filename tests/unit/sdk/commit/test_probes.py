"""Probes: what became of a call in doubt is asked before anybody gives up, and believed with care."""

import threading

import pytest

from countersign import DidNotHappen, Happened, Unsure, errors, probe, resume
from tests.fakes.desk import Desk, service_states, states
from tests.fakes.running import fails, order_tool, run
from tests.unit.sdk.commit.probed import SECONDS, payment, raising, sleeping

PAID = {"paid": 100}


@pytest.mark.parametrize("error", [ConnectionError("lost"), ValueError("odd"), StopIteration()], ids=repr)
def test_what_has_happened_counts_as_fired(desk: Desk, refund, error: Exception) -> None:
    payments = payment(desk, Happened(PAID), error)
    for replayed in (False, True):
        left = run(desk, (payments.pay, "o-1", 100), (refund, "o-2", 5))
        paid = left.placed[0]
        assert (paid.result, paid.outcome, left.txn.state) == (PAID, "fired", "settled")
        assert (left.txn.replayed, len(payments.asked)) == (replayed, 1)
    assert desk.done == [("pay", "o-1", 100), ("refund", "o-2", 5)]
    assert service_states(desk, left.txn.txn) == ["fired", "fired"]


def test_the_probe_is_asked_after_all_tries_with_the_call_key_and_the_arguments(desk: Desk) -> None:
    """It need not know the result."""
    payments = payment(desk, Happened(), idempotent=True, tries=3)
    left = run(desk, (payments.pay, "o-1", 100))
    (paid,), ((order, cents, effect),) = left.placed, payments.asked
    assert (order, cents, effect.call_key, effect.tool) == ("o-1", 100, desk.keys[0], "pay")
    assert (effect.effect_id, effect.is_probe) == (paid.effect_id, True)
    assert (paid.result, paid.outcome, left.txn.state) == (None, "fired", "settled")
    assert (len(desk.keys), len(set(desk.keys))) == (3, 1)


def test_a_result_is_typed_as_the_tools_own(desk: Desk) -> None:
    @order_tool(desk, probe="counted")
    def count(order_id: str) -> tuple[int, int]:
        raise ConnectionError

    probe("counted", registry=desk.registry)(lambda: Happened([1, 2]))
    assert run(desk, (count, "o-1")).placed[0].result == (1, 2)


def test_what_will_never_happen_takes_the_failure_path(desk: Desk, charge) -> None:
    payments = payment(desk, DidNotHappen(final=True), acts=False)
    calls = (charge, "o-1", 10), (payments.pay, "o-1", 100), (charge, "o-2", 20)
    failed = fails(desk, errors.EffectFailed, *calls, match="find_pay says that it did not happen")
    assert states(desk) == {"charge#1": "compensated", "pay#2": "failed", "charge#3": "unused"}
    assert ([one[0] for one in desk.done], failed.txn.state) == (["charge", "void"], "settled")


def test_what_did_not_happen_yet_is_unknown_until_nothing_can_be_on_its_way(desk: Desk, charge) -> None:
    payments = payment(desk, DidNotHappen(), acts=False)
    calls = (charge, "o-1", 10), (payments.pay, "o-1", 100)
    unknown = fails(desk, errors.OutcomeUnknown, *calls, match="has not found it, which counts from")
    assert unknown.error.probe_at == desk.clock.wall() + 60 and "its probe is called again" in unknown.said
    desk.clock.advance(59)
    (found,) = resume(desk.runtime)
    assert (found.after, "has not found it" in found.note) == ("unsettled", True)
    assert [one[0] for one in desk.done] == ["charge"], "nothing is taken back while it may still arrive"
    desk.clock.advance(1)
    (found,) = resume(desk.runtime)
    assert (found.after, states(desk)) == ("settled", {"charge#1": "compensated", "pay#2": "failed"})
    assert service_states(desk, unknown.txn.txn) == ["compensated", "failed"]
    asked = len(payments.asked)
    assert (resume(desk.runtime), len(payments.asked), len(desk.done)) == ([], asked, 2)


def test_the_request_that_arrives_late_is_found_and_nothing_is_repeated(desk: Desk, charge) -> None:
    payments = payment(desk, DidNotHappen())
    calls = (charge, "o-1", 10), (payments.pay, "o-1", 100)
    fails(desk, errors.OutcomeUnknown, *calls)
    payments.answer = lambda: Happened(PAID)
    desk.clock.advance(30)
    (found,) = resume(desk.runtime)
    assert (found.after, states(desk)) == ("settled", {"charge#1": "fired", "pay#2": "fired"})
    again = run(desk, *calls)
    assert (again.placed[1].result, again.txn.replayed) == (PAID, True)
    assert [one[0] for one in desk.done] == ["charge", "pay"]


WAITS = [
    (10, Happened(PAID), None),
    (10, DidNotHappen(), errors.EffectFailed),
    (11, Happened(PAID), errors.OutcomeUnknown),
]


@pytest.mark.parametrize(("timeout", "then", "raised"), WAITS)
def test_it_waits_briefly_to_ask(desk: Desk, monkeypatch, timeout: int, then, raised) -> None:
    answers, slept = iter([DidNotHappen(), then]), sleeping(desk, monkeypatch)
    payments = payment(desk, lambda: next(answers), acts=False, timeout_seconds=timeout)
    if raised is None:
        assert run(desk, (payments.pay, "o-1", 100)).placed[0].result == PAID
    else:
        fails(desk, raised, (payments.pay, "o-1", 100))
    assert (slept, len(payments.asked)) == (([10], 2) if timeout == 10 else ([], 1))


@pytest.mark.usefixtures("hurried")
def test_a_call_that_was_left_running_is_not_believed_to_have_failed(desk: Desk) -> None:
    go_on, answers = threading.Event(), [DidNotHappen(final=True)]

    @order_tool(desk, probe="hung", timeout_seconds=1)
    def hang(order_id: str) -> str:
        go_on.wait(SECONDS)
        desk.done.append(("hang", order_id))
        return "late"

    probe("hung", registry=desk.registry)(lambda: answers[-1])
    unknown = fails(desk, errors.OutcomeUnknown, (hang, "o-1"), match=r"left running .*no answer within")
    assert unknown.error.probe_at is None
    desk.clock.advance(100_000)
    for final in (True, False):
        answers.append(DidNotHappen(final=final))
        (found,) = resume(desk.runtime)
        assert (found.after, "was left running" in found.note) == ("unsettled", True)
    go_on.set()
    while not desk.done:  # the thread that was left running
        threading.Event().wait(0.01)
    answers.append(Happened("late"))
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    assert states(desk) == {"hang#1": "fired"}


@pytest.mark.usefixtures("hurried")
def test_one_try_left_running_makes_the_call_unknown(desk: Desk) -> None:
    go_on, tries = threading.Event(), iter([True, False])

    @order_tool(desk, probe="hung", timeout_seconds=1, idempotent=True, tries=2)
    def hang(order_id: str) -> None:
        if next(tries):
            go_on.wait(SECONDS)
        raise ConnectionError("lost")

    probe("hung", registry=desk.registry)(lambda: DidNotHappen(final=True))
    unknown = fails(desk, errors.OutcomeUnknown, (hang, "o-1"), match="left running")
    assert unknown.error.probe_at is None
    go_on.set()


def test_not_done_is_final_without_a_probe(desk: Desk) -> None:
    payments = payment(desk, Happened(PAID), errors.NotDone("refused"), acts=False)
    fails(desk, errors.EffectFailed, (payments.pay, "o-1", 100))
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
    "not done": raising(errors.NotDone("404")),
    "raises": raising(LookupError("no such account")),
    "stops": raising(StopIteration()),
    "too late": raising(TimeoutError("slow")),
}


@pytest.mark.parametrize("answer", NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
def test_anything_else_is_unknown_as_before(desk: Desk, charge, answer) -> None:
    calls = (charge, "o-1", 10), (payment(desk, answer).pay, "o-1", 100), (charge, "o-2", 20)
    unknown = fails(desk, errors.OutcomeUnknown, *calls, match="ConnectionError: lost; its probe find_pay")
    assert states(desk) == {"charge#1": "fired", "pay#2": "unknown", "charge#3": "unused"}
    assert service_states(desk, unknown.txn.txn)[1] == "unknown"
    before = list(desk.done)
    for _ in range(2):
        assert [one.after for one in resume(desk.runtime)] == ["unsettled"]
    assert desk.done == before


@pytest.mark.usefixtures("hurried")
def test_a_probe_that_does_not_answer_is_not_waited_for(desk: Desk) -> None:
    go_on = threading.Event()
    payments = payment(desk, lambda: go_on.wait(SECONDS) and Happened(), timeout_seconds=1)
    fails(desk, errors.OutcomeUnknown, (payments.pay, "o-1", 100), match="no answer within")
    go_on.set()
    assert states(desk) == {"pay#1": "unknown"}


def test_a_probe_that_exits_leaves_the_outcome_unknown(desk: Desk) -> None:
    fails(desk, SystemExit, (payment(desk, raising(SystemExit(3))).pay, "o-1", 100))
    assert states(desk) == {"pay#1": "unknown"}


SAYS_A_SECRET = [
    (raising(ValueError("no 4111")), "it raised ValueError"),
    (lambda: Unsure("ask 4111"), "cannot tell"),
]


@pytest.mark.parametrize(("answer", "reported"), SAYS_A_SECRET)
def test_a_probe_answer_about_secrets_is_hidden(desk: Desk, answer, reported: str) -> None:
    payments = payment(desk, answer, secret=["order_id"])
    unknown = fails(desk, errors.OutcomeUnknown, (payments.pay, "4111", 100))
    assert (reported in unknown.said, "4111" in unknown.said) == (True, False)
