"""The SDK in front of the real service while rules, time, arguments and people change between its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from countersign import Denied, OutsideTransaction, ReleaseLapsed, ReviewPending, resume, tool, transaction
from countersign.contract import EffectState
from tests.fakes.desk import notes_in
from tests.fakes.payments import PAY, gate, plain_forbid
from tests.integration.sdk.near import Near, Served, served
from tests.integration.sdk.test_scenarios import is_locked

ERRS = f"context.input.amount * {2**62} > 0"  # an overflow
ASKS = 500  # finance is asked above 100


@pytest.fixture(scope="module")
def service_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("changing")) as service:
        yield service


@pytest.fixture
def near(service_of_all: Served, tmp_path: Path) -> Iterator[Near]:
    with service_of_all.near(tmp_path) as one:
        yield one


def step(near: Near, *pays: Callable[[], Any]) -> str:
    """A live note and one payment, or others; the transaction's id."""
    with transaction("t-1", runtime=near.runtime) as txn:
        near.note("o-1", "paid")
        for pay in pays or (lambda: near.pay("a-1", ASKS),):
            pay()
    return txn.txn


def asked(near: Near, *pays: Callable[[], Any]) -> ReviewPending:
    with pytest.raises(ReviewPending) as pending:
        step(near, *pays)
    return pending.value


def nothing_in_effect(near: Near) -> bool:
    """No tool ran, no row is there, nothing is locked."""
    return (near.done, notes_in(near.notes), is_locked(near.notes)) == ([], [], False)


def test_scenario_3_an_approval_of_what_is_not_there_leaves_no_trace(near: Near) -> None:
    pending = asked(near)

    async def voted() -> tuple[int, str, list[str]]:
        maya, view = await near.world.person("maya"), await near.agent.see(pending.txn)
        view["effects"][0]["review"]["review_id"] = "rev_0"
        answer, log = await maya.vote(view), await near.world.log(view["txn"])
        return answer.status_code, answer.json()["code"], [kind for kind, _ in log if "vote" in kind]

    assert near.ask(voted()) == (404, "not_found", [])
    with pytest.raises(ReviewPending):
        step(near)
    assert nothing_in_effect(near)


@pytest.mark.parametrize("reported", [True, False], ids=["when it is activated", "at the redemption"])
def test_scenario_7_an_approval_that_is_then_forbidden_fires_nothing(near: Near, reported: bool) -> None:
    pending = asked(near)
    near.vote(pending)
    near.change(plain_forbid("stop"), reported=reported)
    for _ in range(2):
        with pytest.raises(Denied) as denied:
            step(near)
        assert [reason.policy for reason in denied.value.reasons] == ["stop"]
        assert nothing_in_effect(near)
    assert near.states(pending.txn) == [EffectState.DENIED]


@pytest.mark.parametrize("reported", [True, False], ids=["when it is activated", "at the redemption"])
def test_scenario_7_a_gate_after_the_approval_asks_again(near: Near, reported: bool) -> None:
    pending = asked(near)
    near.vote(pending)
    near.change(gate("legal-too", "legal"), reported=reported)
    again = asked(near)
    assert nothing_in_effect(near)
    assert near.states(pending.txn) == [EffectState.REVIEW]
    near.vote(again, by="ingrid")
    for _ in range(2):
        step(near)
    assert (near.done, notes_in(near.notes)) == ([("pay", "a-1", ASKS)], [("o-1", "paid")])


@pytest.mark.parametrize("when", ["after it was staged", "while the effect before it fires"])
def test_scenario_8_a_changed_argument_reaches_neither_people_nor_the_tool(near: Near, when: str) -> None:
    def run() -> str:
        items = ["book"]

        def spoil() -> None:
            items[:] = ["gold", "silver"]

        def pay() -> None:
            near.pay("a-1", ASKS, items)
            if when == "after it was staged":
                spoil()

        near.before_fire["mail"] = spoil
        return step(near, lambda: near.mail("ann", "soon"), pay)

    with pytest.raises(ReviewPending) as pending:
        run()
    shown = near.see(pending.value.txn)["effects"][1]["args"]
    assert shown == {"account": "a-1", "amount": ASKS, "items": ["book"]}
    for person in ("maya", "ingrid"):  # she looks at what no rule can weigh: the list
        near.vote(pending.value, by=person, effect=1)
    run()
    assert near.done == [("mail", "ann", "soon"), ("pay", "a-1", ASKS, "book")]


def test_scenario_9_that_a_payment_can_be_taken_back_releases_nothing(near: Near) -> None:
    pending = asked(near)
    assert near.see(pending.txn)["releases"] == []
    assert (near.states(pending.txn), nothing_in_effect(near)) == ([EffectState.REVIEW], True)
    near.vote(pending, "deny", reason="too dear")
    for _ in range(2):
        with pytest.raises(Denied, match="too dear"):
            step(near)
    assert nothing_in_effect(near)


def test_scenario_13_an_approval_is_no_leave_to_call_the_tool_outside_its_transaction(near: Near) -> None:
    near.vote(asked(near))
    with pytest.raises(OutsideTransaction):
        near.pay("a-1", ASKS)
    with transaction("t-2", runtime=near.runtime), ThreadPoolExecutor(1) as thread:
        called = thread.submit(near.pay, "a-1", ASKS)
        with pytest.raises(OutsideTransaction):
            called.result()
    assert near.done == []


@pytest.mark.parametrize("too_late", [False, True], ids=["a timer has looked", "somebody answers too late"])
def test_scenario_14_an_unanswered_review_ends_the_transaction(near: Near, too_late: bool) -> None:
    pending = asked(near)
    near.world.clock.pass_(hours=24)
    if too_late:
        near.vote(pending)
    else:
        near.ask(near.world.sweep())
    assert near.states(pending.txn) == [EffectState.EXPIRED]
    (found,) = resume(near.runtime)
    assert (found.after, found.waiting) == ("ended", False)
    assert "it was neither answered nor used in time" in found.note and "[expired]" in found.note
    assert (resume(near.runtime), nothing_in_effect(near)) == ([], True)
    again = asked(near)  # the program asks anew, and the old question is not the answer
    assert again.reviews[0].review_id != pending.reviews[0].review_id
    assert nothing_in_effect(near)


@pytest.mark.parametrize("later", [False, True], ids=["at the submission", "after the approval"])
def test_scenario_35_a_rule_with_an_error_denies_and_undoes(near: Near, later: bool) -> None:
    """Also at the commit, W12: nothing is kept, open or locked, and the next run gets the same error."""
    if later:
        near.vote(asked(near))
    near.change(plain_forbid("sum", ERRS), reported=not later)
    big = (lambda: near.pay("a-1", ASKS),) if later else (lambda: near.pay("a-1", 2**53 - 1),)
    for _ in range(2):
        with pytest.raises(Denied) as denied:
            step(near, *big)
        assert [reason.code for reason in denied.value.reasons] == ["policy_error"]
        assert nothing_in_effect(near)
    (record,) = near.runtime.journal.transactions.find("t-1")
    assert (record.state, resume(near.runtime)) == ("ended", [])


def test_scenario_52_a_denial_undoes_what_was_live_and_keeps_the_sibling_from_firing(near: Near) -> None:
    near.change(plain_forbid("never", "context.input.amount == 7"))
    with pytest.raises(Denied) as denied:
        step(near, lambda: near.pay("a-1", 6), lambda: near.pay("a-2", 7))
    assert [reason.policy for reason in denied.value.reasons] == ["never"]
    assert nothing_in_effect(near)


def test_scenario_53_a_rule_between_two_fires_stops_the_second(near: Near) -> None:
    near.rules.write("tools/pay.json", PAY | {"recheck": True})
    near.put_in_force()
    near.before_fire["pay"] = lambda: near.change(plain_forbid("stop"))
    with pytest.raises(ReleaseLapsed, match="Nothing of this transaction remains in effect"):
        step(near, lambda: near.pay("a-1", 5), lambda: near.pay("a-2", 6))
    assert near.done == [("pay", "a-1", 5), ("unpay", "p-a-1", 5)]
    assert (notes_in(near.notes), is_locked(near.notes)) == ([], False)
    (record,) = near.runtime.journal.transactions.find("t-1")
    assert near.states(record.txn) == [EffectState.COMPENSATED, EffectState.UNUSED]


def test_what_its_code_would_take_back_with_is_no_reason_to_refuse_it(tmp_path: Path) -> None:
    """The code names a compensation and no reviewer has: people were shown none, so none is promised."""
    with served(tmp_path, environment="dev") as service, service.near(tmp_path) as near:

        @tool("close_account", resource=("Account", "customer"), registry=near.registry)
        def close_account(customer: str) -> None:
            """Close an account."""
            near.act("close", customer)

        undo: dict[str, Any] = {"compensate": "close_account"}
        undo["compensation_map"] = {"customer": "args:/customer"}

        @tool("open_account", resource=("Account", "customer"), registry=near.registry, **undo)
        def open_account(customer: str) -> str:
            """Open an account."""
            near.act("open", customer)
            return "opened"

        with pytest.raises(ReviewPending) as pending, transaction("t-1", runtime=near.runtime):
            open_account("mia")
        near.vote(pending.value, by="ingrid")
        with transaction("t-1", runtime=near.runtime) as txn:
            opened = open_account("mia")
        assert (opened.result, near.done) == ("opened", [("open", "mia")])
        assert near.states(txn.txn) == [EffectState.FIRED]
