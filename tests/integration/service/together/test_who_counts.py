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
from tests.fakes.payments import ANYBODY, GROUPS, Payments, gate, person
from tests.fakes.world import Agent, World
from tests.integration.service.effects import pay

pytestmark = pytest.mark.anyio

STRONG = gate("strong", "finance", step_up="passkey")
WEAK = gate("weak", "finance|legal")


def voter(name: str, step_up: str | None = None) -> Voter:
    """Somebody as a channel knows them that can ask for a passkey."""
    iss, _, sub = person(name).rpartition("|")
    return Voter(iss, sub, name.title(), "oidc", step_up=step_up)


async def approve(bank: World, view: dict[str, Any], name: str, step_up: str | None = None) -> VoteResult:
    seen = view["effects"][0]
    ballot = Ballot(
        seen["review"]["review_id"],
        "approve",
        view["rev"],
        seen["effect_digest"],
        view["txn_digest"],
        None,
        "test",
    )
    return await vote(bank.service.ctx, voter(name, step_up), ballot, reviews.read_page)


async def kept(bank: World, review_id: str) -> list[tuple[str, str | None]]:
    """Who voted on a review and how strongly, in order."""
    rows = table(VoteRow).c
    query = select(rows.sub, rows.step_up).where(rows.review_id == review_id).order_by(rows.vote_id)
    return await bank.service.db.read(lambda conn: [(row.sub, row.step_up) for row in conn.execute(query)])


async def told(bank: World, name: str, review_id: str) -> tuple[list[bool], list[bool]]:
    """Which votes count: on the wire and on the page."""
    visitor = await bank.person(name)
    wire = (await visitor.get(f"/v1/reviews/{review_id}")).json()["votes"]
    page = await reviews.review_page(bank.service.ctx, voter(name), review_id)
    assert page is not None
    return [shown["counted"] for shown in wire], [shown.counted for shown in page.votes]


async def test_an_approval_must_serve_a_gate_of_its_own_person(
    bank: World, folder: Payments, robot: Agent
) -> None:
    """That a gate for others asks for no passkey is no way in."""
    folder.policies(ANYBODY + STRONG + gate("law", "legal"))
    await bank.activate()
    view = (await robot.submit(await pay(bank))).json()
    maya, ingrid = await bank.person("maya"), await bank.person("ingrid")
    answer = await maya.vote(view)
    assert (answer.status_code, answer.json()["code"]) == (403, "step_up_required")
    assert (await ingrid.vote(view)).status_code == 200
    assert await kept(bank, view["effects"][0]["review"]["review_id"]) == [("ingrid", None)]


async def test_an_approval_repeated_with_a_passkey_is_one_vote_that_counts_for_more(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.policies(ANYBODY + STRONG + WEAK)
    await bank.activate()
    view = (await robot.submit(await pay(bank))).json()
    review_id = view["effects"][0]["review"]["review_id"]
    assert (await approve(bank, view, "maya")).state == "open"
    assert (await approve(bank, view, "ingrid")).state == "open"
    assert (await approve(bank, view, "maya", "passkey")).state == "met"
    assert await kept(bank, review_id) == [("maya", "passkey"), ("ingrid", None)]
    lines = [body for kind, body in await bank.log(view["txn"]) if kind == "vote_strengthened"]
    assert [(line["step_up"], line["was"]) for line in lines] == [("passkey", None)]
    assert "vote_strengthened" in {
        kind for kind, body in await bank.log(view["txn"]) if body.get("review_id") == review_id
    }


async def test_an_approval_repeated_without_the_passkey_stays_as_strong_as_it_was(
    bank: World, folder: Payments, robot: Agent
) -> None:
    folder.policies(ANYBODY + gate("strong", "finance", step_up="passkey", quorum="2"))
    await bank.activate()
    view = (await robot.submit(await pay(bank))).json()
    await approve(bank, view, "maya", "passkey")
    await approve(bank, view, "maya", "passkey")
    assert await kept(bank, view["effects"][0]["review"]["review_id"]) == [("maya", "passkey")]
    kinds = [kind for kind, _ in await bank.log(view["txn"])]
    assert (kinds.count("vote_recorded"), kinds.count("vote_strengthened")) == (1, 0)


@pytest.mark.parametrize("verdict", ["approve", "deny"])
async def test_a_late_vote_of_somebody_who_may_not_answer_is_refused_like_an_early_one(
    bank: World, robot: Agent, verdict: str
) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    maya, ingrid = await bank.person("maya"), await bank.person("ingrid")
    early = await ingrid.vote(view, verdict, reason="not mine")
    await maya.vote(view)
    late = await ingrid.vote(view, verdict, reason="not mine")
    for answer in (early, late):
        assert (answer.status_code, answer.json()["code"]) == (403, "not_eligible")
    assert await kept(bank, view["effects"][0]["review"]["review_id"]) == [("maya", None)]


async def test_a_deny_counts_alike_wherever_it_is_shown(bank: World, folder: Payments, robot: Agent) -> None:
    """Counted while its person stands in the group, not once they have left it; a late one never."""
    view = (await robot.submit(await pay(bank, 500))).json()
    review_id = view["effects"][0]["review"]["review_id"]
    maya, tomas = await bank.person("maya"), await bank.person("tomas")
    await maya.vote(view, "deny", reason="no")
    await tomas.vote(view, "deny", reason="no, too")
    assert await told(bank, "maya", review_id) == ([True, False], [True, False])
    folder.people({**GROUPS, "finance": ("tomas",)})
    await bank.activate()
    assert await told(bank, "maya", review_id) == ([False, False], [False, False])


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (None, "ask your administrator to add you to the group"),
        ("Acme sent no claim 'groups'", "add you to the group (Acme sent no claim 'groups')"),
    ],
)
async def test_a_refused_voter_reads_why_groups_are_missing(
    bank: World, folder: Payments, robot: Agent, problem: str | None, words: str
) -> None:
    folder.policies(ANYBODY + WEAK)
    await bank.activate()
    view = (await robot.submit(await pay(bank))).json()
    seen = view["effects"][0]
    ballot = Ballot(
        seen["review"]["review_id"],
        "approve",
        view["rev"],
        seen["effect_digest"],
        view["txn_digest"],
        None,
        "test",
    )
    stranger = Voter("https://login.example", "248", "Stranger", "oidc", groups_problem=problem)
    with pytest.raises(ForbiddenError) as refused:
        await vote(bank.service.ctx, stranger, ballot, reviews.read_page)
    assert refused.value.detail.endswith(words)
