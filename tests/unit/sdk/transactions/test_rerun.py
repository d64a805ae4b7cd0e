"""run_transaction: wait for people, run again, and know when to stop. And independent effects."""

import itertools
import traceback
from typing import Any

import pytest

from countersign import ApprovalRequirement, errors, run_transaction, transaction
from countersign.contract import Verdict
from countersign.contract.wire import Need, QuestionView, TransactionView
from tests.fakes import service
from tests.fakes.desk import Desk, asked_of_policy, failing_tool, notes_in
from tests.fakes.running import fails, order_tool, refusing_tool, run
from tests.unit.sdk.transactions.looks import TXN, on_view, waited

LARGE = [("refund", "o-1", 90_000)]


@pytest.mark.parametrize("live", [False, True])
def test_only_live_effects_run_again(desk: Desk, notes: Any, note: Any, refund: Any, live: bool) -> None:
    runs: list[int] = []

    def step(_: object) -> str:
        runs.append(1)
        if live:
            note("o-1", f"run {len(runs)}")
        refund("o-1", 90_000)
        return "value"

    on_view(desk, lambda: desk.service.approve(TXN))
    assert waited(desk, step) == "value"
    assert (desk.done, len(runs), notes_in(notes)) == (LARGE, 1 + live, [("o-1", "run 2")] * live)


def test_a_denial_while_waiting_is_raised_at_once(desk: Desk, refund: Any) -> None:
    on_view(desk, lambda: desk.service.deny(TXN, "not this customer"))
    with pytest.raises(errors.Denied, match="not this customer"):
        waited(desk, lambda _: refund("o-1", 90_000))
    assert desk.done == []


def test_timeouts_show_questions(desk: Desk, note: Any, refund: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    view_of = desk.service.view

    def asked(revision: Any, **more: Any) -> TransactionView:
        view = view_of(revision, **more)
        said: dict[str, Any] = {"text": "which invoice?", "asked_by": "Maya", "asked_at": view.submitted_at}
        ids = {"question_id": "q-1", "review_id": "r-1", "effect_id": view.effects[0].effect_id}
        return view.model_copy(update={"questions": (QuestionView(**ids, **said),)})

    on_view(desk, lambda: monkeypatch.setattr(desk.service, "view", asked))
    desk.face.faults[f"/v1/transactions/{TXN}"] += [lambda: desk.clock.advance(60)]
    with pytest.raises(errors.ReviewPending) as pending:
        waited(desk, lambda _: (note("o-1", "looked at"), refund("o-1", 90_000)), wait=30)
    assert [one.text for one in pending.value.questions] == ["which invoice?"] and not pending.value.parked
    reported = "".join(traceback.format_exception(pending.value))
    assert "run_transaction(step, key=..., wait=...)" not in reported and "a longer wait=" in reported
    assert reported.count("ReviewPending: ") == 1


def at_each_look(desk: Desk, act: Any) -> None:
    on_view(desk, lambda: None)
    desk.face.faults[f"/v1/transactions/{TXN}"] = [act] * 50


def test_a_body_that_stages_another_list_every_time_is_stopped(desk: Desk, note: Any, refund: Any) -> None:
    amounts = itertools.count(90_000)

    def step(_: object) -> None:
        note("o-1", "x")
        refund("o-0", 90_000)
        refund("o-1", next(amounts))

    at_each_look(desk, lambda: desk.service.approve(TXN))
    with pytest.raises(errors.RerunDiffers, match="call 2 was refund") as differs:
        waited(desk, step, wait=600)
    assert (differs.value.position, desk.done) == (2, [])
    assert desk.service.latest(TXN).rev == 2  # no one was asked a third time


def test_one_rerun_that_differs_is_asked_about_afresh(desk: Desk, note: Any, refund: Any) -> None:
    amounts = iter([90_000, 80_000, 80_000])
    at_each_look(desk, lambda: desk.service.approve(TXN))
    waited(desk, lambda _: (note("o-1", "x"), refund("o-1", next(amounts))), wait=600)
    assert desk.done == [("refund", "o-1", 80_000)]


@pytest.mark.anyio
async def test_an_async_step_waits_and_returns_its_value(desk: Desk) -> None:
    @order_tool(desk)
    async def send(order_id: str, amount_cents: int) -> None:
        desk.act("send", order_id)

    async def step(_: object) -> str:
        await send("o-1", 90_000)
        return "value"

    on_view(desk, lambda: desk.service.approve(TXN))
    assert await run_transaction(step, key="t-1", wait=60, runtime=desk.runtime) == "value"
    assert desk.done == [("send", "o-1")]


def test_independent_effects_go_through_each_for_itself(desk: Desk, refund: Any) -> None:
    calls = [(refund, "o-1", 100), (refund, "o-2", 90_000), (refund, "o-3", 900_000)]
    left = fails(desk, errors.IndependentFailures, *calls, independent=True)
    assert desk.done == [("refund", "o-1", 100)]
    assert [type(one) for one in left.error.exceptions] == [errors.ReviewPending, errors.Denied]
    assert ([one.outcome for one in left.placed], left.txn.state) == (["fired", "review", "denied"], "review")
    pending, rest = left.error.split(errors.ReviewPending)
    assert len(pending.exceptions) == len(rest.exceptions) == 1
    desk.service.approve(pending.exceptions[0].txn)
    for _ in range(2):
        run(desk, *calls[:2], independent=True)
    assert desk.done == [("refund", "o-1", 100), ("refund", "o-2", 90_000)], "found again, and fired once"


def test_what_failed_alone_is_said_of_that_call_and_what_fired_is_named(desk: Desk, refund: Any) -> None:
    """The error said "use another key" for the whole block, which would have paid twice."""
    label = refusing_tool(desk, "no printer", name="label")
    post = failing_tool(desk, ConnectionError("cut"), name="post")
    failing = [(label, "o-2"), (post, "o-2"), (refund, "o-2", 900_000)]
    calls = [(refund, "o-1", 100), *failing, (refund, "o-3", 100)]
    left = fails(desk, errors.IndependentFailures, *calls, independent=True)
    assert left.error.message.startswith("3 of 5 effects did not go through: label, post, refund; done, ")
    failed, unknown, denied = map(str, left.error.exceptions)
    assert "Nothing of this call remains in effect. To try again, stage this call alone" in failed
    assert "It was not compensated, and the other calls" in unknown
    assert denied.startswith("denied, this call was not done:")
    for reported in (failed, unknown, denied):
        assert "Nothing of this transaction" not in reported and "Nothing after it" not in reported
    assert [one[0] for one in desk.done] == ["refund", "post", "refund"]


def test_a_body_that_raises_forgets_every_independent_effect(desk: Desk, refund: Any) -> None:
    with pytest.raises(ValueError, match="no"), desk.step(independent=True):
        refund("o-1", 100)
        raise ValueError("no")
    assert (desk.done, asked_of_policy(desk)) == ([], [])
    run(desk, (refund, "o-1", 100), independent=True)
    assert len(desk.done) == 1


def test_without_a_key_every_transaction_is_another(desk: Desk, refund: Any) -> None:
    for _ in range(2):
        with transaction(runtime=desk.runtime):
            refund("o-1", 100)
    assert len(desk.done) == 2


# --------------------------------------------------------- a gate reports its approvers the same way everywhere

GATE = Need(gates=("large",), groups=("finance", "cfo"), quorum=2, have=0, step_up="passkey")
WORDS = "2 of finance|cfo with passkey"


def test_staged_and_live_effects_name_the_same_approvers(desk: Desk, refund: Any, database: Any) -> None:
    @order_tool(desk, lane="live", adapter=database, ask="live")
    def note(order_id: str) -> None: ...

    asks = (ApprovalRequirement(("finance", "cfo"), 2, "passkey"),)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "ASKED", GATE)
        pending = fails(desk, errors.ReviewPending, (refund, "o-1", 90_000), match="refund waits for ")
        desk.service.policy = lambda *_: Verdict.REVIEW
        refused = fails(desk, errors.ReviewRequired, (note, "o-1"), key="t-2", match="would need approval")
    assert ([one.asks for one in pending.error.reviews], refused.error.asks) == ([asks], asks)
    assert WORDS in pending.said and WORDS in refused.said
