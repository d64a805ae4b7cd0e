"""What a program answers to proposals: only what its tool could be called with, once each, and never by accident."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from countersign.commit.edits import Edits, Judge
from countersign.contract.canonical import canonicalize
from countersign.contract.codes import ErrorCode
from countersign.contract.wire import EffectView, ProposalView, TransactionView
from countersign.errors import Edited, NotStageable, ServiceRefused
from tests.fakes.desk import Desk, refund_tool

LESS = {"order_id": "o-1", "amount_cents": 60_000}
STAGED = {"order_id": "o-1", "amount_cents": 90_000}


class Answered:
    """A service that takes every acceptance, or refuses it by a code."""

    def __init__(self, code: str | None = None) -> None:
        self.code = code
        self.accepted: list[str] = []

    async def accept_proposal(self, proposal_id: str) -> str:
        if self.code is not None:
            raise ServiceRefused(409, self.code, "no")
        self.accepted.append(proposal_id)
        return "the new revision"

    async def view(self, txn: str) -> str:
        return f"{txn} as it is"


def asked(*proposed: dict[str, Any], tool: str = "refund") -> TransactionView:
    """A transaction of one effect with these proposals."""
    said = {"reason": "half arrived", "person": "p", "name": "Maya"}
    proposals = [
        ProposalView.model_construct(proposal_id=f"prop_{n}", args=args, **said)
        for n, args in enumerate(proposed)
    ]
    return standing(STAGED, SimpleNamespace(proposals=proposals), tool)


def edits(desk: Desk, judge: Judge, service: Answered | None = None) -> Edits:
    engine: Any = SimpleNamespace(registry=desk.registry, service=service or Answered())
    return Edits(engine, judge)


def answers(desk: Desk, view: Any, judge: Judge = True, code: str | None = None) -> tuple[Any, list[str]]:
    """What comes of it, and what was accepted."""
    service = Answered(code)
    return asyncio.run(edits(desk, judge, service).answer(view)), service.accepted


@pytest.fixture(autouse=True)
def _refund(desk: Desk) -> None:
    refund_tool(desk)


def test_what_fits_is_accepted_of_a_tool_that_is_here(desk: Desk) -> None:
    assert answers(desk, asked(LESS)) == ("the new revision", ["prop_0"])
    view = asked(LESS, tool="another")
    assert answers(desk, view) == (view, [])


UNFIT: dict[str, dict[str, Any]] = {
    "text for a number": {**LESS, "amount_cents": "60000"},
    "one missing": {"order_id": "o-1"},
    "one too many": {**LESS, "to": "me"},
    "a fraction": {**LESS, "amount_cents": 1.5},
}


@pytest.mark.parametrize("args", UNFIT.values(), ids=UNFIT)
def test_what_does_not_fit_is_left_open(desk: Desk, args: Any, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []
    view = asked(args, LESS)
    assert answers(desk, view, lambda one: seen.append(one) or True) == ("the new revision", ["prop_1"])
    assert [one.proposal_id for one in seen] == ["prop_1"]
    assert "the change prop_0 is not taken" in caplog.text


@pytest.mark.parametrize(("judge", "told"), [(True, NotStageable), (False, Edited)])
def test_what_would_reach_the_tool_as_something_else_is_not_fired(desk: Desk, judge: bool, told: Any) -> None:
    """I-2: not even by a program that takes every change; one that takes none is told of the change."""
    made, unfit = edits(desk, judge), UNFIT["text for a number"]
    if judge:
        made.require_agreed(listed(STAGED), listed(LESS), standing(LESS))
    with pytest.raises(told) as refused:
        made.require_agreed(listed(STAGED), listed(unfit), standing(unfit))
    if isinstance(refused.value, Edited):
        assert [one.args for one in refused.value.edits] == [unfit]


def standing(args: dict[str, Any], review: Any = None, tool: str = "refund") -> TransactionView:
    """A transaction whose one effect has these arguments now."""
    effect = EffectView.model_construct(tool=tool, effect_id="e", args=args, review=review, edits=())
    return TransactionView.model_construct(txn="t", effects=(effect,))


def listed(args: dict[str, Any]) -> Any:
    """A list of one call with these arguments."""
    effect = SimpleNamespace(args=args, args_bytes=canonicalize(args))
    return SimpleNamespace(calls=[SimpleNamespace(effect=effect)], run_key="k", txn="t")


@pytest.mark.parametrize("judge", [False, lambda _: False, lambda _: None, lambda _: 1, lambda _: "yes"])
def test_only_true_is_a_yes(desk: Desk, judge: bool | Callable[[Any], Any]) -> None:
    view = asked(LESS)
    assert answers(desk, view, judge) == (view, [])


def test_whoever_answers_is_asked_once_about_each(desk: Desk) -> None:
    seen: list[str] = []
    made = edits(desk, lambda one: bool(seen.append(one.proposal_id)))
    view = asked(LESS)
    for _ in range(3):
        assert asyncio.run(made.answer(view)) is view
    assert (seen, made.concerns(view)) == (["prop_0"], False)


def test_one_that_closed_meanwhile_is_looked_at_again_and_another_refusal_is_told(desk: Desk) -> None:
    assert answers(desk, asked(LESS), code=ErrorCode.PROPOSAL_CLOSED) == ("t as it is", [])
    with pytest.raises(ServiceRefused):
        answers(desk, asked(LESS), code=ErrorCode.FROZEN)
