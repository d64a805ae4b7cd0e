"""One vote loads the transaction once and counts the votes once, and returns what a later read returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from policy_service.queries import repository
from policy_service.queries import vote_eligibility as openings
from tests.fakes.payments import gate, plain_forbid
from tests.integration.service.together.bank import Bank

pytestmark = pytest.mark.anyio

TWO = gate("two", "finance", quorum="2")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a transaction was loaded and votes were counted."""
    counted: Counter[str] = Counter()

    def counting(name: str, does: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            counted[name] += 1
            return does(*args, **named)

        return call

    monkeypatch.setattr(repository, "load", counting("load", repository.load))
    monkeypatch.setattr(openings, "tally", counting("tally", openings.tally))
    return counted


async def shown(bank: Bank, view: dict[str, Any]) -> dict[str, Any]:
    """The review as Maya's API client reads it."""
    found: dict[str, Any] = (
        await bank.maya.get(f"/v1/reviews/{view['effects'][0]['review']['review_id']}")
    ).json()
    return found


@pytest.mark.parametrize("named", [True, False], ids=["with what was shown", "without"])
@pytest.mark.parametrize(
    ("case", "verdict", "state"),
    [
        ("it settles", "approve", "met"),
        ("it waits for another", "approve", "open"),
        ("it denies", "deny", "denied"),
        ("it is late", "approve", "denied"),
        ("the policy forbids it by now", "approve", "denied"),
        ("another gate asks by now", "approve", "open"),
        ("a change was proposed", "approve", "met"),
    ],
)
async def test_a_vote_loads_and_counts_once(
    case: str, verdict: str, state: str, named: bool, bank: Bank, done: Counter[str]
) -> None:
    await bank.only(TWO if case == "it waits for another" else gate("one", "finance"))
    view = await bank.asks(10)
    if case == "it is late":
        await bank.tomas.vote(view, "deny", reason="no")
    if case == "the policy forbids it by now":
        await bank.only(gate("one", "finance"), plain_forbid("never"))
    if case == "another gate asks by now":
        await bank.only(gate("one", "finance"), gate("law", "legal"))
    if case == "a change was proposed":
        assert (await bank.tomas.propose(view, {"account": "acme", "amount": 5})).status_code == 201
    seen = {"view_digest": (await shown(bank, view))["view_digest"]} if named else {}
    done.clear()
    answer = await bank.maya.vote(view, verdict, reason="because", **seen)
    assert answer.status_code == 200
    assert (answer.json()["state"], done) == (state, {"load": 1, "tally": 1})
    assert answer.json() == await shown(bank, view)
