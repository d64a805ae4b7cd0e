"""run_transaction: wait for people, run again, and know when to stop. And independent effects."""

import asyncio
import itertools
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from countersign import (
    Denied,
    IndependentFailures,
    NotDone,
    RerunDiffers,
    ReviewPending,
    SQLiteAdapter,
    Transaction,
    resume,
    run_transaction,
    tool,
    transaction,
)
from countersign.contract.wire import QuestionView, TransactionView
from tests.fakes.desk import (
    Desk,
    asked_of_policy,
    failing_tool,
    note_tool,
    notes_database,
    notes_in,
    refund_tool,
)
from tests.unit.sdk.transactions.looks import TXN, on_view


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return notes_database(tmp_path)


@pytest.fixture
def note(desk: Desk, notes: Path) -> Callable[..., Any]:
    return note_tool(desk, SQLiteAdapter(notes))


@pytest.fixture
def refund(desk: Desk) -> Callable[..., Any]:
    return refund_tool(desk)


def waited(desk: Desk, step: Callable[[Transaction], Any], wait: float = 60) -> Any:
    return run_transaction(step, key="t-1", wait=wait, runtime=desk.runtime)


@pytest.mark.parametrize("live", [False, True])
def test_the_body_runs_again_after_the_answer_only_with_live_effects(
    desk: Desk, notes: Path, note: Any, refund: Any, live: bool
) -> None:
    runs: list[int] = []

    def step(txn: Transaction) -> str:
        runs.append(1)
        if live:
            note("o-1", f"run {len(runs)}")
        refund("o-1", 90_000)
        return "value"

    on_view(desk, lambda: desk.service.approve(TXN))
    assert waited(desk, step) == "value"
    assert (desk.done, len(runs)) == ([("refund", "o-1", 90_000)], 1 + live)
    assert notes_in(notes) == [("o-1", "run 2")] * live


def test_a_denial_while_waiting_is_told_at_once(desk: Desk, refund: Any) -> None:
    on_view(desk, lambda: desk.service.deny(TXN, "not this customer"))
    with pytest.raises(Denied, match="not this customer"):
        waited(desk, lambda _: refund("o-1", 90_000))
    assert desk.done == []


def test_with_live_effects_whoever_waited_in_vain_hears_once_what_people_asked_meanwhile(
    desk: Desk, note: Any, refund: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    view_of = desk.service.view

    def asked(revision: Any, **more: Any) -> TransactionView:
        view = view_of(revision, **more)
        said: dict[str, Any] = {"text": "which invoice?", "asked_by": "Maya", "asked_at": view.submitted_at}
        question = QuestionView(
            question_id="q-1", review_id="r-1", effect_id=view.effects[0].effect_id, **said
        )
        return view.model_copy(update={"questions": (question,)})

    def step(_: Transaction) -> None:
        note("o-1", "looked at")
        refund("o-1", 90_000)

    on_view(desk, lambda: monkeypatch.setattr(desk.service, "view", asked))
    desk.face.faults[f"/v1/transactions/{TXN}"] += [lambda: desk.clock.advance(60)]
    with pytest.raises(ReviewPending) as pending:
        waited(desk, step, wait=30)
    assert [one.text for one in pending.value.questions] == ["which invoice?"]
    assert "which invoice?" in str(pending.value) and not pending.value.parked
    told = "".join(traceback.format_exception(pending.value))
    assert "run_transaction(step, key=..., wait=...)" not in told and "a longer wait=" in told
    assert told.count("ReviewPending: ") == 1


def test_time_that_is_up_parks_and_resume_fires_it_later(desk: Desk, refund: Any) -> None:
    on_view(desk, lambda: None)
    desk.face.faults[f"/v1/transactions/{TXN}"] = [lambda: desk.clock.advance(10)] * 50
    with pytest.raises(ReviewPending) as pending:
        waited(desk, lambda _: refund("o-1", 90_000), wait=30)
    assert pending.value.parked
    assert [one.waiting for one in resume(desk.runtime)] == [True]
    desk.service.approve(TXN)
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    assert resume(desk.runtime) == []
    assert desk.done == [("refund", "o-1", 90_000)]


def approved_at_each_look(desk: Desk) -> None:
    on_view(desk, lambda: None)
    desk.face.faults[f"/v1/transactions/{TXN}"][:] = [lambda: desk.service.approve(TXN)] * 50


def test_a_body_that_stages_another_list_every_time_is_stopped_at_the_second(
    desk: Desk, note: Any, refund: Any
) -> None:
    amounts = itertools.count(90_000)

    def step(txn: Transaction) -> None:
        note("o-1", "x")
        refund("o-0", 90_000)
        refund("o-1", next(amounts))

    approved_at_each_look(desk)
    with pytest.raises(RerunDiffers, match="call 2 was refund") as differs:
        waited(desk, step, wait=600)
    assert (differs.value.position, desk.done) == (2, [])
    assert desk.service.latest(TXN).rev == 2  # nobody was asked a third time


def test_one_rerun_that_differs_is_asked_about_afresh(desk: Desk, note: Any, refund: Any) -> None:
    amounts = iter([90_000, 80_000, 80_000])

    def step(txn: Transaction) -> None:
        note("o-1", "x")
        refund("o-1", next(amounts))

    approved_at_each_look(desk)
    waited(desk, step, wait=600)
    assert desk.done == [("refund", "o-1", 80_000)]


@pytest.mark.anyio
async def test_an_async_step_waits_and_returns_its_value(desk: Desk) -> None:
    @tool("send", resource=("Order", "order_id"), registry=desk.registry)
    async def send(order_id: str, amount_cents: int) -> None:
        """Send."""
        await asyncio.sleep(0)
        desk.act("send", order_id)

    desk.publish(send)

    async def step(txn: Transaction) -> str:
        await send("o-1", 90_000)
        return "value"

    on_view(desk, lambda: desk.service.approve(TXN))
    assert await run_transaction(step, key="t-1", wait=60, runtime=desk.runtime) == "value"
    assert desk.done == [("send", "o-1")]


def test_waiting_inside_a_transaction_ends_with_the_answer(desk: Desk) -> None:
    refund = refund_tool(desk)
    on_view(desk, lambda: desk.service.approve(TXN), after=2)
    with desk.step(wait=60):
        refund("o-1", 90_000)
    assert desk.done == [("refund", "o-1", 90_000)]


def test_independent_effects_go_through_each_for_itself(desk: Desk, refund: Any) -> None:
    with pytest.raises(IndependentFailures) as failures, desk.step(independent=True) as txn:
        small, large, huge = refund("o-1", 100), refund("o-2", 90_000), refund("o-3", 900_000)
    assert desk.done == [("refund", "o-1", 100)]
    assert [type(one) for one in failures.value.exceptions] == [ReviewPending, Denied]
    assert [one.outcome for one in (small, large, huge)] == ["fired", "review", "denied"]
    assert txn.state == "review"
    pending, rest = failures.value.split(ReviewPending)
    assert pending is not None and rest is not None and len(pending.exceptions) == len(rest.exceptions) == 1


def test_what_failed_alone_is_said_of_that_call_and_what_fired_beside_it_is_named(desk: Desk) -> None:
    """It said "nothing stands, use another key" of the block: who did that paid twice."""
    refund = refund_tool(desk)
    calls = [
        failing_tool(desk, NotDone("no printer"), name="label", acts=False),
        failing_tool(desk, ConnectionError("cut"), name="post"),
        lambda order: refund(order, 900_000),
    ]
    with pytest.raises(IndependentFailures) as failures, desk.step(independent=True):
        refund("o-1", 100)
        for call in calls:
            call("o-2")
        refund("o-3", 100)
    assert failures.value.message == (
        "3 of 5 effects did not go through: label, post, refund; done, and done once more under another key: "
        "refund, refund"
    )
    failed, unknown, denied = map(str, failures.value.exceptions)
    assert "Nothing of this call stands. To try again, stage this call alone under another key" in failed
    assert "It was not compensated, and the other calls of its block are told by themselves." in unknown
    assert denied.startswith("denied, this call was not done:")
    for told in (failed, unknown, denied):
        assert "Nothing of this transaction" not in told and "Nothing after it" not in told
    assert [one[0] for one in desk.done] == ["refund", "post", "refund"]


def test_independent_effects_are_found_again_and_fire_once(desk: Desk, refund: Any) -> None:
    def step() -> None:
        with desk.step(independent=True):
            refund("o-1", 100)
            refund("o-2", 90_000)

    with pytest.raises(IndependentFailures) as failures:
        step()
    (pending,) = failures.value.exceptions
    assert isinstance(pending, ReviewPending)
    desk.service.approve(pending.txn)
    step()
    step()
    assert desk.done == [("refund", "o-1", 100), ("refund", "o-2", 90_000)]


def test_a_body_that_raises_forgets_every_independent_effect(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(ValueError, match="no"), desk.step(independent=True):
        refund("o-1", 100)
        raise ValueError("no")
    assert (desk.done, asked_of_policy(desk)) == ([], [])
    with desk.step(independent=True):
        refund("o-1", 100)
    assert len(desk.done) == 1


def test_without_a_key_every_transaction_is_another(desk: Desk) -> None:
    refund = refund_tool(desk)
    for _ in range(2):
        with transaction(runtime=desk.runtime):
            refund("o-1", 100)
    assert len(desk.done) == 2
