"""Staging and committing: what fires, what does not, and what the caller and the reviewers get as answers."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from countersign import ApprovalRequirement, errors, resume
from countersign.commit.review import EditPolicy, ProposalResponder
from countersign.contract import DenyCode, canonicalize
from countersign.contract.codes import ErrorCode
from countersign.contract.wire import EffectView, ProposalView, TransactionView
from countersign.errors.reasons import DenyReason, stop_reasons
from tests.fakes.desk import Desk, effect_rows, refund_tool
from tests.fakes.running import Left, fails, run

LARGE = 90_000


def reviewed(desk: Desk, *calls, **options) -> Left:
    """A block that waits for review."""
    return fails(desk, errors.ReviewPending, *calls, **options)


def test_a_small_refund_fires_once_in_one_round_trip_and_its_result_is_there(desk: Desk, refund) -> None:
    with desk.step() as txn:
        placed = refund("o-1", 4_200)
        assert desk.done == []
    assert (desk.done, desk.keys) == ([("refund", "o-1", 4_200)], [placed.call_key])
    log = [path for _, path in desk.face.log if path.startswith("/v1/")]
    assert log[1:] == ["/v1/tools/refund", "/v1/transactions", "/v1/outcomes"]  # the first asked for a nonce
    again = run(desk, (refund, "o-1", 4_200))
    assert (txn.replayed, again.txn.replayed, len(desk.done)) == (False, True, 1)
    for one in (placed, again.placed[0]):
        assert (one.result, one.outcome, txn.state) == ({"refund_id": "r-o-1-4200"}, "fired", "settled")


def test_a_denied_effect_fires_nothing_and_says_why(desk: Desk, refund) -> None:
    denied = fails(desk, errors.Denied, (refund, "o-1", 1_000), (refund, "o-2", 900_000))
    assert (desk.done, "split it with finance" in denied.said) == ([], True)
    assert [(r.tool, r.policy) for r in denied.error.reasons] == [("refund", "never-huge")]


def test_review_without_live_effects_parks_and_says_where_people_answer(desk: Desk, refund) -> None:
    pending = reviewed(desk, (refund, "o-1", LARGE))
    assert (pending.error.parked, desk.done, pending.txn.state) == (True, [], "review")
    assert pending.error.reviews[0].asks == (ApprovalRequirement(("finance",), 1),)
    (row,), (held,) = effect_rows(desk), desk.service.latest(pending.error.txn).held
    assert row.frozen().digest == held.effect.digest
    assert row.args == canonicalize({"order_id": "o-1", "amount_cents": LARGE})
    again = [reviewed(desk, (refund, "o-1", LARGE)).error for _ in range(2)]
    assert len({one.reviews[0].review_id for one in (pending.error, *again)}) == 1
    desk.service.approve(pending.error.txn)
    for _ in range(2):
        run(desk, (refund, "o-1", LARGE))
    assert desk.done == [("refund", "o-1", LARGE)]


def test_arguments_changed_after_staging_fire_as_they_were_staged(desk: Desk, refund) -> None:
    tags = ["late"]
    with pytest.raises(errors.ReviewPending) as pending, desk.step():
        refund("o-1", LARGE, tags)
        tags.append("vip")
    desk.service.approve(pending.value.txn)
    tags.append("more")
    run(desk, (refund, "o-1", LARGE, ["late"]))
    assert desk.done == [("refund", "o-1", LARGE, ["late"])]


EDIT = {"order_id": "o-1", "amount_cents": 70_000}


def edited(desk: Desk, refund, edit: dict = EDIT, **how) -> None:
    """People have changed the arguments of a refund and approved it."""
    txn = reviewed(desk, (refund, "o-1", LARGE), **how).error.txn
    desk.service.edit(txn, 0, edit)
    desk.service.approve(txn)


@pytest.mark.parametrize("says", [False, lambda _: False, lambda _: "yes", lambda _: 1, lambda _: None])
def test_only_what_was_staged_fires_unless_the_program_says_so(desk: Desk, refund, says) -> None:
    edited(desk, refund)
    (found,) = resume(desk.runtime)  # a worker asks no one
    assert (desk.done, "accept_edits=True" in found.note) == ([], True)
    for _ in range(2):
        refused = fails(desk, errors.Edited, (refund, "o-1", LARGE), accept_edits=says)
    assert (desk.done, desk.face.asked("/v1/redemptions")) == ([], 0)
    (edit,) = refused.error.edits
    assert (edit.changed, edit.args, edit.instead_of["amount_cents"]) == (("amount_cents",), EDIT, LARGE)
    # The text has the names of arguments, never their values.
    assert "accept_edits=True" in refused.said and "70" not in refused.said
    run(desk, (refund, "o-1", LARGE), accept_edits=lambda proposal: proposal.changed == ("amount_cents",))
    assert desk.done == [("refund", "o-1", 70_000)]


def test_a_worker_takes_what_its_program_said_it_takes(desk: Desk, refund) -> None:
    edited(desk, refund, accept_edits=True)
    (found,) = resume(desk.runtime)
    assert (found.after, desk.done) == ("settled", [("refund", "o-1", 70_000)])
    (row,) = effect_rows(desk)
    staged = json.loads(row.staged_args or b"")
    assert (json.loads(row.args), staged) == (EDIT, EDIT | {"amount_cents": LARGE})


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_a_body_that_raises_or_is_interrupted_submits_nothing(desk: Desk, refund, error) -> None:
    with pytest.raises(error), desk.step() as txn:
        refund("o-1", 4_200)
        raise error
    assert (desk.done, txn.state, desk.face.asked("/v1/transactions")) == ([], "ended", 0)


@pytest.mark.parametrize("why", ["the customer changed her mind", None])
def test_a_withdrawal_is_blamed_on_no_other_effect(desk: Desk, refund, why) -> None:
    desk.service.withdraw(reviewed(desk, (refund, "o-1", LARGE)).error.txn, why)
    (found,) = resume(desk.runtime)
    assert "[withdrawn]" in found.note and (why or "it was withdrawn") in found.note
    assert "another effect" not in found.note


def test_an_effect_that_went_with_another_says_so_where_the_service_does_not(desk: Desk, refund) -> None:
    txn = reviewed(desk, (refund, "o-1", LARGE), (refund, "o-2", LARGE)).error.txn
    desk.service.deny(txn)
    denied, sibling = desk.service.latest(txn).held
    denied.reasons = sibling.reasons = ()
    view = desk.service.view(desk.service.latest(txn))
    assert [reason.code for reason in stop_reasons(view)] == ["denied", "sibling"]


ANEW = ("expired", "revoked", "withdrawn", "superseded", "sibling")
FINAL = ("denied", *(code.value for code in DenyCode if code.value not in ANEW))


@pytest.mark.parametrize("codes", [*[(one,) for one in (*ANEW, *FINAL)], ("expired", "forbidden_by_policy")])
def test_only_what_was_denied_is_said_to_be_denied_again(codes: tuple[str, ...]) -> None:
    text = str(errors.Denied("t-1", "0" * 64, [DenyReason("refund", "e-1", one, "") for one in codes]))
    final = codes[-1] in FINAL
    assert "The same call will be denied again" in text if final else "will be denied again" not in text
    assert len(codes) > 1 or text.startswith("denied, ") == final


def test_a_tool_declared_repeat_fires_each_call(desk: Desk) -> None:
    refund = refund_tool(desk, repeat=True)
    run(desk, (refund, "o-1", 4_200), (refund, "o-1", 4_200))
    assert len(desk.done) == len(set(desk.keys)) == 2


USES = [
    *(bool, str, iter, len, int),
    *(lambda p: p == 1, lambda p: p != 1, lambda p: f"{p}", lambda p: p + 1),
    *(lambda p: p["refund_id"], lambda p: p.result, lambda p: {p: 1}),
]


def test_a_placeholder_refuses_to_be_a_value(desk: Desk, refund) -> None:
    with desk.step():
        placed = refund("o-1", 4_200)
        for use in USES:
            with pytest.raises(errors.PlaceholderUsed):
                use(placed)
        with pytest.raises(errors.PlaceholderUsed, match=r'outcome == "fired".*second transaction'):
            bool(placed)
        with pytest.raises(AttributeError):
            _ = placed.refund_id
        assert "not done yet" in repr(placed)


# ---------------------------------------------------------------------- what a program answers to proposals

LESS = {"order_id": "o-1", "amount_cents": 60_000}
STAGED = {"order_id": "o-1", "amount_cents": 90_000}


def proposing(*proposed: dict, tool: str = "refund") -> TransactionView:
    """A transaction of one effect with these proposals."""
    given = {"reason": "half arrived", "person": "p", "name": "Maya"}
    make = ProposalView.model_construct
    proposals = [make(proposal_id=f"prop_{n}", args=args, **given) for n, args in enumerate(proposed)]
    return current(STAGED, SimpleNamespace(proposals=proposals), tool)


def responder(desk: Desk, judge: EditPolicy, service=None) -> ProposalResponder:
    engine = SimpleNamespace(registry=desk.registry, service=service)
    return ProposalResponder(engine, judge)


def answers(desk: Desk, view, judge: EditPolicy = True, code=None) -> tuple:
    """What comes of it, and what was accepted, where the service accepts everything or refuses by a code."""
    accepted: list[str] = []

    async def accept_proposal(proposal_id: str) -> str:
        if code is not None:
            raise errors.ServiceRefused(409, code, "no")
        accepted.append(proposal_id)
        return "the new revision"

    async def reload(txn: str) -> str:
        return f"{txn} as it is"

    service = SimpleNamespace(accept_proposal=accept_proposal, view=reload)
    return asyncio.run(responder(desk, judge, service).answer(view)), accepted


@pytest.fixture(autouse=True)
def _refund(desk: Desk) -> None:
    refund_tool(desk)


def test_what_fits_is_accepted_of_a_tool_that_is_here(desk: Desk) -> None:
    assert answers(desk, proposing(LESS)) == ("the new revision", ["prop_0"])
    view = proposing(LESS, tool="another")
    assert answers(desk, view) == (view, [])


UNFIT = {
    "text for a number": {**LESS, "amount_cents": "60000"},
    "one missing": {"order_id": "o-1"},
    "one too many": {**LESS, "to": "me"},
    "a fraction": {**LESS, "amount_cents": 1.5},
}


@pytest.mark.parametrize("args", UNFIT.values(), ids=UNFIT)
def test_what_does_not_fit_is_left_open(desk: Desk, args, caplog) -> None:
    seen, view = [], proposing(args, LESS)
    assert answers(desk, view, lambda one: seen.append(one) or True) == ("the new revision", ["prop_1"])
    assert [one.proposal_id for one in seen] == ["prop_1"]
    assert "proposal prop_0 is not accepted" in caplog.text


@pytest.mark.parametrize(("judge", "reported"), [(True, errors.NotStageable), (False, errors.Edited)])
def test_args_that_the_tool_would_misread_are_not_fired(desk: Desk, judge: bool, reported) -> None:
    """I-2: not even for a program that accepts every change; one that accepts none gets an error."""
    made, unfit = responder(desk, judge), UNFIT["text for a number"]
    if judge:
        made.require_agreed(listed(STAGED), listed(LESS), current(LESS))
    with pytest.raises(reported) as refused:
        made.require_agreed(listed(STAGED), listed(unfit), current(unfit))
    assert judge or [one.args for one in refused.value.edits] == [unfit]


def current(args: dict, review=None, tool: str = "refund") -> TransactionView:
    """A transaction whose one effect has these arguments now."""
    effect = EffectView.model_construct(tool=tool, effect_id="e", args=args, review=review, edits=())
    return TransactionView.model_construct(txn="t", effects=(effect,))


def listed(args: dict):
    """A list of one call with these arguments."""
    effect = SimpleNamespace(args=args, args_bytes=canonicalize(args))
    return SimpleNamespace(calls=[SimpleNamespace(effect=effect)], run_key="k", txn="t")


@pytest.mark.parametrize("judge", [False, lambda _: False, lambda _: None, lambda _: 1, lambda _: "yes"])
def test_only_true_is_a_yes(desk: Desk, judge) -> None:
    view = proposing(LESS)
    assert answers(desk, view, judge) == (view, [])


def test_each_proposal_is_passed_to_the_program_once(desk: Desk) -> None:
    seen: list[str] = []
    made, view = responder(desk, lambda one: bool(seen.append(one.proposal_id))), proposing(LESS)
    for _ in range(3):
        assert asyncio.run(made.answer(view)) is view
    assert (seen, made.concerns(view)) == (["prop_0"], False)


def test_a_proposal_closed_meanwhile_is_reloaded_and_other_refusals_raise(desk: Desk) -> None:
    assert answers(desk, proposing(LESS), code=ErrorCode.PROPOSAL_CLOSED) == ("t as it is", [])
    with pytest.raises(errors.ServiceRefused):
        answers(desk, proposing(LESS), code=ErrorCode.FROZEN)
