"""Whose vote counts for what: the domain's answer, the same for a vote in time, a late one, and every page."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from policy_service.errors import ForbiddenError
from policy_service.storage.core import table
from policy_service.storage.tables import VoteRow
from policy_service.workflow.pages import reviews
from policy_service.workflow.reading.reviews import VoteResult
from policy_service.workflow.reviews.vote import Ballot, vote
from policy_service.workflow.reviews.voter import Voter
from tests.fakes.payments import GROUPS, gate, person
from tests.integration.service.together.bank import Bank, refusal

pytestmark = pytest.mark.anyio

STRONG = gate("strong", "finance", step_up="passkey")

WEAK = gate("weak", "finance|legal")


def voter(name: str, step_up: str | None = None) -> Voter:
    """Somebody as a channel knows them that can ask for a passkey."""
    iss, _, sub = person(name).rpartition("|")
    return Voter(iss, sub, name.title(), "oidc", step_up=step_up)


def ballot(view: dict[str, Any]) -> Ballot:
    seen = view["effects"][0]
    stamp = (view["rev"], seen["effect_digest"], view["txn_digest"])
    return Ballot(seen["review"]["review_id"], "approve", *stamp, None, "test")


async def approve(bank: Bank, view: dict[str, Any], name: str, step_up: str | None = None) -> VoteResult:
    return await vote(bank.service.ctx, voter(name, step_up), ballot(view), reviews.read_page)


async def kept(bank: Bank, review_id: str) -> list[tuple[str, str | None]]:
    """Who voted on a review and how strongly, in order."""
    rows = table(VoteRow).c
    query = select(rows.sub, rows.step_up).where(rows.review_id == review_id).order_by(rows.vote_id)
    return await bank.service.db.read(lambda conn: [(row.sub, row.step_up) for row in conn.execute(query)])


async def told(bank: Bank, name: str, review_id: str) -> tuple[list[bool], list[bool]]:
    """Which votes count: on the wire and on the page."""
    visitor = await bank.person(name)
    wire = (await visitor.get(f"/v1/reviews/{review_id}")).json()["votes"]
    page = await reviews.review_page(bank.service.ctx, voter(name), review_id)
    assert page is not None
    return [shown["counted"] for shown in wire], [shown.counted for shown in page.votes]


async def test_an_approval_must_serve_a_gate_of_its_own_person(bank: Bank) -> None:
    """That a gate for others asks for no passkey is no way in."""
    await bank.only(STRONG, gate("law", "legal"))
    view = await bank.asks(10)
    assert refusal(await bank.maya.vote(view)) == (403, "step_up_required")
    assert (await bank.ingrid.vote(view)).status_code == 200
    assert await kept(bank, view["effects"][0]["review"]["review_id"]) == [("ingrid", None)]


async def test_an_approval_repeated_with_a_passkey_is_one_vote_that_counts_for_more(bank: Bank) -> None:
    await bank.only(STRONG, WEAK)
    view = await bank.asks(10)
    review_id = view["effects"][0]["review"]["review_id"]
    assert (await approve(bank, view, "maya")).state == "open"
    assert (await approve(bank, view, "ingrid")).state == "open"
    assert (await approve(bank, view, "maya", "passkey")).state == "met"
    assert await kept(bank, review_id) == [("maya", "passkey"), ("ingrid", None)]
    lines = [body for kind, body in await bank.log(view["txn"]) if kind == "vote_strengthened"]
    assert [(line["step_up"], line["was"], line["review_id"]) for line in lines] == [
        ("passkey", None, review_id)
    ]
    await bank.only(gate("strong", "finance", step_up="passkey", quorum="2"))
    view = await bank.asks(10, run_key="twice")  # repeated as strongly as before it is the same vote
    for _ in range(2):
        await approve(bank, view, "maya", "passkey")
    assert await kept(bank, view["effects"][0]["review"]["review_id"]) == [("maya", "passkey")]
    kinds = [kind for kind, _ in await bank.log(view["txn"])]
    assert (kinds.count("vote_recorded"), kinds.count("vote_strengthened")) == (1, 0)


async def test_a_late_vote_of_somebody_who_may_not_answer_is_refused_like_an_early_one(bank: Bank) -> None:
    view = await bank.asks()
    for late in (False, True):
        if late:
            await bank.maya.vote(view)
        for verdict in ("approve", "deny"):
            answer = await bank.ingrid.vote(view, verdict, reason="not mine")
            assert refusal(answer) == (403, "not_eligible")
    assert await kept(bank, view["effects"][0]["review"]["review_id"]) == [("maya", None)]


async def test_a_deny_counts_alike_wherever_it_is_shown(bank: Bank) -> None:
    """Counted while its person stands in the group, not once they have left it; a late one never."""
    view = await bank.asks()
    review_id = view["effects"][0]["review"]["review_id"]
    await bank.maya.vote(view, "deny", reason="no")
    await bank.tomas.vote(view, "deny", reason="no, too")
    assert await told(bank, "maya", review_id) == ([True, False], [True, False])
    await bank.people({**GROUPS, "finance": ("tomas",)})
    assert await told(bank, "maya", review_id) == ([False, False], [False, False])


async def test_a_refused_voter_reads_why_groups_are_missing(bank: Bank) -> None:
    await bank.only(WEAK)
    view = await bank.asks(10)
    for problem, words in (
        (None, "ask your administrator to add you to the group"),
        ("Acme sent no claim 'groups'", "add you to the group (Acme sent no claim 'groups')"),
    ):
        stranger = Voter("https://login.example", "248", "Stranger", "oidc", groups_problem=problem)
        with pytest.raises(ForbiddenError) as refused:
            await vote(bank.service.ctx, stranger, ballot(view), reviews.read_page)
        assert refused.value.detail.endswith(words)
