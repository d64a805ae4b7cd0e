"""Probes that recovery asks: of what was found as FIRING, and of compensations."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from countersign import DidNotHappen, Happened, Unsure, current_effect, errors, probe, resume
from countersign.commit.probes import UncertainCall
from countersign.contract import EffectState
from countersign.journal import LocalState
from tests.fakes.desk import Desk, answering_tool, charge_undone_by_void, effect_rows, service_states, states
from tests.fakes.running import order_tool, refusing_tool
from tests.unit.sdk.commit.probed import payment, probed_void
from tests.unit.sdk.full_disk import full, full_after
from tests.unit.sdk.transactions.looks import TXN


def left_firing(desk: Desk, answer: Any, **options: Any) -> Any:
    """A call that has acted and whose outcome never reached the disk; what its probe says."""
    pay = answering_tool(desk, "paid", name="pay", probe="find_pay", **options)
    probe("find_pay", registry=desk.registry)(lambda: answer)
    with full_after(desk.runtime.journal, 1):
        desk.run((pay, "o-1"), raises=errors.OutcomeUnknown)
    assert states(desk) == {"pay#1": "firing"}
    return pay


@pytest.mark.parametrize("idempotent", [True, False])
def test_what_was_firing_and_has_happened_is_not_called_again(desk: Desk, idempotent: bool) -> None:
    pay = left_firing(desk, Happened("found"), idempotent=idempotent)
    asked = desk.face.asked("/v1/redemptions/")
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    assert desk.face.asked("/v1/redemptions/") == asked, "no one had to be asked for time"
    with desk.step():
        again = pay("o-1")
    assert (again.result, len(desk.done)) == ("found", 1)


@pytest.mark.parametrize("answer", [DidNotHappen(), DidNotHappen(final=True), Unsure()], ids=repr)
def test_what_was_firing_and_may_be_called_again_is_called_with_its_key(desk: Desk, answer: Any) -> None:
    left_firing(desk, answer, idempotent=True)
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    assert (len(desk.keys), len(set(desk.keys)), states(desk)) == (2, 1, {"pay#1": "fired"})


def test_a_persons_word_goes_before_the_probe_also_where_it_was_firing(desk: Desk) -> None:
    left_firing(desk, Happened("found"))
    desk.service.settle(TXN, desk.service.latest(TXN).held[0].effect.effect_id, EffectState.FAILED)
    assert [one.after for one in resume(desk.runtime)] == ["ended"]
    assert states(desk) == {"pay#1": "failed"}


@pytest.mark.parametrize(
    ("later", "after", "state"), [(119, "unsettled", "unknown"), (120, "ended", "failed")]
)
def test_what_is_not_there_in_the_end_failed(desk: Desk, later: int, after: str, state: str) -> None:
    left_firing(desk, DidNotHappen())
    desk.clock.advance(later)
    (found,) = resume(desk.runtime)
    assert (found.after, states(desk)) == (after, {"pay#1": state})
    desk.clock.advance(60)
    resume(desk.runtime)
    assert (states(desk), resume(desk.runtime), len(desk.done)) == ({"pay#1": "failed"}, [], 1)


COMPENSATED: list[Any] = [
    (Happened(), "compensated", "settled"),
    (DidNotHappen(final=True), "compensation_failed", "unsettled"),
    (Unsure(), "compensating", "unsettled"),
]


@pytest.mark.parametrize(("answer", "state", "after"), COMPENSATED, ids=repr)
def test_an_unknown_compensation_asks_its_probe(desk: Desk, answer: Any, state: str, after: str) -> None:
    keys: list[str] = []

    def voided() -> Any:
        keys.append(current_effect().call_key)
        return answer

    charge, notify = probed_void(desk, voided)
    txn = desk.run((charge, "o-1"), (notify, "o-1"), raises=errors.EffectFailed)
    assert (states(desk)["charge#1"], txn.state) == (state, after)
    assert keys == [desk.keys[1]] != [desk.keys[0]]
    assert [one[0] for one in desk.done] == ["charge", "void"]


LATER: list[Any] = [
    (Happened(), "compensated", "settled"),
    (DidNotHappen(), "compensation_failed", "unsettled"),
]


@pytest.mark.parametrize(("answer", "state", "after"), LATER, ids=["happened", "did not"])
def test_an_unknown_compensation_is_settled_later(desk: Desk, answer: Any, state: str, after: str) -> None:
    answers: list[Any] = [Unsure()]
    charge, notify = probed_void(desk, lambda: answers[-1])
    txn = desk.run((charge, "o-1"), (notify, "o-1"), raises=errors.EffectFailed)
    answers.append(DidNotHappen())
    desk.clock.advance(59)
    resume(desk.runtime)
    assert states(desk)["charge#1"] == "compensating", "it may still be on its way"
    answers.append(answer)
    desk.clock.advance(1)
    assert [one.after for one in resume(desk.runtime)] == [after]
    assert states(desk)["charge#1"] == state
    resume(desk.runtime)
    assert (states(desk)["charge#1"], service_states(desk, txn.txn)[0]) == (state, state)
    assert [one[0] for one in desk.done] == ["charge", "void"]


def test_the_moment_a_call_has_ended_is_never_taken_too_early(desk: Desk) -> None:
    payments = payment(desk, Unsure())
    desk.run((payments.pay, "o-1", 100), raises=errors.OutcomeUnknown)
    (row,) = effect_rows(desk)
    call: Any = SimpleNamespace(manifest=SimpleNamespace(timeout_seconds=60))
    assert UncertainCall.of(row, call, 0.0) == UncertainCall(row.updated_at)
    firing, at = replace(row, state=LocalState.FIRING), row.updated_at
    assert UncertainCall.of(firing, call, at + 119) == UncertainCall(at + 119)
    assert UncertainCall.of(firing, call, at + 120) == UncertainCall(at + 60)


def test_a_firing_call_next_to_a_failure_is_unknown_and_not_compensated(desk: Desk, charge: Any) -> None:
    """A failed list is not retried: the outcome is unknown, so nothing is compensated either."""
    pay = answering_tool(desk, None, name="pay", probe="find_pay")
    probe("find_pay", registry=desk.registry)(lambda: DidNotHappen(final=True))
    ship = answering_tool(desk, None, name="ship", idempotent=True)
    with full_after(desk.runtime.journal, 2), pytest.raises(errors.OutcomeUnknown), desk.step() as txn:
        charge("o-1", 10)
        with txn.parallel():
            pay("o-1")
            ship("o-1")
    for _ in range(2):
        (found,) = resume(desk.runtime)
        assert found.after == "unsettled"
        assert states(desk) == {"charge#1": "fired", "pay#2": "failed", "ship#3": "unknown"}
    assert "void" not in [one[0] for one in desk.done]


@pytest.mark.parametrize(
    ("idempotent", "calls", "state", "after"),
    [(True, 2, "compensated", "settled"), (False, 1, "compensating", "unsettled")],
)
def test_scenario_20_only_an_idempotent_compensation_is_called_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, idempotent: bool, calls: int, state: str, after: str
) -> None:
    """It is called again with its call key, or a person is asked."""

    @order_tool(desk, resource=("Charge", "charge_id"), idempotent=idempotent)
    def void(charge_id: str) -> None:
        """Take a charge back."""
        desk.act("void", charge_id)
        monkeypatch.setattr(desk.runtime.journal.effect_log, "write", full)

    charge = charge_undone_by_void(desk)
    desk.run((charge, "o-1"), (refusing_tool(desk), "o-1"), raises=errors.JournalError)
    desk.runtime.journal.leases.close()
    with desk.restarted() as later:
        (found,) = resume(later.runtime)
        resume(later.runtime)
    assert (found.after, states(desk)["charge#1"]) == (after, state)
    assert (desk.done, len(set(desk.keys[1:]))) == ([("charge", "o-1"), *[("void", "c-o-1")] * calls], 1)
