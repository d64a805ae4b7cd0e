"""Probes that recovery asks: of what was found as FIRING, and of compensations."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from countersign import (
    DidNotHappen,
    EffectFailed,
    Happened,
    JournalError,
    OutcomeUnknown,
    Placeholder,
    ProbeAnswer,
    Unsure,
    current_effect,
    probe,
    resume,
    tool,
    transaction,
)
from countersign.commit.probing import Doubt
from countersign.contract import EffectState
from countersign.journal import LocalState
from tests.fakes.desk import Desk, charge_tools
from tests.unit.sdk.commit.probed import payment, probed_void
from tests.unit.sdk.commit.test_failure_path import states


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
