"""Staging and committing: what fires, what does not, and what the caller is told."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from countersign import Asks, Denied, Edited, NotStageable, PlaceholderUsed, ReviewPending, resume
from countersign.contract import DenyCode, canonicalize
from countersign.errors.reasons import DenyReason, stopped_because
from tests.fakes.desk import Desk, effect_rows, refund_tool


def test_a_small_refund_fires_once_in_one_round_trip_and_its_result_is_there(desk: Desk) -> None:
    refund = refund_tool(desk)
    with desk.step() as txn:
        placed = refund("o-1", 4_200)
        assert desk.done == []
    assert (desk.done, desk.keys) == ([("refund", "o-1", 4_200)], [placed.call_key])
    assert placed.result == {"refund_id": "r-o-1-4200"}
    assert (placed.outcome, txn.state) == ("fired", "settled")
    asked = [path for _, path in desk.face.log if path.startswith("/v1/")]
    assert asked[1:] == [
        "/v1/tools/refund",
        "/v1/transactions",
        "/v1/outcomes",
    ]  # the first asked for a nonce


def test_a_denied_effect_fires_nothing_and_says_why(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(Denied) as denied, desk.step():
        refund("o-1", 1_000)
        refund("o-2", 900_000)
    assert desk.done == []
    assert [(r.tool, r.policy) for r in denied.value.reasons] == [("refund", "never-huge")]
    assert "split it with finance" in str(denied.value)


def test_review_without_live_effects_parks_and_says_where_people_answer(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(ReviewPending) as pending, desk.step() as txn:
        refund("o-1", 90_000)
    assert pending.value.parked
    assert (desk.done, txn.state) == ([], "review")
    assert pending.value.reviews[0].asks == (Asks(("finance",), 1),)
    assert "/reviews/" in str(pending.value)


def test_a_rerun_under_the_same_key_finds_the_same_review_and_fires_once_approved(desk: Desk) -> None:
    refund, reviews = refund_tool(desk), set[str]()
    for _ in range(3):
        with pytest.raises(ReviewPending) as pending, desk.step():
            refund("o-1", 90_000)
        reviews.add(pending.value.reviews[0].review_id)
    assert len(reviews) == 1
    desk.service.approve(pending.value.txn)
    for _ in range(2):
        with desk.step():
            refund("o-1", 90_000)
    assert desk.done == [("refund", "o-1", 90_000)]


def test_a_second_run_of_a_settled_key_returns_the_first_ones_result(desk: Desk) -> None:
    refund = refund_tool(desk)
    for _ in range(2):
        with desk.step() as txn:
            placed = refund("o-1", 4_200)
    assert txn.replayed
    assert placed.result == {"refund_id": "r-o-1-4200"}
    assert len(desk.done) == 1


def test_arguments_changed_after_staging_fire_as_they_were_staged(desk: Desk) -> None:
    refund = refund_tool(desk)
    tags = ["late"]
    with pytest.raises(ReviewPending) as pending, desk.step():
        refund("o-1", 90_000, tags)
        tags.append("vip")
    desk.service.approve(pending.value.txn)
    tags.append("more")
    with desk.step():
        refund("o-1", 90_000, ["late"])
    assert desk.done == [("refund", "o-1", 90_000, ["late"])]


EDIT = {"order_id": "o-1", "amount_cents": 70_000}


def edited(desk: Desk) -> Callable[..., Any]:
    """A refund whose arguments people have changed and approved; the function runs its transaction again."""
    refund = refund_tool(desk)

    def attempt(**how: Any) -> None:
        with desk.step(**how):
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
    (row,) = effect_rows(desk)
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
    with pytest.raises(ReviewPending) as pending, desk.step(accept_edits=True):
        refund("o-1", 90_000)
    desk.service.edit(pending.value.txn, 0, EDIT)
    desk.service.approve(pending.value.txn)
    (found,) = resume(desk.runtime)
    assert (found.after, desk.done) == ("settled", [("refund", "o-1", 70_000)])


def test_an_edit_that_does_not_fit_the_signature_is_not_fired(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(ReviewPending) as pending, desk.step():
        refund("o-1", 90_000)
    desk.service.edit(pending.value.txn, 0, {"order_id": "o-1", "amount_cents": "many"})
    desk.service.approve(pending.value.txn)
    with pytest.raises(NotStageable), desk.step(accept_edits=True):
        refund("o-1", 90_000)
    assert (desk.done, desk.face.asked("/v1/redemptions")) == ([], 0)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_a_body_that_raises_or_is_interrupted_submits_nothing(desk: Desk, error: type[BaseException]) -> None:
    refund = refund_tool(desk)
    with pytest.raises(error), desk.step() as txn:
        refund("o-1", 4_200)
        raise error
    assert (desk.done, txn.state, desk.face.asked("/v1/transactions")) == ([], "ended", 0)


@pytest.mark.parametrize(
    ("why", "text"),
    [("the customer changed her mind", "the customer changed her mind"), (None, "it was withdrawn")],
)
def test_what_the_agent_took_back_is_not_blamed_on_another_effect(
    desk: Desk, why: str | None, text: str
) -> None:
    refund = refund_tool(desk)
    with pytest.raises(ReviewPending) as pending, desk.step():
        refund("o-1", 90_000)
    desk.service.withdraw(pending.value.txn, why)
    (found,) = resume(desk.runtime)
    assert ("[withdrawn]" in found.note, text in found.note) == (True, True)
    assert "another effect" not in found.note


def test_an_effect_that_went_with_another_says_so_where_the_service_does_not(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(ReviewPending) as pending, desk.step():
        refund("o-1", 90_000)
        refund("o-2", 90_000)
    desk.service.deny(pending.value.txn)
    denied, sibling = desk.service.latest(pending.value.txn).held
    denied.reasons = sibling.reasons = ()
    view = desk.service.view(desk.service.latest(pending.value.txn))
    assert [reason.code for reason in stopped_because(view)] == ["denied", "sibling"]


ANEW = ("expired", "revoked", "withdrawn", "superseded", "sibling")
FINAL = ("denied", *(code.value for code in DenyCode if code.value not in ANEW))


@pytest.mark.parametrize("codes", [*[(one,) for one in (*ANEW, *FINAL)], ("expired", "forbidden_by_policy")])
def test_only_what_was_denied_is_said_to_be_denied_again(codes: tuple[str, ...]) -> None:
    text = str(Denied("t-1", "0" * 64, [DenyReason("refund", "e-1", one, "because") for one in codes]))
    final = codes[-1] in FINAL
    assert "The same call will be denied again" in text if final else "will be denied again" not in text
    assert len(codes) > 1 or text.startswith("denied, ") == final


def test_equal_calls_are_one_and_intended_repeats_fire_each_time(desk: Desk) -> None:
    refund = refund_tool(desk)
    with desk.step() as txn:
        first = refund("o-3", 4_200)
        assert refund(amount_cents=4_200, order_id="o-3") is first
        with txn.repeat():
            refund("o-3", 4_200)
        refund("o-1", 100)
    assert [order for _, order, _ in desk.done] == ["o-3", "o-3", "o-1"], "in the order they were staged"
    assert len(txn.effects) == len(set(desk.keys)) == 3


def test_a_tool_declared_repeat_fires_each_call(desk: Desk) -> None:
    refund = refund_tool(desk, repeat=True)
    with desk.step():
        refund("o-1", 4_200)
        refund("o-1", 4_200)
    assert len(desk.done) == 2


USES: list[Callable[[Any], Any]] = [
    *(bool, str, iter, len, int),
    *(lambda p: p == 1, lambda p: p != 1, lambda p: f"{p}", lambda p: p + 1),
    *(lambda p: p["refund_id"], lambda p: p.result, lambda p: {p: 1}),
]


def test_a_placeholder_refuses_to_be_a_value(desk: Desk) -> None:
    refund = refund_tool(desk)
    with desk.step():
        placed = refund("o-1", 4_200)
        for use in USES:
            with pytest.raises(PlaceholderUsed):
                use(placed)
        with pytest.raises(AttributeError):
            _ = placed.refund_id  # type: ignore[attr-defined]
        assert "not done yet" in repr(placed)


def test_another_list_under_the_same_key_voids_the_votes(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(ReviewPending) as first, desk.step():
        refund("o-1", 90_000)
    desk.service.approve(first.value.txn)
    with pytest.raises(ReviewPending), desk.step():
        refund("o-1", 95_000)
    assert desk.done == []
    assert desk.service.latest(first.value.txn).rev == 2


def test_what_is_submitted_is_what_is_in_the_journal(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(ReviewPending) as pending, desk.step():
        refund("o-1", 90_000)
    rows, held = effect_rows(desk), desk.service.latest(pending.value.txn).held
    assert [row.frozen().digest for row in rows] == [one.effect.digest for one in held]
    assert rows[0].args == canonicalize({"order_id": "o-1", "amount_cents": 90_000})
