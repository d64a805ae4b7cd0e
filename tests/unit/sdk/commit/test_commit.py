"""Staging and committing: what fires, what does not, and what the caller is told."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from countersign import (
    Asks,
    Denied,
    Edited,
    NotStageable,
    PlaceholderUsed,
    ReviewPending,
    resume,
    transaction,
)
from countersign.contract import DenyCode, canonicalize
from countersign.errors.reasons import DenyReason, stopped_because
from tests.fakes.desk import Desk, refund_tool


def test_a_small_refund_fires_once_and_its_result_is_there_afterwards(desk: Desk) -> None:
    refund = refund_tool(desk)
    with transaction("t-1", runtime=desk.runtime) as txn:
        placed = refund("o-1", 4_200)
        assert desk.done == []
    assert desk.done == [("refund", "o-1", 4_200)]
    assert placed.result == {"refund_id": "r-o-1-4200"}
    assert (placed.outcome, txn.state) == ("fired", "settled")
    assert desk.keys == [placed.call_key]


def test_a_released_list_takes_one_round_trip_before_it_fires(desk: Desk) -> None:
    refund = refund_tool(desk)
    with transaction("t-1", runtime=desk.runtime):
        refund("o-1", 4_200)
    assert [path for _, path in desk.face.log if path.startswith("/v1/")] == [
        "/v1/tools/refund",
        "/v1/tools/refund",  # the first asked for a nonce
        "/v1/transactions",
        "/v1/outcomes",
    ]


def test_a_denied_effect_fires_nothing_and_says_why(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(Denied) as denied, transaction("t-1", runtime=desk.runtime):
        refund("o-1", 1_000)
        refund("o-2", 900_000)
    assert desk.done == []
    assert [(r.tool, r.policy) for r in denied.value.reasons] == [("refund", "never-huge")]
    assert "split it with finance" in str(denied.value)


def test_review_without_live_effects_parks_and_says_where_people_answer(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(ReviewPending) as pending, transaction("t-1", runtime=desk.runtime) as txn:
        refund("o-1", 90_000)
    assert pending.value.parked
    assert (desk.done, txn.state) == ([], "review")
    assert pending.value.reviews[0].asks == (Asks(("finance",), 1),)
    assert "/reviews/" in str(pending.value)


def test_a_rerun_under_the_same_key_finds_the_same_review_and_fires_once_approved(desk: Desk) -> None:
    refund = refund_tool(desk)

    def attempt() -> str:
        with transaction("t-1", runtime=desk.runtime) as txn:
            refund("o-1", 90_000)
        return txn.txn

    reviews = set()
    for _ in range(3):
        with pytest.raises(ReviewPending) as pending:
            attempt()
        reviews.add(pending.value.reviews[0].review_id)
    assert len(reviews) == 1
    desk.service.approve(pending.value.txn)
    attempt()
    attempt()
    assert desk.done == [("refund", "o-1", 90_000)]


def test_a_second_run_of_a_settled_key_returns_the_first_ones_result(desk: Desk) -> None:
    refund = refund_tool(desk)
    for _ in range(2):
        with transaction("t-1", runtime=desk.runtime) as txn:
            placed = refund("o-1", 4_200)
    assert txn.replayed
    assert placed.result == {"refund_id": "r-o-1-4200"}
    assert len(desk.done) == 1


def test_arguments_changed_after_staging_fire_as_they_were_staged(desk: Desk) -> None:
    refund = refund_tool(desk)
    tags = ["late"]
    with pytest.raises(ReviewPending) as pending, transaction("t-1", runtime=desk.runtime):
        refund("o-1", 90_000, tags)
        tags.append("vip")
    desk.service.approve(pending.value.txn)
    tags.append("more")
    with transaction("t-1", runtime=desk.runtime):
        refund("o-1", 90_000, ["late"])
    assert desk.done == [("refund", "o-1", 90_000, ["late"])]


EDIT = {"order_id": "o-1", "amount_cents": 70_000}


def edited(desk: Desk) -> Callable[..., Any]:
    """A refund whose arguments people have changed and approved; the function runs its transaction again."""
    refund = refund_tool(desk)

    def attempt(**how: Any) -> None:
        with transaction("t-1", runtime=desk.runtime, **how):
            refund("o-1", 90_000)

    with pytest.raises(ReviewPending) as pending:
        attempt()
    desk.service.edit(pending.value.txn, 0, EDIT)
    desk.service.approve(pending.value.txn)
    return attempt


def test_an_accepted_edit_fires_the_edited_bytes_where_the_program_takes_edits(desk: Desk) -> None:
    attempt = edited(desk)
    attempt(accept_edits=True)
    assert desk.done == [("refund", "o-1", 70_000)]
    (record,) = desk.runtime.journal.transactions.find("t-1")
    (row,) = desk.runtime.journal.transactions.effects(record)
    assert (json.loads(row.args), json.loads(row.staged_args or b"")) == (
        EDIT,
        EDIT | {"amount_cents": 90_000},
    )


@pytest.mark.parametrize("says", [False, lambda _: False, lambda _: "yes", lambda _: 1, lambda _: None])
def test_nothing_but_what_was_staged_fires_unless_the_program_says_so(desk: Desk, says: Any) -> None:
    attempt = edited(desk)
    (found,) = resume(desk.runtime)  # a worker asks nobody
    assert (desk.done, "accept_edits=True" in found.note) == ([], True)
    for _ in range(2):
        with pytest.raises(Edited) as refused:
            attempt(accept_edits=says)
    assert (desk.done, desk.face.asked("/v1/redemptions")) == ([], 0)
    (edit,) = refused.value.edits
    assert (edit.changed, edit.args, edit.instead_of["amount_cents"]) == (("amount_cents",), EDIT, 90_000)
    assert "accept_edits=True" in str(refused.value)
    assert "70" not in str(refused.value)  # names of arguments, never their values
    attempt(accept_edits=lambda proposal: proposal.changed == ("amount_cents",))
    assert desk.done == [("refund", "o-1", 70_000)]


def test_a_worker_takes_what_its_program_said_it_takes(desk: Desk) -> None:
    refund = refund_tool(desk)
    with (
        pytest.raises(ReviewPending) as pending,
        transaction("t-1", runtime=desk.runtime, accept_edits=True),
    ):
        refund("o-1", 90_000)
    desk.service.edit(pending.value.txn, 0, EDIT)
    desk.service.approve(pending.value.txn)
    (found,) = resume(desk.runtime)
    assert (found.after, desk.done) == ("settled", [("refund", "o-1", 70_000)])


def test_an_edit_that_does_not_fit_the_signature_is_not_fired(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(ReviewPending) as pending, transaction("t-1", runtime=desk.runtime):
        refund("o-1", 90_000)
    desk.service.edit(pending.value.txn, 0, {"order_id": "o-1", "amount_cents": "many"})
    desk.service.approve(pending.value.txn)
    with pytest.raises(NotStageable), transaction("t-1", runtime=desk.runtime, accept_edits=True):
        refund("o-1", 90_000)
    assert (desk.done, desk.face.asked("/v1/redemptions")) == ([], 0)


def test_a_body_that_raises_submits_nothing(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(ZeroDivisionError), transaction("t-1", runtime=desk.runtime) as txn:
        refund("o-1", 4_200)
        raise ZeroDivisionError
    assert (desk.done, txn.state, desk.face.asked("/v1/transactions")) == ([], "ended", 0)


@pytest.mark.parametrize(
    ("why", "code", "text"),
    [
        ("the customer changed her mind", "withdrawn", "the customer changed her mind"),
        (None, "withdrawn", "it was withdrawn"),
    ],
    ids=["with the service's reason", "without one"],
)
def test_what_the_agent_took_back_is_not_blamed_on_another_effect(
    desk: Desk, why: str | None, code: str, text: str
) -> None:
    refund = refund_tool(desk)
    with pytest.raises(ReviewPending) as pending, transaction("t-1", runtime=desk.runtime):
        refund("o-1", 90_000)
    desk.service.withdraw(pending.value.txn, why)
    (found,) = resume(desk.runtime)
    assert (f"[{code}]" in found.note, text in found.note) == (True, True)
    assert "another effect" not in found.note


def test_an_effect_that_went_with_another_says_so_where_the_service_does_not(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(ReviewPending) as pending, transaction("t-1", runtime=desk.runtime):
        refund("o-1", 90_000)
        refund("o-2", 90_000)
    desk.service.deny(pending.value.txn)
    denied, sibling = desk.service.latest(pending.value.txn).held
    denied.reasons = sibling.reasons = ()
    view = desk.service.view(desk.service.latest(pending.value.txn))
    assert [reason.code for reason in stopped_because(view)] == ["denied", "sibling"]


ANEW = ("expired", "revoked", "withdrawn", "superseded", "sibling")
FINAL = ("denied", *(code.value for code in DenyCode if code.value not in ANEW))


@pytest.mark.parametrize("code", [*ANEW, *FINAL])
def test_only_what_was_denied_is_said_to_be_denied_again(code: str) -> None:
    text = str(Denied("t-1", "0" * 64, [DenyReason("refund", "e-1", code, "because")]))
    assert ("The same call will be denied again" in text, text.startswith("denied, ")) == (code in FINAL,) * 2


def test_a_denial_beside_what_ran_out_is_still_one() -> None:
    reasons = [DenyReason("refund", one, one, "because") for one in ("expired", "forbidden_by_policy")]
    assert "The same call will be denied again" in str(Denied("t-1", "0" * 64, reasons))


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_the_body_submits_nothing(desk: Desk, interrupt: type[BaseException]) -> None:
    refund = refund_tool(desk)
    with pytest.raises(interrupt), transaction("t-1", runtime=desk.runtime) as txn:
        refund("o-1", 4_200)
        raise interrupt
    assert (desk.done, txn.state) == ([], "ended")


def test_keyword_and_positional_forms_are_one_call(desk: Desk) -> None:
    refund = refund_tool(desk)
    with transaction("t-1", runtime=desk.runtime) as txn:
        first = refund("o-1", 4_200)
        second = refund(amount_cents=4_200, order_id="o-1")
    assert first is second
    assert len(txn.effects) == len(desk.done) == 1


def test_intended_repeats_fire_each_time(desk: Desk) -> None:
    refund = refund_tool(desk)
    with transaction("t-1", runtime=desk.runtime) as txn:
        refund("o-1", 4_200)
        with txn.repeat():
            refund("o-1", 4_200)
    assert len(desk.done) == len(set(desk.keys)) == 2


def test_a_tool_declared_repeat_fires_each_call(desk: Desk) -> None:
    refund = refund_tool(desk, repeat=True)
    with transaction("t-1", runtime=desk.runtime):
        refund("o-1", 4_200)
        refund("o-1", 4_200)
    assert len(desk.done) == 2


def test_effects_fire_in_the_order_they_were_staged(desk: Desk) -> None:
    refund = refund_tool(desk)
    with transaction("t-1", runtime=desk.runtime):
        for order in ("o-3", "o-1", "o-2"):
            refund(order, 100)
    assert [order for _, order, _ in desk.done] == ["o-3", "o-1", "o-2"]


@pytest.mark.parametrize(
    "use",
    [
        bool,
        str,
        iter,
        len,
        int,
        lambda p: p == 1,
        lambda p: p != 1,
        lambda p: f"{p}",
        lambda p: p + 1,
        lambda p: p["refund_id"],
        lambda p: p.result,
        lambda p: {p: 1},
    ],
)
def test_a_placeholder_refuses_to_be_a_value(desk: Desk, use: Callable[[Any], Any]) -> None:
    refund = refund_tool(desk)
    with transaction("t-1", runtime=desk.runtime):
        placed = refund("o-1", 4_200)
        with pytest.raises(PlaceholderUsed):
            use(placed)
        with pytest.raises(AttributeError):
            _ = placed.refund_id  # type: ignore[attr-defined]
        assert "not done yet" in repr(placed)


def test_another_list_under_the_same_key_voids_the_votes(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(ReviewPending) as first, transaction("t-1", runtime=desk.runtime):
        refund("o-1", 90_000)
    desk.service.approve(first.value.txn)
    with pytest.raises(ReviewPending), transaction("t-1", runtime=desk.runtime):
        refund("o-1", 95_000)
    assert desk.done == []
    assert desk.service.latest(first.value.txn).rev == 2


def test_what_is_submitted_is_what_is_in_the_journal(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(ReviewPending) as pending, transaction("t-1", runtime=desk.runtime):
        refund("o-1", 90_000)
    record = desk.runtime.journal.transactions.require(pending.value.txn)
    rows = desk.runtime.journal.transactions.effects(record)
    held = desk.service.latest(pending.value.txn).held
    assert [row.frozen().digest for row in rows] == [one.effect.digest for one in held]
    assert rows[0].args == canonicalize({"order_id": "o-1", "amount_cents": 90_000})
